"""A preflight from a fleet: its status in the snapshot, its report, its journal, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.errors import ActionRefused, UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.journal import parse
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.events import Ended, PreflightEvent
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.fleet.preflight.request import PreflightRequest, nodes_asked
from tests.fleet.cluster import Cluster


async def all_of(fleet: Fleet, request: PreflightRequest) -> list[PreflightEvent]:
    return [event async for event in fleet.preflight(request)]


async def test_the_snapshot_says_how_it_ended_and_the_report_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.fleet() as fleet:
        assert fleet.snapshot.preflight is None
        events = await cluster.drive(all_of(fleet, PreflightRequest(("decode",), ("ssh",))))
        await cluster.clock.advance(1)
        status = fleet.snapshot.preflight
        assert status is not None
        assert (status.state, status.nodes_done, status.nodes_total) == ("done", 2, 2)
        assert (status.passed, status.failed) == (2, 0)
        last = events[-1]
        assert isinstance(last, Ended)
        assert fleet.last_preflight == last.report
        assert last.report.nodes == ("node3", "node4")
    written = parse((tmp_path / "journal" / "journal.jsonl").read_bytes()).entries
    entry = next(one for one in written if one["event"] == "preflight")
    assert entry["who"] == "ann@desk"
    assert entry["targets"] == ["decode"]
    assert entry["counts"] == "2 pass"


async def test_one_that_is_left_early_is_stopped_with_what_it_has(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.fleet() as fleet:
        cluster.nodes["node4"].stuck = True  # The agent takes what it is asked and says nothing.

        async def leave() -> None:
            async with closing(fleet.preflight(PreflightRequest(only=("clock",)))) as events:
                async for event in events:
                    if getattr(event, "node", "") == "node1":
                        with pytest.raises(ActionRefused, match="runs already"):
                            await all_of(fleet, PreflightRequest())
                        return

        await cluster.drive(leave())
        report = fleet.last_preflight
        assert report is not None
        assert not report.complete
        await cluster.clock.advance(1)
        status = fleet.snapshot.preflight
        assert status is not None
        assert status.state == "stopped"
        cluster.nodes["node4"].stuck = False
        await cluster.drive(all_of(fleet, PreflightRequest(only=("ssh",))))
        assert fleet.last_preflight is not None
        assert fleet.last_preflight.complete


async def test_an_agent_that_says_nothing_hangs_and_delays_no_other_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.fleet() as fleet:
        cluster.nodes["node4"].stuck = True
        began = cluster.clock.monotonic()
        last = (await cluster.drive(all_of(fleet, PreflightRequest(only=("clock",)))))[-1]
        assert cluster.clock.monotonic() - began < 30
        assert isinstance(last, Ended)
        found = {result.subject: result for result in last.report.results}
        assert found["node4"].outcome is Outcome.UNKNOWN
        assert found["node4"].summary == "the clock: hangs: no answer within 15 s"
        assert found["cluster"].outcome is Outcome.PASS


def test_targets_name_nodes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)

    def nodes(*targets: str) -> tuple[str, ...]:
        return nodes_asked(targets, cluster.topology, cluster.plan)

    assert nodes() == ("node1", "node2", "node3", "node4")
    assert nodes("decode/3", "@node1") == ("node1", "node4")
    assert nodes("role:prefill") == ("node1", "node2")
    assert nodes("proxy") == ("node1",)
    with pytest.raises(UsageError, match="did you mean 'decode'"):
        nodes("decod")
    with pytest.raises(UsageError, match="no such rank now"):
        nodes("failed")


async def test_a_check_that_is_none_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.fleet() as fleet:
        with pytest.raises(UsageError, match="no check 'clok'; did you mean clock"):
            await cluster.drive(all_of(fleet, PreflightRequest(only=("clok",))))
