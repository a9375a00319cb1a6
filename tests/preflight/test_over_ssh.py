"""Every check on simulated nodes over real SSH: pass, fail, unknown and hang, as the table of rows says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.desk import PreflightDesk
from pdtui.fleet.preflight.events import Ended
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.remote.connections import Connections
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.preflight.rows import ALLOWED, SHOWN, WELL, Row
from tests.preflight.table import EXCEPT, PENDING, ROWS, SCENES
from tests.support.required import skip_unless
from tests.support.waiting import eventually

FILE = Path(__file__).parent / "cluster.yaml"

LIMITS = Limits(
    connect=20.0,
    call=1.0,
    node=60.0,
    parallel=6,
    busy_pause=0.05,
    shared=0.0,
    hanging=1000,
    probe=5.0,
    ping={"roce": 1.5, "hccs": 1.5},
)
"""Short; and a tool that hangs on many NPUs is asked on the others all the same: each row has one of its own."""


def test_the_table_shows_every_check_in_every_state() -> None:
    shown = {(row.check, row.shown) for row in ROWS}
    wanted = {(one.id, state) for one in registered() for state in SHOWN}
    known = {part for part in shown if part[1] != "pass"}
    wanted = {part for part in wanted if part in known}  # Of the others the owners have still to write rows.
    assert not sorted(wanted - shown - EXCEPT.keys())
    assert not sorted(shown & EXCEPT.keys())


@pytest.mark.slow
@pytest.mark.xdist_group("preflight-over-ssh")
async def test_every_row_is_shown(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with Simulation(FILE, tmp_path / "sim") as simulation:
        refused = {node.container_refused for node in simulation.nodes.values()} - {""}
        skip_unless(not refused, f"no container of its own: {', '.join(refused)}")
        topology = load_checked(simulation.topology_path)
        plan = make_plan(topology)
        clock = SystemClock()
        async with Connections(topology, clock=clock) as connections:
            links = connections.links
            desk = PreflightDesk(topology, plan, links, clock=clock, by="test@here", journal=None, limits=LIMITS)
            for scene in SCENES:
                rows = [row for row in ROWS if row.scene == scene]
                for fault in dict.fromkeys(fault for row in rows for fault in row.faults):
                    agents = {name: link.host_agent for name, link in links.items()}
                    await simulation.fault(fault)
                    if fault.startswith(BEGIN_ANEW):
                        name = fault.split()[1]
                        await eventually(lambda name=name, old=agents[name]: is_back(links[name], old))  # type: ignore[misc]
                    if fault.startswith("sshd-kill"):
                        await eventually(lambda fault=fault: links[fault.split()[1]].host_agent is None)  # type: ignore[misc]
                report = await run(desk, tuple(topology.nodes), sorted({row.check for row in rows}))
                wrong += [words for row in rows if (words := mistaken(row, report))]
                if scene == WELL:
                    wrong += [
                        f"well, but {shown(one)}"
                        for one in report.results
                        if one.outcome in _BAD and one.check not in PENDING
                    ]
                else:
                    await simulation.fault("heal all")
                    await reconnected(links)
    assert not wrong, "\n".join(wrong)


_BAD = (Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.NOT_RUN)


BEGIN_ANEW = ("unreachable", "clock")
"""Faults that end a node's connections and let them begin again."""


def is_back(link: NodeLink, old: NodeAgent | None) -> bool:
    """Return whether a node has another agent than before, and one where ranks run."""
    link.retry_now()
    return link.host_agent not in (None, old) and link.rank_agent is not None


async def reconnected(links: Mapping[str, NodeLink]) -> None:
    """Wait until every node is there again, and its container."""
    for link in links.values():
        link.retry_now()
    await eventually(lambda: all(link.rank_agent is not None for link in links.values()))


async def run(desk: PreflightDesk, nodes: tuple[str, ...], only: Sequence[str]) -> PreflightReport:
    """Run these checks once."""
    async for event in desk.run(PreflightRequest(only=tuple(only)), nodes):
        if isinstance(event, Ended):
            return event.report
    raise AssertionError("no report")


def mistaken(row: Row, report: PreflightReport) -> str:
    """Return how a report is not what a row says; empty when it is."""
    mine = [one for one in report.results if one.check == row.check and row.subject in ("", one.subject)]
    for one in mine:
        if one.outcome in ALLOWED[row.shown] and all(word in texts(one) for word in row.words):
            return ""
    found = "; ".join(map(shown, mine)) or "; ".join(
        shown(one) for one in report.results if one.check == row.check
    )
    return f"{row.scene}: {row.check} {row.shown} {row.subject} {row.words} by {row.faults}: {found or 'nothing'}"


def texts(result: Result) -> str:
    """Return everything that a result says."""
    return "\n".join((result.summary, result.because, *(one.raw for one in result.evidence)))


def shown(result: Result) -> str:
    """Return a result in a line."""
    return f"{result.check} {result.subject} {result.outcome}: {result.summary or result.because}"
