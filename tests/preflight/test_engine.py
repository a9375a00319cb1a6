"""A preflight over the engine: events on the caller's loop, refusals raised there, an end when it is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import UsageError
from pdtui.fleet.engine import EngineThread
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.events import Began, Ended
from pdtui.fleet.preflight.request import PreflightRequest
from tests.fleet.cluster import Cluster
from tests.support.memory_node import MemoryNode
from tests.support.waiting import eventually


def engine_over(cluster: Cluster, tmp_path: Path) -> EngineThread:
    clock = SystemClock()
    nodes = {name: MemoryNode(name, clock) for name in cluster.topology.nodes}
    nodes["node4"].stuck = True

    def make() -> Fleet:
        return Fleet(
            cluster.topology,
            cluster.plan,
            clock=clock,
            read_only=True,
            by="ann@desk",
            journal_dir=tmp_path / "journal",
            links={name: node.link() for name, node in nodes.items()},
        )

    return EngineThread(
        cluster.topology,
        cluster.plan,
        clock=clock,
        read_only=True,
        by="ann@desk",
        journal_dir=tmp_path,
        fleet=make,
    )


async def test_events_come_over_and_leaving_early_ends_it_there(tmp_path: Path) -> None:
    with engine_over(Cluster(tmp_path), tmp_path) as handle:
        events = [event async for event in handle.preflight(PreflightRequest(("p1",), ("ssh", "clock")))]
        assert isinstance(events[0], Began)
        assert isinstance(events[-1], Ended)
        assert events[-1].report.good()
        assert handle.last_preflight == events[-1].report
        with pytest.raises(UsageError, match="did you mean clock"):
            await asyncio.wait_for(_drain(handle, PreflightRequest(only=("clok",))), 10)
        async with closing(handle.preflight(PreflightRequest(("decode",), ("clock",)))) as found:
            async for _ in found:
                break  # node4 would say nothing for a quarter of a minute.
        await eventually(lambda: handle.snapshot.preflight and handle.snapshot.preflight.state == "stopped")
        assert handle.last_preflight is not None
        assert not handle.last_preflight.complete
    assert not (
        tmp_path / "journal" / "journal.jsonl"
    ).exists()  # Read-only: nothing is done that belongs into it.


async def _drain(handle: EngineThread, request: PreflightRequest) -> None:
    async for _ in handle.preflight(request):
        pass
