"""Several consoles on one cluster: who works on what is seen, refused, taken over, and ends by itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.leases import LEASE_TTL
from pdtui.fleet.snapshot import RankState
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour, MemoryLink


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Ranks that take a while to be ready, so that a start is under way."""
    cluster = Cluster(tmp_path)
    slow(cluster, 14.0)
    return cluster


def slow(cluster: Cluster, seconds: float) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _spec: Behaviour(ready_after=seconds)


async def refusal(cluster: Cluster, fleet: Fleet, intent: StartRanks | StopRanks | RestartRanks) -> str:
    """Submit what must be refused; returns the words."""
    with pytest.raises(ActionRefused) as caught:
        await cluster.drive(fleet.submit(intent))
    assert caught.value.kind == "leased"
    return str(caught.value)


def links_of(cluster: Cluster, console: int) -> list[MemoryLink]:
    """Return the connections of a console, by the order in which they were made."""
    return [node.links[console] for node in cluster.nodes.values()]


def states(cluster: Cluster) -> dict[str, int]:
    """Return how often each rank was started."""
    starts = [spec.rank for node in cluster.nodes.values() for spec in node.starts]
    return {rank: starts.count(rank) for rank in ALL}


async def test_others_see_who_does_what_where_and_since_when(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        operation = await cluster.drive(ann.submit(StartRanks(DECODE, reason="new weights")))
        await cluster.until(lambda: bob.snapshot.leases, limit=5)
        (seen,) = bob.snapshot.leases
        assert (seen.by, seen.verb, seen.what, seen.nodes) == (
            "ann@desk",
            "start",
            "group decode",
            ("node3", "node4"),
        )
        assert ann.snapshot.leases == ()  # Its own is an operation.
        preview = await cluster.drive(bob.preview(StopRanks(("decode/3",))))
        assert [lease.by for lease in preview.leases] == ["ann@desk"]
        await cluster.clock.advance(9)
        words = await refusal(cluster, bob, StopRanks(DECODE))
        assert "ann@desk starts group decode on node3, node4 for " in words
        assert "--break-lease REASON" in words
        since = {lease.since for lease in bob.snapshot.leases}
        assert since == {seen.since}  # It does not move with every look.
        assert (await cluster.drive(ann.wait(operation))).state == "done"
        await cluster.until(lambda: not bob.snapshot.leases, limit=5)
        told = [event.message for event in bob.snapshot.events if event.subject == "ann@desk"]
        assert told[0].startswith("ann@desk starts group decode")
        assert told[-1] == "start group decode has ended"
        stop = await cluster.drive(bob.submit(StopRanks(DECODE)))
        assert (await cluster.drive(bob.wait(stop))).state == "done"


async def test_other_ranks_of_the_same_nodes_are_free(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        first = await cluster.drive(ann.submit(StartRanks(("p1/0",))))
        second = await cluster.drive(bob.submit(StartRanks(("p2/0", *DECODE))))
        assert (await cluster.drive(ann.wait(first))).state == "done"
        assert (await cluster.drive(bob.wait(second))).state == "done"
        one = await cluster.drive(ann.submit(StopRanks(("decode/0",), grace=1)))
        other = await cluster.drive(bob.submit(StopRanks(("decode/1",), grace=1)))  # On the same node.
        assert (await cluster.drive(ann.wait(one))).state == "done"
        assert (await cluster.drive(bob.wait(other))).state == "done"


async def test_two_that_start_overlapping_groups_at_once_never_stop_each_other(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        intents = StartRanks(ALL), StartRanks(("p2/0", *DECODE))
        ends = await cluster.drive(
            asyncio.gather(ann.submit(intents[0]), bob.submit(intents[1]), return_exceptions=True)
        )
        assert [type(end) for end in ends].count(str) == 1
        fleet, end = next((f, e) for f, e in zip((ann, bob), ends, strict=True) if isinstance(e, str))
        assert (await cluster.drive(fleet.wait(end))).state == "done"
    left = [lease for node in cluster.nodes.values() for lease in node.leases.list("tiny")]
    assert left == []  # The one that was refused holds nothing either.


async def test_taking_over_ends_the_other_operation_before_it_begins_anything_new(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        await cluster.drive(ann.wait(start))
        for rank in DECODE:
            cluster.node_of(rank).set_behaviour("tiny", rank, Behaviour(ready_after=0, ignores_term=True))
        restart = await cluster.drive(ann.submit(RestartRanks(DECODE, grace=20)))
        await cluster.clock.advance(2)
        stop = await cluster.drive(bob.submit(StopRanks(DECODE, grace=1, breaking=Breaking("wrong group"))))
        ended = await cluster.drive(ann.wait(restart))
        assert ended.state == "cancelled"
        assert ended.error.startswith("bob@home has taken over: wrong group")
        stopped = await cluster.drive(bob.wait(stop))
        assert stopped.state == "done", stopped
        await cluster.clock.advance(60)
        assert {states(cluster)[rank] for rank in DECODE} == {1}  # Nothing was started over the stop.
        assert {cluster.states(bob)[rank] for rank in DECODE} == {RankState.STOPPED}
    entries = [json.loads(line) for line in (cluster.folder / "journal/journal.jsonl").read_text().splitlines()]
    (broken,) = [entry for entry in entries if entry["event"] == "lease broken"]
    assert (broken["who"], broken["reason"], broken["lease"]["by"]) == ("bob@home", "wrong group", "ann@desk")
    assert any(entry["event"] == "lease broken" for entry in cluster.nodes["node3"].journal)


async def test_a_start_on_a_node_is_refused_once_the_lease_is_gone(cluster: Cluster) -> None:
    """The console that was overtaken has not noticed yet: the node itself refuses."""
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        cluster.nodes["node3"].launch_takes = 3.0  # One after the other: decode/2 and /3 wait for a while.
        cluster.nodes["node4"].launch_takes = 3.0
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        await cluster.clock.advance(0.5)
        stop = await cluster.drive(bob.submit(StopRanks(DECODE, grace=1, breaking=Breaking("not now"))))
        ended = await cluster.drive(ann.wait(start))
        assert ended.state in ("cancelled", "failed")
        await cluster.drive(bob.wait(stop))
        before = states(cluster)
        await cluster.clock.advance(30)
        assert states(cluster) == before
        assert sum(before.values()) < len(DECODE)


async def test_only_the_leases_that_the_operator_has_seen_are_broken(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        preview = await cluster.drive(bob.preview(StopRanks(ALL)))
        seen = Breaking("go away", tuple(lease.id for lease in preview.leases))
        await cluster.drive(ann.wait(start))
        again = await cluster.drive(ann.submit(RestartRanks(DECODE)))
        assert "ann@desk restarts group decode" in await refusal(cluster, bob, StopRanks(ALL, breaking=seen))
        assert (await cluster.drive(ann.wait(again))).state == "done"


async def test_the_lease_of_a_console_that_is_gone_ends_by_itself(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        await cluster.clock.advance(2)
        for link in links_of(cluster, 0):
            link.block(True)  # As good as killed: nothing of it is heard any more.
        await refusal(cluster, bob, RestartRanks(DECODE))
        await cluster.clock.advance(LEASE_TTL + 1)
        restart = await cluster.drive(bob.submit(RestartRanks(DECODE)))
        await cluster.clock.advance(2)
        for link in links_of(cluster, 0):
            link.block(False)
        ended = await cluster.drive(ann.wait(start))
        assert ended.state == "cancelled"
        assert "nothing was heard from here for too long, and bob@home has taken over" in ended.error
        assert (await cluster.drive(bob.wait(restart))).state == "done"
        assert {states(cluster)[rank] for rank in DECODE} == {2}


async def test_a_console_that_was_away_goes_on_when_nobody_took_over(cluster: Cluster) -> None:
    slow(cluster, 60.0)
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        await cluster.clock.advance(1)
        for link in links_of(cluster, 0):
            link.block(True)
        await cluster.clock.advance(LEASE_TTL + 5)
        await cluster.until(lambda: not bob.snapshot.leases, limit=5)
        for link in links_of(cluster, 0):
            link.block(False)
        await cluster.until(lambda: bob.snapshot.leases, limit=10)
        assert (await cluster.drive(ann.wait(start))).state == "done"


async def test_cancelled_failed_and_refused_operations_give_their_lease_back_at_once(cluster: Cluster) -> None:
    def left() -> int:
        return sum(len(node.leases.list("tiny")) for node in cluster.nodes.values())

    async with cluster.fleet(by="ann@desk") as ann:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        assert left() == 2
        with pytest.raises(ActionRefused):
            await cluster.drive(ann.submit(StartRanks(DECODE)))  # In its own way, not in another's.
        assert left() == 2
        await cluster.drive(ann.cancel(start))
        await cluster.drive(ann.wait(start))
        assert left() == 0
        for rank in DECODE:
            cluster.node_of(rank).behaviour = lambda _spec: Behaviour(dies_after=1)
        failed = await cluster.drive(ann.submit(RestartRanks(DECODE)))
        assert (await cluster.drive(ann.wait(failed))).state == "failed"
        assert left() == 0
        await cluster.drive(ann.submit(StartRanks(("p1/0",))))
    assert left() == 0  # Left in the middle.


@pytest.mark.parametrize("trouble", ["unreachable", "full disk", "stuck"])
async def test_a_node_that_gives_no_lease_is_said_and_keeps_nobody(cluster: Cluster, trouble: str) -> None:
    async with cluster.fleet(by="ann@desk") as ann:
        await cluster.drive(ann.wait(await cluster.drive(ann.submit(StartRanks(DECODE)))))
        node = cluster.nodes["node4"]
        if trouble == "unreachable":
            node.cut()
        elif trouble == "stuck":
            node.stuck = True
        else:
            node.leases.full = True
        await cluster.clock.advance(1)
        stop = await cluster.drive(ann.submit(StopRanks(DECODE, grace=1)))
        ended = await cluster.drive(ann.wait(stop))
        steps = {step.label: step.state for step in ended.steps}
        assert (steps["decode/0"], steps["decode/1"]) == ("done", "done")
        if trouble == "full disk":
            assert ended.state == "done"
        why = {"unreachable": "unreachable", "full disk": "No space left", "stuck": "no answer within 5 s"}[
            trouble
        ]
        said = [event.message for event in ann.snapshot.events if event.subject == "node4"]
        assert any(words.startswith(f"no lease for {stop} (stop): ") and why in words for words in said), said
        entry = next(
            entry
            for entry in map(json.loads, (cluster.folder / "journal/journal.jsonl").read_text().splitlines())
            if entry["event"] == "stop"
        )
        assert list(entry["unleased"]) == ["node4"]
        node.stuck = False
