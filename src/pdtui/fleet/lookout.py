"""Looks out, on one node, for what no keeper of ours started: asks the agent, sorts it, tells the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdtui.clock import Clock
from pdtui.fleet.servers import DEVICES
from pdtui.fleet.store import Store
from pdtui.fleet.strangers import (
    ALIVE,
    Census,
    Seen,
    Unmanaged,
    find_foreign,
    find_ownerless,
    find_unmanaged,
    ports_of,
)
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import RankRecord
from pdtui.topology.plan import Plan
from pdtui.topology.reference import refers

INTERVAL = 4.0
"""Seconds between two looks while a planned rank does not run under a keeper."""

CALM_INTERVAL = 12.0
"""Seconds otherwise: somebody else may still begin to use an NPU."""


class Lookout:
    """What is on a node besides our ranks."""

    def __init__(self, link: NodeLink, store: Store, cluster: str, plan: Plan, *, clock: Clock) -> None:
        self._link = link
        self._store = store
        self._cluster = cluster
        self._plan = plan
        self._clock = clock
        self._planned = plan.on_node(link.name)
        # What is only referred to is not compared, so it is not asked for: secrets stay on the node.
        named = (name for rank in self._planned for name, value in rank.env.items() if not refers(value))
        self._env = tuple(dict.fromkeys([*named, DEVICES, "HOME"]))
        self._ports = {port for rank in self._planned for port, _ in ports_of(rank, plan)}
        self._census = Census()
        self._agent: NodeAgent | None = None
        self._at = float("-inf")
        self._listeners: Sequence[Listener] = ()
        self._processes: Sequence[ProcessInfo] = ()
        self._outer: Mapping[int, ProcessInfo] = {}
        """What the host says of the processes on NPUs, by its pids: those of a container have others inside."""
        self._refuted: set[Listener] = set()
        self._freed: dict[int, float] = {}
        self.unmanaged: Mapping[str, Unmanaged] = {}
        """Planned ranks whose place a server holds that was started by hand."""

    def poke(self) -> None:
        """Look at the next occasion, whenever the last look was."""
        self._at = float("-inf")

    def refute(self, found: Unmanaged) -> None:
        """Take a holder of a port for no server from now on: it answers as none does."""
        if found.listener is not None and found.server is None:
            self._refuted.add(found.listener)

    async def look(self, agent: NodeAgent, records: Mapping[str, RankRecord], offset: float) -> None:
        """Ask when it is time, and sort what was said. Raises `AgentLost` and `AgentError`."""
        now = self._clock.monotonic()
        idle = [rank for rank in self._planned if rank.id not in records or records[rank.id].state not in ALIVE]
        if agent is not self._agent:
            self._agent, self._census = agent, Census()
            self.poke()
        if now - self._at >= (INTERVAL if idle else CALM_INTERVAL):
            await self._ask(agent, bool(idle))
            self._at = now
        seen = Seen(self._planned, records, self._listeners, self._processes, self._cluster)
        found = {
            rank_id: one
            for rank_id, one in find_unmanaged(seen).items()
            if one.server is not None or one.listener not in self._refuted
        }
        self._note_ends(records, found, offset)
        self.unmanaged = found
        self._tell(seen, offset)

    async def _ask(self, agent: NodeAgent, idle: bool) -> None:
        node = self._store.nodes[self._link.name]
        listeners = await agent.ports() if idle else ()
        self._listeners = [held for held in listeners if held.port in self._ports]
        self._refuted &= set(self._listeners)
        pids = {held.pid for held in self._listeners if held.pid is not None}
        on_npus = {pid for npu in node.npus for pid, _, _ in npu.processes}
        if self.same_pids:
            pids.update(on_npus)
        elif (host := self._link.host_agent) is not None:
            found = await host.processes(match=(), pids=sorted(on_npus)) if on_npus else ()
            self._outer = {info.pid: info for info in found}
        self._processes = await self._census.read(agent, env=self._env, pids=pids, skip=f"{self._cluster}:")

    @property
    def same_pids(self) -> bool:
        """Whether npu-smi, asked on the host, counts processes as the agent beside the ranks does."""
        return self._link.host_agent is self._link.rank_agent

    def _note_ends(self, records: Mapping[str, RankRecord], found: Mapping[str, Unmanaged], offset: float) -> None:
        """Remember when NPUs were given up: their memory comes back later."""
        now = self._clock.wall()
        for rank in self._planned:
            if rank.id in self.unmanaged and rank.id not in found:
                self._freed.update(dict.fromkeys(rank.devices, now))
        for record in records.values():
            for device in record.devices if record.ended is not None else ():
                self._freed[device] = max(self._freed.get(device, 0.0), (record.ended or 0.0) - offset)

    def _tell(self, seen: Seen, offset: float) -> None:
        node = self._store.nodes[self._link.name]
        foreign = find_foreign(
            seen,
            self.unmanaged,
            node.npus,
            self._plan,
            offset=offset,
            outer=None if self.same_pids else self._outer,
        )
        ownerless = find_ownerless(node, seen, self.unmanaged, self._freed)
        self._store.update_node(self._link.name, foreign=foreign, ownerless=ownerless)
