"""The SSH server of a simulated node: sessions are real processes on it, as under OpenSSH's sshd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Iterable
from pathlib import Path

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.folder import environment
from pdtui.sim.machine import Machine
from pdtui.sim.processes import NodeProcesses
from pdtui.sim.session import Session

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", ""})  # noqa: S104


KILLS_AT_LOGOUT = Path("etc", "systemd", "logind.conf.d", "kill.conf")
"""File of a node whose systemd-logind ends all processes of a user with the last login."""


class _Connection(asyncssh.SSHServer):
    """One client."""

    def __init__(self, daemon: SshDaemon) -> None:
        self._daemon = daemon
        self._connection: asyncssh.SSHServerConnection | None = None
        self._forwarding = daemon.forwarding
        """As the configuration was when the connection began, like sshd's."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._daemon.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._daemon.connections.discard(self._connection)
            self._daemon.logged_out()

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        """Forward a TCP connection; the node's own loopback is its address."""
        if self._connection is None:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "no connection")
        if not self._forwarding:
            # sshd's words.
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "open failed")
        host = self._daemon.machine.address if dest_host in _LOCAL_NAMES else dest_host
        return self._connection.forward_connection(host, dest_port)  # type: ignore[return-value]


class SshDaemon:
    """Listens on the node's address while `listen` holds; keys only, one account."""

    def __init__(
        self,
        machine: Machine,
        processes: NodeProcesses,
        *,
        user: str,
        host_key: asyncssh.SSHKey,
        authorized_keys: Path,
        clock: Clock,
    ) -> None:
        self.machine = machine
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.port = 0
        self._processes = processes
        self._user = user
        self._host_key = host_key
        self._authorized_keys = authorized_keys
        self._clock = clock
        self.forwarding = True
        self._listener: socket.socket | None = None
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._running = asyncio.Event()
        self._running.set()

    async def listen(self) -> None:
        """Accept connections, after whatever has happened to it. Raises `SimulationError`.

        The port, once chosen, stays.
        """
        self._running.set()
        for transport in _transports(self.connections):
            transport.resume_reading()
        if self._acceptor is not None:
            return
        try:
            if self._listener is None:
                self._listener = self._bind()
            # A frozen sshd stops accepting, and the kernel goes on for it: the socket has to outlive the acceptor.
            self._acceptor = await asyncssh.listen(
                sock=self._listener.dup(),
                server_factory=lambda: _Connection(self),
                server_host_keys=[self._host_key],
                authorized_client_keys=str(self._authorized_keys),
                process_factory=self._session,
                encoding=None,
                allow_pty=True,
                agent_forwarding=False,
                x11_forwarding=False,
                public_key_auth=True,
                password_auth=False,
                kbdint_auth=False,
                host_based_auth=False,
                gss_host=None,
                line_editor=False,
                compression_algs=["none"],
                login_timeout=60,
            )
        except OSError as error:
            raise SimulationError(f"no SSH server on {self.machine.address}: {error.strerror or error}") from error

    def _bind(self) -> socket.socket:
        listener = socket.create_server((self.machine.address, self.port), backlog=128)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        return listener

    async def kill(self) -> None:
        """Drop every connection, without a word, and refuse new ones until `listen`."""
        acceptor = self._stop_accepting()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._running.set()
        for connection in list(self.connections):
            connection.abort()
        if acceptor is not None:
            await acceptor.wait_closed()
        for connection in list(self.connections):
            with contextlib.suppress(OSError, asyncssh.Error):
                await connection.wait_closed()

    async def freeze(self) -> None:
        """Do nothing more on any connection, and let the kernel accept new ones, until `listen`."""
        self._running.clear()
        self._stop_accepting()
        for transport in _transports(self.connections):
            transport.pause_reading()

    def _stop_accepting(self) -> asyncssh.SSHAcceptor | None:
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        return acceptor

    async def allow_forwarding(self, *, allowed: bool) -> None:
        """Allow TCP forwarding to new connections, or forbid it."""
        self.forwarding = allowed

    async def change_host_key(self, key: asyncssh.SSHKey) -> None:
        """Be another machine to whoever connects: a new key, and no connection left of the old one."""
        self._host_key = key
        await self.kill()
        await self.listen()

    def logged_out(self) -> None:
        """After the last connection: end what logins have left behind, where the node's systemd-logind would."""
        if not self.connections and (self.machine.folder / KILLS_AT_LOGOUT).exists() and self._processes.running:
            task = asyncio.create_task(self._processes.end_logins())
            self._sessions.add(task)
            task.add_done_callback(self._sessions.discard)

    async def close(self) -> None:
        """Stop serving for good."""
        await self.kill()
        for task in list(self._sessions):
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def environment(self) -> dict[str, str]:
        """Return what a session starts with: sshd's own variables, nothing of this machine's."""
        machine = self.machine
        # Without a pid namespace the node says itself which processes are its own.
        view = {} if self._processes.own_namespace else {"PDTUI_MACHINE_VIEW": machine.address}
        connection = {"SSH_CONNECTION": f"{machine.address} 0 {machine.address} {self.port}"}
        return environment(machine, self._user) | connection | view

    async def _session(self, channel: asyncssh.SSHServerProcess[bytes]) -> None:
        session = Session(self._processes, self.machine, self.environment(), channel, self._running)
        task = asyncio.create_task(session.run())
        self._sessions.add(task)
        try:
            await task
        except SimulationError as error:
            channel.stderr.write(f"{error}\n".encode())
            channel.exit(255)
        finally:
            self._sessions.discard(task)


def _transports(connections: Iterable[asyncssh.SSHServerConnection]) -> list[asyncio.Transport]:
    """Return the sockets' sides of connections: asyncssh itself has no word for a server that does not answer."""
    found = (connection._transport for connection in connections)
    return [transport for transport in found if transport is not None]
