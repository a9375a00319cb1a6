"""What is true on the nodes in memory, and was: read from their processes, never from what the fleet says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pdtui.fleet.snapshot import RankState
from tests.support.memory_node import MemoryNode
from tests.support.memory_ranks import Run


@dataclass(frozen=True, slots=True)
class Fact:
    """A rank on a node during some time."""

    run: int
    """Number of its newest start."""
    serves: bool
    """Its server lives."""
    ready: bool
    """/health is 200."""
    asked: bool
    """The end of this run was asked for."""
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Double:
    """A rank that runs twice."""

    words: str
    first: float | None = None
    """When the older began, where they are on two nodes."""
    second: float = 0.0


NOTHING = Fact(0, False, False, False, frozenset())


@dataclass
class History:
    """Facts of one rank on one node by the time from which they held."""

    since: list[float] = field(default_factory=lambda: [float("-inf")])
    facts: list[Fact] = field(default_factory=lambda: [NOTHING])

    def add(self, now: float, fact: Fact) -> None:
        """Note what holds from now on."""
        if fact != self.facts[-1]:
            self.since.append(now)
            self.facts.append(fact)

    def between(self, begin: float, end: float) -> Iterator[Fact]:
        """Yield what held at some moment of that time, newest first."""
        for index in range(len(self.facts) - 1, -1, -1):
            if self.since[index] <= end:
                yield self.facts[index]
            if self.since[index] <= begin:
                return


@dataclass
class Truth:
    """Facts of all ranks of a cluster."""

    cluster: str
    nodes: Mapping[str, MemoryNode]
    histories: dict[tuple[str, str], History] = field(default_factory=dict)

    def look(self, now: float) -> None:
        """Note what holds now."""
        for name, node in self.nodes.items():
            node.ranks.settle()
            for (cluster, rank), runs in node.ranks.runs.items():
                if cluster == self.cluster:
                    self.of(name, rank).add(now, self._fact(node, rank, runs[-1], now))

    def note(self, name: str, run: Run, now: float) -> None:
        """Note what holds of one rank at a moment between two looks: it answers."""
        rank = run.record.rank
        if run.record.cluster == self.cluster:
            self.of(name, rank).add(now, self._fact(self.nodes[name], rank, run, now))

    def of(self, node: str, rank: str) -> History:
        """Return the history of a rank on a node."""
        return self.histories.setdefault((node, rank), History())

    def _fact(self, node: MemoryNode, rank: str, run: Run, now: float) -> Fact:
        serves = node.ranks.serves(run)
        ready = serves and run.behaviour.health == 200 and now - run.born >= run.behaviour.ready_after
        pids = node.ranks.pids((self.cluster, rank))
        return Fact(run.record.run, serves, ready, run.stop is not None, pids)

    def doubles(self) -> Iterator[Double]:
        """Yield each rank of which more than one set of processes lives."""
        servers: dict[str, list[tuple[float, str]]] = {}
        for name, node in self.nodes.items():
            for process in node.table.by_pid.values():
                cluster, _, rank = process.marker.partition(":")
                if cluster != self.cluster:
                    continue
                run = node.ranks.newest((cluster, rank))
                if run is None or run.record.pid != process.session:
                    yield Double(f"{rank} on {name}: pid {process.pid} is not of its newest start")
                elif process.pid == run.record.pid:
                    servers.setdefault(rank, []).append((run.born, name))
        for rank, found in servers.items():
            if len(found) > 1:
                (first, here), (second, there) = sorted(found)
                yield Double(f"{rank} runs on {here} and {there}", first, second)

    def shown_as(self, name: str, rank: str, host: str, api_port: int) -> set[RankState]:
        """Return the states that a console may show of a planned rank once all is quiet."""
        node = self.nodes[name]
        run = node.ranks.newest((self.cluster, rank))
        pids = node.ranks.pids((self.cluster, rank))
        # A port that something else than a server holds makes a rank neither unmanaged nor anything else.
        taken = any(x.port == api_port and x.address in ("0.0.0.0", host) for x in node.listeners)
        idle = {RankState.UNMANAGED, RankState.STOPPED} if taken else {RankState.STOPPED}
        if run is None:
            return {RankState.UNKEPT} if pids else idle
        if node.ranks.serves(run):
            return self._alive(node, run)
        if run.stop is not None:
            return idle
        return {RankState.UNMANAGED, RankState.FAILED} if taken else {RankState.FAILED}

    @staticmethod
    def _alive(node: MemoryNode, run: Run) -> set[RankState]:
        if run.stop is not None:
            return {RankState.STOPPING}
        if not node.ranks.is_kept(run):
            return {RankState.UNKEPT}
        ready = node.clock.monotonic() - run.born >= run.behaviour.ready_after
        if not ready:
            return {RankState.STARTING}
        if run.behaviour.health == 200:
            return {RankState.READY}
        return {RankState.UNHEALTHY, RankState.STARTING}  # It may never have been seen ready.
