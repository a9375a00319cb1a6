"""Watches the ranks of one node: records, /health, listeners, metrics -> their status in the store.

Nothing is remembered that the node does not say again: a console that starts anew shows the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.acknowledging import AckBook
from pdtui.fleet.lookout import Lookout
from pdtui.fleet.observation import RankMemory, View, as_it_runs, status_of, stray_plan, who_else_listens
from pdtui.fleet.snapshot import Alarm, Diagnosis, RankMetrics, RankState, RankStatus
from pdtui.fleet.store import Store
from pdtui.fleet.strangers import Unmanaged
from pdtui.fleet.waiting import first_of
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.ranks import ProcessState, RankRecord, WarmUp
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan, RankPlan

BUSY_INTERVAL = 1.0
"""Seconds between polls while something changes on the node."""

QUIET_INTERVAL = 2.0
"""Seconds between polls otherwise: a rank that was killed shows within five seconds."""

HEALTH_INTERVAL = 4.0
"""Seconds between two looks at /health of a ready rank while nothing changes: each is a line in its log."""

POLL_TIMEOUT = 20.0
HEALTH_TIMEOUT = 2.0
OFFSET_INTERVAL = 60.0


def metrics_interval(ranks: int) -> float:
    """Return the seconds between two readings of a rank's metrics in a cluster of so many.

    Up to 320 ranks each is read every five seconds, then at most 64 ranks a second over the whole cluster: one
    reading costs the console about a fifth of a millisecond.
    """
    return min(20.0, max(5.0, ranks / 64))


STEADY = frozenset({RankState.READY, RankState.UNMANAGED})
TRANSIENT = frozenset({RankState.STARTING, RankState.STOPPING})


class Stages(Protocol):
    """Reads start-up milestones from the ranks' logs."""

    def watch(self, rank: RankPlan, record: RankRecord, pids: Callable[[], frozenset[int]] | None = None) -> None:
        """Read the log of this run, or only what `pids` write there, from now on; again it does nothing."""
        ...

    def stage(self, rank: str) -> str:
        """Return the last milestone in words, or empty."""
        ...

    def since(self, rank: str) -> float | None:
        """Return when that milestone was reached, on the node's clock."""
        ...

    def was_ready(self, rank: str) -> bool:
        """Return whether the log says that start-up was completed."""
        ...

    def caught_up(self, rank: str) -> bool:
        """Return whether what the log held at first has been read, so that the stage is today's."""
        ...

    def is_broken(self, rank: str) -> bool:
        """Return whether the log says that start-up will not be completed, although the server lives on."""
        ...

    def forget(self, rank: str) -> None:
        """Stop reading."""
        ...


class Meter(Protocol):
    """Turns /metrics into numbers and notices that no tokens come."""

    async def read(
        self, agent: NodeAgent, rank: RankPlan, address: str, *, warm_up: WarmUp | None, settled: bool
    ) -> RankMetrics | None:
        """Ask a rank; None when it gave no answer."""
        ...

    def stalled(self, rank: str) -> bool:
        """Return whether requests run and no tokens come."""
        ...

    def alarms(self, rank: str) -> tuple[Alarm, ...]:
        """Return what a rank's readings say is wrong, worst first."""
        ...

    def forget(self, rank: str) -> None:
        """Forget a rank's last reading."""
        ...


Diagnose = Callable[[str], Awaitable[Diagnosis | None]]


class RankWatcher:
    """The ranks of one node."""

    def __init__(
        self,
        link: NodeLink,
        store: Store,
        topology: Topology,
        plan: Plan,
        *,
        clock: Clock,
        stages: Stages,
        meter: Meter,
        diagnose: Diagnose,
        on_ready: Callable[[str, int, float, float], None],
        last_starts: Mapping[str, float],
        holder: str,
        acks: AckBook,
    ) -> None:
        self._link = link
        self._store = store
        self._holder = holder
        self._acks = acks
        self._cluster = topology.name
        self._plan = plan
        self._clock = clock
        self._stages = stages
        self._meter = meter
        self._diagnose = diagnose
        self._on_ready = on_ready
        self._metrics_every = metrics_interval(len(plan.ranks))
        self._planned = {rank.id: rank for rank in plan.on_node(link.name)}
        self._strays: dict[str, RankPlan] = {}
        self._memory = {rank_id: RankMemory(last_start_s=last_starts.get(rank_id)) for rank_id in self._planned}
        self._wake = asyncio.Event()
        self._polled = asyncio.Event()
        self._offset = 0.0
        self._offset_at = float("-inf")
        self._metrics_at: dict[str, float] = {}
        self._health_at: dict[str, float] = {}
        self._lookout = Lookout(link, store, topology.name, plan, clock=clock)
        self._complaint = ""
        self._diagnosing: set[asyncio.Task[None]] = set()
        self._stopping: set[str] = set()
        self.expecting: set[str] = set()
        """Ranks that an operation waits for; they are polled at the quick pace."""
        self.warming: set[str] = set()
        """Ranks that get their first completion from here, before they take requests."""
        self.answered = False
        """Whether the node has said something about its ranks."""

    def poke(self) -> None:
        """Poll now."""
        self._lookout.poke()
        self._wake.set()

    def begin_stop(self, rank_id: str) -> None:
        """Show a rank that runs as stopping from now on."""
        self._stopping.add(rank_id)
        rank = self._planned.get(rank_id) or self._strays.get(rank_id)
        memory = self._memory.get(rank_id)
        if (
            rank is not None
            and memory
            and (memory.alive or memory.unmanaged)
            and self._link.rank_agent is not None
        ):
            self._put(rank)
        self.poke()

    def end_stop(self, rank_id: str) -> None:
        """Show a rank as its node says it is."""
        self._stopping.discard(rank_id)
        self.poke()

    async def refreshed(self) -> None:
        """Poll now and return when a poll that began after this call is done."""
        for _ in range(2):  # The one that runs now may have begun before.
            self.poke()
            self._polled.clear()
            await self._polled.wait()

    def record(self, rank_id: str) -> RankRecord | None:
        """Return a rank's directory as last read; also for ranks that the file does not have."""
        memory = self._memory.get(rank_id)
        return memory.record if memory is not None else None

    @property
    def is_reading(self) -> bool:
        """Whether it is still being read how far a rank is that starts."""
        return any(
            memory.state is RankState.STARTING
            and memory.alive
            and not (memory.stage_read or memory.health == "200")
            for memory in self._memory.values()
        )

    def is_broken_start(self, rank_id: str) -> bool:
        """Return whether a rank of ours lives and will not come up."""
        memory = self._memory.get(rank_id)
        return memory is not None and memory.alive and memory.broken_start

    def unmanaged(self, rank_id: str) -> Unmanaged | None:
        """Return the server in a rank's place that was started by hand, as last seen."""
        return self._lookout.unmanaged.get(rank_id)

    def address(self, rank_id: str) -> tuple[str, int]:
        """Return where a planned rank's API is: it may run with another address and port than the file has now."""
        where = as_it_runs(self._planned[rank_id], self._memory[rank_id])
        return where.host, where.api_port

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                agent = self._link.rank_agent
                if agent is None:
                    self._mark_lost()
                    await first_of(self._clock.sleep(0.5), self._wake.wait())
                else:
                    await self._poll_guarded(agent)
                    await first_of(self._clock.sleep(self._interval()), self._wake.wait())
                self._wake.clear()
        finally:
            for task in self._diagnosing:
                task.cancel()

    def _interval(self) -> float:
        busy = self._stopping or self.expecting or any(m.state in TRANSIENT for m in self._memory.values())
        return BUSY_INTERVAL if busy else QUIET_INTERVAL

    def _mark_lost(self) -> None:
        self._store.set_leases(self._link.name, ())
        now = self._clock.wall()
        for rank_id in (*self._planned, *self._strays):
            status = self._store.ranks.get(rank_id)
            if status is not None and status.state not in (RankState.UNKNOWN, RankState.LOST):
                self._store.put_rank(
                    replace(
                        status,
                        state=RankState.LOST,
                        last_state=status.state,
                        since=now,
                        stage="",
                        metrics=None,
                        alarms=(),
                    )
                )

    async def _poll_guarded(self, agent: NodeAgent) -> None:
        try:
            async with self._clock.timeout(POLL_TIMEOUT):
                await self._poll(agent)
        except TimeoutError:
            self._complain(f"no answer about ranks within {POLL_TIMEOUT:.0f} s")
        except RemoteError as error:
            if self._link.rank_agent is agent:
                self._complain(f"ranks cannot be read: {error.message}")
        else:
            self._complaint = ""
            self.answered = True
            self._polled.set()

    def _complain(self, message: str) -> None:
        """Say once why ranks cannot be read; what was known of them ages."""
        self.answered = True
        if message != self._complaint:
            self._complaint = message
            self._store.event("warning", self._link.name, message)

    async def _poll(self, agent: NodeAgent) -> None:
        now = self._clock.monotonic()
        if now - self._offset_at >= OFFSET_INTERVAL:
            self._offset = await agent.clock_offset()
            self._offset_at = now
        # Without a folder for records nothing was started here; the ports still tell what runs.
        found = () if agent.facts.state_dir_error else await agent.ranks(self._cluster)
        records, read_at = {record.rank: record for record in found}, self._clock.wall()
        if not agent.facts.state_dir_error:
            leases = await agent.leases(self._cluster)
            self._store.set_leases(self._link.name, [x for x in leases if x.claim.holder != self._holder])
            await self._acks.look(self._link.name, agent)
        await self._lookout.look(agent, records, self._offset)
        self._take_records(records, read_at)
        asked: list[RankPlan] = []
        for rank in self._all():
            if self._asks_health(rank.id):
                asked.append(rank)
            else:
                self._put(rank)
        await asyncio.gather(*(self._health(agent, rank) for rank in asked))

    def _all(self) -> list[RankPlan]:
        return [*self._planned.values(), *self._strays.values()]

    def _asks_health(self, rank_id: str) -> bool:
        memory = self._memory[rank_id]
        if not memory.alive and memory.unmanaged is None:
            return False
        if memory.state not in STEADY or memory.health != "200" or rank_id in self._stopping:
            return True
        if memory.lost_process:  # A worker or an engine, perhaps: /health is told, or it will not answer.
            return True
        return self._clock.monotonic() - self._health_at.get(rank_id, float("-inf")) >= HEALTH_INTERVAL

    def _take_records(self, records: Mapping[str, RankRecord], read_at: float) -> None:
        for rank_id in self._planned:
            memory = self._memory[rank_id]
            record = records.get(rank_id)
            memory.take_unmanaged(self._lookout.unmanaged.get(rank_id))
            memory.take_record(record, read_at)
            if not memory.alive and memory.unmanaged is None:
                self._stages.forget(rank_id)
                self._meter.forget(rank_id)
        self._take_strays(records, read_at)

    def _take_strays(self, records: Mapping[str, RankRecord], read_at: float) -> None:
        alive = (ProcessState.RUNNING, ProcessState.UNKEPT)
        found: dict[str, RankPlan] = {}
        for record in records.values():
            if record.rank in self._planned or not (record.state in alive or record.processes):
                continue
            stray = stray_plan(record, self._link.name, record.rank in self._plan.by_id)
            found[stray.id] = stray
            self._memory.setdefault(stray.id, RankMemory()).take_record(record, read_at)
        for gone in self._strays.keys() - found.keys():
            del self._memory[gone]
            self._store.drop_rank(gone)
        self._strays = found

    async def _health(self, agent: NodeAgent, rank: RankPlan) -> None:
        memory = self._memory[rank.id]
        self._health_at[rank.id] = self._clock.monotonic()
        where = as_it_runs(rank, memory)
        reply = await agent.http(where.host, where.api_port, "/health", timeout=HEALTH_TIMEOUT)
        answered_at = self._clock.wall()
        answer = str(reply.status) if reply.status is not None else reply.error or "no answer"
        if answer == "200" and memory.alive and not memory.vouched:
            answer = await self._vouch(agent, where, memory)
        memory.take_health(answer, answered_at)
        if memory.health == "200":
            await self._measure(agent, where, memory)
        self._note_stage(rank, memory)
        self._put(rank)

    async def _vouch(self, agent: NodeAgent, rank: RankPlan, memory: RankMemory) -> str:
        """Return what the first 200 of a run is worth: another process may hold the rank's port."""
        other = who_else_listens(await agent.ports(), rank, self._cluster, memory.record)
        if other is not None:
            return f"answered by pid {other.pid}"
        memory.vouched = True
        return "200"

    async def _measure(self, agent: NodeAgent, rank: RankPlan, memory: RankMemory) -> None:
        now = self._clock.monotonic()
        if now - self._metrics_at.get(rank.id, float("-inf")) < self._metrics_every:
            return
        self._metrics_at[rank.id] = now
        warm_up = memory.record.warm_up if memory.record is not None else None
        settled = rank.id not in self.warming and memory.warm_up != "running"
        read = await self._meter.read(agent, rank, rank.host, warm_up=warm_up, settled=settled)
        memory.metrics = read or memory.metrics
        memory.stalled, memory.alarms = self._meter.stalled(rank.id), self._meter.alarms(rank.id)

    def _note_stage(self, rank: RankPlan, memory: RankMemory) -> None:
        if memory.unmanaged is not None and not memory.alive:
            self._note_stage_by_hand(rank, memory, memory.unmanaged)
            return
        if memory.record is None or not memory.alive or memory.was_ready:
            self._stages.forget(rank.id)
            return
        self._stages.watch(rank, memory.record)
        memory.stage, memory.stage_since = self._stages.stage(rank.id), self._stages.since(rank.id)
        memory.was_ready = self._stages.was_ready(rank.id)
        memory.broken_start = self._stages.is_broken(rank.id)
        memory.stage_read = self._stages.caught_up(rank.id)

    def _note_stage_by_hand(self, rank: RankPlan, memory: RankMemory, found: Unmanaged) -> None:
        """Read how far a server is that was started by hand; its log may be others' too, and older than it."""
        if memory.health.startswith("4"):
            self._lookout.refute(found)
        process = found.process
        if process is None or not process.output.path or memory.was_ready:
            self._stages.forget(rank.id)
            memory.stage = "" if memory.was_ready or memory.health != "refused" else "starting"
            return
        as_record = RankRecord(
            cluster=self._cluster,
            rank=rank.id,
            state=ProcessState.RUNNING,
            run=process.start,
            started=process.started,
            log=process.output.path,
        )
        self._stages.watch(rank, as_record, lambda: self._pids_by_hand(rank.id))
        memory.stage = self._stages.stage(rank.id) or "starting"

    def _pids_by_hand(self, rank_id: str) -> frozenset[int]:
        process = found.process if (found := self.unmanaged(rank_id)) is not None else None
        return frozenset((process.pid, *process.tree)) if process is not None else frozenset()

    def _put(self, rank: RankPlan) -> None:
        memory = self._memory[rank.id]
        now = self._clock.wall()
        stray = rank.id not in self._planned
        view = View(
            now=now,
            offset=self._offset,
            stopping=rank.id in self._stopping,
            warming=rank.id in self.warming,
            extra_flags=("not-in-file",) if stray else (),
        )
        was = memory.state
        status = status_of(rank, memory, view)
        if status.state is RankState.READY and was is not RankState.READY and memory.seen_starting:
            memory.seen_starting = False
            memory.last_start_s = round(now - (status.started or now), 1)
            status = replace(status, last_start_s=memory.last_start_s)
            started = memory.record.started if memory.record is not None else 0.0
            self._on_ready(rank.id, memory.run, started, memory.last_start_s)
        ended = status.state is RankState.FAILED and not memory.diagnosed_end
        if ended or (status.state in (RankState.UNHEALTHY, RankState.STALLED) and not memory.diagnosed):
            memory.diagnosed, memory.diagnosed_end = True, ended
            task = asyncio.get_running_loop().create_task(self._find_cause(rank.id, status))
            self._diagnosing.add(task)
            task.add_done_callback(self._diagnosing.discard)
        elif status.state is RankState.READY and memory.diagnosed:
            memory.diagnosed, memory.diagnosis = False, None
            status = replace(status, diagnosis=None)
        self._store.put_rank(status)

    async def _find_cause(self, rank_id: str, status: RankStatus) -> None:
        try:
            diagnosis = await self._diagnose(rank_id)
        except RemoteError as error:
            diagnosis = Diagnosis(f"its log cannot be read: {error.message}")
        memory = self._memory.get(rank_id)
        current = self._store.ranks.get(rank_id)
        if memory is None or current is None or diagnosis is None or memory.run != status.run:
            return
        known, memory.diagnosis = memory.diagnosis, diagnosis
        self._store.put_rank(replace(current, diagnosis=diagnosis))
        if known is None or known.summary != diagnosis.summary:
            self._store.event("error", rank_id, diagnosis.summary)
