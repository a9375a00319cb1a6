"""The pull flow over real sockets: what each rank sees, and what the client gets when one fails."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from pdtui.proxy.settings import ProxySettings
from tests.proxy.mock_rank import (
    Rig,
    drop,
    error,
    expected,
    generate,
    hang,
    prefill,
    raw_stream,
    respond,
    rig,
)  # fmt: skip
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

PROMPT = "one two three"
BODY: dict[str, Any] = {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 5}
STREAM = BODY | {"stream": True}
CHAT: dict[str, Any] = {
    "model": "ds_r1", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "stream": True,
}  # fmt: skip
TEXT = expected(3, 5)
CHAT_PATH = "/v1/chat/completions"
FAST = ProxySettings(shutdown_s=0.05)


def assert_late_error(raw: bytes, words: str) -> None:
    """The stream ends with an error event and the usual end, not in the middle."""
    events = [block for block in raw.decode().split("\n\n") if block]
    assert events[-1] == "data: [DONE]"
    said = json.loads(events[-2].removeprefix("data: "))["error"]
    assert words in said["message"]
    assert set(said) == {"message", "type", "param", "code"}


# What goes where ----------------------------------------------------------------------------------


async def test_p_gets_one_token_to_make_and_d_the_whole_request_with_what_p_handed_over() -> None:
    body = STREAM | {
        "max_completion_tokens": 5, "stream_options": {"include_usage": True}, "stop": ["z"], "n": 1,
        "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": []},
    }  # fmt: skip
    async with rig() as it:
        reply = await it.post(body)
    assert (reply.status, reply.text) == (200, TEXT)
    (p,), (d,) = it.p[0].seen, it.d[0].seen
    assert p.body == {
        "model": "ds_r1", "prompt": PROMPT, "stop": ["z"], "n": 1,
        "stream": False, "max_tokens": 1, "min_tokens": 1, "max_completion_tokens": 1,
        "kv_transfer_params": {
            "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
            "remote_block_ids": None, "remote_host": None, "remote_port": None,
        },
    }  # fmt: skip
    assert d.body == body | {"kv_transfer_params": it.p[0].handed[0]}


async def test_max_completion_tokens_is_not_invented() -> None:
    async with rig() as it:
        await it.post({"model": "m", "prompt": PROMPT})
    assert "max_completion_tokens" not in it.p[0].seen[0].body
    assert it.p[0].seen[0].body["max_tokens"] == 1
    assert "max_tokens" not in it.d[0].seen[0].body


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"n": 2}, "n above 1"),
        ({"n": "2"}, "n above 1"),
        ({"n": 10**400}, "n above 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_completion_tokens": -1}, "max_completion_tokens must be at least 1"),
        ({"prompt": ["one", "two"]}, "several prompts"),
        ({"prompt": [[1, 2], [3]]}, "several prompts"),
        ({"prompt": None, "prompt_embeds": ["a", "b"]}, "several prompts"),
        ({"prompt_embeds": "a"}, "several prompts"),
        ({"prompt": "", "prompt_embeds": ["a"]}, "several prompts"),
        ({"use_beam_search": True}, "beam search"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens must not be above max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options need"),
    ],
)
async def test_what_would_need_several_transfers_is_refused_before_any_rank_sees_it(
    extra: dict[str, Any], words: str
) -> None:
    async with rig() as it:
        reply = await it.post(BODY | extra)
    assert reply.status == 400
    assert words in reply.json["error"]["message"]
    assert it.p[0].seen == it.d[0].seen == []


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 1}, {"n": None}, {"n": [2]}, {"prompt": ["one two three"]}, {"prompt": [1, 2, 3]}, {"best_of": 2},
        {"echo": True, "max_tokens": 0}, {"max_tokens": 1},
        {"max_tokens": 4, "min_tokens": 4}, {"max_tokens": 1, "max_completion_tokens": 9, "min_tokens": 5},
        {"stream_options": None},
    ],
)  # fmt: skip
async def test_one_sequence_is_served_however_it_is_written(extra: dict[str, Any]) -> None:
    async with rig() as it:
        reply = await it.post(BODY | extra)
    assert reply.status == 200
    assert it.d[0].seen[0].body["kv_transfer_params"] == it.p[0].handed[0]


async def test_p_is_not_asked_for_what_nobody_reads_and_no_client_smuggles_parameters_in() -> None:
    client = {"do_remote_prefill": True, "remote_block_ids": []}
    body = BODY | {
        "echo": True, "logprobs": 2, "logprob_token_ids": [5], "prompt_logprobs": 1, "kv_transfer_params": client,
        "vllm_xargs": {"kv_transfer_params": client, "other": 1},
    }  # fmt: skip
    async with rig() as it:
        assert (await it.post(body)).status == 200
    (p,), (d,) = it.p[0].seen, it.d[0].seen
    assert not p.body.keys() & {"echo", "logprobs", "logprob_token_ids", "prompt_logprobs"}
    assert p.body["vllm_xargs"] == d.body["vllm_xargs"] == {"other": 1}
    assert (d.body["echo"], d.body["logprobs"], d.body["prompt_logprobs"]) == (True, 2, 1)
    assert client not in (p.body["kv_transfer_params"], d.body["kv_transfer_params"])


async def test_a_text_that_no_encoding_can_hold_arrives_as_it_was_sent() -> None:
    async with rig() as it:
        raw = b'{"model": "m", "prompt": "a \\ud800 \\u5b57", "max_tokens": 2}'
        async with it.session.post(it.base + "/v1/completions", data=raw) as response:
            assert response.status == 200
    assert it.p[0].seen[0].body["prompt"] == it.d[0].seen[0].body["prompt"] == "a \ud800 字"


@pytest.mark.parametrize("given", [None, "client-7", "two words\t"])
async def test_one_request_id_for_both_legs_and_the_client(given: str | None) -> None:
    async with rig() as it:
        reply = await it.post(STREAM, headers={"X-Request-Id": given} if given else None)
    assert it.p[0].seen[0].id == it.d[0].seen[0].id == reply.headers["X-Request-Id"]
    assert (reply.headers["X-Request-Id"] == given) is (given == "client-7")


async def test_two_running_requests_never_share_an_id() -> None:
    async with rig() as it:
        it.p[0].script += [hang, hang]
        both = [asyncio.create_task(it.post(BODY, headers={"X-Request-Id": "same"})) for _ in range(2)]
        await eventually(lambda: len(it.p[0].seen) == 2)
        it.p[0].release.set()
        replies = await asyncio.gather(*both)
    first, second = (seen.id for seen in it.p[0].seen)
    assert first == "same"
    assert second.startswith("same-")
    assert {r.headers["X-Request-Id"] for r in replies} == {first, second}


async def test_authorization_and_trace_context_pass_and_hop_by_hop_headers_do_not() -> None:
    async with rig() as it:
        await it.post(
            BODY,
            headers={
                "Authorization": "Bearer sk-1", "traceparent": "00-1-2-01", "Connection": "close, X-Mine",
                "X-Mine": "1", "TE": "trailers", "Keep-Alive": "5", "Proxy-Authorization": "Basic x",
                "Cookie": "a=b", "Accept-Encoding": "gzip",
            },
        )  # fmt: skip
    for seen in (it.p[0].seen[0], it.d[0].seen[0]):
        headers = {name.lower(): value for name, value in seen.headers.items()}
        assert headers["authorization"] == "Bearer sk-1"
        assert headers["traceparent"] == "00-1-2-01"
        assert headers["accept-encoding"] == "identity"
        assert not {"x-mine", "te", "keep-alive", "proxy-authorization", "cookie"} & set(headers)


@pytest.mark.parametrize("path", ["/v1/completions", CHAT_PATH])
@pytest.mark.parametrize("stream", [True, False])
async def test_chat_and_completion_streamed_or_not(path: str, stream: bool) -> None:
    body = (CHAT if path == CHAT_PATH else BODY) | {"stream": stream}
    async with rig() as it:
        reply = await it.post(body, path)
        assert (reply.status, reply.text) == (200, TEXT)
        assert reply.headers["Content-Type"].startswith("text/event-stream" if stream else "application/json")
        await eventually(it.idle)


@pytest.mark.parametrize("chop", [None, 1, 7])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_events_pass_however_the_bytes_are_cut(chop: int | None, newline: str) -> None:
    async with rig() as it:
        it.d[0].always = generate(chop=chop, newline=newline)
        reply = await it.post(CHAT, CHAT_PATH)
    assert reply.text == TEXT
    assert reply.raw.decode().rstrip().endswith("data: [DONE]")


async def test_events_that_arrive_together_are_all_passed_on() -> None:
    events = b"".join(b'data: {"choices":[{"index":0,"text":" k%d"}]}\n\n' % n for n in range(3, 8))
    async with rig() as it:
        it.d[0].always = raw_stream(b": hello\n\n" + events + b": still here\n\ndata: [DO", b"NE]\n\n")
        reply = await it.post(STREAM)
    assert reply.raw == events + b": still here\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("stream", [True, False])
async def test_cached_tokens_are_ps_not_the_ones_that_d_pulled(stream: bool) -> None:
    body = BODY | {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
    async with rig() as it:
        it.p[0].always = prefill(cached=2)
        reply = await it.post(body)
    usage = (reply.events[-2] if stream else reply.json)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 5)


async def test_load_is_spread_over_prefillers_and_decoders() -> None:
    async with rig(2, 4) as it:
        for rank in it.d:
            rank.always = hang
        requests = [asyncio.create_task(it.post(STREAM)) for _ in range(8)]
        await eventually(lambda: all(d.running == 2 for d in it.d))
        assert [len(p.seen) for p in it.p] == [4, 4]
        for rank in it.d:
            rank.release.set()
        assert [reply.text for reply in await asyncio.gather(*requests)] == [TEXT] * 8
        await eventually(it.idle)


async def test_ps_share_of_the_load_ends_with_ds_first_token() -> None:
    async with rig() as it:
        it.d[0].always = generate(pause_after=2)
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: it.d[0].running)

        def load(role: str) -> int:
            return next(v.load.requests for v in it.proxy.pool.views() if v.role == role)

        await eventually(lambda: load("prefill") == 0)
        assert load("decode") == 1
        it.d[0].release.set()
        await request
        await eventually(it.idle)


# Prefill fails ------------------------------------------------------------------------------------


async def test_a_p_that_hands_over_nothing_is_an_error_and_no_silent_prefill_on_d() -> None:
    async with rig() as it:
        it.p[0].always = respond(200, json.dumps({"choices": [{"text": "x"}]}))
        reply = await it.post(STREAM)
    assert reply.status == 502
    assert "p0/0 prefilled, but answered without kv_transfer_params" in reply.json["error"]["message"]
    assert "kv_producer" in reply.json["error"]["message"]
    assert it.d[0].seen == []


@pytest.mark.parametrize("blocks", [[], [[]], [[], []], None, {}, "", [None], [{}, []]])
async def test_an_empty_block_list_never_reaches_a_decoder(blocks: Any) -> None:
    async with rig() as it:
        it.p[0].always = prefill(remote_block_ids=blocks)
        reply = await it.post(STREAM)
    assert reply.status == 502
    assert "handed over no KV blocks" in reply.json["error"]["message"]
    assert it.d[0].seen == []


async def test_ps_4xx_is_passed_on_once() -> None:
    async with rig(2, 1) as it:
        for rank in it.p:
            rank.always = respond(429, '{"error":{"message":"slow down"}}', Retry_After="7", X_Inner="1")
        reply = await it.post(STREAM)
    assert (reply.status, reply.json) == (429, {"error": {"message": "slow down"}})
    assert reply.headers["Retry-After"] == "7"
    assert "X-Inner" not in reply.headers
    assert "X-Request-Id" in reply.headers
    assert sum(len(p.seen) for p in it.p) == 1


@pytest.mark.parametrize(
    "fault", [error(500, "boom"), error(503, "boom"), drop, respond(200, "no json"), respond(302)]
)
async def test_a_failed_prefill_is_done_once_more_elsewhere_under_a_new_id(fault: Any) -> None:
    async with rig(2, 1) as it:
        it.p[0].always = fault
        reply = await it.post(STREAM)
        await eventually(it.idle)
    assert (reply.status, reply.text) == (200, TEXT)
    first, second = it.p[0].seen[0].id, it.p[1].seen[0].id
    assert (first, second) == (reply.headers["X-Request-Id"], f"{first}-2")
    assert it.d[0].seen[0].id == second


async def test_a_prefill_that_keeps_failing_is_a_502_with_the_reason() -> None:
    async with rig(3, 1) as it:
        for rank in it.p:
            rank.always = error(500, "EngineCore \x1b[31mdied")
        reply = await it.post(STREAM)
    assert reply.status == 502
    assert reply.json["error"]["message"] == "p1/0 answered 500: EngineCore died"
    assert [len(p.seen) for p in it.p] == [1, 1, 0]


async def test_a_p_that_cannot_be_connected_is_replaced_without_a_new_id() -> None:
    async with rig(2, 1) as it:
        await it.p[0].stop()
        reply = await it.post(STREAM)
    assert reply.text == TEXT
    assert it.p[1].seen[0].id == reply.headers["X-Request-Id"]


async def test_a_p_that_never_answers_is_given_up_and_told() -> None:
    clock = ManualClock()
    async with rig(2, 1, clock=clock, settings=FAST) as it:
        it.p[0].always = hang
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: it.p[0].running)
        await clock.advance(FAST.prefill_s + 1)
        assert (await request).text == TEXT
        await eventually(lambda: it.p[0].gone == 1)


# Decode fails before the first token --------------------------------------------------------------


@pytest.mark.parametrize("how", ["refused", "no way"])
async def test_a_d_that_cannot_be_connected_is_replaced_with_the_same_blocks(how: str) -> None:
    async with rig(1, 3) as it:
        for rank in it.d[:2]:
            if how == "refused":
                await rank.stop()
            else:
                it.unreachable.add(rank.name)
        reply = await it.post(STREAM)
        await eventually(it.idle)
    assert reply.text == TEXT
    assert len(it.p[0].seen) == 1
    assert it.d[2].seen[0].body["kv_transfer_params"] == it.p[0].handed[0]
    assert it.d[2].seen[0].id == reply.headers["X-Request-Id"]


async def test_a_d_that_does_not_take_the_connection_in_time_is_replaced() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # The queue of the one that nobody accepts for is full now: the next SYN stays without an answer.
        callers = [socket.socket() for _ in range(3)]
        try:
            for caller in callers:
                caller.setblocking(False)
                caller.connect_ex(deaf.getsockname())
            async with rig(1, 2, settings=ProxySettings(shutdown_s=0.05, connect_s=0.1)) as it:
                await it.d[0].stop()
                it.d[0].address = deaf.getsockname()
                reply = await it.post(STREAM)
        finally:
            for caller in callers:
                caller.close()
    assert reply.text == TEXT
    assert len(it.p[0].seen) == 1
    assert it.d[1].seen[0].id == reply.headers["X-Request-Id"]


async def test_no_d_that_can_be_connected_is_a_503_that_says_why() -> None:
    async with rig(1, 2) as it:
        for rank in it.d:
            await rank.stop()
        reply = await it.post(STREAM)
        again = await it.post(STREAM)
    assert reply.status == again.status == 503
    assert "decode/0 could not be connected: Connection refused" in reply.json["error"]["message"]
    assert int(again.headers["Retry-After"]) >= 1
    # The second time is known beforehand, and costs P nothing.
    assert len(it.p[0].seen) == 1


async def test_a_d_is_not_sent_a_pull_that_would_come_after_ps_lease() -> None:
    clock = ManualClock()
    settings = ProxySettings(shutdown_s=0.05, resolve_s=10_000)
    async with rig(1, 1, clock=clock, settings=settings) as it:
        found = asyncio.Event()
        resolve = it.resolve
        asked = 0

        async def slow(rank: str) -> tuple[str, int]:
            nonlocal asked
            if rank == "decode/0" and not found.is_set():
                asked += 1
                await found.wait()
                it.unreachable.add(rank)
            return await resolve(rank)

        it.resolve = slow  # type: ignore[method-assign]
        it.d.append(type(it.d[0])("decode/1", "decode"))
        await it.d[1].start()
        it.update()
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: asked)
        await clock.advance(475)
        found.set()
        reply = await request
    # decode/0 was found to be unreachable only when 480 s were nearly over.
    assert reply.text == TEXT
    assert len(it.p[0].seen) == 2
    (d,) = it.d[1].seen
    assert d.body["kv_transfer_params"] == it.p[0].handed[1]


@pytest.mark.parametrize("body", [STREAM, BODY])
async def test_a_d_that_takes_the_connection_and_not_the_request_is_not_sent_it_after_ps_lease(
    body: dict[str, Any],
) -> None:
    clock = ManualClock()
    async with rig(1, 2, clock=clock, settings=ProxySettings(shutdown_s=0.05, lease_s=30.0)) as it:
        it.d[0].takes.clear()
        request = asyncio.create_task(it.post(body))
        await eventually(lambda: it.d[0].announced)
        await clock.advance(20.5)  # A third of a short lease is its margin.
        reply = await request
        it.d[0].takes.set()
        await eventually(it.idle)
    assert reply.text == TEXT
    assert it.d[0].seen == []
    assert [seen.body["kv_transfer_params"] for seen in it.d[1].seen] == [it.p[0].handed[1]]


async def test_a_lease_that_no_d_took_in_time_is_a_502_that_says_so() -> None:
    clock = ManualClock()
    async with rig(1, 1, clock=clock, settings=ProxySettings(shutdown_s=0.05, lease_s=6.0)) as it:
        it.d[0].takes.clear()
        request = asyncio.create_task(it.post(BODY))
        for times in (1, 2):
            await eventually(lambda n=times: it.d[0].announced == n)  # type: ignore[misc]
            await clock.advance(4.1)
        reply = await request
        it.d[0].takes.set()
        assert (await it.post(BODY)).text == TEXT  # And nobody was put out for it.
    assert reply.status == 502
    assert "p0/0 does not keep the KV cache long enough to reach a decoder" in reply.json["error"]["message"]


async def test_a_lease_that_d_renews_ends_no_request_that_waits_in_its_queue() -> None:
    clock = ManualClock()
    settings = ProxySettings(shutdown_s=0.05, lease_s=30.0, lease_renewed=True)
    async with rig(1, 1, clock=clock, settings=settings) as it:
        it.d[0].always = hang
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: it.d[0].running)
        await clock.advance(200)
        it.d[0].release.set()
        assert (await request).text == TEXT
    assert len(it.p[0].seen) == 1


@pytest.mark.parametrize(("left", "status"), [(60.0, 200), (5.0, 502), (-1.0, 502)])
async def test_an_expiry_that_p_states_as_a_time_of_day_is_the_lease(left: float, status: int) -> None:
    clock = ManualClock()
    async with rig(1, 1, clock=clock, settings=FAST) as it:
        it.p[0].always = prefill(remote_blocks_expiry_time=clock.wall() + left)
        reply = await it.post(STREAM)
    assert reply.status == status
    assert len(it.d[0].seen) == (status == 200)
    if status != 200:
        assert "p0/0 does not keep the KV cache long enough" in reply.json["error"]["message"]


@pytest.mark.parametrize("expiry", [None, 8123.5, "soon", 10**400, True])
async def test_an_expiry_on_some_other_clock_is_no_reason_to_refuse(expiry: Any) -> None:
    async with rig() as it:
        it.p[0].always = prefill(remote_blocks_expiry_time=expiry)
        assert (await it.post(STREAM)).text == TEXT


async def test_a_d_without_a_token_at_the_end_of_the_lease_is_stopped() -> None:
    clock = ManualClock()
    settings = ProxySettings(shutdown_s=0.05, lease_s=30.0)
    async with rig(1, 2, clock=clock, settings=settings) as it:
        it.d[0].always = hang
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: it.d[0].running)
        await clock.advance(31)
        assert (await request).text == TEXT
        await eventually(lambda: it.d[0].gone == 1)
    assert len(it.p[0].seen) == 2
    assert it.d[1].seen[0].body["kv_transfer_params"] == it.p[0].handed[1]


@pytest.mark.parametrize(
    "fault",
    [
        error(500, "no KV"), drop, generate(die_after=0), generate(end_after=0, head_first=True),
        generate(error_after=0), generate(keepalive=True, die_after=0), respond(200, "no json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chat", [False, True])
async def test_a_d_that_fails_before_its_first_token_means_a_new_prefill_under_a_new_id(
    fault: Any, chat: bool
) -> None:
    async with rig(1, 2) as it:
        it.d[0].always = fault
        reply = await (it.post(CHAT, CHAT_PATH) if chat else it.post(STREAM))
        await eventually(it.idle)
    assert (reply.status, reply.text) == (200, TEXT)
    # The client sees one answer, without what the first decoder had begun.
    assert reply.raw.count(b'"role"') == chat
    rid = reply.headers["X-Request-Id"]
    assert [seen.id for seen in it.p[0].seen] == [rid, f"{rid}-2"]
    assert it.d[1].seen[0].id == f"{rid}-2"
    assert it.d[1].seen[0].body["kv_transfer_params"] == it.p[0].handed[1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", [error(500, "no KV"), drop])
async def test_no_head_goes_out_before_d_has_answered(fault: Any, stream: bool) -> None:
    async with rig(1, 2) as it:
        for rank in it.d:
            rank.always = fault
        reply = await it.post(BODY | {"stream": stream})
    assert reply.status == 502
    assert reply.json["error"]["type"] == "BadGateway"
    assert "decode/1" in reply.json["error"]["message"]
    assert reply.headers["Content-Type"].startswith("application/json")


async def test_ds_4xx_is_passed_on_once() -> None:
    async with rig(1, 2) as it:
        it.d[0].always = error(400, "too long")
        reply = await it.post(STREAM)
    assert (reply.status, reply.json["error"]["message"]) == (400, "too long")
    assert (len(it.p[0].seen), len(it.d[1].seen)) == (1, 0)


async def test_an_error_event_of_the_4xx_kind_before_any_token_becomes_that_status() -> None:
    async with rig(1, 2) as it:
        it.d[0].always = generate(error_after=0, error_code=400)
        reply = await it.post(STREAM)
    assert (reply.status, reply.json["error"]["message"]) == (400, "engine died")


async def test_a_d_that_never_answers_ends_in_a_504() -> None:
    clock = ManualClock()
    async with rig(1, 1, clock=clock, settings=FAST) as it:
        it.d[0].always = hang
        request = asyncio.create_task(it.post(STREAM))
        for served in (1, 2):
            await eventually(lambda n=served: len(it.d[0].seen) == n)  # type: ignore[misc]
            await clock.advance(FAST.first_token_s + 1)
        reply = await request
    assert reply.status == 504
    assert "decode/0 did not answer within 300 s" in reply.json["error"]["message"]


# Decode fails after the first token ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [generate(die_after=2), generate(end_after=2)])
async def test_a_late_failure_is_an_error_event_and_nothing_is_tried_again(fault: Any) -> None:
    async with rig(1, 2) as it:
        it.d[0].always = fault
        reply = await it.post(STREAM)
        await eventually(it.idle)
    assert reply.status == 200
    assert reply.raw.startswith(b"data: ")
    assert_late_error(reply.raw, "decode/0")
    assert " k3" in reply.raw.decode()
    assert (len(it.p[0].seen), len(it.d[1].seen)) == (1, 0)


async def test_ds_own_late_error_event_is_passed_on() -> None:
    async with rig() as it:
        it.d[0].always = generate(error_after=2)
        reply = await it.post(STREAM)
        trace = it.proxy.trace(reply.headers["X-Request-Id"])
    assert_late_error(reply.raw, "engine died")
    assert reply.raw.count(b"[DONE]") == 1
    assert trace is not None
    assert (trace.outcome, trace.error) == ("failed", "decode/0: engine died")


async def test_a_d_that_falls_silent_is_an_error_event() -> None:
    clock = ManualClock()
    async with rig(1, 1, clock=clock, settings=FAST) as it:
        it.d[0].always = generate(pause_after=2)
        async with it.session.post(it.base + "/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"k4")
            # The proxy waits for the next piece now.
            await clock.advance(1)
            await clock.advance(FAST.idle_s)
            assert_late_error(b"data: {}\n\n" + await response.read(), "decode/0 was silent for 120 s")
        await eventually(lambda: it.d[0].gone == 1)
        await eventually(it.idle)


async def test_a_broken_off_answer_in_one_piece_is_a_502() -> None:
    async with rig() as it:
        it.d[0].always = generate(die_after=0)
        reply = await it.post(BODY)
    assert reply.status == 502
    assert "decode/0 broke off before it answered" in reply.json["error"]["message"]


# Clients that leave -------------------------------------------------------------------------------


async def leave(it: Rig, body: dict[str, Any], when: Any) -> None:
    """Send a request and close the connection once `when` holds."""
    request = asyncio.create_task(it.post(body))
    await eventually(when)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_a_client_that_leaves_during_prefill_cancels_it() -> None:
    async with rig() as it:
        it.p[0].always = hang
        await leave(it, STREAM, lambda: it.p[0].running)
        await eventually(lambda: it.p[0].gone == 1)
        await eventually(it.idle)
    assert it.d[0].seen == []


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_client_that_leaves_while_d_is_silent_cancels_it(body: dict[str, Any]) -> None:
    async with rig() as it:
        it.d[0].always = hang
        await leave(it, body, lambda: it.d[0].running)
        await eventually(lambda: it.d[0].gone == 1)
        await eventually(it.idle)
        (trace,) = list(it.proxy.traces)
        assert trace.outcome == "client_gone"


async def test_a_client_that_leaves_in_the_middle_of_its_answer_cancels_d() -> None:
    async with rig() as it:
        it.d[0].always = generate(pause_after=2)
        async with it.session.post(it.base + "/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"k4")
            response.close()
        await eventually(lambda: it.d[0].gone == 1)
        await eventually(it.idle)


# Ranks that are out -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_no_usable_rank_of_a_role_is_a_503_at_once(role: str) -> None:
    async with rig(2, 2) as it:
        it.update(lambda rank: rank.role != role)
        reply = await it.post(STREAM)
    assert reply.status == 503
    assert reply.headers["Retry-After"] == "5"
    assert f"no {role} rank is usable: 0 of 2 ready" in reply.json["error"]["message"]
    assert all(rank.seen == [] for rank in it.ranks)


async def test_an_ejected_decoder_is_probed_and_comes_back() -> None:
    clock = ManualClock()
    async with rig(1, 1, clock=clock, settings=FAST) as it:
        it.d[0].always = error(500, "sick")
        it.d[0].health = 503
        for _ in range(2):
            await it.post(STREAM)
        assert (await it.post(STREAM)).status == 503
        served = len(it.d[0].seen)
        await clock.advance(1)
        await eventually(lambda: it.d[0].probes == 1)
        await eventually(lambda: any("/health" in view.reason for view in it.proxy.pool.views()))
        assert (await it.post(STREAM)).status == 503
        assert len(it.d[0].seen) == served
        it.d[0].health, it.d[0].always = 200, generate()
        await clock.advance(2)
        await eventually(lambda: it.proxy.pool.usable("decode"))
        assert (await it.post(STREAM)).text == TEXT
