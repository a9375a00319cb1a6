"""OpenSSH's own server on a simulated node that has a network: Debian's sshd with its default limits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.ability import sshd_path
from pdtui.sim.folder import environment
from pdtui.sim.machine import SYSTEM_PATH, Machine
from pdtui.sim.processes import NodeProcesses, Spawned

PORT = 22
_SECONDS_TO_LISTEN = 20.0
_LISTENS = b"Server listening on"

CONFIG = """\
# What is not said here is OpenSSH's default: MaxSessions 10, MaxStartups 10:30:100.
Port {port}
AddressFamily inet
HostKey {host_key}
AuthorizedKeysFile {authorized_keys}
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding {forwarding}
PidFile none
PrintLastLog no
SetEnv {environment}
"""


def find_sshd() -> str:
    """Return the path of sshd. Raises `SimulationError`."""
    path = sshd_path()
    if path is None:
        raise SimulationError("no sshd here", remedy="Debian: apt install openssh-server")
    return path


class OpenSshDaemon:
    """sshd as a process of the node, on port 22 of all its addresses."""

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
        self.port = PORT
        self._program = find_sshd()
        self._processes = processes
        self._user = user
        self._host_key = host_key
        self._authorized_keys = authorized_keys
        self._clock = clock
        self._forwarding = True
        self._listener: Spawned | None = None

    @property
    def _config(self) -> Path:
        return self.machine.folder / "etc" / "sshd_config"

    @property
    def _log(self) -> Path:
        return self.machine.folder / "var" / "log" / "sshd.log"

    async def listen(self) -> None:
        """Accept connections, after whatever has happened to it. Raises `SimulationError`."""
        if self._listener is not None and not self._listener.ended.done():
            await self._processes.kill_named("sshd", signal.SIGCONT)
            return
        self._write()
        since = self._log_size()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self._listener = await self._processes.spawn(
                [self._program, "-D", "-f", str(self._config), "-E", str(self._log)],
                env={"PATH": SYSTEM_PATH},
                cwd=Path("/"),
                descriptors=[null] * 3,
            )
        finally:
            os.close(null)
        await self._listening(since)

    def _write(self) -> None:
        key = self.machine.folder / "etc" / "ssh_host_ed25519_key"
        key.unlink(missing_ok=True)
        self._host_key.write_private_key(str(key), "openssh")
        key.chmod(0o600)
        variables = environment(self.machine, self._user)
        # sshd's own, and what the account says.
        for name in ("HOME", "USER", "LOGNAME", "SHELL"):
            variables.pop(name, None)
        self._config.write_text(
            CONFIG.format(
                port=self.port,
                host_key=key,
                authorized_keys=self._authorized_keys,
                forwarding="yes" if self._forwarding else "no",
                environment=" ".join(f'"{name}={value}"' for name, value in variables.items()),
            ),
            encoding="utf-8",
        )

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    async def _listening(self, since: int) -> None:
        """Wait until the log says so, from a place in it on."""
        assert self._listener is not None  # noqa: S101
        try:
            async with self._clock.timeout(_SECONDS_TO_LISTEN):
                while _LISTENS not in self._text(since):
                    if self._listener.ended.done():
                        raise SimulationError(f"sshd ended: {self._text(since).decode(errors='replace').strip()}")
                    await self._clock.sleep(0.01)
        except TimeoutError:
            raise SimulationError(f"sshd does not listen after {_SECONDS_TO_LISTEN:.0f} s") from None

    def _text(self, since: int) -> bytes:
        return self._log.read_bytes()[since:] if self._log.exists() else b""

    async def kill(self) -> None:
        """SIGKILL to the listener and to the processes of all its connections."""
        listener, self._listener = self._listener, None
        if listener is not None and not listener.ended.done():
            await self._processes.kill_named("sshd", signal.SIGKILL)
            await listener.ended

    async def freeze(self) -> None:
        """SIGSTOP to all of it."""
        await self._processes.kill_named("sshd", signal.SIGSTOP)

    async def allow_forwarding(self, *, allowed: bool) -> None:
        """Allow TCP forwarding to new connections, or forbid it. Raises `SimulationError`."""
        if allowed == self._forwarding:
            return
        self._forwarding = allowed
        self._write()
        if self._listener is not None:
            since = self._log_size()
            await self._processes.kill([self._listener.pid], signal.SIGHUP)
            await self._listening(since)

    async def change_host_key(self, key: asyncssh.SSHKey) -> None:
        """Be another machine to whoever connects: a new key, and no connection left of the old one."""
        self._host_key = key
        await self.kill()
        await self.listen()

    async def close(self) -> None:
        """Nothing: it ends with the node."""
        self._listener = None
