"""Connecting and logging in to one host over SSH, and what can go wrong with it in a word each."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.transports.host_keys import host_key_error
from pdtui.remote.transports.proxy_command import ProxyCommand, failure
from pdtui.text import clean_line
from pdtui.topology.model import SshOptions

HANDSHAKES = 8
"""At once, over all nodes: sshd drops connections beyond ten unauthenticated ones (MaxStartups 10:30:100)."""
SILENCE = 2.0
"""Seconds without a word from a server after which its handshake does not count any more."""
CLOSE_TIMEOUT = 2.0
KEEPALIVE_INTERVAL = 15.0


class Handshakes:
    """Lets a few handshakes go on at once. A host that is dead or hangs keeps its place for `SILENCE` only."""

    def __init__(self, clock: Clock, limit: int = HANDSHAKES) -> None:
        self._clock = clock
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def turn(self, speaks: Callable[[], bool]) -> AsyncIterator[None]:
        """Hold a place; `speaks` says whether the server has said something yet."""
        await self._free.acquire()
        watch = asyncio.create_task(self._give_up(speaks))
        try:
            yield
        finally:
            if watch.cancel() or not watch.result():
                self._free.release()

    async def _give_up(self, speaks: Callable[[], bool]) -> bool:
        """Give the place to another when nothing is heard; returns whether it did."""
        await self._clock.sleep(SILENCE)
        if speaks():
            return False
        self._free.release()
        return True


class _Observer(asyncssh.SSHClient):
    """Remembers the host key that was not trusted, and whether the server speaks."""

    def __init__(self) -> None:
        self.key: asyncssh.SSHKey | None = None
        self._connection: asyncssh.SSHClientConnection | None = None

    @property
    def speaks(self) -> bool:
        """Whether the server has said who it is."""
        return bool(self._connection and self._connection.get_extra_info("server_version"))

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Remember the connection: it is there before the handshake."""
        self._connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Refuse: asyncssh asks only about keys that known_hosts does not vouch for."""
        self.key = key
        return False


@dataclass(frozen=True, slots=True)
class Login:
    """A connection to a host on which we are logged in."""

    connection: asyncssh.SSHClientConnection
    clock: Clock
    proxy: ProxyCommand | None = None

    async def end(self) -> None:
        """Close the connection; one that does not go is aborted."""
        self.connection.close()
        try:
            async with self.clock.timeout(CLOSE_TIMEOUT):
                await self.connection.wait_closed()
        except TimeoutError:
            self.connection.abort()
            await self.connection.wait_closed()
        finally:
            if self.proxy is not None:
                await self.proxy.end()


def _arguments(host: str, options: SshOptions) -> dict[str, Any]:
    """Return asyncssh's keywords: only what the topology says, the rest is ~/.ssh/config's."""
    arguments: dict[str, Any] = {
        "host": host,
        "password_auth": False,
        "kbdint_auth": False,
        "connect_timeout": options.connect_timeout,
        "login_timeout": options.connect_timeout,
        "keepalive_interval": KEEPALIVE_INTERVAL,
        "keepalive_count_max": 3,
    }
    if options.config is not None:
        arguments["config"] = [str(options.config.expanduser())]
    if options.user is not None:
        arguments["username"] = options.user
    if options.port is not None:
        arguments["port"] = options.port
    if options.known_hosts is not None:
        path = options.known_hosts.expanduser()
        arguments["known_hosts"] = str(path) if path.exists() else b""
    if options.key is not None:
        arguments.update(_identity(options.key.expanduser()))
    return arguments


def _identity(key: Path) -> dict[str, Any]:
    """Use exactly this key (sshd gives up after a few); one with a passphrase through the SSH agent."""
    try:
        asyncssh.read_private_key(str(key))
    except asyncssh.KeyImportError:
        public = key.with_name(key.name + ".pub")
        if public.exists():
            return {"client_keys": [], "agent_identities": [str(public)]}
        raise
    return {"client_keys": [str(key)], "agent_path": None}


def _plain(error: BaseException) -> str:
    """Return an error without Python's numbers: `/keys/id: No such file or directory`."""
    if isinstance(error, OSError) and error.filename:
        return clean_line(f"{error.filename}: {error.strerror}")
    return clean_line(str(error))


_EXPECTED = (asyncssh.Error, asyncssh.KeyImportError, asyncssh.ConfigParseError, ValueError, OSError)
"""What goes wrong on the way to a host, or with the files that say how to get there."""


async def configuration(host: str, options: SshOptions) -> asyncssh.SSHClientConnectionOptions:
    """Return what the topology and ~/.ssh/config say together about a host. Raises `ConnectError`."""
    try:
        known: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
            **_arguments(host, options)
        )
    except _EXPECTED as error:
        raise ConnectError(
            f"{host}: {_plain(error)}", kind="auth", remedy="check ssh.key and ~/.ssh/config"
        ) from error
    return known


async def log_in(
    host: str,
    options: SshOptions,
    known: asyncssh.SSHClientConnectionOptions,
    *,
    clock: Clock,
    handshakes: Handshakes,
    tunnel: asyncssh.SSHClientConnection | None = None,
    via: str = "",
) -> Login:
    """Connect and log in, through `tunnel`, else by the configured ProxyCommand, else directly.

    `via` is the jump host's name when this is one. Raises `ConnectError`.
    """
    observer = _Observer()
    where = f"jump host {via}" if via else host
    proxy: ProxyCommand | None = None
    command = None if tunnel is not None else known.config.get("ProxyCommand")
    try:
        arguments = {**_arguments(host, options), "tunnel": tunnel}
        async with handshakes.turn(lambda: observer.speaks):
            if command:
                proxy = await ProxyCommand.start(str(command), clock)
                arguments["sock"] = proxy.connection
            connection = await asyncssh.connect(client_factory=lambda: observer, **arguments)
        return Login(connection, clock, proxy)
    except asyncio.CancelledError:
        if proxy is not None:
            await proxy.end()
        raise
    except _EXPECTED as error:
        words = await proxy.end() if proxy is not None else ""
        if words and isinstance(error, asyncssh.ConnectionLost | OSError) and not isinstance(error, TimeoutError):
            raise failure(where, words) from error
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            raise host_key_error(error, observer.key, host, options, known) from error
        raise _reason(error, where, known, options) from error


def _reason(
    error: Exception, where: str, known: asyncssh.SSHClientConnectionOptions, options: SshOptions
) -> ConnectError:
    """Return the word for why there is no login."""
    if isinstance(error, asyncssh.PermissionDenied):
        return ConnectError(
            f"{where}: no key was accepted ({clean_line(error.reason)})",
            kind="auth",
            remedy="add your key there, load it into ssh-agent, or name it with ssh.key (no passwords)",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return ConnectError(
                f"{where} cannot be reached: the jump host forbids TCP forwarding",
                kind="forbidden",
                remedy="its sshd needs AllowTcpForwarding yes (or local) and a PermitOpen with the node",
            )
        return ConnectError(
            f"{where} cannot be reached from the jump host: {clean_line(error.reason)}", kind="unreachable"
        )
    if isinstance(error, asyncssh.Error):
        return ConnectError(
            f"{where}: {clean_line(error.reason) or 'the connection was closed'}",
            kind="lost" if isinstance(error, asyncssh.ConnectionLost) else "protocol",
            remedy="sshd drops connections beyond MaxStartups; tried again",
        )
    if isinstance(error, OSError):
        return _system_error(where, error, known, options)
    return ConnectError(f"{where}: {_plain(error)}", kind="auth", remedy="check the key and ~/.ssh/config")


def _with_port(where: str, known: asyncssh.SSHClientConnectionOptions) -> str:
    """Return `host:port`; the port may come from ~/.ssh/config."""
    if where.endswith(f":{known.port}"):
        return where
    return f"[{where}]:{known.port}" if ":" in where and " " not in where else f"{where}:{known.port}"


def _system_error(
    where: str, error: OSError, known: asyncssh.SSHClientConnectionOptions, options: SshOptions
) -> ConnectError:
    """Return the word for a failed TCP connection."""
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return ConnectError(
            f"{_with_port(where, known)}: connection refused",
            kind="refused",
            remedy="check that sshd runs and its port",
        )
    if isinstance(error, socket.gaierror):
        return ConnectError(f"{where}: the name has no address", kind="dns", remedy="check the name, or DNS")
    if isinstance(error, TimeoutError):
        return ConnectError(
            f"{where}: no answer within {options.connect_timeout:.0f} s",
            kind="timeout",
            remedy="check that the machine is up and that no firewall drops the connection",
        )
    if isinstance(error, FileNotFoundError | PermissionError) and error.filename:
        return ConnectError(
            f"{where}: {error.filename}: {error.strerror}", kind="auth", remedy="check ssh.key and ssh.config"
        )
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
        return ConnectError(
            f"{where}: {error.strerror}", kind="unreachable", remedy="check the network and the address"
        )
    return ConnectError(f"{where}: {clean_line(str(error))}", kind="lost")
