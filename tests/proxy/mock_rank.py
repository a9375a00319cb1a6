"""Ranks of a stand-in cluster: real sockets on loopback, behaviour switched request by request.

A prompt of n words is n tokens, and the token that follows n words is ` k<n>`. So an answer that was continued
anywhere reads as if it had never been interrupted, and a lost or doubled token shows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web

from pdtui.clock import Clock, SystemClock
from pdtui.errors import ConnectError
from pdtui.proxy.embedded import EmbeddedProxy
from pdtui.proxy.interface import BackendState
from pdtui.proxy.settings import ProxySettings

Role = Literal["prefill", "decode"]
Behaviour = Callable[["MockRank", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def id(self) -> str:
        return self.headers["X-Request-Id"]


class MockRank:
    """One rank; `script` says what the next requests meet, after that it serves."""

    def __init__(self, name: str, role: Role) -> None:
        self.name = name
        self.role: Role = role
        self.script: deque[Behaviour] = deque()
        self.always: Behaviour = prefill() if role == "prefill" else generate()
        self.health = 200
        self.models_status = 200
        self.seen: list[Seen] = []
        self.handed: list[dict[str, Any]] = []
        """Every `kv_transfer_params` that this rank gave away."""
        self.gone = 0
        """Requests whose client left."""
        self.probes = 0
        self.running = 0
        self.release = asyncio.Event()
        """Lets `hang` and `pause` go on."""
        self.takes = asyncio.Event()
        """Whether it takes the bodies that are announced to it (`Expect: 100-continue`)."""
        self.takes.set()
        self.announced = 0
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._serve, expect_handler=self._take)
        app.router.add_post("/v1/chat/completions", self._serve, expect_handler=self._take)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self.address).start()
        host, port = self._runner.addresses[0][:2]
        self.address = (host, port)

    async def stop(self) -> None:
        if self._runner is not None:
            self.release.set()
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "ds_r1", "max_model_len": 40000}]}, status=self.models_status
        )

    async def _take(self, request: web.Request) -> None:
        self.announced += 1
        await self.takes.wait()
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen(request.path, request.headers, body))
        behaviour = self.script.popleft() if self.script else self.always
        self.running += 1
        try:
            return await behaviour(self, request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        finally:
            self.running -= 1


def words(body: dict[str, Any]) -> int:
    """How many tokens the prompt of a request has."""
    if "messages" in body:
        return sum(len(m["content"].split()) for m in body["messages"])
    prompt = body["prompt"]
    return len(prompt.split() if isinstance(prompt, str) else prompt)


def expected(prompt_words: int, tokens: int) -> str:
    """The text that follows a prompt."""
    return "".join(f" k{n}" for n in range(prompt_words, prompt_words + tokens))


# Behaviours ----------------------------------------------------------------------------------------------------


def prefill(*, cached: int = 3, **extra: Any) -> Behaviour:
    """P that does its work; `extra` changes what it hands over."""

    async def behave(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = next(_numbers)
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[number, number + 1]],
            "remote_engine_id": f"{rank.name}-engine",
            "remote_request_id": f"cmpl-{request.headers['X-Request-Id']}-0-abcdef01",
            "remote_host": "127.0.0.1",
            "remote_port": 36000,
            "some_later_key": {"nested": [None, 1.5, "x"]},
        } | extra
        rank.handed.append(params)
        return web.json_response(answer_object(body, "x", 1, cached) | {"kv_transfer_params": params})

    return behave


def answer_object(body: dict[str, Any], text: str, tokens: int, cached: int = 0) -> dict[str, Any]:
    prompt = words(body)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "stop_reason": None}
    choice |= {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": body.get("model", ""),
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


def respond(status: int, text: str = "", content_type: str = "application/json", **headers: str) -> Behaviour:
    """Answer with a status and a body."""

    async def behave(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, content_type=content_type, headers=named)

    return behave


def error(status: int, message: str) -> Behaviour:
    """Answer with vLLM's error object."""
    return respond(status, json.dumps({"error": {"message": message, "type": "x", "param": None, "code": status}}))


async def drop(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Break the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(3600)
    raise AssertionError


async def hang(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Say nothing until released, then serve."""
    await rank.release.wait()
    return await (prefill() if rank.role == "prefill" else generate())(rank, request, body)


def generate(
    *,
    die_after: int | None = None,
    end_after: int | None = None,
    pause_after: int | None = None,
    recompute_after: int | None = None,
    error_after: int | None = None,
    error_code: int = 500,
    chop: int | None = None,
    newline: str = "\n",
    head_first: bool = False,
    delta: dict[str, Any] | None = None,
    stop_reason: Any = None,
    keepalive: bool = False,
) -> Behaviour:
    """D that generates; the faults come after so many tokens."""

    async def behave(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        params = body.get("kv_transfer_params")
        if not isinstance(params, dict) or not params.get("remote_block_ids"):
            raise AssertionError("a decoder got no KV blocks: a real one would prefill in silence, or die")
        total = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        first = words(body)
        if not body.get("stream"):
            return await _whole(request, body, first, total, recompute_after, die_after)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        if head_first:
            await response.prepare(request)
        return await _events(rank, request, response, body, first, total)

    async def _whole(
        request: web.Request,
        body: dict[str, Any],
        first: int,
        total: int,
        recompute: int | None,
        die: int | None,
    ) -> web.StreamResponse:
        if die is not None:
            return await drop(None, request, body)  # type: ignore[arg-type]
        if recompute is None:
            # D counts every pulled token as cached.
            return web.json_response(answer_object(body, expected(first, total), total, cached=first))
        answer = answer_object(body, expected(first, recompute), recompute)
        answer["choices"][0] |= {"finish_reason": "stop", "stop_reason": "recomputed"}
        return web.json_response(answer)

    async def _events(
        rank: MockRank,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        first: int,
        total: int,
    ) -> web.StreamResponse:
        chat = "messages" in body
        rid = request.headers["X-Request-Id"]

        def chunk(part: dict[str, Any], finish: str | None = None, stop: Any = None) -> str:
            choice = {"index": 0, **part, "finish_reason": finish, "stop_reason": stop}
            return json.dumps({"id": f"cmpl-{rid}", "created": 7, "choices": [choice]})

        async def send(data: str) -> None:
            raw = f"data: {data}{newline}{newline}".encode()
            if not response.prepared:
                await response.prepare(request)
            for start in range(0, len(raw), chop or len(raw)):
                await response.write(raw[start : start + (chop or len(raw))])
                if chop:
                    await asyncio.sleep(0)

        assert request.transport is not None
        if keepalive:
            await response.prepare(request)
            await response.write(b": waiting\n\n")
        if chat:
            await send(chunk({"delta": {"role": "assistant", "content": ""}}))
        for i in range(total):
            if die_after == i:
                request.transport.abort()
                await asyncio.sleep(3600)
            if end_after == i:
                await response.write_eof()
                return response
            if pause_after == i:
                await rank.release.wait()
            if error_after == i:
                await send(
                    json.dumps(
                        {"error": {"message": "engine died", "type": "x", "param": None, "code": error_code}}
                    )
                )
                await send("[DONE]")
                return response
            if recompute_after == i:
                empty = {"delta": {"content": ""}} if chat else {"text": ""}
                await send(chunk(empty, "stop", "recomputed"))
                await send("[DONE]")
                return response
            text = f" k{first + i}"
            part: dict[str, Any] = {"delta": {"content": text} | (delta or {})} if chat else {"text": text}
            last = i == total - 1
            await send(chunk(part, "length" if last else None, stop_reason if last else None))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = answer_object(body, "", total, cached=first)["usage"]
            await send(json.dumps({"id": f"cmpl-{rid}", "created": 7, "choices": [], "usage": usage}))
        await send("[DONE]")
        return response

    return behave


def raw_stream(*pieces: bytes) -> Behaviour:
    """Stream these bytes, one write each."""

    async def behave(rank: MockRank, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        return response

    return behave


# The rig -------------------------------------------------------------------------------------------------------


class Rig:
    """Some prefillers and decoders, a proxy before them, and a client."""

    def __init__(self, prefills: int, decodes: int, proxy: EmbeddedProxy, session: aiohttp.ClientSession) -> None:
        self.p = [MockRank(f"p{i}/0", "prefill") for i in range(prefills)]
        self.d = [MockRank(f"decode/{i}", "decode") for i in range(decodes)]
        self.proxy = proxy
        self.session = session
        self.base = ""
        self.unreachable: set[str] = set()
        """Ranks that the resolver knows no way to."""

    @property
    def ranks(self) -> list[MockRank]:
        return self.p + self.d

    async def resolve(self, rank: str) -> tuple[str, int]:
        if rank in self.unreachable:
            raise ConnectError("node3: no route to host", kind="unreachable")
        return next(r.address for r in self.ranks if r.name == rank)

    def update(self, usable: Callable[[MockRank], bool] = lambda rank: True) -> None:
        self.proxy.update([
            BackendState(r.name, r.name.partition("/")[0], r.role, usable(r)) for r in self.ranks
        ])  # fmt: skip

    async def post(
        self, body: dict[str, Any], path: str = "/v1/completions", headers: dict[str, str] | None = None
    ) -> Reply:
        async with self.session.post(self.base + path, json=body, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    def idle(self) -> bool:
        """Whether the proxy thinks that no rank carries anything."""
        return all(
            view.load.requests == 0 and view.load.tokens == 0 and view.load.kv == 0
            for view in self.proxy.pool.views()
        )


@dataclass(frozen=True)
class Reply:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[Any]:
        """The JSON of each event; `[DONE]` as that text."""
        data = [block[6:] for block in self.raw.decode().replace("\r\n", "\n").split("\n\n") if block]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    @property
    def text(self) -> str:
        """The answer's text, streamed or not."""
        values = self.events if self.raw.startswith(b"data:") else [self.json]
        choices: Sequence[Any] = [c for v in values if v != "[DONE]" for c in v.get("choices", [])]
        return "".join(
            c["text"] if "text" in c else (c.get("delta") or c.get("message"))["content"] for c in choices
        )


@asynccontextmanager
async def rig(
    prefills: int = 1,
    decodes: int = 1,
    *,
    clock: Clock | None = None,
    settings: ProxySettings | None = None,
    key: str = "",
) -> AsyncIterator[Rig]:
    """A running rig; everything is stopped at the end."""
    holder: list[Rig] = []
    proxy = EmbeddedProxy(
        served_name="ds_r1",
        resolver=lambda rank: holder[0].resolve(rank),
        clock=clock or SystemClock(),
        settings=settings or ProxySettings(shutdown_s=0.05),
        key=key,
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        it = Rig(prefills, decodes, proxy, session)
        holder.append(it)
        try:
            for rank in it.ranks:
                await rank.start()
            host, port = await proxy.start()
            it.base = f"http://{host}:{port}"
            it.update()
            yield it
        finally:
            await proxy.close()
            for rank in it.ranks:
                await rank.stop()
