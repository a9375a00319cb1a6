"""Servers that answer anything at all: the proxy and the client stay whole."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.proxy import openai
from pdtui.proxy.errors import CannotResume, HandoverMissing, UpstreamLost
from pdtui.proxy.flows.pull_body import read_handover
from pdtui.proxy.flows.resume import Resume
from pdtui.proxy.interface import Ask
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.sse import encode
from tests.proxy.mock_rank import Behaviour, raw_stream, rig

SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
ANY = st.recursive(SCALAR, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(st.text(max_size=5), v)))
KEYS = (
    "choices", "delta", "message", "content", "text", "role", "finish_reason", "stop_reason", "usage", "error",
    "completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "code", "object", "index",
    "kv_transfer_params", "remote_block_ids", "remote_blocks_expiry_time",
)  # fmt: skip
SHAPED = st.recursive(
    st.one_of(SCALAR, st.just("recomputed")),
    lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(st.sampled_from(KEYS), v, max_size=5)),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from(KEYS), st.one_of(SHAPED, ANY), max_size=6)


@settings(max_examples=60)
@given(OBJECT)
def test_whatever_p_answers_is_a_handover_or_an_error_in_words(answer: dict[str, Any]) -> None:
    with suppress(UpstreamLost, HandoverMissing):
        handover = read_handover("p", json.dumps(answer).encode(), ProxySettings(), monotonic=5.0, wall=2e9)
        assert handover.params == answer["kv_transfer_params"]


@settings(max_examples=60)
@given(st.lists(OBJECT, max_size=5), st.sampled_from([openai.CHAT, openai.COMPLETIONS]))
def test_whatever_d_says_can_be_noted_and_patched(values: list[dict[str, Any]], path: str) -> None:
    resume = Resume(path, {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True})
    for value in values:
        openai.is_opening(value)
        openai.error_of(value)
        openai.with_cached_tokens(value, 3)
        resume.note_chunk(value)
        resume.note_prefill(openai.count_of(openai.usage_of(value), "prompt_tokens"))
        with suppress(CannotResume):
            resume.next_body(value)
        resume.budget({"max_tokens": 5})
        resume.patch_chunk(value)
        resume.patch_whole(value)
        json.dumps(value)


async def _ends_well(behaviour: Behaviour) -> None:
    async with rig() as it:
        it.d[0].always = behaviour
        last = await it.proxy.ask(Ask("x", max_tokens=2), lambda progress: None)
        assert last.done
        assert last.status in (200, 400, 502) or last.error
        last.text.encode()
        last.error.encode()
        assert it.idle()


async def test_streams_of_any_json_reach_the_client_or_end_in_an_error() -> None:
    samples: list[Any] = [
        [], "x", 7, None, {"choices": 1}, {"choices": [1]}, {"choices": [{"delta": "x"}]},
        {"choices": [{"text": ["x"]}]}, {"choices": [{"delta": {"content": {"a": 1}}}], "usage": 3},
        {"error": 1}, {"error": None}, {"object": "error"}, {"error": {"code": "429", "message": 3}},
        {"choices": [{"index": 0, "text": "\\ud800"}]}, {"usage": {"completion_tokens": "many"}},
    ]  # fmt: skip
    for sample in samples:
        raw = json.dumps(sample).replace("\\\\ud800", "\\ud800")
        await _ends_well(raw_stream(encode(raw), encode("[DONE]")))
