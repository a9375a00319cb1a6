"""Gathers what checks need of one node: a few devices in parallel, one call at a time each, all under limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.fleet.answers import NO_ANSWER, answer_of
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.facts import Connection, Item, Key, NodeFacts
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.probes import Asking, Probe, probe_of
from pdtui.fleet.preflight.readers import READERS
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import NODE_QUERIES, QUERIES, Query, argv_of
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import Command
from pdtui.text import clean_line
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan


@dataclass(eq=False)
class Gathering:
    """One node's facts as they come."""

    link: NodeLink
    topology: Topology
    plan: Plan
    clock: Clock
    limits: Limits
    needs: Sequence[str]
    told: Callable[[], None]
    """Called after each answer."""
    done: int = 0
    total: int = 0
    out: dict[str, float] = field(default_factory=dict)
    """Calls that are out: in words, and the wall clock at which they were sent; the oldest first."""
    connection: Connection = field(default_factory=Connection)
    readings: dict[Key, Reading[Any]] = field(default_factory=dict)
    missing: dict[str, Reading[Any]] = field(default_factory=dict)
    lost: str = ""

    def __post_init__(self) -> None:
        self._stuck: dict[str, list[int | None]] = {}
        """Devices (None: the node) on which a program hangs."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.link.name

    @property
    def facts(self) -> NodeFacts:
        """What is known by now."""
        return NodeFacts(self.name, self.connection, dict(self.readings), dict(self.missing), self.lost)

    def asking(self, agent: NodeAgent) -> Asking:
        """Return what a probe asks this node with."""
        return Asking(self.topology.nodes[self.name], self.topology, self.plan, agent, self.clock, self.limits)

    async def gather(self) -> None:
        """Connect and ask everything; returns when it is answered or the node's time is over."""
        await self._connect()
        if not self.connection.host:
            return
        try:
            async with self.clock.timeout(self.limits.node):
                await self._ask_all()
        except TimeoutError:
            self._lose(f"{NO_ANSWER} to all of it within {self.limits.node:g} s", Failure.TIMEOUT)
        except AgentLost as error:
            self._lose(lost_words(error), Failure.EMPTY)
        finally:
            self.out.clear()

    def _lose(self, why: str, failure: Failure) -> None:
        self.lost = why
        for need in self.needs:
            self.missing.setdefault(need, Reading(need, self.clock.wall(), why, failure=failure))

    # --- the connection

    async def _connect(self) -> None:
        """Wait for the agents that are needed, or for a reason why there are none."""
        places = {found.place for need in self.needs if (found := probe_of(need)) is not None}
        # Whether the container can be reached is what its check asks.
        wanted = "ranks" in places or "container" in self.needs
        begun, known = self.clock.monotonic(), self.link.status.error
        self.link.retry_now()
        self.out["connection"] = self.clock.wall()
        self.told()
        with suppress(TimeoutError):
            async with self.clock.timeout(self.limits.connect):
                while not self._settled(wanted, known):
                    with suppress(TimeoutError):
                        async with self.clock.timeout(self.limits.look):
                            await self.link.changed()
        del self.out["connection"]
        self.connection = self._connection(self.clock.monotonic() - begun)
        self.told()

    def _settled(self, ranks: bool, known: ConnectError | None) -> bool:
        """Return whether an agent is there, or a reason why none is that is newer than the one that was known."""
        agent = self.link.rank_agent if ranks else self.link.host_agent
        error = self.link.status.error
        return agent is not None or (error is not None and error is not known)

    def _connection(self, seconds: float) -> Connection:
        host, ranks, error = self.link.host_agent, self.link.rank_agent, self.link.status.error
        facts = host.facts if host is not None else None
        words = clean_line(error.message) if error is not None else ""
        if not words and (host is None or ranks is None):
            words = f"{NO_ANSWER} within {self.limits.connect:g} s"
        return Connection(
            host is not None,
            ranks is not None,
            seconds if host is not None else None,
            facts.user if facts is not None else "",
            facts.hostname if facts is not None else "",
            facts.python if facts is not None else "",
            words,
            error.kind if error is not None else None,
            error.remedy if error is not None else "",
            self.clock.wall(),
        )

    # --- what is asked

    async def _ask_all(self) -> None:
        host, ranks = self.link.host_agent, self.link.rank_agent
        queries = [Query(need) for need in self.needs if probe_of(need) is None]
        queries = [query for query in queries if query in QUERIES[self.topology.platform]]
        probes = [found for need in self.needs if (found := probe_of(need)) is not None and found.gather]
        work: list[AsyncIterator[None] | Any] = []
        if host is not None and queries:
            slots = asyncio.Semaphore(self.limits.parallel)
            of_node = [query for query in queries if query in NODE_QUERIES]
            of_device = [query for query in queries if query not in NODE_QUERIES]
            devices = range(self.topology.npus_per_node) if of_device else range(0)
            self.total += len(of_node) + len(of_device) * len(devices)
            if of_node:
                work.append(self._device(host, None, of_node, asyncio.Semaphore(1)))
            work.extend(self._device(host, device, of_device, slots) for device in devices)
        for one in probes:
            agent = ranks if one.place == "ranks" else host
            if agent is not None:
                self.total += 1
                work.append(self._probe(one, agent))
        self.told()
        await all_of(work)

    async def _probe(self, one: Probe, agent: NodeAgent) -> None:
        """Run one probe; what it does not get to say is missing, with the reason."""
        if one.gather is None:
            return
        limit = min(one.limit, self.limits.probe)
        with self._waiting(one.id):
            try:
                async with self.clock.timeout(limit), closing(one.gather(self.asking(agent))) as found:
                    async for item, reading in found:
                        self.readings[(one.id, item)] = reading
            except TimeoutError:
                self._miss(one.id, f"{NO_ANSWER} within {limit:g} s", Failure.TIMEOUT)
            except AgentLost:
                raise
            except AgentError as error:
                self._miss(one.id, clean_line(error.message), Failure.ERROR)
        self.done += 1
        self.told()

    def _miss(self, need: str, why: str, failure: Failure) -> None:
        self.missing[need] = Reading(need, self.clock.wall(), why, failure=failure)

    async def _device(
        self, agent: NodeAgent, device: int | None, queries: Sequence[Query], slots: asyncio.Semaphore
    ) -> None:
        """Ask one device its queries in turn; what is busy is tried again, and a tool that hangs is left alone."""
        async with slots:
            left, tries = list(queries), 0
            while left:
                busy = await self._round(agent, device, left)
                final = tries >= self.limits.busy_tries
                for query, reading in busy:
                    if final:
                        self._take(query, device, reading)
                left = [] if final else [query for query, _ in busy]
                if left:
                    await self.clock.sleep(self.limits.busy_pause * 2.0**tries)
                tries += 1

    async def _round(
        self, agent: NodeAgent, device: int | None, queries: Sequence[Query]
    ) -> list[tuple[Query, Reading[Any]]]:
        """Ask these queries once; return those to which the tool said that it is busy."""
        busy: list[tuple[Query, Reading[Any]]] = []
        left = list(queries)
        while left:
            left = self._without_stuck(device, left)
            commands = [self._command(query, device) for query in left]
            if not commands:
                break
            try:
                with self._waiting(" ".join(commands[0].argv)):
                    stuck = await self._ask(agent, device, commands, left, busy)
            except AgentError as error:  # It will not run them: no other node is the worse for it.
                self._refuse(left, device, clean_line(error.message))
                break
            if not stuck:
                break
        return busy

    async def _ask(
        self,
        agent: NodeAgent,
        device: int | None,
        commands: Sequence[Command],
        left: list[Query],
        busy: list[tuple[Query, Reading[Any]]],
    ) -> bool:
        """Take answers, each off `left` and the busy ones into `busy`; return whether a tool hangs from now on."""
        async with closing(agent.batch(commands, parallel=1)) as answers:
            async for command, completed in answers:
                query = Query(command.key)
                left.remove(query)
                reading = READERS[query](answer_of(completed, self.clock.wall(), command.timeout))
                if reading.failure is Failure.BUSY:
                    busy.append((query, reading))
                    continue
                self._take(query, device, reading)
                if reading.failure is Failure.TIMEOUT:
                    self._stuck.setdefault(command.argv[0], []).append(device)
                    return True
        self._refuse(left, device, "the agent gave no answer to it")
        return False

    def _refuse(self, queries: Sequence[Query], device: int | None, why: str) -> None:
        """Take that the agent has not run these."""
        for query in queries:
            command = " ".join(argv_of(query, self.topology.platform, device))
            self._take(query, device, Reading(command, self.clock.wall(), why, failure=Failure.ERROR))

    def _without_stuck(self, device: int | None, queries: Sequence[Query]) -> list[Query]:
        """Return what is still to be asked: nothing of a tool that hangs on the device or the node."""
        kept: list[Query] = []
        for query in queries:
            program = argv_of(query, self.topology.platform, device)[0]
            stuck = self._stuck.get(program, [])
            if device not in stuck and None not in stuck and len(stuck) < self.limits.hanging:
                kept.append(query)
                continue
            where = "on this NPU" if device in stuck and device is not None else "on this node"
            raw = f"not asked: it hangs {where}\n{NO_ANSWER} from {program} within {self.limits.call:g} s"
            command = " ".join(argv_of(query, self.topology.platform, device))
            self._take(query, device, Reading(command, self.clock.wall(), raw, failure=Failure.TIMEOUT))
        return kept

    def _command(self, query: Query, device: int | None) -> Command:
        argv = argv_of(query, self.topology.platform, device)
        return Command(argv, timeout=self.limits.call, key=query, device=device)

    def _take(self, query: Query, device: Item, reading: Reading[Any]) -> None:
        self.readings[(query, device)] = reading
        self.done += 1
        self.told()

    def _waiting(self, words: str) -> _Out:
        return _Out(self.out, words, self.clock.wall())


def lost_words(error: AgentLost) -> str:
    """Return that the connection to a node was lost, and why if that is known."""
    why = clean_line(error.message).removeprefix("connection lost: ")
    return f"the connection was lost{'' if why.lower() == 'connection lost' else f': {why}'}"


@dataclass(slots=True)
class _Out:
    """A call that is out while the context lasts."""

    out: dict[str, float]
    words: str
    at: float

    def __enter__(self) -> None:
        self.out[self.words] = self.at

    def __exit__(self, *_: object) -> None:
        self.out.pop(self.words, None)


async def all_of(work: Sequence[Any]) -> None:
    """Await all; the first error, or a cancellation, ends the others before it is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
