"""OpenSSH's own server on loopback, with keys and a configuration of its own in a temporary folder."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdtui.topology.model import SshOptions
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


def free_port() -> int:
    """Return a port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Sshd:
    """A running server."""

    port: int
    folder: Path
    process: asyncio.subprocess.Process

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


def _prepare(folder: Path, port: int, extra: str) -> None:
    """Write keys, known_hosts and configuration."""
    make_key(folder / "host_key")
    make_key(folder / "id")
    (folder / "ssh_config").write_text("")
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
        f"SetEnv HOME={folder}\n{extra}"
    )


def _answers(port: int) -> bool:
    """Say whether something listens."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def running_sshd(folder: Path, *, extra: str = "") -> AsyncIterator[Sshd]:
    """Run sshd for the current user; `extra` is added to its configuration. Everything is gone afterwards."""
    path = require_sshd()
    if os.getuid() == 0:
        PRIVSEP.mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    _prepare(folder, port, extra)
    with (folder / "sshd.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            path,
            *("-D", "-e", "-f", str(folder / "sshd_config")),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    try:
        await eventually(lambda: _answers(port) or process.returncode is not None, what="sshd listens")
        assert process.returncode is None, (folder / "sshd.log").read_text()
        yield Sshd(port, folder, process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
