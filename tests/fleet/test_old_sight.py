"""Consoles that know less than the nodes: what another has just done, files that differ, ports of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Intent, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.messages.commands import HttpReply
from pdtui.remote.messages.processes import Listener
from tests.fleet.cluster import Cluster, write_file
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def carry_out(cluster: Cluster, fleet: Fleet, intent: Intent) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(intent), step=0.1)), step=0.1)


def steps(operation: OperationStatus) -> dict[str, str]:
    return {step.label: step.state for step in operation.steps}


async def started_by_another(cluster: Cluster, other: Fleet) -> None:
    """Start a rank so that the console under test has not seen it yet."""
    done = await carry_out(cluster, other, StartRanks(("p1/0",)))
    assert done.state == "done"


async def test_stop_ends_what_another_console_started_since_the_last_look(cluster: Cluster) -> None:
    node = cluster.nodes["node1"]
    node.behaviour = lambda _: Behaviour(ready_after=0.0)
    async with cluster.fleet() as fleet, cluster.fleet(by="bob@laptop") as other:
        fleet._watchers["node1"].poke = lambda: None  # type: ignore[method-assign]
        await started_by_another(cluster, other)
        done = await carry_out(cluster, fleet, StopRanks(("p1/0",)))
        assert done.state == "done", done.error
        assert not node.processes_of("tiny")


async def test_restart_replaces_what_another_console_started_since_the_last_look(cluster: Cluster) -> None:
    node = cluster.nodes["node1"]
    node.behaviour = lambda _: Behaviour(ready_after=0.0)
    async with cluster.fleet() as fleet, cluster.fleet(by="bob@laptop") as other:
        fleet._watchers["node1"].poke = lambda: None  # type: ignore[method-assign]
        await started_by_another(cluster, other)
        done = await carry_out(cluster, fleet, RestartRanks(("p1/0",)))
        assert done.state == "done", done.error
        assert [spec.by for spec in node.starts] == ["bob@laptop", "ann@desk"]


def swapped(path: Path) -> Path:
    """Give the first prefill group the other's node and the other way round."""
    text = path.read_text()
    text = text.replace("nodes: [node1]", "nodes: [x]").replace("nodes: [node2]", "nodes: [node1]")
    path.write_text(text.replace("nodes: [x]", "nodes: [node2]"))
    return path


async def test_rank_that_an_earlier_file_had_elsewhere_is_not_started_a_second_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await carry_out(cluster, fleet, StartRanks(("p1/0",)))
    cluster.load(swapped(write_file(tmp_path)))
    async with cluster.fleet() as fleet:
        assert cluster.states(fleet)["p1/0@node1"] is RankState.READY
        for intent in (StartRanks(("p1/0",)), RestartRanks(("p1/0",))):
            with pytest.raises(ActionRefused) as refused:
                await cluster.drive(fleet.submit(intent))
            assert "p1/0 still runs on node1" in refused.value.message
            assert refused.value.remedy == "stop p1/0@node1"
        assert (await carry_out(cluster, fleet, StopRanks(("p1/0@node1",)))).state == "done"
        assert (await carry_out(cluster, fleet, StartRanks(("p1/0",)))).state == "done"
    assert not cluster.nodes["node1"].processes_of("tiny")


async def test_port_of_our_own_rank_under_another_name_is_no_unmanaged_rank(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await carry_out(cluster, fleet, StartRanks(("p1/0",)))
    cluster.load(swapped(write_file(tmp_path)))
    async with cluster.fleet() as fleet:  # p2/0 is planned where p1/0 listens.
        await cluster.clock.advance(5)
        assert cluster.states(fleet)["p2/0"] is RankState.STOPPED
        with pytest.raises(ActionRefused, match="held by p1/0"):
            await cluster.drive(fleet.submit(StartRanks(("p2/0",))))


async def test_port_of_a_rank_that_has_not_bound_it_yet_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(ready_after=500.0)
    async with cluster.fleet() as fleet:
        await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(3)
    cluster.load(swapped(write_file(tmp_path)))
    async with cluster.fleet() as fleet:
        assert cluster.states(fleet)["p1/0@node1"] is RankState.STARTING
        with pytest.raises(ActionRefused, match="API port 7100 of p2/0 on node1 is held by p1/0"):
            await cluster.drive(fleet.submit(StartRanks(("p2/0",))))


async def test_answer_of_another_process_on_its_port_makes_no_rank_ready(cluster: Cluster) -> None:
    node = cluster.nodes["node1"]
    node.behaviour = lambda _: Behaviour(ready_after=500.0, dies_after=20.0)  # Then it finds its port taken.
    async with cluster.fleet() as fleet:
        starting = asyncio.ensure_future(fleet.wait(await cluster.drive(fleet.submit(StartRanks(("p1/0",))))))
        node.listeners.append(Listener("0.0.0.0", 7100, 4711, "vllm serve other"))
        node.http_replies[7100, "/health"] = HttpReply(200)
        await cluster.clock.advance(10)
        assert fleet.store.ranks["p1/0"].state is RankState.STARTING
        assert fleet.store.ranks["p1/0"].health == "answered by pid 4711"
        done = await cluster.drive(starting)
        assert done.state == "failed"
        assert cluster.clock.monotonic() < 60, "it has not waited for what cannot come"


async def test_what_a_rank_left_that_the_file_does_not_have_is_shown_and_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await carry_out(cluster, fleet, StartRanks(("p1/0",)))
    cluster.nodes["node1"].kill("tiny", "p1/0", leaving=(4711,))
    cluster.load(swapped(write_file(tmp_path)))
    async with cluster.fleet() as fleet:
        left = fleet.store.ranks["p1/0@node1"]
        assert left.flags == ("not-in-file",)
        assert "pid 4711" in left.difference[0]
        with pytest.raises(ActionRefused, match="p1/0 has left processes on node1"):
            await cluster.drive(fleet.submit(StartRanks(("p1/0",))))
        assert (await carry_out(cluster, fleet, StopRanks(("p1/0@node1",)))).state == "done"
        await cluster.until(lambda: "p1/0@node1" not in fleet.store.ranks)
