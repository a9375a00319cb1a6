"""Two consoles whose files put one rank on two nodes: whoever is second is refused, however close it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, StartRanks
from tests.fleet.cluster import Cluster
from tests.support.memory_node import Behaviour

P1 = ("p1/0",)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Its ranks take a while, so that a start is under way."""
    cluster = Cluster(tmp_path)
    for node in cluster.nodes.values():
        node.behaviour = lambda _spec: Behaviour(ready_after=14.0)
    return cluster


def move(cluster: Cluster) -> None:
    """Let consoles that open from now on have p1 on node2, and p2 on node1."""
    path = cluster.folder / "moved.yaml"
    text = (cluster.folder / "cluster.yaml").read_text()
    moved = text.replace("nodes: [node1]", "nodes: [there]").replace("nodes: [node2]", "nodes: [node1]")
    path.write_text(moved.replace("nodes: [there]", "nodes: [node2]"))
    cluster.load(path)


def started(cluster: Cluster) -> int:
    return sum(spec.rank == "p1/0" for node in cluster.nodes.values() for spec in node.starts)


async def refusal(cluster: Cluster, fleet: Fleet) -> ActionRefused:
    with pytest.raises(ActionRefused) as caught:
        await cluster.drive(fleet.submit(StartRanks(P1)), step=0.1, limit=60)
    return caught.value


async def test_start_is_refused_while_another_file_has_the_rank_started_elsewhere(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann:
        move(cluster)
        async with cluster.fleet(by="bob@home") as bob:
            first = await ann.submit(StartRanks(P1))
            refused = await refusal(cluster, bob)
            assert refused.kind == "leased"
            assert "ann@desk starts group p1 on node1" in refused.message
            assert (await cluster.drive(ann.wait(first))).state == "done"
            assert started(cluster) == 1


async def test_start_that_has_just_been_made_elsewhere_is_seen_before_it_was_polled(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _spec: Behaviour(ready_after=0.0)
    async with cluster.fleet(by="ann@desk") as ann:
        move(cluster)
        async with cluster.fleet(by="bob@home") as bob:
            first = await ann.submit(StartRanks(P1))
            await cluster.until(lambda: started(cluster))
            await cluster.drive(ann.cancel(first), step=0.1, limit=60)
            assert "p1/0@node1" not in bob.store.ranks, "not seen yet"
            refused = await refusal(cluster, bob)
            assert refused.kind == "blocked"
            assert "p1/0 still runs on node1" in refused.message
            assert "stop p1/0@node1" in refused.remedy
            assert started(cluster) == 1


async def test_two_that_start_one_rank_on_two_nodes_at_once_never_both_do(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann:
        move(cluster)
        async with cluster.fleet(by="bob@home") as bob:
            both = asyncio.gather(*(fleet.submit(StartRanks(P1)) for fleet in (ann, bob)), return_exceptions=True)
            ends = await cluster.drive(both, step=0.1, limit=60)
            assert any(isinstance(end, ActionRefused) for end in ends)
            await cluster.clock.advance(5)
            assert started(cluster) <= 1
            assert sum(len(node.leases.list("tiny")) for node in cluster.nodes.values()) == started(cluster)


async def test_taking_over_ends_the_operation_where_the_other_file_has_it(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann:
        move(cluster)
        async with cluster.fleet(by="bob@home") as bob:
            cluster.nodes["node1"].delay = 0.3  # Its lease is held, its rank has not begun.
            first = await cluster.drive(ann.submit(StartRanks(P1)), step=0.1, limit=60)
            preview = await cluster.drive(bob.preview(StartRanks(P1)), step=0.1, limit=60)
            assert [lease.nodes for lease in preview.leases] == [("node1",)]
            breaking = Breaking("it belongs on node2", tuple(lease.id for lease in preview.leases))
            with pytest.raises(ActionRefused) as caught:  # It takes the lease over, but the rank runs already.
                await cluster.drive(bob.submit(StartRanks(P1, breaking=breaking)), step=0.1, limit=60)
            assert "p1/0 still runs on node1" in caught.value.message
            ended = await cluster.drive(ann.wait(first), limit=60)
            assert ended.state in ("cancelled", "failed")
            assert "bob@home has taken over: it belongs on node2" in ended.error
            assert started(cluster) == 1
