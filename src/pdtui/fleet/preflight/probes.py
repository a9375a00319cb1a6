"""How nodes are asked: the registry of probes, and what each of them asks with.

The vendor tools need no probe: a check that needs a `Query` gets its readings for every NPU (or of the node).
Probes are for the rest: files, ports, a script where ranks run, a connection from one node to another. They yield
readings as they come and raise what the agent raises; whoever runs them keeps the time.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdtui.clock import Clock
from pdtui.errors import AgentError
from pdtui.fleet.answers import answer_of
from pdtui.fleet.preflight.facts import Item, NodeFacts
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.request import Pings
from pdtui.readings.answer import Answer, Reading
from pdtui.readings.commands import Query
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.commands import Command, Completed
from pdtui.topology.model import Node, Topology
from pdtui.topology.plan import Plan

Place = Literal["host", "ranks"]
"""Where a probe asks: on the host, or where ranks run (in the container, if there is one)."""

PROBE_LIMIT = 30.0
"""Seconds for a probe as a whole, unless it says another."""

Gathered = tuple[Item, Reading[Any]]


@dataclass(frozen=True)
class Asking:
    """One node as a probe sees it."""

    node: Node
    topology: Topology
    plan: Plan
    agent: NodeAgent
    """The agent at the probe's place."""
    clock: Clock
    limits: Limits

    async def run(
        self, argv: Sequence[str], *, timeout: float | None = None, env: Mapping[str, str] | None = None
    ) -> Answer:
        """Run a program that changes nothing and return what it answered. `timeout`: seconds, on the node."""
        timeout = min(timeout or self.limits.call, self.limits.probe)
        command = Command(tuple(argv), timeout=timeout, env=env or {})
        try:
            async with self.clock.timeout(timeout + self.limits.grace):
                completed = await self.agent.run(command)
        except TimeoutError:  # Not even the agent answers: it is stopped, or its machine is.
            completed = Completed(command.argv, None, b"", b"", timed_out=True)
        return answer_of(completed, self.clock.wall(), timeout)

    async def file(self, path: str, *, limit: int = 1 << 16) -> Answer:
        """Read a file as `cat` would: what is not there, or may not be read, is an answer with status 1."""
        command = shlex.join(("cat", path))
        try:
            data = await self.agent.read_file(path, limit=limit)
        except AgentError as error:
            return Answer(command, stderr=f"cat: {error.message}".encode(), status=1, at=self.clock.wall())
        return Answer(command, data, at=self.clock.wall())


@dataclass(frozen=True)
class Everywhere:
    """All reached nodes as a cluster probe sees them, with what was gathered on each before."""

    topology: Topology
    plan: Plan
    facts: Mapping[str, NodeFacts]
    host: Mapping[str, Asking]
    """By node; those that were reached."""
    ranks: Mapping[str, Asking]
    """The same where ranks run."""
    clock: Clock
    limits: Limits
    pings: Pings
    told: Callable[[int, int], None]
    """To be called with how much is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One registered probe."""

    id: str
    place: Place
    limit: float
    """Seconds for all of it."""
    needs: tuple[str, ...]
    """What must be gathered before; cluster probes only."""
    gather: Callable[[Asking], AsyncIterator[Gathered]] | None = None
    across: Callable[[Everywhere], AsyncIterator[tuple[str, Item, Reading[Any]]]] | None = None
    """Of a cluster probe: yields the node beside each reading."""


_PROBES: dict[str, Probe] = {}


def probe(
    id: str,  # noqa: A002
    *,
    place: Place = "host",
    limit: float = PROBE_LIMIT,
) -> Callable[[Callable[[Asking], AsyncIterator[Gathered]]], Callable[[Asking], AsyncIterator[Gathered]]]:
    """Register an async generator that asks one node and yields (item, reading). `limit`: seconds, in all."""

    def register(
        gather: Callable[[Asking], AsyncIterator[Gathered]],
    ) -> Callable[[Asking], AsyncIterator[Gathered]]:
        _add(Probe(id, place, limit, (), gather=gather))
        return gather

    return register


Across = Callable[[Everywhere], AsyncIterator[tuple[str, Item, Reading[Any]]]]


def cluster_probe(
    id: str,  # noqa: A002
    *,
    place: Place = "host",
    limit: float = PROBE_LIMIT,
    needs: Sequence[str] = (),
) -> Callable[[Across], Across]:
    """Register an async generator that runs once, after everything was gathered on every node.

    It yields (node, item, reading); `needs` are gathered before it, whatever else was asked for.
    """

    def register(across: Across) -> Across:
        _add(Probe(id, place, limit, tuple(needs), across=across))
        return across

    return register


def _add(new: Probe) -> None:
    if new.id in _PROBES or new.id in tuple(Query):
        raise ValueError(f"{new.id} is there already")
    _PROBES[new.id] = new


def probe_of(need: str) -> Probe | None:
    """Return a probe by its id; None for a query. Raises `KeyError` for what is neither."""
    return None if need in tuple(Query) else _PROBES[need]


def place_of(need: str) -> Place:
    """Return where a need is asked."""
    found = probe_of(need)
    return found.place if found is not None else "host"
