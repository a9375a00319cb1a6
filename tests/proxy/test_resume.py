"""Answers that D drops for lack of memory («recomputed») go on as if nothing had happened, or fail in words."""

from __future__ import annotations

from typing import Any

import pytest

from pdtui.proxy.settings import ProxySettings
from tests.proxy.mock_rank import drop, error, expected, generate, rig
from tests.proxy.test_pull import BODY, CHAT, CHAT_PATH, PROMPT, STREAM, assert_late_error
from tests.support.waiting import eventually

USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completion_goes_on_where_it_was_dropped(stream: bool) -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2), generate(recompute_after=2)]
        reply = await it.post(BODY | {"max_tokens": 7, "stream": stream} | (USAGE if stream else {}))
        await eventually(it.idle)
        rid = reply.headers["X-Request-Id"]
        trace = it.proxy.trace(rid)
    assert (reply.status, reply.text) == (200, expected(3, 7))
    # Each leg has a prefill of its own, with the text so far and what is left of the limit.
    assert [s.body["prompt"] for s in it.p[0].seen] == [
        PROMPT, PROMPT + expected(3, 2), PROMPT + expected(3, 4),
    ]  # fmt: skip
    assert [s.id for s in it.p[0].seen] == [rid, f"{rid}-2", f"{rid}-3"]
    legs = it.d[0].seen
    assert [s.body["max_tokens"] for s in legs] == [7, 5, 3]
    assert [s.body["kv_transfer_params"] for s in legs] == it.p[0].handed
    usage = (reply.events[-2] if stream else reply.json)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 7, 10)
    if stream:
        assert {e["id"] for e in reply.events[:-1]} == {f"cmpl-{rid}"}
        assert reply.raw.count(b"[DONE]") == 1
    assert b"recomputed" not in reply.raw
    assert trace is not None
    assert (trace.outcome, trace.recomputes, trace.tokens) == ("ok", 2, 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_goes_on_as_its_own_last_message(stream: bool) -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2), generate(recompute_after=1)]
        body = CHAT | {"max_completion_tokens": 6, "max_tokens": 6, "stream": stream}
        reply = await it.post(body, CHAT_PATH)
    assert (reply.status, reply.text) == (200, expected(3, 6))
    assert reply.raw.count(b'"role"') == 1
    last = it.d[0].seen[2].body
    assert last["messages"] == [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": expected(3, 3)},
    ]
    assert (last["continue_final_message"], last["add_generation_prompt"]) == (True, False)
    assert (last["max_completion_tokens"], last["max_tokens"]) == (3, 3)


async def test_a_message_that_the_client_had_begun_is_continued_in_place() -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=1)]
        begun = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
        body = CHAT | {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
        reply = await it.post(body, CHAT_PATH)
    assert reply.text == expected(3, 5)
    assert it.d[0].seen[1].body["messages"] == [begun[0], {"role": "assistant", "content": "c k3"}]


async def test_a_request_dropped_before_any_text_is_simply_sent_again() -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=0)]
        reply = await it.post(STREAM)
    assert reply.text == expected(3, 5)
    assert [s.body["prompt"] for s in it.p[0].seen] == [PROMPT, PROMPT]


async def test_the_default_limit_of_a_completion_is_kept() -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=6)]
        reply = await it.post({"model": "m", "prompt": PROMPT, "stream": True})
    assert reply.text == expected(3, 16)
    assert it.d[0].seen[1].body["max_tokens"] == 10


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"prompt": [1, 2, 3]}, "its prompt is not one text"),
        ({"response_format": {"type": "json_object"}}, "bound to a grammar"),
        ({"tools": [{"type": "function"}]}, "to tools"),
    ],
)
async def test_what_cannot_be_resumed_is_a_clear_error(extra: dict[str, Any], words: str) -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2)]
        reply = await it.post(STREAM | extra)
        await eventually(it.idle)
    assert_late_error(reply.raw, "cannot resume: ")
    assert words in reply.raw.decode()
    assert len(it.p[0].seen) == 1


async def test_hidden_parts_of_an_answer_cannot_be_resumed() -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2, delta={"reasoning_content": "hm"})]
        reply = await it.post(CHAT, CHAT_PATH)
    assert_late_error(reply.raw, "parts other than text")


async def test_a_dropped_answer_in_one_piece_that_cannot_be_resumed_is_a_502() -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2)]
        reply = await it.post(BODY | {"logprobs": 1})
    assert reply.status == 502
    assert "log probabilities" in reply.json["error"]["message"]


@pytest.mark.parametrize("fault", [error(500, "boom"), error(400, "too long"), drop])
async def test_a_failure_while_resuming_is_an_error_event(fault: Any) -> None:
    async with rig() as it:
        it.d[0].script += [generate(recompute_after=2)]
        it.p[0].script += [it.p[0].always, fault]
        reply = await it.post(STREAM)
        await eventually(it.idle)
    assert_late_error(reply.raw, "p0/0")
    assert len(it.p[0].seen) == 2


async def test_an_answer_that_is_dropped_again_and_again_ends() -> None:
    async with rig(settings=ProxySettings(shutdown_s=0.05, recomputes=3)) as it:
        it.d[0].always = generate(recompute_after=0)
        reply = await it.post(STREAM)
    assert reply.status == 502
    assert "dropped this request again and again" in reply.json["error"]["message"]
    assert len(it.p[0].seen) == 4
