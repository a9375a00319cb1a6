"""Looks at every node of a file once: by whom it can be used, how fast, or why not. Changes nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.conditions import conditions
from pdtui.fleet.snapshot import Condition
from pdtui.remote.connections import Connections
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import Facts
from pdtui.text import clean_line
from pdtui.topology.model import Topology

PATIENCE = 20.0
"""Seconds that each node has, all of them at once."""

TRIPS = 3
"""Requests of which the shortest says how fast a node answers."""

LOOK_AGAIN = 0.5
"""Seconds between two looks at a connection of which nothing was heard."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and what helps."""

    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NodeExamination:
    """What was found out about one node, as far as it came."""

    name: str
    host: Facts | None = None
    """What the agent on the host says of itself; None without a connection."""
    ranks: Facts | None = None
    """The same where ranks run: in the container, if there is one."""
    connected_after: float | None = None
    """Seconds until the agent on the host answered for the first time."""
    round_trip: float | None = None
    """Seconds that the shortest of a few requests took."""
    clock_offset: float | None = None
    """Seconds that the node's clock is ahead of ours."""
    connection: Trouble | None = None
    """Why the node, or its container, cannot be used."""
    state: Trouble | None = None
    """Why the folder for records does not take a start."""
    conditions: tuple[Condition, ...] = ()
    """What else is not right about it."""


async def examine(topology: Topology, *, clock: Clock, patience: float = PATIENCE) -> Sequence[NodeExamination]:
    """Look at all nodes at once; each has `patience` seconds, and none waits for another."""
    async with Connections(topology, clock=clock) as connections:
        looks = [_Look(link, topology, clock) for link in connections.links.values()]
        return await asyncio.gather(*(look.within(patience) for look in looks))


class _Look:
    """One node's examination; what it has when its time is over is what is told."""

    def __init__(self, link: NodeLink, topology: Topology, clock: Clock) -> None:
        self._link = link
        self._topology = topology
        self._clock = clock
        self._round_trip: float | None = None
        self._clock_offset: float | None = None
        self._connected_after: float | None = None
        self._host: Facts | None = None
        self._ranks: Facts | None = None
        self._connection: Trouble | None = None
        self._state: Trouble | None = None

    async def within(self, patience: float) -> NodeExamination:
        """Look for at most so many seconds."""
        try:
            async with self._clock.timeout(patience):
                await self._look()
        except TimeoutError:
            late = Trouble(
                f"no answer within {patience:.0f} s",
                "look whether the machine is overloaded, or a disk of it hangs (dmesg)",
            )
            if self._ranks is None:
                self._connection = self._said() or late
            else:
                self._state = self._state or late
        except RemoteError as error:
            self._connection = Trouble(clean_line(error.message), error.remedy)
        facts = conditions(self._host, self._ranks, self._topology.runtime) if self._ranks is not None else ()
        return NodeExamination(
            self._link.name,
            self._host,
            self._ranks,
            self._connected_after,
            self._round_trip,
            self._clock_offset,
            self._connection,
            self._state,
            facts,
        )

    async def _look(self) -> None:
        agent = await self._agent()
        if agent is None:
            return
        trips = [await self._trip(agent) for _ in range(TRIPS)]
        self._round_trip = min(trips)
        self._clock_offset = await agent.clock_offset()
        if agent.facts.state_dir_error:
            return  # One of the conditions says so.
        try:
            await agent.check_state()
        except RemoteError as error:
            self._state = Trouble(clean_line(error.message), error.remedy)

    async def _agent(self) -> NodeAgent | None:
        """Wait for the agent where ranks run; None when there is a reason why there is none."""
        begun = self._clock.monotonic()
        while True:
            host, agent = self._link.host_agent, self._link.rank_agent
            if host is not None and self._host is None:
                self._host = host.facts
                self._connected_after = self._clock.monotonic() - begun
            if agent is not None:
                self._ranks = agent.facts
                return agent
            self._connection = self._said()
            if self._connection is not None:
                return None
            with suppress(TimeoutError):
                async with self._clock.timeout(LOOK_AGAIN):
                    await self._link.changed()

    def _said(self) -> Trouble | None:
        """Return what the connection says is wrong."""
        error = self._link.status.error
        return None if error is None else Trouble(clean_line(error.message), error.remedy)

    async def _trip(self, agent: NodeAgent) -> float:
        begun = self._clock.monotonic()
        await agent.read_file("/proc/uptime", limit=64)
        return self._clock.monotonic() - begun
