"""A cluster of real vLLM servers on this machine, and the installed `pdtui` pointed at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib import request

import yaml

from tests.acceptance.served import user_env
from tests.support.ports import free_port, free_run
from tests.support.processes import Process, living
from tests.support.real_vllm import RealVllm

T = TypeVar("T")

PDTUI = str(Path(sys.executable).parent / "pdtui")
SAMPLES = Path(__file__).parents[2] / "sample_configs"

START = 300.0
"""Seconds that servers may take to come up: a quarter of a minute of processor time each, on a busy machine."""

SEEN = 60.0
"""Seconds within which what has happened to a rank must be told."""


@dataclass
class RealCluster:
    """A topology file of ranks that run real vLLM, with a state folder and a home of their own."""

    name: str
    file: Path
    home: Path
    state: Path
    env: dict[str, str]

    def run(
        self, *words: str, file: Path | None = None, within: float = START
    ) -> subprocess.CompletedProcess[str]:
        """Run `pdtui WORDS`, `FILE` standing for the topology file (or `file`); checks nothing.

        What it narrates goes to stderr, which pytest shows where a test failed.
        """
        argv = [PDTUI, *(str(file or self.file) if word == "FILE" else word for word in words)]
        since = time.monotonic()
        done = subprocess.run(
            argv,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=within,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        took = time.monotonic() - since
        sys.stderr.write(f"$ pdtui {' '.join(words)}: {done.returncode}, {took:.1f} s\n{done.stdout}{done.stderr}")
        return done

    def must(self, *words: str, file: Path | None = None, within: float = START) -> str:
        """Run a command that has to succeed and return its stdout."""
        done = self.run(*words, file=file, within=within)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str, file: Path | None = None) -> dict[str, Any]:
        """Run a reading command with `--json` and return what it printed."""
        done = self.run(*words, "--json", file=file)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ranks(self, file: Path | None = None) -> dict[str, dict[str, Any]]:
        """Return the ranks of `status` by id."""
        return {rank["id"]: rank for rank in self.json("status", "FILE", file=file)["ranks"]}

    def plan(self) -> dict[str, dict[str, Any]]:
        """Return the planned ranks by id."""
        return {rank["id"]: rank for rank in self.json("plan", "FILE")["ranks"]}

    def processes(self, rank: str = "") -> list[Process]:
        """Return the living processes of the ranks, or of one: their titles change, their environment stays."""
        end = f"{rank}\n" if rank else ""
        return [process for process in living() if f"PDTUI_RANK={self.name}:{end}" in f"{process.environment}\n"]

    def process(self, rank: str, title: str) -> int:
        """Return the pid of a rank's process whose command line has `title`."""
        found = [process for process in self.processes(rank) if title in process.command]
        assert found, f"no {title} among {[(p.pid, p.command[:60]) for p in self.processes(rank)]}"
        return found[0].pid

    def wait_for(
        self, rank: str, probe: Callable[[dict[str, Any]], bool], *, within: float = SEEN
    ) -> dict[str, Any]:
        """Return what `status` says of a rank when `probe` holds for it."""
        deadline = time.monotonic() + within
        while True:
            found = self.ranks()[rank]
            if probe(found):
                return found
            assert time.monotonic() < deadline, found


def make_cluster(
    base: Path,
    real: RealVllm,
    sample: str,
    *,
    change: Callable[[dict[str, Any]], object] = lambda tree: None,
    suffix: str = "",
) -> RealCluster:
    """Write a sample's file with this installation's paths, free ports and a state folder below `base`."""
    tree: dict[str, Any] = yaml.safe_load((SAMPLES / sample).read_text(encoding="utf-8"))
    home, state = base / "home", base / "state"
    for folder in (home, state):
        folder.mkdir(parents=True, exist_ok=True)
    tree["name"] = f"real-{os.getpid()}{suffix}"
    tree["runtime"] = {"setup": [str(real.activate)], "state_dir": str(state)}
    tree["model"]["path"] = str(real.folder / Path(tree["model"]["path"]).name)
    for group in tree["groups"].values():
        size = group["dp_size"]
        group["api_port"], group["kv_port"] = free_run(size), free_run(size)
        if size > 1:
            group["rpc_port"] = free_port()
    tree["proxy"]["port"] = free_port()
    change(tree)
    return write_cluster(base, tree)


def write_cluster(base: Path, tree: Mapping[str, Any], *, name: str = "cluster.yaml") -> RealCluster:
    """Write a topology file; its home and state folder are those below `base`."""
    file = base / name
    file.write_text(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")
    home = base / "home"
    return RealCluster(tree["name"], file, home, base / "state", user_env(home))


def answer(url: str, path: str, body: Mapping[str, Any], *, within: float = 120.0) -> dict[str, Any]:
    """POST a request that is not streamed and return the JSON of the answer. Raises `urllib.error.HTTPError`."""
    asked = request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with request.urlopen(asked, timeout=within) as reply:
        found: dict[str, Any] = json.loads(reply.read())
        return found


def text_of(reply: Mapping[str, Any]) -> str:
    """Return the text of a completion or chat completion."""
    choice = reply["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert isinstance(text, str)
    return text


def streamed(url: str, path: str, body: Mapping[str, Any], *, within: float = 120.0) -> str:
    """POST a streamed request and return its text, put together."""
    asked = request.Request(
        url + path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    parts: list[str] = []
    with request.urlopen(asked, timeout=within) as reply:
        for line in reply:
            data = line.decode().strip().removeprefix("data:").strip()
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            assert "error" not in event, event
            parts.extend(
                choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                for choice in event["choices"]
            )
    return "".join(parts)


def counter(url: str, name: str, **labels: str) -> float:
    """Return a counter of a server's /metrics, added up over all that has these labels."""
    with request.urlopen(f"{url}/metrics", timeout=60.0) as reply:
        lines = reply.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name}{{", f"{name} ")) and all(word in line for word in wanted)
    ]
    return sum(found)


def eventually(probe: Callable[[], T], *, within: float, what: str) -> T:
    """Return the first true value of `probe`, from a test that has no event loop."""
    deadline = time.monotonic() + within
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}; last value {value!r}"
        time.sleep(0.1)
