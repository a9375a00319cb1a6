"""Stopping ranks: TERM, KILL after the grace period, then see that processes, ports and HBM are free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pdtui.errors import AgentLost, RemoteError
from pdtui.fleet.by_hand import stop_by_hand, unmanaged_among
from pdtui.fleet.crew import Crew
from pdtui.fleet.draining import DRAINING, drain
from pdtui.fleet.operations import Operation
from pdtui.fleet.snapshot import ALIVE_STATES, NodeStatus, NpuStatus
from pdtui.fleet.strangers import Unmanaged
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.remote.messages.ranks import RankRecord, StopResult

STOP_MARGIN = 60.0
"""Seconds beyond the grace period that an agent has to end a rank."""

RECONNECT_LOOK = 0.5
"""Seconds between two looks whether a node whose connection broke is back."""

PORTS_PATIENCE = 30.0
HBM_PATIENCE = 60.0
"""Seconds for HBM to come back: release is asynchronous, up to 50 s were seen (cases 74)."""

HBM_INTERVAL = 2.0

HBM_SLACK_MB = 1024
"""Megabytes above the reading before the start that count as «back»."""

STOPPING = "stopping"
"""The words of a rank's line while it is told to end."""

PHASE = "stop"
CHECK = "check"


class Stopping:
    """One stop of some ranks."""

    def __init__(
        self, crew: Crew, operation: Operation, *, grace: float, drain: float = 0.0, by_the_way: bool = False
    ) -> None:
        self._crew = crew
        self._operation = operation
        self._grace = grace
        self._drain = drain
        self._by_the_way = by_the_way
        """Part of a restart: what does not run is no subject."""
        self._nodes: dict[str, str] = {}
        self._by_hand: dict[str, ProcessInfo] = {}
        """Servers that were stopped although no keeper of ours had started them."""

    async def run(self, ids: Sequence[str]) -> None:
        """Stop these ranks; each rank's line of the operation says what became of it."""
        operation = self._operation
        # Kept here: a rank that the file does not have is forgotten as soon as it has ended.
        self._nodes = {rank_id: self._crew.store.ranks[rank_id].node for rank_id in ids}
        words = self._whom(ids)
        watchers = {rank_id: self._crew.watcher_of(rank_id) for rank_id in ids}
        for rank_id, watcher in watchers.items():
            watcher.begin_stop(rank_id)
        self._crew.store.publish()  # Out of the proxy's rotation before they are told.
        try:
            await drain(self._crew, operation, ids, self._drain)
            operation.phase(PHASE, "running", words)
            await self._carry_out(ids)
        except asyncio.CancelledError:
            self._left(ids)
            raise
        finally:
            for rank_id, watcher in watchers.items():
                watcher.end_stop(rank_id)
        await self._see()

    def _whom(self, ids: Sequence[str]) -> str:
        """Say how many are told to end; of what does not seem to run the nodes are only asked."""
        alive = sum(self._crew.store.ranks[rank_id].state in ALIVE_STATES for rank_id in ids)
        if not alive:
            return "none seems to run: asking the nodes"
        return f"TERM to {alive}, KILL after {self._grace:.0f} s"

    async def _carry_out(self, ids: Sequence[str]) -> None:
        operation = self._operation
        results = await asyncio.gather(*(self._stop(rank_id) for rank_id in ids))
        stopped = [
            (rank_id, result.record)
            for rank_id, result in zip(ids, results, strict=True)
            if result is not None and result.outcome == "stopped" and result.record is not None
        ]
        bad = operation.failed(ids)
        killed = sum(result.killed for result in results if result is not None)
        words = f"{len(stopped)} stopped{f', {killed} by KILL' if killed else ''}"
        operation.phase(PHASE, "failed" if bad else "done", words)
        if stopped:
            operation.phase(CHECK, "running", self._crew.what_is_freed)
            await self._verify(stopped)
            bad = operation.failed(ids)
            operation.phase(CHECK, "failed" if bad else "done", self._crew.what_is_freed)

    def _left(self, ids: Sequence[str]) -> None:
        """Say how a cancelled stop leaves each rank."""
        unseen = "ports and HBM not verified" if self._crew.has_npus else "ports not verified"
        for rank_id in ids:
            step = self._operation.rank_steps[rank_id]
            if step.state != "running":
                continue
            if step.detail.startswith(DRAINING):
                self._operation.rank(rank_id, "skipped", "not stopped: cancelled while its requests ended")
            elif step.detail == STOPPING:
                words = "TERM was sent and no KILL follows: look whether it ends, else stop it again"
                self._operation.rank(rank_id, "skipped", words)
            elif self._by_the_way:
                self._operation.rank(rank_id, "skipped", f"{step.detail}, {unseen}, not started again")
            else:
                self._operation.rank(rank_id, "done", f"{step.detail}, {unseen}")

    async def _stop(self, rank_id: str) -> StopResult | None:
        watcher = self._crew.watcher_of(rank_id)
        try:
            return await self._stop_marked(rank_id, watcher.record(rank_id))
        finally:
            watcher.end_stop(rank_id)

    async def _stop_marked(self, rank_id: str, record: RankRecord | None) -> StopResult | None:
        crew, operation = self._crew, self._operation
        status = crew.store.ranks[rank_id]
        agent = crew.agent_of(rank_id)
        if agent is None:
            operation.rank(rank_id, "failed", crew.unreachable(status.node))
            return None
        found = unmanaged_among(crew, (rank_id,)).get(rank_id)
        if found is not None and found.process is None:
            words = "unmanaged, and its process cannot be seen from here: stop it where it was started"
            operation.rank(rank_id, "failed", words)
            return None
        if record is None and found is None and agent.facts.state_dir_error:
            self._nothing(rank_id)  # Without a folder for records nothing was started there.
            return None
        try:
            async with crew.clock.timeout(self._grace + STOP_MARGIN), crew.alone(rank_id):
                result = await self._insist(agent, rank_id, record, found)
        except TimeoutError:
            away = crew.agent_of(rank_id) is None
            words = crew.unreachable(status.node) if away else f"{status.node} gave no answer"
            operation.rank(rank_id, "failed", words)
            return None
        except RemoteError as error:
            operation.rank(rank_id, "failed", f"could not be stopped: {error.message}")
            return None
        self._tell(rank_id, result)
        return result

    async def _insist(
        self, agent: NodeAgent | None, rank_id: str, record: RankRecord | None, found: Unmanaged | None
    ) -> StopResult:
        """Have a rank end; where the connection breaks meanwhile, ask again as soon as it is back."""
        crew, broke = self._crew, False
        while True:
            if agent is not None:
                self._operation.rank(rank_id, "running", STOPPING)
                try:
                    result = await self._tell_to_end(agent, rank_id, record, found)
                except AgentLost as lost:
                    broke = True
                    node = self._nodes[rank_id]
                    self._operation.rank(rank_id, "running", f"{lost.message}; it goes on when {node} is back")
                else:
                    ended = broke and result.outcome == "not_running"  # While nobody could see it.
                    return replace(result, outcome="stopped") if ended else result
            await crew.clock.sleep(RECONNECT_LOOK)
            agent = crew.agent_of(rank_id)

    async def _tell_to_end(
        self, agent: NodeAgent, rank_id: str, record: RankRecord | None, found: Unmanaged | None
    ) -> StopResult:
        crew, lease, result = self._crew, self._operation.lease, None
        if found is not None and found.process is not None:
            self._by_hand[rank_id] = found.process
            result = await stop_by_hand(crew, rank_id, found.process, agent, grace=self._grace, lease=lease)
        if result is not None and not (record is not None and record.processes):
            return result  # Else a run of ours left some.
        # Asked also where nothing is known of it: another console may have started it since the last poll.
        name = record.rank if record is not None else rank_id.partition("@")[0]
        of_ours = await agent.stop_rank(crew.topology.name, name, grace=self._grace, by=crew.by, lease=lease)
        return result or of_ours

    def _tell(self, rank_id: str, result: StopResult) -> None:
        if result.outcome == "not_running":
            self._nothing(rank_id)
        elif result.outcome == "still_running":
            pids = ", ".join(str(pid) for pid in result.survivors)
            self._operation.rank(rank_id, "failed", f"still running after KILL: pid {pids}")
        else:
            self._operation.rank(rank_id, "running", "killed" if result.killed else "stopped")

    def _nothing(self, rank_id: str) -> None:
        self._operation.rank(rank_id, "waiting" if self._by_the_way else "done", "not running")

    async def _verify(self, stopped: Sequence[tuple[str, RankRecord]]) -> None:
        """See that what the stopped ranks held is free."""
        left = await asyncio.gather(*(self._ports_left(rank_id, record) for rank_id, record in stopped))
        free: dict[str, list[tuple[str, RankRecord]]] = {}
        for (rank_id, record), ports in zip(stopped, left, strict=True):
            if ports:
                words = f"stopped, but port {', '.join(map(str, ports))} is still open"
                self._operation.rank(rank_id, "failed", words)
            else:
                free.setdefault(self._nodes[rank_id], []).append((rank_id, record))
        await asyncio.gather(*(self._verify_hbm(node, ranks) for node, ranks in free.items()))

    async def _ports_left(self, rank_id: str, record: RankRecord) -> Sequence[int]:
        crew = self._crew
        ports = {record.api_port, *record.ports}
        end = crew.clock.monotonic() + PORTS_PATIENCE
        tag = f"{crew.topology.name}:{record.rank}"
        while True:
            agent = crew.links[self._nodes[rank_id]].rank_agent
            if agent is None:
                return ()
            try:
                listeners = await agent.ports()
            except RemoteError:
                return ()
            pids = {record.pid, *record.processes}
            left = sorted({x.port for x in listeners if x.port in ports and (x.rank == tag or x.pid in pids)})
            if not left or crew.clock.monotonic() >= end:
                return left
            await crew.clock.sleep(1.0)

    async def _verify_hbm(self, node: str, ranks: Sequence[tuple[str, RankRecord]]) -> None:
        """Wait until each NPU is back at the reading before the start; unreadable ones are said to be so."""
        crew = self._crew
        stopped_at = crew.clock.wall()
        end = crew.clock.monotonic() + HBM_PATIENCE
        pending: dict[str, RankRecord] = {}
        for rank_id, record in ranks:
            if record.hbm_before and crew.has_npus:
                pending[rank_id] = record
            else:
                self._free(rank_id, ", HBM not verified" if crew.has_npus and record.devices else "")
        held: dict[str, str] = {}
        while pending and crew.clock.monotonic() < end:
            await crew.poll_npus((node,))
            for rank_id, record in list(pending.items()):
                reading = _held(crew.store.nodes[node], record, stopped_at)
                if reading == "":
                    del pending[rank_id]
                    self._free(rank_id, "")
                elif reading is not None:
                    held[rank_id] = reading
            if pending:
                await crew.clock.sleep(HBM_INTERVAL)
        for rank_id in pending:
            if rank_id in held:
                self._operation.rank(rank_id, "failed", f"stopped, but {held[rank_id]}")
            else:
                self._free(rank_id, ", HBM not verified")

    def _free(self, rank_id: str, note: str) -> None:
        words = self._operation.rank_steps[rank_id].detail
        self._operation.rank(rank_id, "waiting" if self._by_the_way else "done", f"{words}{note}")

    async def _see(self) -> None:
        """Wait until the store shows what was done, so that the next step does not judge old states."""
        crew = self._crew
        reachable = [
            node for node in dict.fromkeys(self._nodes.values()) if crew.links[node].rank_agent is not None
        ]
        try:
            async with crew.clock.timeout(PORTS_PATIENCE):
                await asyncio.gather(*(crew.watchers[node].refreshed() for node in reachable))
        except TimeoutError:
            crew.store.event("warning", self._operation.id, "the nodes did not confirm the stop in time")
        self._see_again()

    def _see_again(self) -> None:
        """Say of ranks that were started by hand when something has started them again."""
        for rank_id, process in self._by_hand.items():
            step = self._operation.rank_steps[rank_id]
            again = unmanaged_among(self._crew, (rank_id,)).get(rank_id)
            if step.state == "failed" or again is None or again.process is None:
                continue
            if (again.process.pid, again.process.start) != (process.pid, process.start):
                words = (
                    f"stopped, but it runs again as pid {again.process.pid}: its parent, pid {again.process.ppid},"
                )
                self._operation.rank(rank_id, "failed", f"{words} seems to start it again; end that first")


def _held(node: NodeStatus, record: RankRecord, since: float) -> str | None:
    """Return what is still held of HBM, empty when all is back, None while there is no new reading."""
    if node.tool_error or (node.observed_at or 0.0) < since:
        return None
    npus = {str(npu.id): npu for npu in node.npus}
    for device, before in record.hbm_before.items():
        npu = npus.get(device)
        if npu is None or npu.hbm_used_mb is None:
            return None
        if npu.hbm_used_mb > before + HBM_SLACK_MB:
            was = f", {before} MB before the start" if record.run else ""
            words = f"NPU {device} still holds {npu.hbm_used_mb} MB of HBM{was}"
            return f"{words}{_holder(node.name, npu)}"
    return ""


def _holder(node: str, npu: NpuStatus) -> str:
    """Say who holds an NPU's memory by npu-smi's process table, whose pids are the host's, and what to do."""
    if not npu.processes:
        return "; no process owns it: wait a minute, then look for leftovers with npu-smi info on the host"
    pid, name, _ = max(npu.processes, key=lambda process: process[2])
    more = f" and {len(npu.processes) - 1} more" if len(npu.processes) > 1 else ""
    return (
        f" by {name or 'a process'} (pid {pid} of the host{more}): on {node}, ps -o pid,ppid,stat,cmd -p {pid},"
        f" then kill -9 {pid}; if that frees nothing, end its parent"
    )
