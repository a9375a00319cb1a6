"""Groups that come up, hang, lack a rank or die: what is shown and what an operation does with them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.interface import RankSpec, StartResult
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour, MemoryAgent


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


async def cancelled(cluster: Cluster, fleet: Fleet, operation: str) -> OperationStatus:
    """Cancel an operation as a console does and return how it ended."""
    await cluster.drive(fleet.cancel(operation))
    return await cluster.drive(fleet.wait(operation))


async def test_cancelled_start_begins_nothing_more_and_says_how_each_rank_is_left(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 20s}")
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(DECODE))
        await cluster.until(lambda: steps(fleet.store.operations[operation])["decode/2"][0] == "done")
        done = await cancelled(cluster, fleet, operation)
        assert done.state == "cancelled"
        assert steps(done)["decode/0"][1].startswith("ready")
        assert steps(done)["decode/1"] == ("skipped", "not begun")
        assert done.error == "decode/1, decode/3 not begun"
        await cluster.clock.advance(60)
        assert cluster.states(fleet)["decode/1"] is RankState.STOPPED
        assert len(cluster.nodes["node3"].starts) == 1
    for node in ("node3", "node4"):  # Also where others look.
        assert cluster.nodes[node].journal[-1]["event"] == "start ended"
        assert cluster.nodes[node].journal[-1]["state"] == "cancelled"


async def test_start_that_is_cancelled_while_ranks_load_leaves_them_loading(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=100, log="Available KV cache memory: 20 GiB\n")
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(5)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"] == ("skipped", "left as it is: KV cache")
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.READY, limit=120)


async def test_stop_that_is_cancelled_in_its_grace_period_says_that_no_kill_follows(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(ignores_term=True)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, ("p1/0", "p2/0"))
        operation = await fleet.submit(StopRanks(("p1/0", "p2/0")))
        await cluster.clock.advance(10)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"][1].startswith("TERM was sent and no KILL follows")
        assert steps(done)["p2/0"] == ("done", "stopped, ports and HBM not verified")
        await cluster.clock.advance(60)
        assert len(cluster.nodes["node1"].processes_of("tiny")) == 1


async def test_restart_that_is_cancelled_after_its_stop_says_that_ranks_are_stopped(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 20s}")
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, DECODE)
        operation = await fleet.submit(RestartRanks(DECODE))
        await cluster.until(lambda: len(cluster.nodes["node3"].starts) == 3)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["decode/1"] == ("skipped", "stopped, HBM not verified, not started again")
        assert "decode/1, decode/3 stopped, HBM not verified, not started again" in done.error
        assert cluster.states(fleet)["decode/1"] is RankState.STOPPED


async def test_start_is_seen_through_on_its_node_when_it_is_cancelled_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was told answers a moment later: what it did is known, not guessed."""
    started = MemoryAgent.start_rank

    async def slow(self: MemoryAgent, spec: RankSpec) -> StartResult:
        await cluster.clock.sleep(4)
        return await started(self, spec)

    monkeypatch.setattr(MemoryAgent, "start_rank", slow)
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(1)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"] == ("skipped", "left as it is: starting")
        assert fleet.store.ranks["p1/0"].state is RankState.STARTING or await cluster.until(
            lambda: fleet.store.ranks["p1/0"].state in (RankState.STARTING, RankState.READY)
        )
