"""Whether a cluster can be simulated on this machine, and how far: tried, not guessed.

Run as `python -m pdtui.sim.ability MODE` it enters the namespaces of MODE (as `node_init` does), says `ok` or why
not, and ends: nothing stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.tap import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    call,
    enter_namespaces,
    loopback_up,
    open_tap,
)

_SOURCES = str(Path(__file__).resolve().parents[2])
_TIMEOUT = 10.0
"""Seconds."""
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


@dataclass(frozen=True, slots=True)
class Ability:
    """What stands in the way of each kind of simulated node; empty: nothing."""

    own_processes: str
    """Why nodes would share this machine's view of processes."""
    own_network: str
    """Why `pdtui demo --netns` does not work."""
    sshd: str
    """Path of OpenSSH's server; empty: there is none."""


def ability() -> Ability:
    """Try both, each in a process of its own. Blocks for a tenth of a second, for `_TIMEOUT` at most."""
    return Ability(_try("namespace"), _try("netns"), sshd_path() or "")


def sshd_path() -> str | None:
    """Return where OpenSSH's server is; users' paths often lack the folder."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{_SBIN}")


def _try(mode: str) -> str:
    """Return why the namespaces of a mode cannot be had; empty when they can."""
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-s", "-P", "-m", "pdtui.sim.ability", mode],
            env={"PATH": os.defpath, "PYTHONPATH": _SOURCES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT:.0f} s"
    said = done.stdout.strip().splitlines()
    if said == ["ok"]:
        return ""
    return said[-1] if said else f"the try ended with status {done.returncode}"


def main() -> int:
    """Enter the namespaces and say how it went."""
    networked = sys.argv[1] == "netns"
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | (CLONE_NEWNET if networked else 0)
    try:
        enter_namespaces(flags, identity=networked)
    except OSError as error:
        sys.stdout.write(f"{error.strerror}\n")
        return 1
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
            call("mount", b"proc", b"/proc", b"proc", 0, None)
            if networked:
                loopback_up()
                os.close(open_tap("eth0", "198.18.0.2"))
        except OSError as error:
            os.write(1, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}\n".encode())
            os._exit(1)
        os.write(1, b"ok\n")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
