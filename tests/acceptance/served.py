"""A simulated cluster served by the installed command, and the command line pointed at it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import carrying

PDTUI = str(Path(sys.executable).parent / "pdtui")

SPEED = 10
"""Divides the durations of a start: what loads in a second takes its processor time all the same."""


@dataclass
class Served:
    """A running `pdtui demo --serve`."""

    process: subprocess.Popen[str]
    topology: str
    root: Path
    env: dict[str, str]

    def run(self, *words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run `pdtui WORDS`, `FILE` standing for the topology file; checks nothing."""
        argv = [PDTUI, *(self.topology if word == "FILE" else word for word in words)]
        return subprocess.run(
            argv,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def json(self, *words: str) -> dict[str, Any]:
        """Run a reading command with `--json` and return what it printed."""
        done = self.run(*words, "--json")
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ranks(self) -> dict[str, dict[str, Any]]:
        """Return the ranks of `status` by id."""
        return {rank["id"]: rank for rank in self.json("status", "FILE")["ranks"]}

    def fault(self, spec: str) -> None:
        """Switch a fault of this cluster."""
        done = self.run("demo", "--root", str(self.root), "--fault", spec)
        assert done.returncode == 0, done.stderr


def user_env(home: Path) -> dict[str, str]:
    """Return the environment of a user with an empty home."""
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ
    }
    return {
        **kept,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_RUNTIME_DIR": str(home / "run"),
    }


def rank_processes(root: Path) -> list[str]:
    """Return the command lines of the ranks and keepers of the simulation under `root`."""
    commands = [process.command for process in carrying(str(root))]
    return [command for command in commands if "keeper" in command or "vllm" in command.lower()]


@contextmanager
def serve(
    base: Path, file: Path | None = None, *, speed: float = SPEED, options: Sequence[str] = ()
) -> Iterator[Served]:
    """Run `pdtui demo --serve` (of `file`, if one is given) with ranks stopped; at the end nothing may be left."""
    home, root = base / "home", base / "cluster"
    home.mkdir(parents=True)
    env = user_env(home)
    words = [*options, *([str(file)] if file is not None else [])]
    process = subprocess.Popen(
        [PDTUI, "demo", *words, "--serve", "--stopped", "--root", str(root), "--speed", str(speed)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], 120.0)[0], "no topology path within 120 s"
        topology = process.stdout.readline().strip()
        assert Path(topology).is_file(), topology
        yield Served(process, topology, root, env)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()
    deadline = time.monotonic() + 60.0
    while left := carrying(str(root)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
