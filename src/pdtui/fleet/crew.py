"""What operations work with: the store, the nodes' links and watchers, and the limits of doing things at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.journal import Journal
from pdtui.fleet.leases import LeaseDesk
from pdtui.fleet.ranks import RankWatcher
from pdtui.fleet.snapshot import ALIVE_STATES, RankStatus
from pdtui.fleet.store import Store
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan

AT_ONCE = 32
"""Ranks that are started at once over all nodes; all that are to stop are told at once."""

AT_ONCE_NODE = 8
"""Ranks of one node that are started at once."""

JOURNAL_TIMEOUT = 5.0


@dataclass
class Crew:
    """Shared by all operations of one fleet."""

    topology: Topology
    plan: Plan
    store: Store
    clock: Clock
    links: Mapping[str, NodeLink]
    watchers: Mapping[str, RankWatcher]
    journal: Journal
    leases: LeaseDesk
    by: str
    poll_npus: Callable[[Sequence[str]], Awaitable[None]]
    """Read the NPUs of these nodes now."""
    has_npus: bool = True
    _all: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _nodes: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _ranks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _next_start: dict[str, float] = field(default_factory=dict)
    """By node: when its next rank may be started, on the monotonic clock."""

    @property
    def what_is_freed(self) -> str:
        """What a stop sees to be free: `processes, ports and HBM`; no HBM where there are no NPUs."""
        return "processes, ports and HBM" if self.has_npus else "processes and ports"

    def watcher_of(self, rank_id: str) -> RankWatcher:
        """Return the watcher of a rank's node."""
        return self.watchers[self.store.ranks[rank_id].node]

    def agent_of(self, rank_id: str) -> NodeAgent | None:
        """Return the agent where a rank runs; None while its node is unreachable."""
        return self.links[self.store.ranks[rank_id].node].rank_agent

    def unreachable(self, node: str) -> str:
        """Return why a node cannot be asked."""
        error = self.links[node].status.error
        return f"{node} is unreachable{': ' + error.message if error else ''}"

    def alone(self, rank_id: str) -> asyncio.Lock:
        """Return the lock that lets one thing at a time be done to a rank from here."""
        return self._ranks.setdefault(rank_id, asyncio.Lock())

    @asynccontextmanager
    async def turn(self, rank: RankStatus) -> AsyncIterator[None]:
        """Wait until this rank may be started: alone, some time after its node's last one, a few at once.

        Servers of one node that begin together race for the ports that they probe (cases 9) and for the disk.
        """
        node = self._nodes.setdefault(rank.node, asyncio.Semaphore(AT_ONCE_NODE))
        async with self.alone(rank.id):
            now = self.clock.monotonic()
            at = max(now, self._next_start.get(rank.node, now))
            if rank.state not in ALIVE_STATES:  # What runs already is only asked.
                self._next_start[rank.node] = at + self.topology.start.stagger
                await self.clock.sleep(at - now)
            async with node, self._all:
                yield

    async def journal_on_nodes(
        self, nodes: Sequence[str], *entries: Mapping[str, object], hosts: bool = False
    ) -> None:
        """Write entries to the journals of the nodes that can be reached.

        `hosts`: they are about containers, which may be gone or frozen: the agent on the host is asked first.
        """
        await asyncio.gather(*(self._journal_on(node, entries, hosts=hosts) for node in nodes))

    async def _journal_on(self, node: str, entries: Sequence[Mapping[str, object]], *, hosts: bool) -> None:
        link, why = self.links[node], ""
        agents = (link.host_agent, link.rank_agent) if hosts else (link.rank_agent, link.host_agent)
        for agent in dict.fromkeys(agents):
            if agent is None:
                continue
            try:
                async with self.clock.timeout(JOURNAL_TIMEOUT):
                    for entry in entries:
                        await agent.journal(self.topology.name, entry)
            except (RemoteError, TimeoutError) as error:
                why = str(error) or "no answer"
            else:
                return
        if why:
            self.store.event("warning", node, f"journal not written: {why}")
