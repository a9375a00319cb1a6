"""A node over SSH: one connection, the user's own ~/.ssh/config, keys and agent, host keys always checked."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Sequence

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.channel import Channel, ExitInfo
from pdtui.remote.transports.jump_hosts import JumpHosts
from pdtui.remote.transports.login import Handshakes, Login, configuration, log_in
from pdtui.text import clean_line, decode
from pdtui.topology.model import SshOptions

STDERR_KEPT = 4096


class _Reader:
    """A process's stdout; a connection that breaks is an `OSError`."""

    def __init__(self, stream: asyncssh.SSHReader[bytes]) -> None:
        self._stream = stream

    async def read(self, limit: int = -1) -> bytes:
        try:
            return await self._stream.read(limit)
        except asyncssh.Error as error:
            raise ConnectionError(clean_line(error.reason)) from error

    async def readline(self) -> bytes:
        try:
            return await self._stream.readline()
        except asyncssh.Error as error:
            raise ConnectionError(clean_line(error.reason)) from error

    async def readexactly(self, count: int) -> bytes:
        try:
            return await self._stream.readexactly(count)
        except asyncssh.Error as error:
            raise ConnectionError(clean_line(error.reason)) from error


class _Writer:
    """A process's stdin; closing it ends the channel."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process

    def write(self, data: bytes) -> None:
        self._process.stdin.write(data)

    async def drain(self) -> None:
        try:
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise ConnectionError(clean_line(error.reason)) from error

    def close(self) -> None:
        self._process.close()


class SshTransport:
    """Implements `Transport` on one SSH connection."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._connection = login.connection
        self._tasks: set[asyncio.Task[ExitInfo]] = set()
        self._listeners: list[asyncssh.SSHListener] = []

    @classmethod
    async def connect(
        cls, host: str, options: SshOptions, *, clock: Clock, jumps: JumpHosts, handshakes: Handshakes
    ) -> SshTransport:
        """Connect to a node, through its jump host if it has one. Raises `ConnectError`."""
        known = await configuration(host, options)
        jump = options.jump or (known.tunnel if isinstance(known.tunnel, str) else "")
        tunnel = (await jumps.get(jump, options)).connection if jump else None
        return cls(await log_in(host, options, known, clock=clock, handshakes=handshakes, tunnel=tunnel))

    async def open(self, argv: Sequence[str]) -> Channel:
        """Start a process. Raises `ConnectError`."""
        command = "exec " + shlex.join(argv)
        try:
            process: asyncssh.SSHClientProcess[bytes] = await self._connection.create_process(
                command, encoding=None, request_pty=False
            )
        except asyncssh.ChannelOpenError as error:
            raise ConnectError(
                f"no session on the connection: {clean_line(error.reason)}",
                kind="protocol",
                remedy="sshd's MaxSessions must be at least 2",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise ConnectError(f"the connection ended: {clean_line(str(error))}", kind="lost") from error
        task = asyncio.create_task(self._wait(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Channel(_Reader(process.stdout), _Writer(process), task)

    async def _wait(self, process: asyncssh.SSHClientProcess[bytes]) -> ExitInfo:
        """Collect the last of stderr and the exit status."""
        kept = b""
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await process.stderr.read(65536):
                kept = (kept + data)[-STDERR_KEPT:]
        await process.wait_closed()
        signal = process.exit_signal
        return ExitInfo(process.exit_status if not signal else None, signal[0] if signal else None, decode(kept))

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Listen on loopback and lead connections to `host:port` as the node sees it. Raises `ConnectError`."""
        await self._try_forwarding(host, port)
        try:
            listener = await self._connection.forward_local_port("127.0.0.1", 0, host, port)
        except (asyncssh.Error, OSError) as error:
            raise ConnectError(f"no tunnel to {host}:{port}: {clean_line(str(error))}", kind="lost") from error
        self._listeners.append(listener)
        return "127.0.0.1", listener.get_port()

    async def _try_forwarding(self, host: str, port: int) -> None:
        """Connect once: a listener of ours takes what sshd then refuses, and has no words for it."""
        try:
            _, writer = await self._connection.open_connection(host, port, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                raise ConnectError(
                    f"no tunnel to {host}:{port}: sshd there forbids TCP forwarding;"
                    " it needs AllowTcpForwarding yes (or local), and this port in PermitOpen",
                    kind="forbidden",
                    remedy="change its sshd_config, or send requests from a machine that reaches the ranks",
                ) from error
            # Nobody listens there now; that may change.
            return
        except (asyncssh.Error, OSError) as error:
            raise ConnectError(f"no tunnel to {host}:{port}: {clean_line(str(error))}", kind="lost") from error
        writer.close()

    async def close(self) -> None:
        """End the connection and everything on it."""
        for listener in self._listeners:
            listener.close()
        await self._login.end()
        for listener in self._listeners:
            await listener.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)
