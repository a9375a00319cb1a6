"""The engine thread: a fleet on its own loop, seen from another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused, FileError, UsageError
from pdtui.fleet.engine import EngineThread
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.fleet.cluster import ALL, write_file
from tests.support.memory_node import Behaviour, MemoryNode
from tests.support.waiting import eventually


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineThread]:
    topology = load_checked(write_file(tmp_path))
    plan = make_plan(topology)
    clock = SystemClock()

    def make() -> Fleet:
        nodes = {name: MemoryNode(name, clock, lambda _: Behaviour(ready_after=0.1)) for name in topology.nodes}
        links = {name: node.link() for name, node in nodes.items()}
        return Fleet(
            topology, plan, clock=clock, read_only=False, by="ann@desk", journal_dir=tmp_path / "j", links=links
        )

    thread = EngineThread(topology, plan, clock=clock, read_only=False, by="ann@desk", fleet=make)
    with thread as running:
        yield running


def as_handle(engine: EngineThread) -> FleetHandle:
    """Let the type checker see that the protocol is met."""
    return engine


async def until_asked(engine: EngineThread) -> None:
    await eventually(lambda: all(rank.state is not RankState.UNKNOWN for rank in engine.snapshot.ranks))


async def test_operations_work_from_another_loop(engine: EngineThread) -> None:
    await until_asked(engine)
    preview = await engine.preview(StartRanks(ALL))
    assert preview.title == "start all 6 ranks"
    assert (await engine.wait(await engine.submit(StartRanks(ALL)))).state == "done"
    await eventually(lambda: engine.snapshot.serving.word == "SERVING")
    with pytest.raises(ActionRefused):
        await engine.submit(StopRanks(("decode/77",)))
    with pytest.raises(UsageError):
        await engine.cancel("op-77")
    await engine.poll_now(("node1",))


async def test_wake_ups_come_from_the_engine_and_one_is_outstanding(engine: EngineThread) -> None:
    await until_asked(engine)
    threads: list[str] = []
    end = engine.subscribe(lambda: threads.append(threading.current_thread().name))
    await engine.submit(StartRanks(("p1/0",)))
    await eventually(lambda: threads)
    await eventually(lambda: engine._running.store.ranks["p1/0"].state is RankState.READY)
    assert threads == ["pdtui-engine"]
    assert engine.snapshot.revision > 0
    await eventually(lambda: len(threads) == 2)
    end()


async def test_blocked_view_does_not_hold_up_the_engine(engine: EngineThread) -> None:
    await until_asked(engine)
    operation = await engine.submit(StartRanks(("p1/0",)))
    deadline = time.monotonic() + 30
    while engine._running.store.operations[operation].state == "running":  # This loop stands still, as if the
        assert time.monotonic() < deadline  # terminal did not read.
        threading.Event().wait(0.02)
    assert engine._running.store.ranks["p1/0"].state is RankState.READY


async def test_failed_completion_is_reported_on_the_callers_loop(engine: EngineThread) -> None:
    await until_asked(engine)
    here = threading.current_thread()
    seen: list[tuple[threading.Thread, AskProgress]] = []
    answer = await engine.ask(Ask("hello"), lambda step: seen.append((threading.current_thread(), step)))
    assert answer.done
    assert answer.status == 503
    await eventually(lambda: seen)
    assert {thread for thread, _ in seen} == {here}


async def test_logs_never_block(engine: EngineThread) -> None:
    await until_asked(engine)
    view = engine.log("p1/0")
    assert view.next_seq == 0
    assert engine.log_lines("p1/0", 0, 10) == ()
    await eventually(lambda: "not been started" in engine.log("p1/0").error)
    engine.unfollow("p1/0")


async def test_engine_that_is_closed_ends_its_thread_and_calls(engine: EngineThread) -> None:
    await until_asked(engine)
    waiting = asyncio.ensure_future(engine.wait(await engine.submit(StartRanks(ALL))))
    await asyncio.sleep(0)
    engine.close()
    engine.close()
    assert not engine._thread.is_alive()
    await asyncio.wait({waiting}, timeout=60)
    assert waiting.done()
    with pytest.raises(asyncio.CancelledError):
        await engine.poll_now()
    assert engine.snapshot is not None  # The last picture stays.


def test_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    topology = load_checked(write_file(tmp_path))

    def make() -> Fleet:
        raise FileError("no such thing")

    engine = EngineThread(
        topology, make_plan(topology), clock=SystemClock(), read_only=False, by="ann@desk", fleet=make
    )
    with pytest.raises(FileError), engine:
        raise AssertionError("never reached")
