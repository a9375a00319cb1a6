"""An SSH server inside the test's own process, which runs what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from pdtui.topology.model import SshOptions


@dataclass
class SimulatedSsh:
    """A running server and what it has seen."""

    port: int
    folder: Path
    connections: list[str] = field(default_factory=list)
    logins: int = 0
    logins_now: int = 0
    most_at_once: int = 0
    live: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[object]] = field(default_factory=set)

    @property
    def options(self) -> SshOptions:
        """How to reach it."""
        return SshOptions(
            user="tester",
            port=self.port,
            key=self.folder / "id",
            known_hosts=self.folder / "known_hosts",
            config=self.folder / "ssh_config",
        )


class _Server(asyncssh.SSHServer):
    def __init__(self, state: SimulatedSsh) -> None:
        self._state = state
        self._connection: asyncssh.SSHServerConnection | None = None
        self._waiting = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._state.live.add(conn)
        self._state.connections.append(str(conn.get_extra_info("peername")))
        self._state.logins_now += 1
        self._waiting = True
        self._state.most_at_once = max(self._state.most_at_once, self._state.logins_now)

    def auth_completed(self) -> None:
        self._state.logins += 1
        self._done_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done_waiting()
        if self._connection is not None:
            self._state.live.discard(self._connection)

    def _done_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._state.logins_now -= 1

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


async def _pump(read: Callable[[int], Awaitable[bytes]], write: Callable[[bytes], None]) -> None:
    """Copy until the end of one side or the other."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await read(65536):
            write(data)


async def _run(process: asyncssh.SSHServerProcess[bytes], home: Path) -> None:
    """Run a command as sshd does: by the login shell; it reads end of file when the channel closes."""
    child = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", process.command or "exit 0"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "USER": "tester"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None

    async def feed(stdin: asyncio.StreamWriter) -> None:
        await _pump(process.stdin.read, stdin.write)
        stdin.close()

    feeding = asyncio.create_task(feed(child.stdin))
    await asyncio.gather(
        _pump(child.stdout.read, process.stdout.write), _pump(child.stderr.read, process.stderr.write)
    )
    status = await child.wait()
    if status < 0:
        process.exit_with_signal("KILL")
    else:
        process.exit(status)
    await process.wait_closed()
    await feeding


@asynccontextmanager
async def simulated_ssh(
    folder: Path, *, handler: Callable[[asyncssh.SSHServerProcess[bytes]], object] | None = None
) -> AsyncIterator[SimulatedSsh]:
    """Serve on loopback with keys of its own in `folder`."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    user_key = asyncssh.generate_private_key("ssh-ed25519")
    folder.mkdir(exist_ok=True)
    user_key.write_private_key(str(folder / "id"))
    (folder / "id").chmod(0o600)
    user_key.write_public_key(str(folder / "authorized_keys"))
    (folder / "ssh_config").write_text("")
    state = SimulatedSsh(0, folder)

    async def default(process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        state.tasks.add(task)
        try:
            await _run(process, folder)
        finally:
            state.tasks.discard(task)

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Server(state),
        server_host_keys=[host_key],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=handler or default,
        encoding=None,
    )
    state.port = server.get_port()
    public = host_key.export_public_key().decode().strip()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{state.port} {public}\n")
    try:
        yield state
    finally:
        server.close()
        await server.wait_closed()
        for connection in list(state.live):
            connection.close()
            await connection.wait_closed()
        await asyncio.gather(*state.tasks, return_exceptions=True)
