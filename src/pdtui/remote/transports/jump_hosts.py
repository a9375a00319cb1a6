"""The hosts through which nodes are reached: one connection each, whoever needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from pdtui.clock import Clock
from pdtui.errors import ConnectError, JumpHostError
from pdtui.remote.transports.login import Handshakes, Login, configuration, log_in
from pdtui.topology.model import SshOptions

_Key = tuple[str, SshOptions]


class JumpHosts:
    """Connects to a jump host once, and tells everyone who waits for it the same."""

    def __init__(self, clock: Clock, handshakes: Handshakes, *, opened: Callable[[], None] | None = None) -> None:
        """Prepare; `opened` is called when a jump host has been reached."""
        self._clock = clock
        self._handshakes = handshakes
        self._opened = opened
        self._logins: dict[_Key, Login] = {}
        self._attempts: dict[_Key, asyncio.Task[Login]] = {}

    async def get(self, jump: str, options: SshOptions) -> Login:
        """Return the connection to the last of `[user@]host[:port],...`. Raises `JumpHostError`."""
        # The file's key, known_hosts and config count for the jump host too; user and port are its own.
        shared = SshOptions(
            key=options.key,
            known_hosts=options.known_hosts,
            config=options.config,
            connect_timeout=options.connect_timeout,
        )
        login: Login | None = None
        path = ""
        for hop in filter(None, (part.strip() for part in jump.split(","))):
            path = f"{path},{hop}" if path else hop
            login = await self._hop(path, hop, shared, login)
        if login is None:
            raise JumpHostError(f"no jump host in {jump!r}", kind="dns", remedy="ssh.jump is [user@]host[:port]")
        return login

    async def _hop(self, path: str, hop: str, options: SshOptions, tunnel: Login | None) -> Login:
        """Return the connection to one host of a path, a new one if need be; one attempt serves all who wait."""
        key = (path, options)
        login = self._logins.get(key)
        if login is not None and not login.connection.is_closed():
            return login
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(key, hop, tunnel), name=f"jump host {path}")
            self._attempts[key] = attempt
            attempt.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(attempt)

    async def _connect(self, key: _Key, hop: str, tunnel: Login | None) -> Login:
        path, options = key
        old = self._logins.pop(key, None)
        if old is not None:
            await old.end()
        user, _, address = hop.rpartition("@")
        host, port = split_port(address)
        own = replace(options, user=user or None, port=port)
        try:
            login = await log_in(
                host,
                own,
                await configuration(host, own),
                clock=self._clock,
                handshakes=self._handshakes,
                tunnel=tunnel.connection if tunnel is not None else None,
                via=path,
            )
        except ConnectError as error:
            raise JumpHostError(error.message, kind=error.kind, remedy=error.remedy) from error
        self._logins[key] = login
        return login

    def _ended(self, key: _Key, attempt: asyncio.Task[Login]) -> None:
        del self._attempts[key]
        # Asked for also when nobody waits any more, or it would be said to be lost.
        if not attempt.cancelled() and attempt.exception() is None and self._opened is not None:
            self._opened()

    async def close(self) -> None:
        """Close all shared connections, the innermost first."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for login in reversed(self._logins.values()):
            await login.end()
        self._logins.clear()


def split_port(address: str) -> tuple[str, int | None]:
    """Split `host[:port]`; an IPv6 address with a port is in brackets."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:]) if rest[1:].isdigit() else None
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and ":" not in host:
        return host, int(port)
    return address, None
