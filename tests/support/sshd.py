"""OpenSSH's own server on loopback, with keys and a configuration of its own in a temporary folder."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdtui.topology.model import SshOptions
from tests.support.ports import free_port
from tests.support.waiting import eventually

PRIVSEP = Path("/run/sshd")
"""Where Debian's sshd wants an empty folder when it is started by root."""


def require_sshd() -> str:
    """Return the path of sshd; skip without one, or fail when PDTUI_REQUIRE_ALL=1 asks for everything."""
    path = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is not None and shutil.which("ssh-keygen") is not None:
        return path
    if os.environ.get("PDTUI_REQUIRE_ALL") == "1":
        pytest.fail("no sshd or ssh-keygen here, and PDTUI_REQUIRE_ALL=1")
    pytest.skip("no sshd or ssh-keygen here (Debian: openssh-server)")


def make_key(path: Path, *, passphrase: str = "") -> Path:
    """Make an ed25519 key pair and return the private half's path."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    return path


@dataclass
class Sshd:
    """A running server."""

    port: int
    folder: Path
    process: asyncio.subprocess.Process

    @property
    def log(self) -> str:
        """What it and its sessions have said."""
        return (self.folder / "sshd.log").read_text(encoding="utf-8", errors="replace")

    @property
    def startups(self) -> int:
        """Connections that have not logged in yet: the listener's title has what it counts for MaxStartups."""
        title = Path(f"/proc/{self.process.pid}/cmdline").read_bytes().decode(errors="replace")
        found = re.search(r"(\d+) of \d+-\d+ startups", title)
        return int(found[1]) if found else 0

    async def kill(self) -> None:
        """SIGKILL to the listener and all its sessions."""
        victims = [self.process.pid, *_descendants(self.process.pid)]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.process.wait()

    async def start(self) -> None:
        """Run again, on the same port."""
        self.process = await _run(self.folder)

    @property
    def host_key(self) -> str:
        """The public half of its host key: type and base64."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def options(self) -> SshOptions:
        """How to reach it."""
        return SshOptions(
            user=getpass.getuser(),
            port=self.port,
            key=self.folder / "id",
            known_hosts=self.folder / "known_hosts",
            config=self.folder / "ssh_config",
            connect_timeout=20.0,
        )


def _descendants(root: int) -> list[int]:
    """Return the pids below a process."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    below = {root}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    return sorted(below - {root})


def _prepare(folder: Path, port: int, extra: str, addresses: Sequence[str]) -> None:
    """Write keys, known_hosts and configuration."""
    make_key(folder / "host_key")
    make_key(folder / "id")
    (folder / "ssh_config").write_text("")
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"[{address}]:{port} {host_key}\n" for address in addresses))
    (folder / "sshd_config").write_text(
        "".join(f"ListenAddress {address}:{port}\n" for address in addresses)
        + f"HostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel INFO\n"
        f"SetEnv HOME={folder}\n{extra}"
    )


def _listens(folder: Path, since: int) -> bool:
    """Say whether the log says so, from a place in it on: a connection would count for MaxStartups."""
    return b"Server listening on" in (folder / "sshd.log").read_bytes()[since:]


@asynccontextmanager
async def running_sshd(
    folder: Path, *, extra: str = "", addresses: Sequence[str] = ("127.0.0.1",)
) -> AsyncIterator[Sshd]:
    """Run sshd for the current user; `extra` is added to its configuration. Everything is gone afterwards."""
    require_sshd()
    if os.getuid() == 0:
        PRIVSEP.mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    _prepare(folder, port, extra, addresses)
    sshd = Sshd(port, folder, await _run(folder))
    try:
        yield sshd
    finally:
        if sshd.process.returncode is None:
            sshd.process.terminate()
        await sshd.process.wait()


async def _run(folder: Path) -> asyncio.subprocess.Process:
    """Start it and wait until it listens."""
    path = require_sshd()
    with (folder / "sshd.log").open("ab") as log:
        since = log.tell()
        process = await asyncio.create_subprocess_exec(
            path,
            *("-D", "-e", "-f", str(folder / "sshd_config")),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    await eventually(lambda: _listens(folder, since) or process.returncode is not None, what="sshd listens")
    assert process.returncode is None, (folder / "sshd.log").read_text()
    return process
