"""Are the planned ports free, and who holds those that are not?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from pdtui.fleet.blockers import Look, port_blockers, running, unmanaged_blocker
from pdtui.fleet.holders import holder_words
from pdtui.fleet.preflight.check import NodeView, check
from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.fleet.strangers import ALIVE, ANY_ADDRESS
from pdtui.readings.answer import Reading

RAW_LINES = 60
"""Listening ports that are kept as evidence."""


@probe("ports", place="ranks", limit=25.0)
async def listening(asking: Asking) -> AsyncIterator[Gathered]:
    """What listens where ranks run, and what of it is ours."""
    cluster, agent = asking.topology.name, asking.agent
    if agent.facts.state_dir_error:
        found = Look(state_dir_error=agent.facts.state_dir_error, listeners=tuple(await agent.ports()))
    else:
        records, listeners, processes = await running(agent, cluster)
        found = Look(
            records={record.rank: record for record in records}, listeners=tuple(listeners), processes=processes
        )
    yield None, listed(found, cluster, asking.clock.wall())


def listed(found: Look, cluster: str, at: float) -> Reading[Look]:
    """Return what listens as a reading: its lines are those of `ss`, with the owners in our words."""
    ordered = sorted(found.listeners, key=lambda one: one.port)
    lines = [f"{one.address}:{one.port}  {holder_words(one, cluster)}" for one in ordered[:RAW_LINES]]
    more = [f"and {len(ordered) - RAW_LINES} more"] if len(ordered) > RAW_LINES else []
    return Reading("ss -ltnp", at, "\n".join(lines + more), value=found)


@check("ports", "Planned ports are free", needs=("ports",))
def ports(view: NodeView) -> Iterable[Result]:
    """No process but the rank that they belong to holds a port of the plan; a rank that runs is said to."""
    reading: Reading[Look] = view.read("ports")
    seen = reading.value
    if seen is None:
        yield view.unknown(reading, what="listening ports")
        return
    planned = view.plan.on_node(view.name)
    by_hand = seen.unmanaged(view.topology.name, planned)
    running_here: list[str] = []
    taken: list[Result] = []
    for rank in planned:
        record = seen.records.get(rank.id)
        if record is not None and record.state in ALIVE:
            running_here.append(rank.id)
        elif rank.id in by_hand:
            blocker = unmanaged_blocker(rank, by_hand[rank.id])
            taken.append(view.warned(blocker.message, reading, on=rank.id, remedy=blocker.remedy))
        else:
            taken += [
                view.failed(blocker.message, reading, on=rank.id, remedy=blocker.remedy)
                for blocker in port_blockers(rank, seen, view.topology, view.plan, frozenset(), by_hand)
            ]
    taken += _other_ports(view, reading, seen)
    yield from taken
    if not taken:
        yield view.passed(_words(view, running_here), reading)


def _words(view: NodeView, running_here: Sequence[str]) -> str:
    count = sum(
        use.last - use.first + 1
        for use in view.plan.ports
        if use.host == view.node.address and use.use in ("api", "kv", "rpc", "proxy")
    )
    if not running_here:
        return f"{count} planned ports are free" if count else "no port is planned here"
    ranks = f"{running_here[0]} runs" if len(running_here) == 1 else f"{len(running_here)} ranks of the file run"
    return f"{count} planned ports: nobody else holds one ({ranks} here)"


def _other_ports(view: NodeView, reading: Reading[Look], seen: Look) -> Iterator[Result]:
    """Yield who holds the proxy's port, or one of those that HCCL takes by number."""
    cluster = view.topology.name
    ours = {pid for record in seen.records.values() for pid in (record.pid, *record.processes)}
    known = ours | {info.pid for info in seen.processes} | {pid for info in seen.processes for pid in info.tree}
    for use in view.plan.ports:
        if use.host != view.node.address or use.use not in ("proxy", "hccl"):
            continue
        for held in seen.listeners:
            here = held.address in ANY_ADDRESS or held.address == view.node.address
            if not here or not use.first <= held.port <= use.last:
                continue
            who = holder_words(held, cluster, processes=seen.processes)
            if use.use == "proxy" and view.topology.proxy is not None and view.topology.proxy.kind == "pdtui":
                yield view.warned(
                    f"the proxy's port {held.port} is held by {who}",
                    reading,
                    remedy="end it there, or change proxy.port in the file; its own kind goes into proxy.kind",
                )
            elif use.use == "hccl" and held.pid not in known and not held.rank.startswith(f"{cluster}:"):
                yield view.failed(
                    f"port {held.port} is held by {who}; HCCL takes {use.first}-{use.last} here",
                    reading,
                    remedy=f"end it there, or set HCCL_IF_BASE_PORT in env (ranks of {view.name} alike)",
                )
