"""Groups that come up, hang, lack a rank or die: what is shown and what an operation does with them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.fleet.snapshot import OperationStatus
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def start(cluster: Cluster, fleet: Fleet, ids: tuple[str, ...] = ALL) -> OperationStatus:
    return await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ids))))


def steps(operation: OperationStatus) -> dict[str, tuple[str, str]]:
    return {step.label: (step.state, step.detail) for step in operation.steps}


def log_line(cluster: Cluster, seconds: float, words: str) -> str:
    """Return a line of vLLM's log that was written `seconds` after now."""
    at = time.strftime("%m-%d %H:%M:%S", time.gmtime(cluster.clock.wall() + seconds))
    return f"INFO {at} [core.py:1] {words}\n"


async def test_ranks_of_one_node_start_one_after_the_other(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 3s}")
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "done", done.error
        started = {rank: fleet.store.ranks[rank].started or 0.0 for rank in ALL}
    first, second, third, fourth = (started[rank] for rank in DECODE)
    assert second - first >= 3
    assert fourth - third >= 3
    assert abs(started["p1/0"] - first) < 3  # Nodes wait for nobody.


async def test_start_that_hangs_says_at_which_stage_and_since_when(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{deadline: 10min}")
    text = log_line(cluster, 2, "Initializing a V1 LLM engine") + log_line(cluster, 30, "Starting to load model x")
    bar = "Loading safetensors checkpoint shards:  63% Completed | 5/8\n"
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=5000, log=text + bar)
    since = time.strftime("%H:%M:%S", time.localtime(cluster.clock.wall() + 30))
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "failed"
        words = f"not ready within 10 min, stage: weights 63 % since {since}; left as it is"
        assert steps(done)["p1/0"] == ("failed", words)
