"""What the commands on a live cluster share: a fleet from a file, who asks, narration."""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.snapshot import NodeStatus
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan

SETTLE = 20.0
"""Seconds that nodes have for their first answers: a connection takes up to ten."""


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
) -> int:
    """Load a file, watch its cluster until all nodes have answered (or `wait` seconds), and do `work`.

    `npus` waits for first NPU readings too; `ready_deadline` takes the place of the file's. Nodes that gave no
    answer are named on stderr. Raises `FileError`.
    """
    topology = load_checked(file)
    plan = make_plan(topology)

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
            if not await fleet.settled(wait, npus=npus):
                narrate(f"not all nodes have answered within {wait:.0f} s")
            for node in fleet.snapshot.nodes:
                if node.error:
                    narrate(node_trouble(node))
            return await work(fleet)

    return asyncio.run(main())


def narrate(message: str) -> None:
    """Print a line of narration on stderr."""
    click.echo(message, err=True)


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
