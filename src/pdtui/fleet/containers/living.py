"""Who lives in a container that is to go: ranks of ours, servers of others, processes on its NPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdtui.errors import RemoteError
from pdtui.fleet.blockers import LOOK_TIMEOUT, Look, look
from pdtui.fleet.containers.engine import Engine
from pdtui.fleet.crew import Crew
from pdtui.fleet.intents import Blocker
from pdtui.fleet.servers import is_left_behind, servers_among, short_command
from pdtui.fleet.strangers import ALIVE, MATCH
from pdtui.fleet.targets import in_short
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.text import clean_line

_SHOWN = 3


async def living(crew: Crew, node: str, engine: Engine) -> tuple[Blocker, ...]:
    """Return what stands against the end of a node's container: one blocker for all ranks, one for each other."""
    seen = await look(crew.links[node], crew.topology.name, crew.clock)
    name = crew.topology.runtime.container or ""
    if seen.error:
        return await _unseen(crew, node, engine, seen.error)
    held = seen.unmanaged(crew.topology.name, crew.plan.on_node(node))
    unmanaged = {rank: one for rank, one in held.items() if one.pid is not None and _is_inside(one.process)}
    ranks = _ranks(crew, seen, unmanaged)
    found = [_of_ranks(crew, node, name, ranks, len(unmanaged))] if ranks else []
    mine = {pid for one in unmanaged.values() if one.process for pid in (one.process.pid, *one.process.tree)}
    servers = [server.process for server in servers_among(seen.processes)]
    left = [info for info in seen.processes if is_left_behind(info)]
    inside = [info for info in (*servers, *left) if info.pid not in mine and _is_inside(info)]
    found += [_of_process(node, name, info) for info in inside]
    return (*found, *await _on_npus(crew, node, name, {info.pid for info in inside} | mine))


def _is_inside(info: ProcessInfo | None) -> bool:
    """Return whether a process that is seen in a container lives there: --pid=host shows all of the node."""
    return info is None or not info.apart


def _in_a_container(info: ProcessInfo) -> bool:
    """Return whether a process that the host sees lives in some container, whatever of it may be read."""
    return info.apart or info.inner != info.pid


def _ranks(crew: Crew, seen: Look, unmanaged: Iterable[str]) -> list[str]:
    """Return the ranks that run there, in the order of the plan."""
    found = {record.rank for record in seen.records.values() if record.state in ALIVE} | set(unmanaged)
    planned = [rank.id for rank in crew.plan.ranks]
    return sorted(found, key=lambda one: (planned.index(one) if one in planned else len(planned), one))


def _of_ranks(crew: Crew, node: str, name: str, ranks: Sequence[str], unmanaged: int) -> Blocker:
    live = "lives" if len(ranks) == 1 else "live"
    by_hand = f" ({unmanaged} started by hand)" if unmanaged else ""
    return Blocker(
        f"ranks:{node}",
        f"{in_short(ranks)} {live} in container {name} on {node}{by_hand}",
        f"pdtui stop {crew.topology.path} {' '.join(ranks) if len(ranks) <= _SHOWN else f'@{node}'}",
    )


def _of_process(node: str, name: str, info: ProcessInfo) -> Blocker:
    rank = f" (rank {clean_line(info.rank)})" if info.rank else ""
    words = clean_line(short_command(info.argv))
    return Blocker(
        f"process:{node}:{info.pid}",
        f"pid {info.pid} of {clean_line(info.user)}{rank} lives in container {name} on {node}: {words}",
        "end it, or wait for its end",
    )


async def _on_npus(crew: Crew, node: str, name: str, known: set[int]) -> list[Blocker]:
    """Return processes on NPUs that no rank owns and that are in a container."""
    users = {one.pid: one for one in crew.store.nodes[node].foreign if one.pid is not None and one.npus}
    host, same = crew.links[node].host_agent, crew.links[node].rank_agent
    if not users or host is None or host is same:
        return []
    try:
        async with crew.clock.timeout(LOOK_TIMEOUT):
            infos = await host.processes(match=(), pids=sorted(users))
    except (RemoteError, TimeoutError):
        return []
    return [
        Blocker(
            f"npu:{node}:{info.pid}",
            f"{clean_line(short_command(info.argv))} (pid {info.pid} of the host) uses NPU"
            f" {', '.join(map(str, users[info.pid].npus))} of {node} from a container",
            f"see whether it is in {name}: docker top {name}; end it, or wait for its end",
        )
        for info in infos
        if _in_a_container(info) and not known & {info.inner, info.pid}
    ]


async def _unseen(crew: Crew, node: str, engine: Engine, why: str) -> tuple[Blocker, ...]:
    """Return what the host sees of servers in containers, when the container itself cannot be looked into."""
    host = crew.links[node].host_agent
    if host is None:
        return ()
    found = await engine.look()
    if found.container is None or found.state not in ("running", "paused", "restarting", "unknown"):
        return ()
    try:
        async with crew.clock.timeout(LOOK_TIMEOUT):
            infos = await host.processes(match=MATCH)
    except (RemoteError, TimeoutError) as error:
        return (Blocker(f"unseen:{node}", f"what runs on {node} cannot be seen: {error or 'no answer'}"),)
    servers = [server.process for server in servers_among(infos) if _in_a_container(server.process)]
    if not servers:
        return ()
    first = clean_line(short_command(servers[0].argv))
    more = f" and {len(servers) - 1} more" if len(servers) > 1 else ""
    return (
        Blocker(
            f"unseen:{node}",
            f"{why}; but {first} (pid {servers[0].pid} of the host{more}) lives in a container of {node}",
            "let pdtui into it again and stop the ranks, or see what it is: docker top CONTAINER",
        ),
    )
