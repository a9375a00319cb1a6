"""This machine as a node: processes without SSH."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.interface import Channel, ExitInfo
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
        self._open: dict[asyncio.subprocess.Process, asyncio.Task[ExitInfo]] = {}

    async def open(self, argv: Sequence[str]) -> Channel:
        """Start a process. Raises `ConnectError`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT,
                start_new_session=True,
            )
        except OSError as error:
            kind = "no_python" if "python" in str(argv[0]) else "protocol"
            raise ConnectError(
                f"{argv[0]} cannot be started: {error.strerror}",
                kind="no_python" if kind == "no_python" else "protocol",
                remedy="install Python 3.6 or newer" if kind == "no_python" else "check runtime.exec and ssh.sudo",
            ) from error
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        task = asyncio.create_task(self._wait(process))
        self._open[process] = task
        return Channel(process.stdout, PipeWriter(process.stdin), task)

    async def _wait(self, process: asyncio.subprocess.Process) -> ExitInfo:
        """Collect the last of stderr and the exit status."""
        assert process.stderr is not None  # noqa: S101
        kept = b""
        while data := await process.stderr.read(65536):
            kept = (kept + data)[-STDERR_KEPT:]
        status = await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._open.pop(process, None)
        if status < 0:
            return ExitInfo(None, signal.Signals(-status).name, decode(kept))
        return ExitInfo(status, None, decode(kept))

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return the address itself: no tunnel is needed."""
        return ("127.0.0.1" if host in ("", "0.0.0.0", "::") else host), port  # noqa: S104

    async def close(self) -> None:
        """End all processes: end of file first, then by signal."""
        tasks = dict(self._open)
        for process in tasks:
            if process.stdin is not None:
                process.stdin.close()
        try:
            async with self._clock.timeout(CLOSE_TIMEOUT):
                await asyncio.gather(*(asyncio.shield(task) for task in tasks.values()), return_exceptions=True)
        except TimeoutError:
            for process in tasks:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
            await asyncio.gather(*tasks.values(), return_exceptions=True)
