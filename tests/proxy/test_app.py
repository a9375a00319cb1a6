"""Routes, errors in OpenAI's shape, health, models, metrics, traces."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from pdtui.proxy import openai
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.sink import ResponseSink
from tests.proxy.mock_rank import Reply, Rig, error, generate, hang, rig
from tests.proxy.test_pull import BODY, STREAM, TEXT, assert_late_error
from tests.support.waiting import eventually


async def get(it: Rig, path: str, method: str = "GET") -> Reply:
    async with it.session.request(method, it.base + path) as response:
        return Reply(response.status, response.headers, await response.read())


def assert_openai_error(reply: Reply, status: int, words: str) -> None:
    assert reply.status == status
    assert reply.headers["Content-Type"].startswith("application/json")
    said = reply.json["error"]
    assert set(said) == {"message", "type", "param", "code"}
    assert said["code"] == status
    assert words in said["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/", 404, "GET /"),
        ("GET", "/v1/nothing", 404, "Not Found"),
        ("GET", "/v1/completions", 405, "Method Not Allowed"),
        ("POST", "/v1/embeddings", 501, "cannot be split into prefill and decode"),
        ("POST", "/v1/responses", 501, "/v1/responses"),
        ("POST", "/v1/metaserver", 501, "/v1/metaserver"),
    ],
)
async def test_paths_that_are_not_served(method: str, path: str, status: int, words: str) -> None:
    async with rig() as it:
        assert_openai_error(await get(it, path, method), status, words)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": ' + b"9" * 5000 + b"}"],
)
async def test_a_body_that_is_no_request_is_a_400_and_reaches_no_rank(raw: bytes) -> None:
    async with rig() as it:
        async with it.session.post(it.base + "/v1/completions", data=raw) as response:
            reply = Reply(response.status, response.headers, await response.read())
        assert_openai_error(reply, 400, "the body")
        assert "X-Request-Id" in reply.headers
        assert all(rank.seen == [] for rank in it.ranks)


async def test_a_body_that_is_not_packed_as_its_head_says_is_a_400_and_no_failure_of_the_proxy() -> None:
    async with rig() as it:
        url, headers = it.base + "/v1/completions", {"Content-Encoding": "gzip"}
        async with it.session.post(url, data=b'{"prompt": "x"}', headers=headers) as response:
            status, words = response.status, (await response.json())["error"]["message"]
        assert it.p[0].seen == []
        assert it.idle()
    assert (status, "gzip" in words) == (400, True), words


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with rig(settings=ProxySettings(shutdown_s=0.05, body_limit=10_000)) as it:
        assert (await it.post(BODY | {"prompt": "x " * 4000})).status == 200
        assert_openai_error(await it.post(BODY | {"prompt": "x " * 6000}), 413, "10000 bytes")


async def test_an_answer_over_the_limit_is_a_502_and_not_memory() -> None:
    async with rig(settings=ProxySettings(shutdown_s=0.05, answer_limit=2000)) as it:
        reply = await it.post(BODY | {"max_tokens": 1000})
    assert_openai_error(reply, 502, "more than 2000 bytes")


async def test_health_tells_what_could_be_served_now() -> None:
    async with rig(2, 2) as it:
        good = await get(it, "/health")
        assert (good.status, good.json["status"]) == (200, "ok")
        assert good.json["decode"] == {"usable": 2, "total": 2, "out": {}}
        it.update(lambda rank: rank.name != "p0/0")
        assert (await get(it, "/health")).json["prefill"] == {
            "usable": 1,
            "total": 2,
            "out": {"p0/0": "not ready"},
        }
        it.update(lambda rank: rank.role == "prefill")
        bad = await get(it, "/health")
        assert (bad.status, bad.json["status"]) == (503, "unavailable")


async def test_health_knows_of_a_decoder_that_cannot_be_connected() -> None:
    async with rig(1, 1) as it:
        await it.d[0].stop()
        await it.post(STREAM)
        bad = await get(it, "/health")
    assert bad.status == 503
    assert "could not be connected" in bad.json["decode"]["out"]["decode/0"]


async def test_models_come_from_a_decoder_else_from_the_file() -> None:
    async with rig() as it:
        assert (await get(it, "/v1/models")).json["data"][0]["max_model_len"] == 40000
        for rank in it.ranks:
            rank.models_status = 500
        assert [m["id"] for m in (await get(it, "/v1/models")).json["data"]] == ["ds_r1"]
        it.update(lambda rank: False)
        assert [m["id"] for m in (await get(it, "/v1/models")).json["data"]] == ["ds_r1"]


async def test_metrics_count_what_happened_in_a_registry_of_their_own() -> None:
    async with rig(1, 2) as it:
        await it.post(STREAM)
        it.p[0].script += [error(400, "no")]
        await it.post(STREAM)
        it.d[0].always = hang
        request = asyncio.create_task(it.post(STREAM))
        await eventually(lambda: it.d[0].running)
        page = (await get(it, "/metrics")).raw.decode()
        it.d[0].release.set()
        await request
    values: dict[tuple[str, tuple[str, ...]], float] = {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert values["pdtui_proxy_requests_total", ("/v1/completions", "ok")] == 1
    assert values["pdtui_proxy_requests_total", ("/v1/completions", "refused")] == 1
    assert values["pdtui_proxy_tokens_total", ()] == 5
    assert values["pdtui_proxy_first_token_seconds_count", ()] == 1
    assert values["pdtui_proxy_requests_running", ()] == 1
    assert values["pdtui_proxy_backend_requests", ("decode", "decode/0")] == 1
    assert values["pdtui_proxy_backend_usable", ("decode", "decode/1")] == 1
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("pdtui")]


async def test_a_trace_says_who_served_a_request_and_how_long_each_leg_took() -> None:
    async with rig(2, 2) as it:
        it.p[0].always = error(500, "sick")
        reply = await it.post(STREAM, headers={"X-Request-Id": "r1"})
        assert reply.text == TEXT
        trace = it.proxy.trace("r1")
    assert trace is not None
    assert [(a.id, a.prefill, a.decode) for a in trace.attempts] == [
        ("r1", "p0/0", ""),
        ("r1-2", "p1/0", "decode/0"),
    ]
    assert trace.attempts[0].error == "p0/0 answered 500: sick"
    assert (trace.outcome, trace.status, trace.tokens) == ("ok", 200, 5)
    spans = (trace.queue_s, trace.prefill_s, trace.transfer_s, trace.ttft_s, trace.total_s)
    assert all(span is not None and 0 <= span < 30 for span in spans)
    assert trace.ttft_s is not None
    assert trace.total_s is not None
    assert trace.ttft_s <= trace.total_s


async def test_only_the_last_requests_are_remembered() -> None:
    async with rig(settings=ProxySettings(shutdown_s=0.05, traces=3)) as it:
        for n in range(5):
            await it.post(STREAM, headers={"X-Request-Id": f"r{n}"})
        assert [trace.id for trace in it.proxy.traces] == ["r2", "r3", "r4"]
        assert it.proxy.trace("r0") is None


async def test_a_defect_of_ours_is_a_500_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    async with rig() as it:

        async def broken(*args: Any) -> None:
            raise ZeroDivisionError("secret")

        it.resolve = broken  # type: ignore[assignment]
        reply = await it.post(STREAM)
        assert_openai_error(reply, 500, "internal error of the proxy")
        await eventually(it.idle)
    assert "secret" not in reply.raw.decode()
    assert "ZeroDivisionError" in caplog.text


async def test_a_defect_of_ours_in_the_middle_of_a_stream_is_an_error_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any) -> bool:
        raise ZeroDivisionError("secret")

    async with rig() as it:
        it.d[0].always = generate(pause_after=2)
        async with it.session.post(it.base + "/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"k4")
            monkeypatch.setattr(openai, "with_cached_tokens", broken)
            it.d[0].release.set()
            assert_late_error(b"data: {}\n\n" + await response.read(), "internal error of the proxy")
        await eventually(it.idle)


async def test_a_stream_is_back_pressured_by_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = json.dumps({"choices": [{"index": 0, "text": "x" * 60_000}]})
    sent = waiting = 0
    write = ResponseSink.write

    async def flood(rank: Any, request: Any, body: dict[str, Any]) -> Any:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(2000):
            await response.write(f"data: {filler}\n\n".encode())
            sent += 1
        return response

    async def watched(sink: ResponseSink, data: bytes) -> None:
        nonlocal waiting
        waiting += 1
        await write(sink, data)
        waiting -= 1

    monkeypatch.setattr(ResponseSink, "write", watched)
    async with rig() as it:
        it.d[0].always = flood
        async with it.session.post(it.base + "/v1/completions", json=STREAM) as response:
            await response.content.readany()
            last = -1

            def stands_still() -> bool:
                nonlocal last
                last, before = sent, last
                return sent == before and waiting == 1

            await eventually(stands_still, every=0.15)
            # 120 MB were offered; socket buffers hold what is on its way, and the proxy waits for the client.
            assert 0 < sent < 1000
            response.close()
        await eventually(lambda: it.d[0].gone == 1)
        await eventually(it.idle)
