"""A ProxyCommand of the user's SSH configuration: a program whose standard input and output are the connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import Mapping

from pdtui.clock import Clock
from pdtui.errors import ConnectError, ConnectKind
from pdtui.text import clean_line, decode

_KEPT = 4096
_SECONDS_TO_END = 2.0
_KINDS: Mapping[ConnectKind, re.Pattern[str]] = {
    "refused": re.compile("refused", re.IGNORECASE),
    "timeout": re.compile("timed? ?out", re.IGNORECASE),
    "unreachable": re.compile("no route|unreachable", re.IGNORECASE),
    "dns": re.compile("resolve|name or service|unknown host|nodename", re.IGNORECASE),
    "auth": re.compile("permission denied", re.IGNORECASE),
    "unknown_host_key": re.compile("host key verification failed", re.IGNORECASE),
    "protocol": re.compile("not found|no such file", re.IGNORECASE),
}
"""What such programs say on stderr (ssh -W, nc, connect-proxy, and the shell in front of them)."""


class ProxyCommand:
    """One run of the program. It has a session of its own, so that no Ctrl-C of a terminal reaches it."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket, clock: Clock) -> None:
        self._process = process
        self._clock = clock
        self.connection = connection
        """Our side; whoever uses it closes it, and that ends the program."""
        self._said = asyncio.create_task(_last_of(process))

    @classmethod
    async def start(cls, command: str, clock: Clock) -> ProxyCommand:
        """Run a command line with the shell, as OpenSSH does. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", f"exec {command}"),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            stack.pop_all()
        ours.setblocking(False)
        return cls(process, ours, clock)

    async def end(self) -> str:
        """End the program and return the last line that it said, else its status where that is not 0."""
        self.connection.close()
        try:
            async with self._clock.timeout(_SECONDS_TO_END):
                await asyncio.shield(self._said)
                await self._process.wait()
        except (TimeoutError, asyncio.CancelledError) as stopped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if isinstance(stopped, asyncio.CancelledError):
                await self._process.wait()
                raise
        await self._process.wait()
        lines = (await self._said).strip().splitlines()
        if lines:
            return clean_line(lines[-1])
        status = self._process.returncode
        return f"the ProxyCommand ended with status {status}" if status is not None and status > 0 else ""


async def _last_of(process: asyncio.subprocess.Process) -> str:
    """Collect the end of stderr."""
    assert process.stderr is not None  # noqa: S101
    kept = b""
    while data := await process.stderr.read(_KEPT):
        kept = (kept + data)[-_KEPT:]
    return decode(kept)


def failure(where: str, words: str) -> ConnectError:
    """Return the error for a program that ended with these last words."""
    kind: ConnectKind = next((kind for kind, pattern in _KINDS.items() if pattern.search(words)), "lost")
    remedy = "this is what the ProxyCommand of your SSH configuration says"
    return ConnectError(f"{where}: {words}", kind=kind, remedy=remedy)
