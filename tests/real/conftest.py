"""Real servers, started once for all tests of this folder that share them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.cluster import START, RealCluster, answer, eventually, make_cluster, text_of
from tests.real.prompts import PROMPTS
from tests.real.watch import StageWatch
from tests.support.ports import free_port
from tests.support.real_vllm import RealVllm, real_vllm

LEASE = 15
"""Seconds that P keeps blocks for D here; with vLLM's own 30 the tests would only wait longer."""


@dataclass(frozen=True)
class Serving:
    """One prefill and one decode rank, started with `pdtui start`, and what they are compared with."""

    cluster: RealCluster
    texts: dict[str, str]
    """What a plain server, without a connector, answers to each prompt."""
    stages: dict[str, list[str]]
    """What was shown of each rank while it started, in order."""
    lease_s: float = LEASE

    def url(self, rank: str) -> str:
        """Where a rank's API server is."""
        planned = self.cluster.plan()[rank]
        return f"http://{planned['host']}:{planned['api_port']}"


@pytest.fixture(scope="session")
def real() -> RealVllm:
    """vLLM on this machine, or a skip."""
    return real_vllm()


@contextlib.contextmanager
def ended(cluster: RealCluster) -> Iterator[RealCluster]:
    """Leave nothing of a cluster, whatever a test did to it."""
    try:
        yield cluster
    finally:
        for process in cluster.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not cluster.processes(), within=30.0, what="every process of the cluster is gone")


@pytest.fixture(scope="session")
def serving(real: RealVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The cluster; its start, a plain server's and the questions to that one happen side by side."""

    def change(tree: dict[str, Any]) -> None:
        tree["kv"]["extra"] = {"kv_lease_duration": LEASE}

    base = tmp_path_factory.mktemp("servers")
    with ended(make_cluster(base, real, "cpu-1p1d.yaml", change=change)) as cluster:
        with plain_server(real, cluster) as url:
            with StageWatch(cluster.file, base / "watch") as watch:
                cluster.must("start", "FILE", "all")
            texts = reference(url, base / "home" / "plain.log")
        yield Serving(cluster, texts, watch.stages)


@contextlib.contextmanager
def plain_server(real: RealVllm, cluster: RealCluster) -> Iterator[str]:
    """Run the same server without a connector; yields its URL at once, long before it answers."""
    planned = cluster.plan()["p/0"]
    port = str(free_port())
    words = [port if word == str(planned["api_port"]) else word for word in planned["argv"][1:]]
    at = words.index("--kv-transfer-config")
    del words[at : at + 2]
    with (cluster.home / "plain.log").open("wb") as log:
        server = subprocess.Popen(
            [str(real.vllm), *words],
            env=cluster.env | planned["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def reference(url: str, log: Path) -> dict[str, str]:
    """Return the plain server's answers, once it is up."""

    def answers() -> dict[str, str]:
        with contextlib.suppress(OSError):
            return {name: text_of(answer(url, path, body)) for name, (path, body) in PROMPTS.items()}
        return {}

    try:
        return eventually(answers, within=START, what="a plain server answers")
    except AssertionError:
        sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-3000:])
        raise
