"""Starting ranks: rank 0 of a group not after the others, then wait until each answers on /health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pdtui.fleet.crew import Crew
from pdtui.fleet.headline import clock_time
from pdtui.fleet.launching import NODE_PATIENCE, RUNS, STARTING, Launching
from pdtui.fleet.operations import Operation
from pdtui.fleet.rank_words import exit_words
from pdtui.fleet.scope import duration
from pdtui.fleet.snapshot import RankState, RankStatus
from pdtui.fleet.targets import in_short
from pdtui.fleet.waiting import first_of
from pdtui.fleet.warming import WarmingUp
from pdtui.remote.messages.ranks import ProcessState, StartResult
from pdtui.topology.plan import RankPlan

CAUSE_PATIENCE = 8.0
"""Seconds that are waited for the first cause of a failed start."""

LOOK_INTERVAL = 0.2
"""Seconds between two looks at all ranks of a start, however often something changes."""

PHASE = "start"

_ENDED = frozenset({RankState.FAILED, RankState.STOPPED, RankState.STOPPING})


class Starting:
    """One start of some ranks."""

    def __init__(self, crew: Crew, operation: Operation, *, deadline: float) -> None:
        self._crew = crew
        self._operation = operation
        self._deadline = deadline
        self._launching = Launching(crew, operation)
        self._failed_at: dict[str, float] = {}
        self._warm_up = WarmingUp(crew, operation)

    async def run(self, ids: Sequence[str]) -> None:
        """Start these ranks and wait for them; each rank's line of the operation says what became of it."""
        operation = self._operation
        operation.phase(PHASE, "running", f"0 of {len(ids)} ready")
        planned = [self._crew.plan.by_id[rank_id] for rank_id in ids]
        groups = dict.fromkeys(rank.group for rank in planned)
        self._expect(ids, True)
        by_group = ([rank for rank in planned if rank.group == group] for group in groups)
        launching = asyncio.gather(*(self._launch_group(ranks) for ranks in by_group))
        try:
            await self._wait(ids, launching)
            await launching
        except asyncio.CancelledError:
            launching.cancel()
            await asyncio.gather(launching, return_exceptions=True)
            self._left(ids)
            raise
        finally:
            launching.cancel()
            await self._warm_up.close()
            self._expect(ids, False)
        bad = operation.failed(ids)
        operation.phase(PHASE, "failed" if bad else "done", f"{len(ids) - len(bad)} of {len(ids)} ready")

    def _left(self, ids: Sequence[str]) -> None:
        """Say how a cancelled start leaves each rank."""
        for rank_id in ids:
            step = self._operation.rank_steps[rank_id]
            if rank_id in self._launching.runs and step.state == "running":
                self._operation.rank(rank_id, "skipped", f"left as it is: {step.detail}")
            elif step.state == "running":
                self._operation.rank(rank_id, "skipped", "no answer whether it was started: look at it")

    def _expect(self, ids: Sequence[str], expected: bool) -> None:
        for rank_id in ids:
            watcher = self._crew.watcher_of(rank_id)
            (watcher.expecting.add if expected else watcher.expecting.discard)(rank_id)
            watcher.poke()

    async def _launch_group(self, ranks: Sequence[RankPlan]) -> None:
        first = [rank for rank in ranks if rank.dp_rank == 0]
        for rank in first:
            await self._launch(rank)
        others = [rank for rank in ranks if rank.dp_rank != 0]
        if first and self._operation.failed([first[0].id]) and self._crew.topology.model.kind == "moe":
            for rank in others:
                self._operation.rank(rank.id, "skipped", f"{first[0].id} was not started")
            return
        await asyncio.gather(*(self._launch(rank) for rank in others))

    async def _launch(self, rank: RankPlan) -> None:
        result = await self._launching.launch(rank)
        if result is not None:
            self._tell(rank, result)

    def _tell(self, rank: RankPlan, result: StartResult) -> None:
        failed_before = result.record.warm_up is not None and result.record.warm_up.state == "failed"
        if result.outcome == "started" or failed_before:
            self._warm_up.expect(rank.id, result.record)
        if result.outcome == "already_running":
            by = f" (by {result.record.by})" if result.record.by else ""
            other = "" if result.record.digest == rank.digest else ", not as in the file: restart it to change it"
            self._operation.rank(rank.id, "running", f"{RUNS}{by}{other}")
        elif self._operation.rank_steps[rank.id].detail == RUNS:  # It had ended meanwhile.
            self._operation.rank(rank.id, "running", STARTING)
        self._crew.watcher_of(rank.id).poke()

    async def _wait(self, ids: Sequence[str], launching: asyncio.Future[list[None]]) -> None:
        crew, operation = self._crew, self._operation
        while True:
            launched = launching.done()
            for rank_id in self._launching.runs:  # Those that are ready too: one may die while others start.
                if operation.rank_steps[rank_id].state in ("running", "done"):
                    self._look(rank_id)
            self._warm_up.go_on()
            self._fail_fast(ids)
            self._end_late()
            ready = sum(operation.rank_steps[rank_id].state == "done" for rank_id in ids)
            operation.phase(PHASE, "running", f"{ready} of {len(ids)} ready")
            pending = any(operation.rank_steps[rank_id].state == "running" for rank_id in self._launching.runs)
            if launched and not pending:
                return
            await crew.clock.sleep(LOOK_INTERVAL)
            await first_of(crew.store.changed(), crew.clock.sleep(1.0))

    def _end_late(self) -> None:
        now = self._crew.clock.monotonic()
        for rank_id, since in self._launching.since.items():
            if self._operation.rank_steps[rank_id].state == "running" and now - since >= self._deadline:
                self._operation.rank(rank_id, "failed", self._too_late(rank_id))

    def _too_late(self, rank_id: str) -> str:
        """Say where a rank hangs and since when."""
        status = self._crew.store.ranks[rank_id]
        words = f"not ready within {duration(self._deadline)}"
        if status.state is RankState.STARTING:
            where = status.stage or "no line of its log says how far it is"
            since = f" since {clock_time(status.stage_since)}" if status.stage and status.stage_since else ""
            words += f", stage: {where}{since}{self._waits(status)}"
        else:
            words += f", {_waiting_words(status)}"
        return f"{words}; left as it is"

    def _look(self, rank_id: str) -> None:
        operation, status = self._operation, self._crew.store.ranks[rank_id]
        now = self._crew.clock.monotonic()
        if operation.is_superseded(rank_id):
            operation.rank(rank_id, "skipped", "left to a later action")
        elif status.state is RankState.LOST:
            self._lost(rank_id, status, now)
        elif status.state is RankState.UNMANAGED:
            self._displaced(rank_id, status)
        elif status.run < self._launching.runs[rank_id]:
            return
        elif self._warm_up.failed(rank_id) and status.state not in _ENDED:
            operation.rank(rank_id, "failed", f"{self._warm_up.failed(rank_id)}; kept out of rotation")
        elif status.state in (RankState.READY, RankState.STALLED) or _serves_unkept(status):
            self._arrived(rank_id, status, now)
        elif status.state is RankState.FAILED:
            self._ended(rank_id, status, now)
        elif status.state in (RankState.STOPPED, RankState.STOPPING):
            operation.rank(rank_id, "failed", "was stopped meanwhile")
        elif self._crew.watcher_of(rank_id).is_broken_start(rank_id):
            self._hangs(rank_id, status, now)
        else:
            self._failed_at.pop(rank_id, None)
            words = status.stage or _waiting_words(status)
            operation.rank(rank_id, "running", f"{words}{self._waits(status)}")

    def _waits(self, status: RankStatus) -> str:
        """Say for whom a rank waits; empty when it does not."""
        group = self._crew.store.snapshot.group(status.group)
        if group is None or status.id not in group.waiting or not group.waits_for:
            return ""
        verb = "does" if len(group.waits_for) == 1 else "do"
        return f"; waits for {in_short(group.waits_for)}, which {verb} not run"

    def _hangs(self, rank_id: str, status: RankStatus, now: float) -> None:
        """Look at a rank that lives and will not come up."""
        since = self._failed_at.setdefault(rank_id, now)
        if status.diagnosis is None and now - since < CAUSE_PATIENCE:
            self._operation.rank(rank_id, "running", "does not come up, looking for the cause")
            return
        cause = f": {status.diagnosis.summary}" if status.diagnosis is not None else ""
        self._operation.rank(rank_id, "failed", f"does not come up{cause}; left as it is: stop or restart it")

    def _arrived(self, rank_id: str, status: RankStatus, now: float) -> None:
        if self._operation.rank_steps[rank_id].state == "done":
            return
        before = self._operation.rank_steps[rank_id].detail
        if before.startswith(RUNS) and now - self._launching.since[rank_id] < 5:
            self._operation.rank(rank_id, "done", before)
            return
        took = f" after {duration(status.last_start_s)}" if status.last_start_s is not None else ""
        self._operation.rank(rank_id, "done", f"ready{took}{self._warm_up.note(rank_id)}")

    def _ended(self, rank_id: str, status: RankStatus, now: float) -> None:
        since = self._failed_at.setdefault(rank_id, now)
        if status.diagnosis is None and now - since < CAUSE_PATIENCE:
            self._operation.rank(rank_id, "running", "failed, looking for the cause")
            return
        why = exit_words(status.exit_status) if status.exit_status is not None else "ended"
        cause = f": {status.diagnosis.summary}" if status.diagnosis is not None else ""
        self._operation.rank(rank_id, "failed", f"{why}{cause}")

    def _displaced(self, rank_id: str, status: RankStatus) -> None:
        """Look at a rank whose port somebody else has: is it from before this start, or has the rank ended?"""
        record = self._crew.watcher_of(rank_id).record(rank_id)
        if record is None or record.run < self._launching.runs[rank_id] or record.state is not ProcessState.EXITED:
            return
        number = -record.exit_signal if record.exit_signal else record.exit_status
        why = exit_words(number) if number is not None else "ended"
        pid = f"pid {status.pid}" if status.pid is not None else "another process"
        self._operation.rank(
            rank_id, "failed", f"{why}: port {status.api_port} is held by {pid}, not started here"
        )

    def _lost(self, rank_id: str, status: RankStatus, now: float) -> None:
        since = self._failed_at.setdefault(rank_id, now)
        if now - since >= NODE_PATIENCE:
            self._operation.rank(
                rank_id, "failed", f"{self._crew.unreachable(status.node)}; it may still be starting"
            )
        else:
            self._operation.rank(rank_id, "running", f"{status.node} unreachable, waiting for it")

    def _fail_fast(self, ids: Sequence[str]) -> None:
        """With one rank a MoE group is lost: none of it counts as ready, and what runs still is said."""
        if self._crew.topology.model.kind != "moe":
            return
        plan, steps = self._crew.plan.by_id, self._operation.rank_steps
        dead: dict[str, str] = {}
        for rank_id in self._launching.runs:
            if steps[rank_id].state == "failed":
                dead.setdefault(plan[rank_id].group, rank_id)
        for rank_id in ids:
            group = plan[rank_id].group
            if group not in dead or steps[rank_id].state not in ("waiting", "running", "done"):
                continue
            if rank_id not in self._launching.runs and steps[rank_id].state == "waiting":
                self._operation.rank(
                    rank_id, "skipped", f"not started: {dead[group]} failed, and its group with it"
                )
                continue
            if self._crew.store.ranks[rank_id].state is RankState.FAILED:
                continue  # Its own cause is being looked for.
            words = f"{dead[group]} failed, and its group with it; left as it is: stop or restart {group}"
            self._operation.rank(rank_id, "skipped", words)


def _serves_unkept(status: RankStatus) -> bool:
    return status.state is RankState.UNKEPT and status.health == "200"


def _waiting_words(status: RankStatus) -> str:
    if status.state is RankState.STARTING:
        return STARTING
    return f"{status.state}, /health {status.health or 'not answered'}"
