"""The preflight engine over nodes in memory: who is asked, what is said of whom, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from pdtui.errors import AgentLost
from pdtui.fleet.preflight import checks
from pdtui.fleet.preflight.check import EVERYWHERE, Check, NodeView, chosen
from pdtui.fleet.preflight.events import Began, Ended, NodeEnded
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.runner import Preflight
from tests.fleet.cluster import Cluster
from tests.support.memory_node import MemoryAgent


async def run(cluster: Cluster, *only: str, instead: Sequence[Check] = ()) -> list[object]:
    """Run a preflight over connected memory nodes and return its events."""
    checks.load()
    links = {name: node.link() for name, node in cluster.nodes.items()}
    for link in links.values():
        link.refresh()
    preflight = Preflight(
        cluster.topology, cluster.plan, links, instead or chosen(only), clock=cluster.clock, by="ann@desk"
    )

    async def collect() -> list[object]:
        return [event async for event in preflight.run()]

    return await cluster.drive(collect())


async def test_a_node_that_is_not_reached_fails_one_check_and_the_others_say_why(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.nodes["node3"].reachable = False
    events = await run(cluster, "ssh", "clock")
    first, last = events[0], events[-1]
    assert isinstance(first, Began)
    assert first.checks == ("ssh", "clock")
    assert {event.node for event in events if isinstance(event, NodeEnded)} == set(cluster.nodes)
    assert isinstance(last, Ended)
    found = {(result.check, result.subject): result for result in last.report.results}
    assert found["ssh", "node1"].outcome is Outcome.PASS
    assert found["ssh", "node3"].outcome is Outcome.FAIL
    assert "unreachable" in found["ssh", "node3"].summary
    assert found["clock", "cluster"].outcome is Outcome.PASS
    assert found["clock", "node3"].outcome is Outcome.NOT_RUN
    assert "node3 is not reached" in found["clock", "node3"].because
    assert not last.report.good()


async def test_a_connection_that_is_lost_while_a_node_is_asked_is_neither_good_nor_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = MemoryAgent.clock_offset

    async def cut(agent: MemoryAgent) -> float:
        if agent.node.name == "node3":
            raise AgentLost("connection lost: Connection reset by peer")
        return await answered(agent)

    monkeypatch.setattr(MemoryAgent, "clock_offset", cut)
    last = (await run(Cluster(tmp_path), "ssh", "clock"))[-1]
    assert isinstance(last, Ended)
    found = {(result.check, result.subject): result for result in last.report.results}
    ssh, clock = found["ssh", "node3"], found["clock", "node3"]
    assert ssh.outcome is Outcome.UNKNOWN
    assert ssh.summary.endswith("; then: the connection was lost: Connection reset by peer")
    assert "sshd" in ssh.remedy
    assert clock.outcome in (Outcome.UNKNOWN, Outcome.NOT_RUN)
    assert found["ssh", "node1"].outcome is found["clock", "cluster"].outcome is Outcome.PASS
    assert not last.report.good()


async def test_a_clock_that_differs_is_named_and_the_rest_agrees(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for name, skew in (("node1", 90.0), ("node2", 90.2), ("node3", 90.1), ("node4", 210.0)):
        cluster.nodes[name].skew = skew
    last = (await run(cluster, "clock"))[-1]
    assert isinstance(last, Ended)
    found = {result.subject: result for result in last.report.results}
    assert found["node4"].outcome is Outcome.FAIL
    assert "ahead of the other nodes" in found["node4"].summary
    assert "3 nodes within" in found["cluster"].summary
    assert "ahead of this machine" in found["cluster"].summary


async def test_two_clocks_are_measured_against_each_other_and_not_against_half_the_way(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for name, skew in (("node1", 0.0), ("node2", 0.0), ("node3", 1.8), ("node4", 1.8)):
        cluster.nodes[name].skew = skew
    last = (await run(cluster, "clock"))[-1]
    assert isinstance(last, Ended)
    warned = {result.subject for result in last.report.results if result.outcome is Outcome.WARN}
    assert warned == {"node3", "node4"}


SILENT: tuple[tuple[str, Literal["node", "cluster"]], ...] = (("shm", "node"), ("model", "cluster"))


async def test_a_check_that_says_nothing_is_not_applicable_and_words_of_nodes_carry_no_secret(
    tmp_path: Path,
) -> None:
    def talks(view: NodeView) -> Iterator[Result]:
        yield Result(
            "ssh", view.name, Outcome.FAIL, "http_proxy=http://ann:S3CRET@proxy\n[4/4] node9  \x1b[2Jfine"
        )

    loud = Check("ssh", "", (), "node", EVERYWHERE, talks)
    alone, together = (Check(name, "", (), scope, EVERYWHERE, lambda _: ()) for name, scope in SILENT)
    events = await run(Cluster(tmp_path), instead=[loud, alone, together])
    last = events[-1]
    assert isinstance(last, Ended)
    said = {(one.check, one.subject): one.outcome for one in last.report.results if one.check != "ssh"}
    assert said == {("model", "cluster"): Outcome.NA} | {("shm", f"node{n}"): Outcome.NA for n in (1, 2, 3, 4)}
    told = [one for event in events if isinstance(event, NodeEnded) for one in event.results if one.check == "ssh"]
    assert {one.summary for one in told} == {"http_proxy=http://***@proxy [4/4] node9  fine"}
