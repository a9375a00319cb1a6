"""A command of the operator on a node: the console's side of the agent's request `exec`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Protocol

from pdtui.remote import parse
from pdtui.remote.messages.commands import ExecChunk
from pdtui.remote.rpc import Part


class Request(Protocol):
    """Sends one request to the agent and returns its answer. Raises `AgentError`, `AgentLost`."""

    def __call__(self, op: str, **args: Any) -> Awaitable[object]:
        """Send it."""
        ...


class AgentExecution:
    """Implements `Execution`: one request whose items are output, and requests of its own for input."""

    def __init__(self, request: int, parts: AsyncGenerator[Part, None], ask: Request) -> None:
        self._request = request
        self._parts = parts
        self._ask = ask
        self._began = asyncio.Event()
        self._status: int | None = None
        self._ended = False

    @property
    def status(self) -> int | None:
        """Its exit status, -N for signal N; None before its end."""
        return self._status

    async def output(self) -> AsyncIterator[ExecChunk]:
        """Start it and yield what it writes until it ends; leaving early kills its process group."""
        try:
            async for part in self._parts:
                self._began.set()  # The first item says that it runs.
                if part.last:
                    self._status = parse.whole(part.value.get("status"))
                elif data := part.blobs.get("data"):
                    yield ExecChunk("err" if part.value.get("stream") == "err" else "out", data)
        finally:
            self._ended = True
            self._began.set()
            await self._parts.aclose()

    async def _tell(self, **args: Any) -> None:
        await self._began.wait()
        if not self._ended:
            await self._ask("input", target=self._request, **args)

    async def write(self, data: bytes) -> None:
        """Give it something to read; returns when there is room for more."""
        await self._tell(b64=base64.b64encode(data).decode())

    async def end_input(self) -> None:
        """Close its stdin."""
        await self._tell(end=True)

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal of another size."""
        await self._tell(size=[rows, columns])

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._tell(signal=number)
