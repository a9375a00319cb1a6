"""A simulated cluster with networks of its own: nodes behind OpenSSH's sshd, at the addresses of the file."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.control import send_fault
from pdtui.topology.load import load_checked
from pdtui.topology.model import SshOptions, Topology
from tests.support.required import skip_unless


@dataclass(frozen=True)
class Rack:
    """A running simulation, in a process of its own."""

    root: Path
    file: Path

    @property
    def topology(self) -> Topology:
        """The file that the simulation wrote."""
        return load_checked(self.file)

    def options(self, node: str) -> SshOptions:
        """How to reach a node."""
        return self.topology.nodes[node].ssh

    async def fault(self, spec: str) -> str:
        """Switch a fault."""
        return await asyncio.to_thread(send_fault, spec, self.root)


def missing() -> str:
    """Return why there can be no such simulation here, or nothing."""
    if shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        return "no sshd here (Debian: openssh-server)"
    tried = subprocess.run(["unshare", "-Urn", "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"no network namespaces here: {tried.stderr.decode().strip()}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    return ""


def require_netns() -> None:
    """Skip where there can be no such simulation; fail where everything is required."""
    reason = missing()
    skip_unless(not reason, reason)


@contextmanager
def serving(file: Path, root: Path, *, speed: float = 60.0) -> Iterator[Rack]:
    """Run a simulation of a file's cluster, with its own word of where it is (`XDG_RUNTIME_DIR`)."""
    require_netns()
    argv = [sys.executable, "-m", "pdtui.sim", str(file), "--root", str(root), "--speed", str(speed), "--netns"]
    runtime = root.with_name(f"{root.name}-run")
    runtime.mkdir(parents=True)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], 60.0)[0], "no topology path within 60 s"
        line = process.stdout.readline().strip()
        assert line, f"the simulator ended with status {process.wait()}"
        yield Rack(root, Path(line))
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
