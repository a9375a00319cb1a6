"""Test completions through the embedded proxy, and its beginning and end."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from pdtui.errors import ProxyError
from pdtui.proxy.embedded import EmbeddedProxy
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.proxy.settings import ProxySettings
from tests.proxy.mock_rank import drop, error, expected, generate, hang, raw_stream, respond, rig
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

ASK = Ask("one two three", max_tokens=5)


async def test_an_answer_grows_and_ends_with_who_served_it_and_how_fast() -> None:
    steps: list[AskProgress] = []
    async with rig(2, 2) as it:
        it.d[0].always = generate(pause_after=2)
        asking = asyncio.create_task(it.proxy.ask(ASK, steps.append))
        await eventually(lambda: steps and steps[-1].text == expected(3, 2))
        assert not steps[-1].done
        assert (steps[-1].prefill, steps[-1].decode, steps[-1].tokens) == ("p0/0", "decode/0", 2)
        it.d[0].release.set()
        last = await asking
    assert last == steps[-1]
    assert [s.done for s in steps].count(True) == 1
    assert (last.text, last.error, last.status, last.finish_reason) == (expected(3, 5), "", 200, "length")
    assert last.tokens == 5
    assert last.usage["prompt_tokens"] == 3
    assert last.ttft_s is not None
    assert last.prefill_s is not None
    assert last.transfer_s is not None
    assert last.queue_s is not None
    assert last.ttft_s >= last.queue_s + last.prefill_s + last.transfer_s
    assert last.tokens_per_s is not None
    assert last.tokens_per_s > 0
    assert it.p[0].seen[0].body["messages"] == [{"role": "user", "content": "one two three"}]
    assert it.p[0].seen[0].body["model"] == "ds_r1"
    assert it.p[0].seen[0].id == last.request_id


async def test_a_long_prefill_shows_where_it_runs() -> None:
    steps: list[AskProgress] = []
    async with rig(2, 1) as it:
        it.p[0].always = hang
        asking = asyncio.create_task(it.proxy.ask(ASK, steps.append))
        await eventually(lambda: it.p[0].running)
        assert [(s.prefill, s.decode, s.status, s.done) for s in steps] == [("p0/0", "", None, False)]
        it.p[0].release.set()
        await asking
    assert ("decode/0", None) in [(s.decode, s.status) for s in steps]


async def test_durations_are_the_clocks() -> None:
    clock = ManualClock()
    async with rig(clock=clock) as it:
        it.p[0].always = hang
        it.d[0].always = generate(pause_after=1)
        steps: list[AskProgress] = []
        asking = asyncio.create_task(it.proxy.ask(ASK, steps.append))
        await eventually(lambda: it.p[0].running)
        await clock.advance(3)
        it.p[0].release.set()
        await eventually(lambda: steps and steps[-1].text)
        await clock.advance(2)
        it.d[0].release.set()
        last = await asking
    assert (last.queue_s, last.prefill_s, last.transfer_s, last.ttft_s) == (0, 3, 0, 3)
    assert last.tokens_per_s == pytest.approx(2)


async def test_an_answer_that_comes_in_one_burst_has_no_rate() -> None:
    clock = ManualClock()
    async with rig(clock=clock) as it:
        it.d[0].always = generate(pause_after=1)
        steps: list[AskProgress] = []
        asking = asyncio.create_task(it.proxy.ask(ASK, steps.append))
        await eventually(lambda: steps and steps[-1].text)
        await clock.advance(0.002)
        it.d[0].release.set()
        last = await asking
    assert (last.tokens, last.tokens_per_s) == (5, None)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chat", [True, False])
async def test_chat_or_completion_streamed_or_not(stream: bool, chat: bool) -> None:
    async with rig() as it:
        ask = Ask("one two three", model="other", max_tokens=4, temperature=0.5, chat=chat, stream=stream)
        last = await it.proxy.ask(ask, lambda progress: None)
    assert (last.text, last.tokens, last.done, last.error) == (expected(3, 4), 4, True, "")
    sent = it.p[0].seen[0]
    assert sent.path == ("/v1/chat/completions" if chat else "/v1/completions")
    assert (sent.body["model"], sent.body["temperature"]) == ("other", 0.5)
    assert (last.ttft_s is not None) is stream


async def test_messages_take_the_place_of_the_prompt() -> None:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "a b"})
    async with rig() as it:
        last = await it.proxy.ask(Ask("", chat=False, max_tokens=1, messages=messages), lambda progress: None)
    assert last.text == expected(4, 1)
    assert it.p[0].seen[0].body["messages"] == list(messages)


async def test_what_a_model_says_cannot_touch_the_terminal() -> None:
    pieces = [
        b'data: {"choices":[{"index":0,"text":"a\\u001b"}]}\n\n',
        b'data: {"choices":[{"index":0,"text":"[31mb\\u202ec\\u0007 [b]x[/b]",',
        b'"finish_reason":"\\u001b[0mstop"}]}\n\n',
        b"data: [DONE]\n\n",
    ]
    async with rig() as it:
        it.d[0].always = raw_stream(*pieces)
        last = await it.proxy.ask(Ask("x", chat=False), lambda progress: None)
    # Also a sequence that two chunks make together.
    assert (last.text, last.finish_reason) == ("abc [b]x[/b]", "stop")


async def test_what_was_shown_of_an_answer_is_never_taken_back() -> None:
    steps: list[AskProgress] = []
    text = "a\x1b[31mred\x1b[0m \x1b]0;title\x07 字 \x1b"
    chunks = [json.dumps({"choices": [{"index": 0, "text": letter}]}) for letter in text]
    async with rig() as it:
        it.d[0].always = raw_stream(*(f"data: {chunk}\n\n".encode() for chunk in chunks), b"data: [DONE]\n\n")
        last = await it.proxy.ask(Ask("x", chat=False), steps.append)
    assert last.text == "ared  字 "
    assert all(after.text.startswith(before.text) for before, after in pairwise(steps))


async def test_thoughts_are_shown_before_the_answer() -> None:
    async with rig() as it:
        it.d[0].always = raw_stream(
            b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm "}}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{"content":"yes"}}]}\n\ndata: [DONE]\n\n'
        )
        last = await it.proxy.ask(ASK, lambda progress: None)
    assert (last.text, last.tokens) == ("hm yes", 2)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (error(400, "max_tokens is too large\x1b[2J"), 400, "max_tokens is too large"),
        (respond(401, "who are you?", "text/plain"), 401, "who are you?"),
        (respond(404), 404, "HTTP 404 without a word"),
        (error(500, "EngineCore died"), 502, "decode/0 answered 500: EngineCore died"),
        (drop, 502, "decode/0 broke off before it answered"),
        (generate(die_after=2), 200, "decode/0 broke off its answer"),
        (generate(error_after=2), 200, "engine died"),
    ],
)
async def test_failures_are_told_in_words(fault: Any, status: int, words: str) -> None:
    async with rig() as it:
        it.d[0].always = fault
        last = await it.proxy.ask(ASK, lambda progress: None)
    assert last.done
    assert last.status == status
    assert words in last.error
    assert "\x1b" not in last.error
    assert (last.prefill, last.decode) == ("p0/0", "decode/0")
    assert last.text == (expected(3, 2) if status == 200 else "")


async def test_a_cluster_that_cannot_serve_says_so() -> None:
    async with rig(1, 3) as it:
        it.update(lambda rank: rank.role == "prefill")
        last = await it.proxy.ask(ASK, lambda progress: None)
    assert (last.status, last.error) == (503, "no decode rank is usable: 0 of 3 ready")


async def test_a_rank_without_a_way_to_it_is_named_with_the_reason() -> None:
    async with rig() as it:
        it.unreachable.add("p0/0")
        last = await it.proxy.ask(ASK, lambda progress: None)
    assert last.status == 503
    assert "p0/0 could not be connected: node3: no route to host" in last.error


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_cancelling_an_ask_cancels_both_legs(leg: str) -> None:
    async with rig() as it:
        rank = it.p[0] if leg == "prefill" else it.d[0]
        rank.always = hang
        asking = asyncio.create_task(it.proxy.ask(ASK, lambda progress: None))
        await eventually(lambda: rank.running)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: rank.gone == 1)
        await eventually(it.idle)


async def test_it_listens_on_loopback_and_ignores_proxies_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with rig() as it:
        assert it.base.startswith("http://127.0.0.1:")
        assert (await it.proxy.ask(ASK, lambda progress: None)).text == expected(3, 5)


async def test_closing_ends_what_runs_and_answers_nothing_more() -> None:
    async with rig() as it:
        it.d[0].always = generate(pause_after=2)
        asking = asyncio.create_task(it.proxy.ask(ASK, lambda progress: None))
        await eventually(lambda: it.d[0].running)
        await it.proxy.close()
        last = await asking
        assert last.done
        assert last.error
        await eventually(lambda: it.d[0].gone == 1)
        await eventually(it.idle)
        with pytest.raises(ProxyError, match="does not run"):
            await it.proxy.ask(ASK, lambda progress: None)


async def test_closing_lets_a_request_of_a_moment_finish() -> None:
    async with rig(settings=ProxySettings(shutdown_s=20)) as it:
        it.d[0].always = generate(pause_after=2)
        request = asyncio.create_task(it.post({"model": "m", "prompt": "a", "max_tokens": 4, "stream": True}))
        await eventually(lambda: it.d[0].running)
        closing = asyncio.create_task(it.proxy.close())
        await asyncio.sleep(0.01)
        it.d[0].release.set()
        assert (await request).text == expected(1, 4)
        await closing


async def test_it_can_be_closed_without_having_been_started() -> None:
    async def nowhere(rank: str) -> tuple[str, int]:
        raise AssertionError(rank)

    proxy = EmbeddedProxy(served_name="m", resolver=nowhere, clock=ManualClock())
    with pytest.raises(ProxyError):
        await proxy.ask(ASK, lambda progress: None)
    await proxy.close()


@pytest.mark.parametrize("key", ["", "s3cret"])
async def test_a_key_goes_to_the_ranks_and_its_lack_is_said(key: str) -> None:
    async with rig(1, 1, key=key) as it:
        last = await it.proxy.ask(ASK, lambda _: None)
        assert last.error == ""
        sent = {rank.seen[0].headers.get("Authorization") for rank in it.ranks}
        assert sent == {f"Bearer {key}" if key else None}
        it.p[0].always = respond(401, json.dumps({"error": "Unauthorized"}))
        refused = await it.proxy.ask(ASK, lambda _: None)
    assert refused.error.endswith("(HTTP 401)")
    assert "VLLM_API_KEY" in refused.error
    assert "s3cret" not in refused.error
