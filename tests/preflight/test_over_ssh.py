"""Every check on simulated nodes over real SSH: pass, fail, unknown and hang, as the table of rows says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.desk import PreflightDesk
from pdtui.fleet.preflight.events import Ended, NodeProgress
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.remote.connections import Connections
from pdtui.remote.interface import NodeLink
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.preflight.rows import ALLOWED, APART, FILE_SCENE, SHOWN, WELL, Row
from tests.preflight.table import EXCEPT, OF_THE_MACHINE, ROWS, SCENES
from tests.support.required import skip_unless
from tests.support.waiting import eventually

Switch = Callable[[], Awaitable[object]]

FILE = Path(__file__).parent / "cluster.yaml"

LIMITS = Limits(
    connect=20.0,
    call=1.5,
    node=60.0,
    parallel=6,
    busy_pause=0.05,
    hanging=1000,
    probe=4.5,
    grace=0.7,
    ping={"roce": 1.5, "hccs": 1.5},
)
"""Short; and a tool that hangs on many NPUs is asked on the others all the same: each row has one of its own."""

PATIENT = replace(LIMITS, call=10.0, probe=30.0)
"""Where nothing hangs, a slow machine has its time."""


def test_the_table_shows_every_check_in_every_state() -> None:
    shown = {(row.check, row.shown) for row in ROWS}
    wanted = {(one.id, state) for one in registered() for state in SHOWN}
    assert not sorted(wanted - shown - EXCEPT.keys())
    assert not sorted(shown & EXCEPT.keys())


BRIEF = replace(LIMITS, call=10.0, node=3.0, probe=10.0)
"""Where nodes stand still: they have no more time in all."""

WAITED = {WELL: PATIENT, FILE_SCENE: PATIENT, APART: BRIEF}
"""By scene, where it is not LIMITS."""


@pytest.mark.slow
@pytest.mark.xdist_group("preflight-over-ssh")
async def test_every_row_is_shown(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with Simulation(FILE, tmp_path / "sim") as simulation:
        refused = {node.container_refused for node in simulation.nodes.values()} - {""}
        skip_unless(not refused, f"no container of its own: {', '.join(refused)}")
        topology = load_checked(simulation.topology_path)
        clock = SystemClock()
        async with Connections(topology, clock=clock) as connections:
            links = connections.links

            def desk(scene: str, rows: Sequence[Row]) -> PreflightDesk:
                asked, limits = topology, WAITED.get(scene, LIMITS)
                for edit in dict.fromkeys(row.edit for row in rows if row.edit):
                    asked = edit(asked)
                plan = make_plan(asked)
                return PreflightDesk(asked, plan, links, clock=clock, by="t@here", journal=None, limits=limits)

            for scene in SCENES:
                rows = [row for row in ROWS if row.scene == scene]
                faults = tuple(dict.fromkeys(fault for row in rows for fault in row.faults))
                for fault in faults:
                    await switch(simulation, links, fault)
                report = await run(
                    desk(scene, rows),
                    tuple(topology.nodes),
                    sorted({row.check for row in rows}),
                    {row.during.split()[1]: partial(simulation.fault, row.during) for row in rows if row.during},
                )
                wrong += [words for row in rows if (words := mistaken(row, report))]
                if scene == WELL:
                    wrong += [
                        f"well, but {shown(one)}"
                        for one in report.results
                        if one.outcome in _BAD and one.check not in OF_THE_MACHINE
                    ]
                if scene in (WELL, SCENES[-1]):
                    continue  # What is set is in nobody's way.
                nodes = sorted({fault.split()[1].partition("/")[0] for fault in faults})
                await asyncio.gather(*(simulation.fault(f"heal {node}") for node in nodes))
                await reconnected(links)
    assert not wrong, "\n".join(wrong)


_BAD = (Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.NOT_RUN)


async def switch(simulation: Simulation, links: Mapping[str, NodeLink], fault: str) -> None:
    """Switch a fault, and wait for the end of the connections that it ends, and for the new ones."""
    kind, where, *_ = fault.split()
    node = where.partition("/")[0]
    before = links[node].host_agent if node in links else None
    await simulation.fault(fault)
    if kind in ("sshd-kill", "clock", "unreachable"):
        await eventually(lambda: links[node].host_agent is not before)
    if kind in ("clock", "unreachable"):
        await reconnected({node: links[node]})


async def reconnected(links: Mapping[str, NodeLink]) -> None:
    """Wait until every node is there again, and its container."""

    def all_are_back() -> bool:
        away = [link for link in links.values() if link.rank_agent is None]
        for link in away:
            link.retry_now()
        return not away

    await eventually(all_are_back, every=0.2)


async def run(
    desk: PreflightDesk, nodes: tuple[str, ...], only: Sequence[str], during: Mapping[str, Switch]
) -> PreflightReport:
    """Run these checks once; `during`: what is switched as soon as a node is asked."""
    waiting = dict(during)
    async for event in desk.run(PreflightRequest(only=tuple(only)), nodes):
        asked = isinstance(event, NodeProgress) and event.waits_for not in ("", "connection")
        if isinstance(event, NodeProgress) and asked and event.node in waiting:
            await waiting.pop(event.node)()
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
