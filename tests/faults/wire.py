"""A stretch of TCP between the console and each node's sshd that can be cut, frozen, reset and made slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time left: closing sends RST (socket(7))."""


class Wire:
    """One node's stretch: a port on the node's own address, relayed to its sshd.

    Its methods may be called from any thread and take effect at once, also on what is connected.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self.host = host
        self.port = 0
        """Where the console connects."""
        self._loop = loop
        self._sshd = port
        self._delay = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Accept connections; the port, once chosen, stays."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections and drop those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._drop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self) -> None:
        for pair in self._open:
            for writer in pair:
                raw: socket.socket = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
        self._open.clear()

    def reset(self) -> None:
        """Answer with a TCP reset on every open connection; new ones are welcome."""
        self._soon(self._drop)

    def silence(self) -> None:
        """Let nothing through any more, as a firewall that drops packets; connections stay open."""
        self._soon(self._flows.clear)

    def slow(self, seconds: float) -> None:
        """Delay every piece, each way."""

        def take() -> None:
            self._delay = seconds

        self._soon(take)

    def refuse(self) -> None:
        """Drop everything and refuse connections."""
        asyncio.run_coroutine_threadsafe(self.close(), self._loop).result(10)

    def restore(self) -> None:
        """Carry everything again, at full speed."""

        def again() -> None:
            self._flows.set()
            self._delay = 0.0

        self._soon(again)
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result(10)

    def _soon(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(60)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._relay(reader, writer)
        writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        far_reader, far_writer = await asyncio.open_connection(self.host, self._sshd)
        pair = (writer, far_writer)
        self._open.add(pair)
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            self._open.discard(pair)
            far_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Wires:
    """All stretches, on a loop of their own in a thread of their own. A context manager."""

    def __init__(self) -> None:
        self._wires: dict[str, Wire] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self._wires.values():
            asyncio.run_coroutine_threadsafe(wire.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def lay(self, node: str, host: str, port: int) -> Wire:
        """Return a new stretch to a node's sshd."""

        async def make() -> Wire:
            wire = Wire(self._loop, host, port)
            await wire.listen()
            return wire

        self._wires[node] = asyncio.run_coroutine_threadsafe(make(), self._loop).result(10)
        return self._wires[node]

    def __getitem__(self, node: str) -> Wire:
        return self._wires[node]
