"""What the commands on a live cluster share: a fleet from a file, who asks, narration."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path

import click

from pdtui.clock import SystemClock
from pdtui.console.signals import ended_by_signals, silence
from pdtui.fleet.engine import EngineThread
from pdtui.fleet.executor import DaemonExecutor
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.snapshot import NodeStatus
from pdtui.fleet.targets import nodes_of
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan

SETTLE = 20.0
"""Seconds that nodes have for their first answers: a connection takes up to ten."""

OTHERS = 3.0
"""Seconds, of these, that nodes have on which nothing is to be done; what is said of the service counts them."""

LEAVE_GRACE = 25.0
"""Seconds that the end of a console has after SIGTERM or SIGHUP: the engine takes twenty at most."""

END_GRACE = 10.0
"""Seconds that a command has after SIGTERM or SIGHUP to let go of what it holds."""


def operator() -> str:
    """Return who runs this command, `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def with_fleet(
    file: Path,
    work: Callable[[Fleet], Awaitable[int]],
    *,
    read_only: bool = False,
    wait: float = SETTLE,
    npus: bool = True,
    ready_deadline: float | None = None,
    targets: Sequence[str] = (),
    groups: bool = False,
) -> int:
    """Load a file, watch its cluster until its nodes have answered (or `wait` seconds), and do `work`.

    With `targets` only their nodes are waited for that long (with `groups`, those of all of their MoE groups),
    the others for a moment; without, all are. `npus` waits for first NPU readings too; `ready_deadline` takes the
    place of the file's. Nodes that gave no answer are named on stderr. Raises `FileError`.
    """
    topology = load_checked(file)
    plan = make_plan(topology)
    needed = nodes_of(targets, topology, plan, groups=groups)

    async def main() -> int:
        fleet = Fleet(
            topology,
            plan,
            clock=SystemClock(),
            read_only=read_only,
            by=operator(),
            ready_deadline=ready_deadline,
        )
        async with fleet:
            await settle_for(fleet, wait, npus=npus, needed=needed)
            for node in fleet.snapshot.nodes:
                if node.error:
                    narrate(node_trouble(node))
            return await work(fleet)

    return run(main)


def run(main: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run a command to its exit status; SIGTERM and SIGHUP cancel it as Ctrl-C does, status 128 and their number.

    So the end of a login, or a script's timeout, leaves no lease and no journal entry without its end. What is
    ignored (nohup) stays ignored. Raises `asyncio.CancelledError` after Ctrl-C.
    """
    got: list[int] = []
    wake: list[Callable[[], object]] = []
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def end(status: int) -> None:
        got.append(status)
        if status == 128 + signal.SIGHUP:
            silence(terminals)
        for call in wake:
            call()

    async def cancellable() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.set_default_executor(DaemonExecutor())
        if task is not None:
            wake.append(partial(loop.call_soon_threadsafe, task.cancel))
        try:
            return await main()
        finally:
            wake.clear()

    with ended_by_signals(end, grace=END_GRACE):
        try:
            status = asyncio.run(cancellable())
        except asyncio.CancelledError:
            if not got:
                raise
    return got[0] if got else status


def console_on(engine: EngineThread, show: Callable[[EngineThread], int]) -> int:
    """Show a console over an engine and close that in order, also when a signal comes before, between or after.

    Closing gives back leases and says in the journals how operations ended; a hang-up in that moment must not cut
    it off. It has `LEAVE_GRACE` seconds from the signal on. Returns the exit status.
    """
    leaving = False
    got: list[int] = []

    def end(status: int) -> None:
        got.append(status)
        if not leaving:
            raise SystemExit(status)

    with ended_by_signals(end, grace=LEAVE_GRACE), engine as handle:
        try:
            status = show(handle)
        finally:
            leaving = True
    return got[0] if got else status


async def settle_for(fleet: Fleet, wait: float, *, npus: bool, needed: Collection[str] | None) -> None:
    """Wait for first answers, and say which nodes gave none though they had their time."""
    if needed is None:
        if not await fleet.settled(wait, npus=npus):
            narrate(_unanswered(fleet, wait))
        return
    others = [name for name in fleet.topology.nodes if name not in needed]
    all_here, all_there = await asyncio.gather(
        fleet.settled(wait, npus=npus, nodes=needed),
        fleet.settled(min(wait, OTHERS), npus=False, nodes=others),
    )
    if not all_here:
        narrate(_unanswered(fleet, wait))
    elif not all_there and (silent := ", ".join(fleet.silent())):
        narrate(f"no answer yet from {silent}: not waited for, nothing is to be done there")


def _unanswered(fleet: Fleet, wait: float) -> str:
    silent = fleet.silent()
    return f"no answer within {wait:.0f} s from {', '.join(silent) if silent else 'some NPUs'}"


def narrate(message: str) -> None:
    """Print a line of narration on stderr."""
    click.echo(message, err=True)


def narrate_unwritten(error: str) -> None:
    """Say that the journal of this machine lacks what was done, if it does."""
    if error:
        narrate(f"warning: the journal here could not be written: {error}")


def node_trouble(node: NodeStatus) -> str:
    """Return why a node cannot be used and what to do, on one line."""
    remedy = f" ({'; '.join(node.remedy.splitlines())})" if node.remedy else ""
    return f"{node.name}: {'; '.join(node.error.splitlines())}{remedy}"


def clock_time(at: float | None) -> str:
    """Return a local time: `12:03:49` today, `11-29 12:03` before."""
    if at is None:
        return "-"
    local = time.localtime(at)
    return time.strftime("%H:%M:%S" if time.localtime()[:3] == local[:3] else "%m-%d %H:%M", local)
