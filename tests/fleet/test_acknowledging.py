"""Acknowledgements over nodes and consoles: given, merged, taken back, ended, carried to who was away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.headline import make_headline
from pdtui.fleet.intents import Acknowledge, Unacknowledge
from pdtui.fleet.snapshot import Acknowledgement, Alarm, NodeState
from pdtui.fleet.troubles import healthy, troubles, untold, without_known
from pdtui.readings.verdict import Reason, Verdict
from tests.fleet.cluster import Cluster
from tests.support.fake_fleet import NOW, FakeFleet, faulty, with_node, with_npu, with_rank

KEY = "decode/1:failed"


@pytest.fixture
async def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
async def ann(cluster: Cluster) -> AsyncIterator[Fleet]:
    async with cluster.fleet() as fleet:
        yield fleet


def keys(fleet: Fleet) -> list[str]:
    return [one.key for one in fleet.store.snapshot.acknowledgements]


def on_nodes(cluster: Cluster) -> dict[str, list[str]]:
    """Return who acknowledged what, by node; what was taken back with a minus."""
    return {
        name: [f"{'-' if one.removed else ''}{one.key}" for one in node.acks.list("tiny", "").acks or ()]
        for name, node in cluster.nodes.items()
    }


async def test_given_here_seen_there_taken_back_there(cluster: Cluster, ann: Fleet) -> None:
    cluster.nodes["node2"].skew = 7200.0  # Its clock is two hours ahead.
    missing = await cluster.drive(ann.acknowledge(Acknowledge(KEY, "waits for\x1b[2J a part", 3600)))
    assert missing == {}
    assert on_nodes(cluster) == {name: [KEY] for name in cluster.nodes}
    (known,) = ann.store.snapshot.acknowledgements
    assert (known.by, known.expires - known.at) == ("ann@desk", 3600)
    async with cluster.fleet(by="bob@train") as bob:
        await cluster.until(lambda: keys(bob))
        (seen,) = bob.store.snapshot.acknowledgements
        assert (seen.by, "\x1b" in seen.reason) == ("ann@desk", False)
        assert abs(seen.expires - known.expires) < 10
        ann.store.publish()
        await cluster.drive(bob.acknowledge(Unacknowledge(KEY)))
        assert keys(bob) == []
        await cluster.until(lambda: not keys(ann))
        assert on_nodes(cluster) == {name: [f"-{KEY}"] for name in cluster.nodes}
        # Both at once: one stands, the same everywhere.
        for fleet in (ann, bob):
            await cluster.drive(fleet.acknowledge(Acknowledge(KEY, "me first", 3600)))
        await cluster.clock.advance(12)
        by = {one.by for fleet in (ann, bob) for one in fleet.store.snapshot.acknowledgements}
        held = {one.id for node in cluster.nodes.values() for one in node.acks.list("tiny", "").acks or ()}
        assert (len(by), len(held)) == (1, 1)
    noted = [entry for node in cluster.nodes.values() for entry in node.journal]
    assert {(entry["event"], entry["key"], entry["who"]) for entry in noted} >= {
        ("acknowledge", KEY, "ann@desk"),
        ("unacknowledge", KEY, "bob@train"),
    }
    told = [event.message for event in ann.store.snapshot.events if event.subject == KEY]
    assert told[0].startswith("acknowledged by ann@desk until ")
    assert "no longer acknowledged" in told


async def test_a_node_that_was_away_gets_it_and_brings_nothing_back(cluster: Cluster) -> None:
    async with cluster.fleet() as ann:
        await cluster.drive(ann.acknowledge(Acknowledge("node1/*:hot", "summer", 40 * 86400)))
        cluster.nodes["node4"].cut()
        await cluster.until(lambda: ann.store.nodes["node4"].state is not NodeState.CONNECTED)
        await cluster.drive(ann.acknowledge(Unacknowledge("node1/*:hot")))
        missing = await cluster.drive(ann.acknowledge(Acknowledge(KEY, "known", 90)))
        assert list(missing) == ["node4"]
        assert on_nodes(cluster)["node4"] == ["node1/*:hot"]
    # Another console; the node that was away still says what was taken back.
    cluster.nodes["node4"].restore()
    async with cluster.fleet(by="bob@train") as bob:
        await cluster.until(lambda: on_nodes(cluster)["node4"] == [KEY, "-node1/*:hot"])
        assert keys(bob) == [KEY]
        for _ in range(50):  # It ends by itself.
            await cluster.clock.advance(2.0)
        assert keys(bob) == []
        assert [event.message for event in bob.store.snapshot.events if event.subject == KEY][-1:] == [
            "no longer acknowledged"
        ]


async def test_refusals(cluster: Cluster, ann: Fleet) -> None:
    async def refused(intent: Acknowledge | Unacknowledge, fleet: Fleet = ann) -> str:
        with pytest.raises(ActionRefused) as error:
            await cluster.drive(fleet.acknowledge(intent))
        return error.value.message

    assert "names no trouble" in await refused(Acknowledge("decode/1", "x", 60))
    assert "names no trouble" in await refused(Acknowledge("decode/1:../../x", "x", 60))
    assert "no node or group nodee3" in await refused(Acknowledge("nodee3/9:link-down", "x", 60))
    assert "needs a reason" in await refused(Acknowledge(KEY, "  ", 60))
    assert "longer than" in await refused(Acknowledge(KEY, "x" * 401, 60))
    assert "90 days" in await refused(Acknowledge(KEY, "x", 91 * 86400))
    assert "is not acknowledged" in await refused(Unacknowledge(KEY))
    async with cluster.fleet(read_only=True) as reader:
        await cluster.drive(ann.acknowledge(Acknowledge(KEY, "x", 3600)))
        await cluster.until(lambda: keys(reader))
        assert "read-only" in await refused(Unacknowledge(KEY), reader)
    for node in cluster.nodes.values():
        node.acks.full = True
    assert "no node could keep it: node1: No space" in await refused(Acknowledge("node1:logout", "x", 3600))
    assert keys(ann) == [KEY]


def _known(*pairs: tuple[str, str]) -> tuple[Acknowledgement, ...]:
    return tuple(Acknowledgement(key, reason, "ann@desk", NOW, NOW + 3600) for key, reason in pairs)


def test_headline_and_exit_status_leave_out_what_is_known_and_nothing_else() -> None:
    snapshot = FakeFleet.healthy().snapshot
    assert (healthy(snapshot), troubles(snapshot)) == (True, ())
    both = (Reason(Verdict.FAILED, "link DOWN", id="link-down"), Reason(Verdict.DEGRADED, "84 °C", id="hot"))
    sick = with_npu(snapshot, "node3", 9, verdict=Verdict.FAILED, reasons=both)
    first = replace(sick, acknowledgements=_known(("node3/9:link-down", "spare part")))
    nodes, ranks = without_known(first.nodes, first.ranks, first.acknowledgements)
    headline = make_headline(nodes, ranks)
    assert headline is not None
    assert "degraded: 84 °C" in headline.message
    assert not healthy(first)
    known = replace(sick, acknowledgements=_known(("node3/*:link-down", "cable"), ("node3/9:hot", "summer")))
    nodes, ranks = without_known(known.nodes, known.ranks, known.acknowledgements)
    assert (make_headline(nodes, ranks), healthy(known)) == (None, True)
    assert [(trouble.key, one.reason) for trouble, one in untold(known)] == [
        ("node3/9:link-down", "cable"),
        ("node3/9:hot", "summer"),
    ]
    # Another NPU of the node, another reason of this one: told.
    assert not healthy(with_npu(known, "node3", 8, verdict=Verdict.FAILED, reasons=both[1:]))
    again = with_npu(known, "node3", 9, verdict=Verdict.FAILED, reasons=(replace(both[0], id="tls-mixed"),))
    assert not healthy(again)


def test_a_node_that_is_known_to_be_away_takes_its_ranks_and_npus_with_it() -> None:
    snapshot = faulty(FakeFleet.healthy().snapshot)
    names = [trouble.key for trouble in troubles(snapshot)]
    assert "node4:unreachable" in names
    assert not [name for name in names if name.startswith("node4/") or name == "decode/20:lost"]
    rest = [name for name in names if name != "node4:unreachable"]
    known = replace(
        snapshot, acknowledgements=_known(("node4:unreachable", "moved"), *((one, "x") for one in rest))
    )
    assert healthy(known)
    nodes, ranks = without_known(known.nodes, known.ranks, known.acknowledgements)
    assert make_headline(nodes, ranks) is None
    back = with_node(known, "node4", state=NodeState.CONNECTED, error="")
    assert not healthy(back)  # Its NPUs are unknown, and nobody knows why.


def test_alarms_and_conditions() -> None:
    snapshot = FakeFleet.healthy().snapshot
    alarm = Alarm("kv-held", "error", "holds prompts", "look", NOW)
    told = with_rank(snapshot, "p1/0", alarms=(alarm,))
    assert not healthy(told)
    known = replace(told, acknowledgements=_known(("p1/*:kv-held", "test")))
    assert healthy(known)
    assert healthy(with_rank(snapshot, "p1/0", alarms=(replace(alarm, severity="warning"),)))
