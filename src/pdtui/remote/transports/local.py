"""This machine as a node: processes without SSH."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.channel import Channel, ExitInfo
from pdtui.text import decode

LINE_LIMIT = 1 << 18
STDERR_KEPT = 4096
CLOSE_TIMEOUT = 2.0


class PipeWriter:
    """A process's stdin."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Queue bytes. Raises `BrokenPipeError` when the process has ended."""
        if self._stream.is_closing():
            raise BrokenPipeError("the process has ended")
        self._stream.write(data)

    async def drain(self) -> None:
        """Wait until the queue is short again."""
        await self._stream.drain()

    def close(self) -> None:
        """Close the pipe: the process reads end of file."""
        self._stream.close()


class LocalTransport:
    """Implements `Transport` with processes of this machine, each in a session of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[asyncio.SubprocessTransport, asyncio.Task[ExitInfo]] = {}

    async def open(self, argv: Sequence[str]) -> Channel:
        """Start a process. Raises `ConnectError`."""
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: asyncio.subprocess.SubprocessStreamProtocol(LINE_LIMIT, loop),
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(argv[0], error) from error
        process = asyncio.subprocess.Process(transport, protocol, loop)
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        task = asyncio.create_task(self._wait(process))
        self._open = {known: task for known, task in self._open.items() if not known.is_closing()}
        self._open[transport] = task
        return Channel(process.stdout, PipeWriter(process.stdin), task)

    @staticmethod
    async def _wait(process: asyncio.subprocess.Process) -> ExitInfo:
        """Collect the last of stderr and the exit status."""
        assert process.stderr is not None  # noqa: S101
        kept = b""
        while data := await process.stderr.read(65536):
            kept = (kept + data)[-STDERR_KEPT:]
        status = await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if status < 0:
            return ExitInfo(None, signal.Signals(-status).name, decode(kept))
        return ExitInfo(status, None, decode(kept))

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return the address itself: no tunnel is needed."""
        return ("127.0.0.1" if host in ("", "0.0.0.0", "::") else host), port  # noqa: S104

    async def close(self) -> None:
        """End all processes: end of file first, then by signal."""
        for transport in self._open:
            stdin = transport.get_pipe_transport(0)
            if stdin is not None:
                stdin.close()
        try:
            async with self._clock.timeout(CLOSE_TIMEOUT):
                tasks = (asyncio.shield(task) for task in self._open.values())
                await asyncio.gather(*tasks, return_exceptions=True)
        except TimeoutError:
            for transport in self._open:
                if transport.get_returncode() is None:
                    os.killpg(transport.get_pid(), signal.SIGKILL)
        for transport in self._open:
            transport.close()  # also pipes that nobody has read to their end: the process's wait waits for them
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        self._open.clear()
        await asyncio.sleep(0)  # the pipes are closed by the next turn of the loop


def _not_started(program: str, error: OSError) -> ConnectError:
    """Return why a process cannot be started here."""
    message = f"{program} cannot be started: {error.strerror}"
    if "python" in program:
        return ConnectError(message, kind="no_python", remedy="install Python 3.6 or newer")
    return ConnectError(message, kind="no_container", remedy="check runtime.exec and ssh.sudo")
