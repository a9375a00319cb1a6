"""What runs on a node that no keeper of ours started: unmanaged ranks, foreign processes, HBM without an owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.fleet.servers import ENGINE, Server, assign, is_left_behind, servers_among, short_command
from pdtui.fleet.snapshot import ForeignProcess, NodeStatus, NpuStatus, OwnerlessHbm
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.topology.plan import Plan, RankPlan

IDLE_HBM = 0.15
"""Part of an NPU's memory that an idle one may hold (about 3 of 64 GB in published tables)."""

HBM_PATIENCE = 90.0
"""Seconds after the end of what used an NPU before its memory counts as ownerless: release takes up to 50."""

ANY_ADDRESS = frozenset({"0.0.0.0", "::", "*", "", "127.0.0.1", "::1", "::ffff:0.0.0.0"})  # noqa: S104
ALIVE = (ProcessState.RUNNING, ProcessState.UNKEPT)
MATCH = ("vllm", ENGINE)
"""What the words of servers, and the titles of their engines and workers, contain."""
_COMMAND = 200


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """A planned rank's place, taken by a server that was started by hand."""

    server: Server | None
    """None: only its port is seen."""
    listener: Listener | None
    sharers: int = 1
    """Servers that write to the same output."""

    @property
    def process(self) -> ProcessInfo | None:
        """The server's process."""
        return self.server.process if self.server is not None else None

    @property
    def pid(self) -> int | None:
        """Its pid, if it is known."""
        if self.server is not None:
            return self.server.process.pid
        return self.listener.pid if self.listener is not None else None

    def owns(self, pid: int | None) -> bool:
        """Return whether a pid belongs to it."""
        return pid is not None and (pid == self.pid or (self.server is not None and self.server.owns(pid)))


@dataclass(slots=True)
class Census:
    """The processes of one node that are of interest; each is read once, then only what changes of it."""

    known: dict[tuple[int, int], ProcessInfo] = field(default_factory=dict)

    async def read(
        self, agent: NodeAgent, *, env: Sequence[str], pids: Iterable[int], skip: str
    ) -> Sequence[ProcessInfo]:
        """Return servers and the processes of `pids`. Raises `AgentLost` and `AgentError`."""
        asked = sorted(set(pids))
        found = await agent.processes(match=MATCH, env=env, pids=asked, known=tuple(self.known), skip=skip)
        now: dict[tuple[int, int], ProcessInfo] = {}
        for info in found:
            key = (info.pid, info.start)
            if info.brief and key in self.known:
                info = replace(self.known[key], ppid=info.ppid, tree=info.tree, output=info.output)
            if not info.brief:
                now[key] = info
        self.known = now
        return tuple(now.values())


@dataclass(frozen=True, slots=True)
class Seen:
    """What a node said about its processes at one moment."""

    planned: Sequence[RankPlan]
    """The ranks that the plan puts here."""
    records: Mapping[str, RankRecord]
    listeners: Sequence[Listener]
    processes: Sequence[ProcessInfo]
    cluster: str

    @property
    def ours(self) -> frozenset[int]:
        """Pids that belong to ranks that a keeper of ours started."""
        pids = {pid for record in self.records.values() for pid in (*record.processes, record.pid, record.keeper)}
        pids.update(info.pid for info in self.processes if info.rank.startswith(f"{self.cluster}:"))
        return frozenset(pid for pid in pids if pid is not None)

    def idle(self) -> list[RankPlan]:
        """Return the planned ranks of which nothing of ours runs."""
        return [
            rank
            for rank in self.planned
            if (record := self.records.get(rank.id)) is None or record.state not in ALIVE
        ]


def find_unmanaged(seen: Seen) -> Mapping[str, Unmanaged]:
    """Return the planned ranks whose place a server holds that was started by hand."""
    ours = seen.ours
    strangers = [info for info in seen.processes if info.pid not in ours and not info.rank]
    servers = servers_among(strangers)
    idle = seen.idle()
    chosen = assign(servers, idle, seen.listeners)
    outputs = [server.process.output.id for server in servers]
    found: dict[str, Unmanaged] = {}
    for rank in idle:
        server = chosen.get(rank.id)
        record = seen.records.get(rank.id)
        held = [x for x in seen.listeners if takes_port(x, rank, seen.cluster, record)]
        if server is not None:
            shared = outputs.count(server.process.output.id) if server.process.output.id else 1
            listener = next((x for x in held if server.owns(x.pid) or x.pid is None), None)
            found[rank.id] = Unmanaged(server, listener, shared)
        elif listener := next((x for x in held if _may_be_server(x, ours)), None):
            found[rank.id] = Unmanaged(None, listener)
    return found


def takes_port(listener: Listener, rank: RankPlan, cluster: str, record: RankRecord | None) -> bool:
    """Return whether a listener takes the API port of a rank without being that rank."""
    if listener.port != rank.api_port or (listener.address not in ANY_ADDRESS and listener.address != rank.host):
        return False
    if listener.rank == f"{cluster}:{rank.id}":
        return False
    return record is None or listener.pid is None or listener.pid not in record.processes


def _may_be_server(listener: Listener, ours: frozenset[int]) -> bool:
    """Return whether what holds a port may be a server: nobody says who it is, or it is called like one."""
    if listener.rank or listener.pid in ours:
        return False
    return not listener.command or "vllm" in listener.command.lower()


@dataclass(slots=True)
class _Entry:
    info: ProcessInfo | None
    command: str = ""
    rank: str = ""
    hbm: dict[int, int] = field(default_factory=dict)
    ports: dict[int, None] = field(default_factory=dict)
    hits: dict[str, None] = field(default_factory=dict)


def find_foreign(
    seen: Seen,
    unmanaged: Mapping[str, Unmanaged],
    npus: Sequence[NpuStatus],
    plan: Plan,
    *,
    offset: float,
    outer: Mapping[int, ProcessInfo] | None,
) -> tuple[ForeignProcess, ...]:
    """Return the processes that use planned NPUs or ports, or are servers, and are no part of the plan.

    `offset`: seconds that the node's clock is ahead. `outer`: what the host says of the processes on NPUs, where
    ranks are in a container and have other pids there; None where all count alike. A process on the NPU of a rank
    that runs is taken for the rank's when the host says nothing of it.
    """
    ours = seen.ours
    by_pid = {info.pid: info for info in seen.processes}
    roots = servers_among([info for info in seen.processes if info.pid not in ours])
    entries: dict[int | None, _Entry] = {}
    running = {rank.id for rank in seen.planned} - {rank.id for rank in seen.idle()} | unmanaged.keys()

    def belongs(pid: int | None) -> bool:
        return pid in ours or any(one.owns(pid) for one in unmanaged.values())

    def is_ours(pid: int, rank: str) -> bool:
        if outer is None:
            return belongs(pid)
        info = outer.get(pid)
        if info is None:
            return rank in running
        return info.rank.startswith(f"{seen.cluster}:") or (info.inner != info.pid and belongs(info.inner))

    def entry(pid: int | None) -> _Entry:
        root = next((server.process for server in roots if server.owns(pid)), None)
        info = root or (by_pid.get(pid) if pid is not None else None)
        return entries.setdefault(info.pid if info is not None else pid, _Entry(info))

    for npu in npus:
        for pid, name, memory in npu.processes:
            if is_ours(pid, npu.rank):
                continue
            one = entry(pid) if outer is None else entries.setdefault(pid, _Entry(outer.get(pid)))
            one.command = one.command or name
            one.hbm[npu.id] = one.hbm.get(npu.id, 0) + memory
            if npu.rank:
                one.hits[npu.rank] = None
    for rank in seen.idle():
        for port, _ in ports_of(rank, plan):
            for held in seen.listeners:
                if held.port != port or (held.address not in ANY_ADDRESS and held.address != rank.host):
                    continue
                if belongs(held.pid) or held.rank.startswith(f"{seen.cluster}:"):
                    continue
                if rank.id in unmanaged and (held.pid is None or unmanaged[rank.id].owns(held.pid)):
                    continue
                one = entry(held.pid)
                one.command, one.rank = one.command or held.command, held.rank
                one.ports[port] = None
                one.hits[rank.id] = None
    for server in roots:
        if not belongs(server.process.pid):
            entry(server.process.pid)
    for info in seen.processes:
        told = outer is not None and any(other.inner == info.pid for other in outer.values())
        if is_left_behind(info) and not belongs(info.pid) and not told:
            entry(info.pid)
    found = [_as_seen(pid, one, offset) for pid, one in entries.items()]
    return tuple(sorted(found, key=lambda one: (not one.hits, one.npus, one.ports, one.pid or 0)))


def ports_of(rank: RankPlan, plan: Plan) -> tuple[tuple[int, str], ...]:
    """Return the ports that a rank binds and what each is for; rank 0 also binds its group's RPC port."""
    kv = "KV" if rank.devices else "KV side-channel"
    ports = [(rank.api_port, "API"), *((port, kv) for port in rank.kv_ports)]
    if rank.dp_rank == 0:
        ports.extend((use.first, "RPC") for use in plan.ports if use.use == "rpc" and use.owner == rank.group)
    return tuple(ports)


def _as_seen(pid: int | None, entry: _Entry, offset: float) -> ForeignProcess:
    info = entry.info
    command = short_command(info.argv, _COMMAND) if info is not None and info.argv else entry.command
    orphan = info is not None and is_left_behind(info)
    return ForeignProcess(
        pid=pid,
        user=info.user if info is not None else "",
        command=command,
        since=info.started - offset if info is not None and info.started else None,
        npus=tuple(sorted(entry.hbm)),
        hbm_mb=sum(entry.hbm.values()) if entry.hbm else None,
        ports=tuple(entry.ports),
        rank=(info.rank if info is not None else "") or entry.rank,
        hits=tuple(entry.hits),
        note="left behind by a server that has ended" if orphan else "",
    )


def find_ownerless(
    node: NodeStatus, seen: Seen, unmanaged: Mapping[str, Unmanaged], freed: Mapping[int, float]
) -> tuple[OwnerlessHbm, ...]:
    """Return the NPUs whose memory is used though no process is known to hold it.

    `freed`: when an NPU was last given up, on our clock; its memory takes a while to come back.
    """
    taken = {
        d for record in seen.records.values() if record.state in ALIVE or record.processes for d in record.devices
    }
    taken.update(d for rank in seen.planned if rank.id in unmanaged for d in rank.devices)
    return tuple(
        OwnerlessHbm(npu.id, npu.hbm_used_mb, npu.rank)
        for npu in node.npus
        if npu.id not in taken
        and not npu.processes
        and npu.hbm_used_mb is not None
        and npu.hbm_total_mb
        and npu.hbm_used_mb > IDLE_HBM * npu.hbm_total_mb
        and (npu.observed_at or 0.0) > freed.get(npu.id, 0.0) + HBM_PATIENCE
    )
