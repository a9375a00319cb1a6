"""Ranks that were started by hand: who may be stopped, what that tells to end, and the stop itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdtui.errors import ActionRefused, RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.servers import short_command
from pdtui.fleet.strangers import IDLE_HBM, Unmanaged, ports_of
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.remote.messages.ranks import ProcessState, RankRecord, StopResult

LOOK_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Doomed:
    """One rank's processes that a stop would tell to end."""

    rank: str
    node: str
    processes: Sequence[ProcessInfo]
    """The server first; empty when they cannot be seen."""

    def lines(self) -> list[str]:
        """Return a line for each process."""
        return [
            f"{self.rank} on {self.node}: pid {info.pid}  {short_command(info.argv)}" for info in self.processes
        ]

    def line(self) -> str:
        """Return all of it in one line."""
        if not self.processes:
            return f"{self.rank} on {self.node}: its process cannot be seen, so it cannot be stopped from here"
        server, *others = self.processes
        pids = ", ".join(str(info.pid) for info in others[:6]) + (" …" if len(others) > 6 else "")
        below = f", and {len(others)} below it: {pids}" if others else ""
        user = f" of {server.user}" if server.user else ""
        return f"{self.rank} on {self.node}: pid {server.pid}{user}  {short_command(server.argv, 40)}{below}"


def unmanaged_among(crew: Crew, ids: Sequence[str]) -> Mapping[str, Unmanaged]:
    """Return those ranks whose place a server holds that was started by hand, as last seen."""
    found = {rank_id: crew.watcher_of(rank_id).unmanaged(rank_id) for rank_id in ids}
    return {rank_id: one for rank_id, one in found.items() if one is not None}


def left_as_they_are(
    crew: Crew, ids: Sequence[str], allowed: Sequence[str], *, restarting: bool
) -> dict[str, str]:
    """Return the ranks that a stop leaves out because nobody meant them, with why.

    Raises `ActionRefused` when nothing would be left to do, and for a restart, which would start a second server.
    """
    found = unmanaged_among(crew, ids)
    unmeant = {rank_id: one for rank_id, one in found.items() if rank_id not in allowed}
    if not unmeant:
        return {}
    if restarting or set(unmeant) >= set(ids):
        raise not_meant([f"{rank_id}{_pid(one)}" for rank_id, one in unmeant.items()])
    return {
        rank_id: f"unmanaged{_pid(one)}: left as it is, since nobody named it" for rank_id, one in unmeant.items()
    }


def not_meant(names: Sequence[str]) -> ActionRefused:
    """Return the refusal to touch ranks that were started by hand and that nobody meant."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ActionRefused(
        f"{', '.join(names[:4])}{more}: unmanaged, not started by pdtui;"
        " such a rank is stopped only when it is meant",
        kind="unmanaged",
        remedy="name the rank or its group, or say --unmanaged",
    )


def _pid(one: Unmanaged) -> str:
    return f" (pid {one.pid})" if one.pid is not None else ""


async def doomed_processes(crew: Crew, ids: Sequence[str]) -> Sequence[Doomed]:
    """Return what a stop of these ranks would tell to end, asked now; nothing is said of ranks of ours."""
    found = unmanaged_among(crew, ids)
    return await asyncio.gather(*(_doomed(crew, rank_id, one) for rank_id, one in found.items()))


def in_all(doomed: Sequence[Doomed], ranks: int) -> str:
    """Return in a sentence how many ranks were started by hand and what they are made of; empty for none."""
    if not doomed:
        return ""
    count = sum(len(one.processes) for one in doomed)
    which = "It was" if ranks == 1 else f"{len(doomed)} of these ranks {'was' if len(doomed) == 1 else 'were'}"
    return f"{which} started by hand, not by pdtui: {count} processes are told to end, by their process tree."


async def _doomed(crew: Crew, rank_id: str, found: Unmanaged) -> Doomed:
    node = crew.store.ranks[rank_id].node
    agent, process = crew.agent_of(rank_id), found.process
    if agent is None or process is None:
        return Doomed(rank_id, node, ())
    try:
        async with crew.clock.timeout(LOOK_TIMEOUT):
            server = await _now(agent, process)
            if server is None:
                return Doomed(rank_id, node, ())
            below = await agent.processes(match=(), pids=server.tree) if server.tree else ()
    except (RemoteError, TimeoutError):
        return Doomed(rank_id, node, (process,))
    return Doomed(rank_id, node, (process, *(info for info in below if info.pid in server.tree)))


async def _now(agent: NodeAgent, process: ProcessInfo) -> ProcessInfo | None:
    found = await agent.processes(match=(), pids=(process.pid,), known=((process.pid, process.start),))
    return next((info for info in found if (info.pid, info.start) == (process.pid, process.start)), None)


async def stop_by_hand(
    crew: Crew, rank_id: str, process: ProcessInfo, agent: NodeAgent, *, grace: float, lease: str
) -> StopResult:
    """Stop a rank that was started by hand, by its process tree. Raises `AgentLost` and `AgentError`.

    The record of the result says what to look at afterwards: the planned ports, and HBM as an idle NPU holds it.
    """
    name = crew.topology.name
    result = await agent.stop_tree(name, process.pid, process.start, grace=grace, lease=lease)
    rank = crew.plan.by_id[rank_id]
    node = crew.store.nodes[rank.node]
    totals = {npu.id: npu.hbm_total_mb for npu in node.npus if npu.hbm_total_mb}
    record = RankRecord(
        cluster=name,
        rank=rank_id,
        state=ProcessState.EXITED,
        pid=process.pid,
        api_port=rank.api_port,
        ports=tuple(port for port, _ in ports_of(rank, crew.plan)),
        devices=rank.devices,
        hbm_before={str(d): int(totals[d] * IDLE_HBM) for d in rank.devices if d in totals},
        processes=process.tree,
    )
    return StopResult(result.outcome, result.killed, result.survivors, record)
