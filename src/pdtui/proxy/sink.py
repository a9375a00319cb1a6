"""The client's side of a request, over aiohttp's server."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from pdtui.clock import Clock
from pdtui.proxy import openai
from pdtui.proxy.errors import ClientGone


class ResponseSink:
    """`flows.base.Sink` that writes an aiohttp response."""

    def __init__(self, request: web.Request, request_id: str, clock: Clock, stall_s: float) -> None:
        self._request = request
        self._id = request_id
        self._clock = clock
        self._stall_s = stall_s
        self._stream: web.StreamResponse | None = None
        self._whole: web.Response | None = None

    @property
    def started(self) -> bool:
        """Whether the head of an answer has gone out."""
        return self._stream is not None

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns once the flow is through."""
        return self._stream or self._whole or self.refuse(502, openai.error_body("no answer", 502), {})

    async def start(self, content_type: str) -> None:
        """Send the head of a streamed answer."""
        response = web.StreamResponse(headers={"X-Request-Id": self._id, "Cache-Control": "no-cache"})
        response.headers["Content-Type"] = content_type
        # Reverse proxies in front would collect the events otherwise.
        response.headers["X-Accel-Buffering"] = "no"
        self._stream = response
        try:
            await response.prepare(self._request)
        except ConnectionError as error:
            raise ClientGone from error

    async def write(self, data: bytes) -> None:
        """Send a piece; a client that takes nothing for too long counts as gone."""
        if self._stream is None:
            return
        try:
            async with self._clock.timeout(self._stall_s):
                await self._stream.write(data)
        except (ConnectionError, TimeoutError) as error:
            raise ClientGone from error

    async def whole(self, content_type: str, body: bytes) -> None:
        """Keep an answer for the handler to return."""
        self._whole = self.refuse(200, body, {"content-type": content_type})

    def refuse(self, status: int, body: bytes, headers: Mapping[str, str]) -> web.Response:
        """Return a whole response that carries the request's id."""
        return web.Response(
            status=status,
            body=body,
            headers={"Content-Type": "application/json"} | _titled(headers) | {"X-Request-Id": self._id},
        )


def _titled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.title(): value for name, value in headers.items()}
