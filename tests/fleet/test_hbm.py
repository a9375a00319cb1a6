"""NPUs in the way of a start, and HBM after a stop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus
from tests.fleet.cluster import Cluster
from tests.fleet.npu_tools import Tools

P1 = ("p1/0",)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def tools(cluster: Cluster) -> Mapping[str, Tools]:
    found = {name: Tools(cluster.clock) for name in cluster.nodes}
    for name, node in cluster.nodes.items():
        node.handler = found[name].handle
    return found


async def run(cluster: Cluster, fleet: Fleet, intent: StartRanks | StopRanks) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(intent))))


def detail(operation: OperationStatus) -> str:
    return next(step.detail for step in operation.steps if step.label == "p1/0")


async def started(cluster: Cluster, fleet: Fleet, tools: Tools) -> None:
    await cluster.drive(fleet.poll_now())
    assert (await run(cluster, fleet, StartRanks(P1))).state == "done"
    tools.hbm.update(dict.fromkeys(range(8), 60000))
    tools.processes = [(device, 1010, "VLLM::Worker", 57000) for device in range(8)]
    await cluster.drive(fleet.poll_now())


async def test_stop_waits_until_hbm_is_back(cluster: Cluster, tools: Mapping[str, Tools]) -> None:
    async with cluster.fleet() as fleet:
        await started(cluster, fleet, tools["node1"])
        operation = await fleet.submit(StopRanks(P1))
        await cluster.clock.advance(15)
        assert fleet.store.operations[operation].state == "running"
        tools["node1"].hbm.update(dict.fromkeys(range(8), 3100))
        tools["node1"].processes = []
        done = await cluster.drive(fleet.wait(operation))
        assert (done.state, detail(done)) == ("done", "stopped")


async def test_hbm_that_stays_is_a_failed_stop(cluster: Cluster, tools: Mapping[str, Tools]) -> None:
    async with cluster.fleet() as fleet:
        await started(cluster, fleet, tools["node1"])
        done = await run(cluster, fleet, StopRanks(P1))
        assert done.state == "failed"
        held = "stopped, but NPU 0 still holds 60000 MB of HBM, 3000 MB before the start"
        assert detail(done).startswith(f"{held} by VLLM::Worker (pid 1010 of the host): on node1, ps")
        assert "kill -9 1010; if that frees nothing, end its parent" in detail(done)


async def test_hbm_that_no_process_owns_after_a_stop_is_said_to_be_so(
    cluster: Cluster, tools: Mapping[str, Tools]
) -> None:
    async with cluster.fleet() as fleet:
        await started(cluster, fleet, tools["node1"])
        tools["node1"].processes = []
        done = await run(cluster, fleet, StopRanks(P1))
        assert done.state == "failed"
        assert "no process owns it: wait a minute, then look for leftovers" in detail(done)


async def test_hbm_that_cannot_be_read_is_said_to_be_unverified(
    cluster: Cluster, tools: Mapping[str, Tools]
) -> None:
    async with cluster.fleet() as fleet:
        await started(cluster, fleet, tools["node1"])
        tools["node1"].missing = True
        begin = cluster.clock.monotonic()
        done = await run(cluster, fleet, StopRanks(P1))
        assert (done.state, detail(done)) == ("done", "stopped, HBM not verified")
        assert cluster.clock.monotonic() - begin >= 59


async def test_foreign_process_on_an_npu_blocks_a_start(cluster: Cluster, tools: Mapping[str, Tools]) -> None:
    tools["node1"].hbm[3] = 40000
    tools["node1"].processes = [(3, 4711, "python3", 37000)]
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.poll_now())
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(P1)))
        assert "device:node1:3: NPU 3 of node1 is used by python3 (pid 4711, 39.1 GB)" in refused.value.message
        assert not (await cluster.drive(fleet.preview(StartRanks(("p2/0",))))).blockers


async def test_hbm_without_an_owner_and_a_dead_link_block_a_start(
    cluster: Cluster, tools: Mapping[str, Tools]
) -> None:
    tools["node1"].hbm[3] = 40000
    tools["node1"].vnic[5] = "DOWN"
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.poll_now())
        preview = await cluster.drive(fleet.preview(StartRanks(P1)))
        assert [blocker.id for blocker in preview.blockers] == ["device:node1:3", "npu:node1:5"]
        assert "without a process that owns it" in preview.blockers[0].message


async def test_shared_reading_from_before_the_end_of_a_rank_does_not_block_a_start(
    cluster: Cluster, tools: Mapping[str, Tools]
) -> None:
    tools["node1"].hbm[0] = 60000
    tools["node1"].processes = [(0, 4711, "VLLM::Worker", 57000)]
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.poll_now())
        tools["node1"].hbm[0] = 3000
        tools["node1"].processes = []
        assert (await cluster.drive(fleet.preview(StartRanks(P1)))).blockers == ()


async def test_what_ran_a_moment_ago_does_not_block_a_start(cluster: Cluster, tools: Mapping[str, Tools]) -> None:
    async with cluster.fleet() as fleet:
        await started(cluster, fleet, tools["node1"])
        cluster.nodes["node1"].kill("tiny", "p1/0")
        await cluster.clock.advance(3)
        preview = await cluster.drive(fleet.preview(StartRanks(P1)))
        assert preview.blockers == ()  # The reading is older than the end of the rank.
