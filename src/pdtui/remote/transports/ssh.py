"""A node over SSH: one connection, the user's own ~/.ssh/config, keys and agent, host keys always checked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.interface import Channel, ExitInfo
from pdtui.text import clean_line, decode
from pdtui.topology.model import SshOptions

HANDSHAKES = 8
"""At once, over all nodes: sshd drops connections beyond ten unauthenticated ones (MaxStartups 10:30:100)."""
STDERR_KEPT = 4096
CLOSE_TIMEOUT = 2.0
KEEPALIVE_INTERVAL = 15.0


class _Observer(asyncssh.SSHClient):
    """Remembers the host key that was not trusted."""

    def __init__(self) -> None:
        self.key: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Refuse: asyncssh asks only about keys that known_hosts does not vouch for."""
        self.key = key
        return False


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


class JumpHosts:
    """One shared connection per jump host, whoever needs it."""

    def __init__(self, clock: Clock, handshakes: asyncio.Semaphore) -> None:
        self._clock = clock
        self._handshakes = handshakes
        self._connections: dict[tuple[str, SshOptions], asyncssh.SSHClientConnection] = {}
        self._locks: dict[tuple[str, SshOptions], asyncio.Lock] = {}

    async def get(self, jump: str, options: SshOptions) -> asyncssh.SSHClientConnection:
        """Return the connection to the last of `[user@]host[:port],...`. Raises `ConnectError`."""
        # The file's key, known_hosts and config count for the jump host too; user and port are its own.
        shared = SshOptions(
            key=options.key,
            known_hosts=options.known_hosts,
            config=options.config,
            connect_timeout=options.connect_timeout,
        )
        tunnel: asyncssh.SSHClientConnection | None = None
        path = ""
        for hop in filter(None, (part.strip() for part in jump.split(","))):
            path = f"{path},{hop}" if path else hop
            tunnel = await self._hop(path, hop, shared, tunnel)
        if tunnel is None:
            raise ConnectError(f"no jump host in {jump!r}", kind="dns", remedy="ssh.jump is [user@]host[:port]")
        return tunnel

    async def _hop(
        self, path: str, hop: str, options: SshOptions, tunnel: asyncssh.SSHClientConnection | None
    ) -> asyncssh.SSHClientConnection:
        key = (path, options)
        async with self._locks.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is not None and not connection.is_closed():
                return connection
            user, _, address = hop.rpartition("@")
            host, port = split_port(address)
            own = SshOptions(
                user=user or None,
                port=port,
                key=options.key,
                known_hosts=options.known_hosts,
                config=options.config,
                connect_timeout=options.connect_timeout,
            )
            connection = await _connect(host, own, tunnel, self._handshakes, via=path)
            self._connections[key] = connection
            return connection

    async def close(self) -> None:
        """Close all shared connections, the innermost first."""
        for connection in reversed(self._connections.values()):
            await _end(connection, self._clock)
        self._connections.clear()


def split_port(address: str) -> tuple[str, int | None]:
    """Split `host[:port]`; an IPv6 address with a port is in brackets."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else None
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and ":" not in host:
        return host, int(port)
    return address, None


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


async def _connect(
    host: str,
    options: SshOptions,
    tunnel: asyncssh.SSHClientConnection | None,
    handshakes: asyncio.Semaphore,
    *,
    via: str = "",
) -> asyncssh.SSHClientConnection:
    """Connect and log in. Raises `ConnectError`."""
    observer = _Observer()
    where = f"jump host {via}" if via else host
    try:
        arguments = _arguments(host, options)
        if tunnel is not None:
            arguments["tunnel"] = tunnel
        elif via:
            arguments["tunnel"] = None
        async with handshakes:
            return await asyncssh.connect(client_factory=lambda: observer, **arguments)
    except asyncssh.HostKeyNotVerifiable as error:
        raise await _host_key_error(error, observer.key, host, options) from error
    except asyncssh.PermissionDenied as error:
        raise ConnectError(
            f"{where}: no key was accepted ({clean_line(error.reason)})",
            kind="auth",
            remedy="add your key there, load it into ssh-agent, or name it with ssh.key (no passwords)",
        ) from error
    except asyncssh.ChannelOpenError as error:
        raise ConnectError(
            f"{where} cannot be reached from the jump host: {clean_line(error.reason)}", kind="unreachable"
        ) from error
    except asyncssh.Error as error:
        raise ConnectError(
            f"{where}: {clean_line(error.reason) or 'the connection was closed'}",
            kind="lost" if isinstance(error, asyncssh.ConnectionLost) else "protocol",
            remedy="sshd drops connections beyond MaxStartups; tried again" if not via else "",
        ) from error
    except (asyncssh.KeyImportError, asyncssh.ConfigParseError, ValueError) as error:
        raise ConnectError(
            f"{where}: {clean_line(str(error))}", kind="auth", remedy="check the key and ~/.ssh/config"
        ) from error
    except OSError as error:
        if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
            raise ConnectError(
                f"{await _with_port(where, host, options)}: connection refused",
                kind="refused",
                remedy="check that sshd runs and its port",
            ) from error
        raise _system_error(where, error, options) from error


async def _with_port(where: str, host: str, options: SshOptions) -> str:
    """Return `host:port`; the port may come from ~/.ssh/config."""
    port = options.port or (await asyncssh.SSHClientConnectionOptions.construct(**_arguments(host, options))).port
    if where.endswith(f":{port}"):
        return where
    return f"[{where}]:{port}" if where == host and ":" in host else f"{where}:{port}"


def _system_error(where: str, error: OSError, options: SshOptions) -> ConnectError:
    """Return the word for a failed TCP connection."""
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


async def _host_key_error(
    error: asyncssh.HostKeyNotVerifiable, key: asyncssh.SSHKey | None, host: str, options: SshOptions
) -> ConnectError:
    """Return whether the key is unknown or has changed, with the line that accepts it and what to compare."""
    arguments = _arguments(host, options)
    known = await asyncssh.SSHClientConnectionOptions.construct(**arguments)
    algorithm = key.get_algorithm() if key is not None else "unknown algorithm"
    fingerprint = key.get_fingerprint() if key is not None else "unknown"
    files = known.known_hosts if isinstance(known.known_hosts, str | list) and known.known_hosts else None
    if _has_other_key(files, known.host, known.port):
        name = known.host if known.port == 22 else f"[{known.host}]:{known.port}"
        return ConnectError(
            f"{host}: the host key HAS CHANGED; it is now {algorithm} {fingerprint}",
            kind="changed_host_key",
            remedy=f"if the machine was reinstalled: {keygen_line(name, options)}; then connect once with"
            f" {accept_line(host, options)} and compare the fingerprint. If not, somebody may be listening.",
        )
    if key is None:
        return ConnectError(f"{host}: {clean_line(error.reason)}", kind="unknown_host_key")
    return ConnectError(
        f"{host}: unknown host key {algorithm} {fingerprint}",
        kind="unknown_host_key",
        remedy=f"compare the fingerprint, then accept the key with: {accept_line(host, options)}",
    )


def _has_other_key(known_hosts: str | list[str] | None, host: str, port: int) -> bool:
    """Say whether known_hosts has any key for the host."""
    default = Path.home() / ".ssh" / "known_hosts"
    paths = [known_hosts] if isinstance(known_hosts, str) else known_hosts or [str(default)]
    readable = [path for path in paths if Path(path).is_file()]
    if not readable:
        return False
    try:
        keys, *_ = asyncssh.match_known_hosts(
            asyncssh.read_known_hosts(readable), host, "", port if port != 22 else None
        )
    except (OSError, ValueError):
        return False
    return bool(keys)


def accept_line(host: str, options: SshOptions) -> str:
    """Return the command that shows a host key, asks, and remembers it."""
    words = ["ssh"]
    if options.config is not None:
        words += ["-F", str(options.config)]
    if options.known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={options.known_hosts}"]
    if options.key is not None:
        words += ["-i", str(options.key)]
    if options.jump:
        words += ["-J", options.jump]
    if options.port is not None:
        words += ["-p", str(options.port)]
    words += [f"{options.user}@{host}" if options.user else host, "true"]
    return shlex.join(words)


def keygen_line(name: str, options: SshOptions) -> str:
    """Return the command that forgets a host key."""
    words = ["ssh-keygen", "-R", name]
    if options.known_hosts is not None:
        words += ["-f", str(options.known_hosts)]
    return shlex.join(words)


async def _end(connection: asyncssh.SSHClientConnection, clock: Clock) -> None:
    """Close a connection; one that does not go is aborted."""
    connection.close()
    try:
        async with clock.timeout(CLOSE_TIMEOUT):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()
        await connection.wait_closed()


class SshTransport:
    """Implements `Transport` on one SSH connection."""

    def __init__(self, connection: asyncssh.SSHClientConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._tasks: set[asyncio.Task[ExitInfo]] = set()
        self._listeners: list[asyncssh.SSHListener] = []

    @classmethod
    async def connect(
        cls, host: str, options: SshOptions, *, clock: Clock, jumps: JumpHosts, handshakes: asyncio.Semaphore
    ) -> SshTransport:
        """Connect to a node, through its jump host if it has one. Raises `ConnectError`."""
        jump = options.jump or await _configured_jump(host, options)
        tunnel = await jumps.get(jump, options) if jump else None
        return cls(await _connect(host, options, tunnel, handshakes), clock)

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
        try:
            listener = await self._connection.forward_local_port("127.0.0.1", 0, host, port)
        except (asyncssh.Error, OSError) as error:
            raise ConnectError(f"no tunnel to {host}:{port}: {clean_line(str(error))}", kind="lost") from error
        self._listeners.append(listener)
        return "127.0.0.1", listener.get_port()

    async def close(self) -> None:
        """End the connection and everything on it."""
        for listener in self._listeners:
            listener.close()
        await _end(self._connection, self._clock)
        for listener in self._listeners:
            await listener.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _plain(error: Exception) -> str:
    """Return an error without Python's numbers: `/keys/id: No such file or directory`."""
    if isinstance(error, OSError) and error.filename:
        return clean_line(f"{error.filename}: {error.strerror}")
    return clean_line(str(error))


async def _configured_jump(host: str, options: SshOptions) -> str:
    """Return the ProxyJump of ~/.ssh/config for a node. Raises `ConnectError`."""
    try:
        known = await asyncssh.SSHClientConnectionOptions.construct(**_arguments(host, options))
    except (asyncssh.Error, asyncssh.KeyImportError, asyncssh.ConfigParseError, ValueError, OSError) as error:
        raise ConnectError(
            f"{host}: {_plain(error)}", kind="auth", remedy="check ssh.key and ~/.ssh/config"
        ) from error
    tunnel = known.tunnel
    return tunnel if isinstance(tunnel, str) and tunnel.lower() != "none" else ""
