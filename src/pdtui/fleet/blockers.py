"""What stands against a start: looked at on the nodes, now."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdtui.clock import Clock
from pdtui.errors import ActionRefused, AgentError, RemoteError
from pdtui.fleet.holders import holder_words, holds_on, on_port
from pdtui.fleet.intents import Blocker
from pdtui.fleet.servers import DEVICES
from pdtui.fleet.snapshot import ALIVE_STATES, NodeStatus, NpuStatus, RankState, RankStatus
from pdtui.fleet.strangers import ALIVE, IDLE_HBM, MATCH, Seen, Unmanaged, find_unmanaged, ports_of
from pdtui.readings.verdict import Verdict
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import RECORD_FORMAT, RankRecord
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan, RankPlan

LOOK_TIMEOUT = 10.0
"""Seconds that a node has to say what it runs."""

PAST_RENDEZVOUS = frozenset({RankState.READY, RankState.STALLED, RankState.UNHEALTHY})


@dataclass(frozen=True, slots=True)
class Found:
    """A blocker and the ranks that cannot start because of it."""

    blocker: Blocker
    ranks: tuple[str, ...]

    @property
    def of_node(self) -> bool:
        """Whether the node as a whole cannot be used; other nodes' work goes on."""
        return self.blocker.id.startswith(("node:", "state:"))

    @property
    def of_npu(self) -> bool:
        """Whether it rests on a reading of an NPU."""
        return self.blocker.id.startswith(("npu:", "device:"))


@dataclass(frozen=True, slots=True)
class Look:
    """What a node said, or why it said nothing."""

    error: str = ""
    remedy: str = ""
    state_dir_error: str = ""
    state_dir_remedy: str = "set runtime.state_dir to a folder that this user may write"
    records: Mapping[str, RankRecord] = field(default_factory=dict)
    listeners: Sequence[Listener] = ()
    processes: Sequence[ProcessInfo] = ()

    def unmanaged(self, cluster: str, planned: Sequence[RankPlan]) -> Mapping[str, Unmanaged]:
        """Return which of the node's planned ranks were started by hand."""
        return find_unmanaged(Seen(planned, self.records, self.listeners, self.processes, cluster))


async def look(link: NodeLink, cluster: str, clock: Clock) -> Look:
    """Ask a node for its rank directories and its listening ports."""
    agent = link.rank_agent
    if agent is None:
        error = link.status.error
        return Look(error=error.message if error else "not connected yet", remedy=error.remedy if error else "")
    if agent.facts.state_dir_error:
        return Look(state_dir_error=agent.facts.state_dir_error)
    try:
        async with clock.timeout(LOOK_TIMEOUT):
            records, listeners, processes = await running(agent, cluster)
            try:
                await agent.check_state()
            except AgentError as error:
                known = {record.rank: record for record in records}
                return Look("", "", error.message, error.remedy, known, tuple(listeners))
    except TimeoutError:
        return Look(error=f"no answer within {LOOK_TIMEOUT:.0f} s")
    except RemoteError as error:
        return Look(error=error.message, remedy=error.remedy)
    return Look(
        records={record.rank: record for record in records}, listeners=tuple(listeners), processes=processes
    )


async def running(
    agent: NodeAgent, cluster: str
) -> tuple[Sequence[RankRecord], Sequence[Listener], Sequence[ProcessInfo]]:
    """Return what an agent sees of records, listening ports and servers. Raises `RemoteError`."""
    return await asyncio.gather(
        agent.ranks(cluster),
        agent.ports(),
        agent.processes(match=MATCH, env=(DEVICES,), skip=f"{cluster}:"),
    )


def find(
    ids: Iterable[str],
    looks: Mapping[str, Look],
    topology: Topology,
    plan: Plan,
    nodes: Mapping[str, NodeStatus],
    ranks: Mapping[str, RankStatus],
    *,
    restarting: bool,
    coming: Container[str] = (),
) -> tuple[Found, ...]:
    """Return everything that stands against starting these ranks; those that run already are left out.

    `coming`: ranks that another action is about to start.
    """
    found: dict[str, tuple[Blocker, list[str]]] = {}

    def add(rank: RankPlan, blocker: Blocker) -> None:
        found.setdefault(blocker.id, (blocker, []))[1].append(rank.id)

    planned = [plan.by_id[rank_id] for rank_id in ids if rank_id in plan.by_id]
    stopping = frozenset(rank.id for rank in planned) if restarting else frozenset[str]()
    moe = topology.model.kind == "moe"
    absent = _absent(planned, looks, plan, ranks, coming) if moe else {}
    by_hand = {node: seen.unmanaged(topology.name, plan.on_node(node)) for node, seen in looks.items()}
    for rank in planned:
        seen = looks[rank.node]
        found_here = by_hand[rank.node]
        if rank.id in found_here and not restarting:
            add(rank, unmanaged_blocker(rank, found_here[rank.id]))
        record = seen.records.get(rank.id)
        if record is not None and record.state in ALIVE and not restarting:
            continue
        if record is not None and record.format > RECORD_FORMAT:
            add(rank, _format_blocker(rank, record))
        if record is not None and record.processes and not restarting:
            add(rank, _leftover_blocker(rank, record))
        for blocker in _of_rank(rank, seen, topology, plan, nodes[rank.node], stopping, found_here):
            add(rank, blocker)
        for other in _elsewhere(rank, ranks):
            add(rank, _elsewhere_blocker(rank.id, other.node, other.pid))
        if not restarting and moe and rank.id not in found_here:
            joined = [m for m in plan.of_group(rank.group) if _joined(ranks[m.id])]
            if joined:
                add(rank, _group_blocker(rank.group, len(joined)))
        if rank.group in absent:
            add(rank, _part_blocker(rank.group, absent[rank.group]))
    return tuple(Found(blocker, tuple(names)) for blocker, names in found.values())


def _joined(rank: RankStatus) -> bool:
    return rank.state in PAST_RENDEZVOUS or (rank.state is RankState.UNMANAGED and rank.health == "200")


def _elsewhere(rank: RankPlan, ranks: Mapping[str, RankStatus]) -> Iterable[RankStatus]:
    """Yield what runs under this rank's name on nodes where the file does not have it (any more)."""
    for status in ranks.values():  # What the file does not have is in there for as long as anything of it lives.
        if status.id == f"{rank.id}@{status.node}":
            yield status


async def find_elsewhere(
    ids: Sequence[str], links: Mapping[str, NodeLink], plan: Plan, cluster: str, clock: Clock
) -> Sequence[Blocker]:
    """Ask nodes what runs under these ranks' names where the file does not have them; no answer counts as none."""

    async def records(link: NodeLink) -> Sequence[RankRecord]:
        agent = link.rank_agent
        if agent is None or agent.facts.state_dir_error:
            return ()
        try:
            async with clock.timeout(LOOK_TIMEOUT):
                return await agent.ranks(cluster)
        except (RemoteError, TimeoutError):
            return ()

    found = await asyncio.gather(*(records(link) for link in links.values()))
    return [
        _elsewhere_blocker(record.rank, node, record.pid if record.state in ALIVE else None)
        for node, on_node in zip(links, found, strict=True)
        for record in on_node
        if record.rank in ids
        and plan.by_id[record.rank].node != node
        and (record.processes or record.state in ALIVE)
    ]


def _absent(
    planned: Sequence[RankPlan],
    looks: Mapping[str, Look],
    plan: Plan,
    ranks: Mapping[str, RankStatus],
    coming: Container[str],
) -> Mapping[str, Sequence[str]]:
    """Return the groups that a start leaves in pieces, and the ranks that are missing."""
    ids = {rank.id for rank in planned}

    def there(rank: RankPlan) -> bool:
        if rank.id in ids or rank.id in coming:
            return True
        record = looks[rank.node].records.get(rank.id) if rank.node in looks else None
        if record is not None and record.state in ALIVE:  # Newer than the last poll.
            return not record.stop_requested
        status = ranks[rank.id]
        state = status.last_state if status.state is RankState.LOST else status.state
        return state in ALIVE_STATES and state is not RankState.STOPPING

    missing = {
        group: [rank.id for rank in plan.of_group(group) if not there(rank)]
        for group in dict.fromkeys(rank.group for rank in planned)
    }
    return {group: names for group, names in missing.items() if names}


def _of_rank(
    rank: RankPlan,
    seen: Look,
    topology: Topology,
    plan: Plan,
    node: NodeStatus,
    stopping: frozenset[str],
    by_hand: Mapping[str, Unmanaged],
) -> Iterable[Blocker]:
    if seen.error:
        yield Blocker(f"node:{rank.node}", f"{rank.node} cannot be used: {seen.error}", seen.remedy)
        return
    if seen.state_dir_error:
        yield Blocker(
            f"state:{rank.node}",
            f"{rank.node} has no writable folder for records: {seen.state_dir_error}",
            seen.state_dir_remedy,
        )
        return
    yield from port_blockers(rank, seen, topology, plan, stopping, by_hand)
    planned = {r.id: r for r in plan.on_node(rank.node)}
    yield from _devices(rank, seen, node, {d for name in by_hand for d in planned[name].devices})


def port_blockers(
    rank: RankPlan,
    seen: Look,
    topology: Topology,
    plan: Plan,
    stopping: frozenset[str],
    by_hand: Mapping[str, Unmanaged],
) -> Iterable[Blocker]:
    """Yield who holds ports of a rank, others than itself and those that are about to stop."""
    owners = {
        pid: record.rank for record in seen.records.values() if record.state in ALIVE for pid in record.processes
    }
    tag = f"{topology.name}:"
    taken: list[tuple[int, str, Listener, str]] = []
    listeners = (*seen.listeners, *_coming(rank, seen, tag))
    for port, use in ports_of(rank, plan):
        for held in on_port(listeners, rank, port):
            ours = held.rank[len(tag) :] if held.rank.startswith(tag) else ""
            owner = ours or (owners.get(held.pid, "") if held.pid is not None else "")
            owner = owner or next((name for name, one in by_hand.items() if _holds(one, held)), "")
            if owner == rank.id or owner in stopping:
                continue
            taken.append((port, use, held, owner))
            break
    if taken:  # One server holds all its ports: the first stands for the rest.
        yield _port_blocker(rank, *taken[0], others=len(taken) - 1, seen=seen, cluster=topology.name)


def _coming(rank: RankPlan, seen: Look, tag: str) -> Iterable[Listener]:
    """Yield the ports of ranks that run under other names, bound already or not yet."""
    for record in seen.records.values():
        if record.state in ALIVE and record.rank != rank.id:
            for port in dict.fromkeys((record.api_port, *record.ports)):
                yield Listener(record.address, port, record.pid, "", f"{tag}{record.rank}")


def _port_blocker(
    rank: RankPlan, port: int, use: str, held: Listener, owner: str, *, others: int, seen: Look, cluster: str
) -> Blocker:
    more = f" ({others} more of its ports are taken)" if others else ""
    if owner:
        remedy = f"restart {owner}"
    elif held.rank:
        remedy = f"stop it with the file of {held.rank.partition(':')[0]}, or change the port in this one"
    elif holds_on(held, seen.processes):
        remedy = f"end it on {rank.node}: kill {held.pid}"
    else:
        remedy = "stop that process where it was started, or change the port in the file"
    who = holder_words(held, cluster, owner, seen.processes)
    return Blocker(
        f"port:{rank.node}:{port}", f"{use} port {port} of {rank.id} on {rank.node} is held by {who}{more}", remedy
    )


def _holds(found: Unmanaged, held: Listener) -> bool:
    return found.owns(held.pid) or found.listener == held


def unmanaged_blocker(rank: RankPlan, found: Unmanaged) -> Blocker:
    """Return that a server that was started by hand stands in a rank's place."""
    process = found.process
    pid = f"pid {found.pid}" if found.pid is not None else "a process that is not seen"
    user = f" of {process.user}" if process is not None and process.user else ""
    return Blocker(
        f"unmanaged:{rank.node}:{rank.id}",
        f"{rank.id} runs already on {rank.node}, started by hand: {pid}{user} is in its place",
        f"restart {rank.group} takes it over: it is stopped by its process tree, then started by pdtui",
    )


def _devices(rank: RankPlan, seen: Look, node: NodeStatus, by_hand: set[int]) -> Iterable[Blocker]:
    # A rank whose server was killed leaves its engine and workers: ours as well, though it has ended.
    taken = {d for r in seen.records.values() if r.state in ALIVE or r.processes for d in r.devices}
    ended = max((r.ended or 0.0 for r in seen.records.values()), default=0.0) - node.clock_offset
    npus = {npu.id: npu for npu in node.npus}
    for device in rank.devices:
        npu = npus.get(device)
        if npu is None or npu.observed_at is None:
            continue
        if npu.verdict is Verdict.FAILED:
            why = npu.reasons[0].summary if npu.reasons else "failed"
            yield Blocker(f"npu:{rank.node}:{device}", f"NPU {device} of {rank.node} failed: {why}")
        if device not in taken and device not in by_hand and npu.observed_at > ended:
            yield from _occupied(rank.node, npu)


def _occupied(node: str, npu: NpuStatus) -> Iterable[Blocker]:
    used = f"{(npu.hbm_used_mb or 0) / 1024:.1f} GB" if npu.hbm_used_mb is not None else "memory"
    if npu.processes:
        pid, name, _ = npu.processes[0]
        yield Blocker(
            f"device:{node}:{npu.id}",
            f"NPU {npu.id} of {node} is used by {name or 'a process'} (pid {pid}, {used}), not started here",
            f"look at it on {node}: ps -fp {pid}",
        )
    elif npu.hbm_used_mb is not None and npu.hbm_total_mb and npu.hbm_used_mb > IDLE_HBM * npu.hbm_total_mb:
        yield Blocker(
            f"device:{node}:{npu.id}",
            f"NPU {npu.id} of {node} holds {used} without a process that owns it",
            "leftovers of an earlier run: wait a minute, else find them with npu-smi info on the host",
        )


def _leftover_blocker(rank: RankPlan, record: RankRecord) -> Blocker:
    pids = ", ".join(map(str, record.processes[:8]))
    return Blocker(
        f"leftover:{rank.node}:{rank.id}",
        f"processes of the last run of {rank.id} live on (pid {pids}), although its server is gone",
        f"restart {rank.id}, or stop it first: both end them",
    )


def _format_blocker(rank: RankPlan, record: RankRecord) -> Blocker:
    return Blocker(
        f"format:{rank.node}:{rank.id}",
        f"the record of {rank.id} on {rank.node} was written by a newer pdtui (format {record.format})",
        "start and stop it with that pdtui, or a newer one",
    )


def _elsewhere_blocker(rank_id: str, node: str, pid: int | None) -> Blocker:
    words = f" (pid {pid})" if pid is not None else ""
    runs = "still runs" if words else "has left processes"
    return Blocker(
        f"elsewhere:{node}:{rank_id}",
        f"{rank_id} {runs} on {node}{words}, where this file does not have it",
        f"stop {rank_id}@{node}",
    )


def _part_blocker(group: str, missing: Sequence[str]) -> Blocker:
    few = len(missing) <= 4
    names = ", ".join(missing) if few else f"{', '.join(missing[:3])} and {len(missing) - 3} more"
    does = "does" if len(missing) == 1 else "do"
    return Blocker(
        f"group:{group}",
        f"{group} comes up only as a whole (MoE group): {names} {does} not run, the rest would wait for ever",
        f"start {group}",
    )


def _group_blocker(group: str, joined: int) -> Blocker:
    return Blocker(
        f"group:{group}",
        f"{joined} ranks of {group} run already, and a MoE group takes no rank back",
        f"restart {group}",
    )


def refused_by(blockers: Sequence[Blocker]) -> ActionRefused:
    """Return the refusal for what stands in the way, a line for each."""
    lines = [f"{blocker.id}: {blocker.message}" for blocker in blockers]
    remedies = dict.fromkeys(blocker.remedy for blocker in blockers if blocker.remedy)
    return ActionRefused("\n".join(lines), kind="blocked", remedy="\n".join(remedies))
