"""One HTTP exchange with a rank: the seam that a faster relay fills, and the plain aiohttp one.

Every exchange has a connection of its own. vLLM closes an idle connection after five seconds, and a request that
meets such a close on a pooled connection cannot be told from one that the rank has begun to work on; with a fresh
connection «no byte was sent» is certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from types import SimpleNamespace, TracebackType
from typing import Protocol

import aiohttp

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.proxy.errors import NotConnected, TooLate, UpstreamLost, UpstreamTimeout
from pdtui.proxy.interface import Resolver
from pdtui.proxy.settings import ProxySettings
from pdtui.text import clean_line


class Answer(Protocol):
    """A rank's answer, its head read and its body not; an async context manager that ends the exchange."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    async def read(self, limit: int, *, within: float) -> bytes:
        """Return the whole body; raises `UpstreamLost`, `UpstreamTimeout`."""
        ...

    async def chunk(self, *, within: float) -> bytes:
        """Return the next piece of the body, empty at its end; raises `UpstreamLost`, `UpstreamTimeout`."""
        ...

    def abort(self) -> None:
        """Close the connection if the exchange is not over: the rank notices and stops."""
        ...


class Upstream(Protocol):
    """Sends requests to ranks by id."""

    def exchange(
        self,
        rank: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        within: float,
        not_after: float | None = None,
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        """Send a request and return once the answer's head is there, `within` seconds at most.

        `not_after`: the monotonic moment after which no byte of the body may go out; raises `TooLate` then. The
        rank is asked to say that it takes the body (RFC 9110, 10.1.1), so a slow way to it is noticed before.
        Raises `NotConnected` when no byte was sent, `UpstreamLost` and `UpstreamTimeout` afterwards. Leaving the
        context, however it comes about, ends the exchange.
        """
        ...


class _AioAnswer:
    def __init__(self, rank: str, response: aiohttp.ClientResponse, clock: Clock) -> None:
        self._rank = rank
        self._response = response
        self._clock = clock
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}

    async def read(self, limit: int, *, within: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        deadline = self._clock.monotonic() + within
        while piece := await self.chunk(within=max(0.0, deadline - self._clock.monotonic())):
            size += len(piece)
            if size > limit:
                raise UpstreamLost(f"{self._rank} sent an answer of more than {limit} bytes")
            parts.append(piece)
        return b"".join(parts)

    async def chunk(self, *, within: float) -> bytes:
        try:
            async with self._clock.timeout(within):
                return await self._response.content.readany()
        except TimeoutError:
            raise UpstreamTimeout(f"{self._rank} was silent for {within:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamLost(f"{self._rank} broke off its answer: {_words(error)}") from error

    def abort(self) -> None:
        self._response.close()


class _Exchange:
    """Context of one exchange; closing is synchronous, so a cancellation cannot leave a connection open."""

    def __init__(
        self,
        upstream: AiohttpUpstream,
        rank: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        within: float,
        not_after: float | None,
    ) -> None:
        self._upstream = upstream
        self._rank = rank
        self._method = method
        self._path = path
        self._headers = headers
        self._body = body
        self._within = within
        self._not_after = not_after
        self._answer: _AioAnswer | None = None

    async def __aenter__(self) -> Answer:
        self._answer = await self._upstream.send(
            self._rank, self._method, self._path, self._headers, self._body, self._within, self._not_after
        )
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer is not None:
            self._answer.abort()


class _Body:
    """A body that is handed over only before a moment; it goes out once the rank has said that it takes it."""

    def __init__(self, data: bytes, not_after: float, clock: Clock) -> None:
        self._data = data
        self._not_after = not_after
        self._clock = clock
        self.begun = False
        """Whether its first byte was handed over."""

    @property
    def left(self) -> float:
        """Seconds that are left to begin."""
        return max(0.0, self._not_after - self._clock.monotonic())

    async def pieces(self) -> AsyncIterator[bytes]:
        if not self.left:
            raise TimeoutError
        self.begun = True
        yield self._data


class AiohttpUpstream:
    """`Upstream` over aiohttp's client; belongs to the loop that it was made on."""

    def __init__(self, resolver: Resolver, settings: ProxySettings, clock: Clock) -> None:
        self._resolver = resolver
        self._settings = settings
        self._clock = clock
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_note_connected)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
            read_bufsize=1 << 16,
        )

    async def close(self) -> None:
        """End every exchange."""
        await self._session.close()

    def exchange(
        self,
        rank: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        within: float,
        not_after: float | None = None,
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        """Implement `Upstream.exchange`."""
        return _Exchange(self, rank, method, path, headers, body, within, not_after)

    async def send(
        self,
        rank: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        within: float,
        not_after: float | None,
    ) -> _AioAnswer:
        """Send a request and return its answer, which the caller aborts."""
        host, port = await self._resolve(rank)
        # IPv6 literals need brackets in a URL.
        url = f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"
        note = SimpleNamespace(connected=False)
        guarded = _Body(body, not_after, self._clock) if not_after is not None else None
        if guarded is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        request = self._session.request(
            method,
            url,
            data=(body or None) if guarded is None else guarded.pieces(),
            expect100=guarded is not None,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=note,
        )
        try:
            # The connection has its own, shorter time-out, which the session enforces.
            async with self._clock.timeout(within):
                response = await (request if guarded is None else self._in_time(request, guarded))
        except aiohttp.ClientConnectorError as error:
            raise NotConnected(f"{rank} could not be connected: {_words(error)}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise NotConnected(f"{rank} could not be connected within {self._settings.connect_s:g} s") from error
        except TimeoutError as error:
            if not note.connected:
                raise NotConnected(f"{rank} could not be connected within {within:g} s") from error
            if guarded is not None and not guarded.begun:
                raise TooLate(f"{rank} did not take the request in time") from error
            raise UpstreamTimeout(f"{rank} did not answer within {within:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            if not note.connected:
                raise NotConnected(f"{rank} could not be connected: {_words(error)}") from error
            if guarded is not None and not guarded.left and not guarded.begun:
                raise TooLate(f"{rank} did not take the request in time") from error
            raise UpstreamLost(f"{rank} broke off before it answered: {_words(error)}") from error
        return _AioAnswer(rank, response, self._clock)

    async def _in_time(self, request: Awaitable[aiohttp.ClientResponse], body: _Body) -> aiohttp.ClientResponse:
        """Return the answer to a request whose body has begun to go out in time; raises `TimeoutError` if not."""
        async with asyncio.timeout(None) as scope:
            guard = asyncio.create_task(self._watch(scope, body))
            try:
                return await request
            finally:
                guard.cancel()

    async def _watch(self, scope: asyncio.Timeout, body: _Body) -> None:
        """End a scope at the last moment of a body that has not begun."""
        await self._clock.sleep(body.left)
        if not body.begun:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _resolve(self, rank: str) -> tuple[str, int]:
        try:
            async with self._clock.timeout(self._settings.resolve_s):
                return await self._resolver(rank)
        except RemoteError as error:
            raise NotConnected(f"{rank} could not be connected: {clean_line(error.message)}") from error
        except TimeoutError as error:
            raise NotConnected(f"{rank}: no way to it within {self._settings.resolve_s:g} s") from error


async def _note_connected(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceConnectionCreateEndParams
) -> None:
    context.trace_request_ctx.connected = True


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno:
        # asyncio's own text repeats the address, which behind a tunnel says nothing.
        return os.strerror(error.errno)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    if isinstance(error, (aiohttp.ClientPayloadError, asyncio.IncompleteReadError)):
        return "the connection ended in the middle"
    return clean_line(str(error)) or type(error).__name__
