"""Starting ranks: rank 0 of a group not after the others, then wait until each answers on /health."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pdtui.errors import RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.headline import clock_time
from pdtui.fleet.operations import Operation
from pdtui.fleet.scope import duration
from pdtui.fleet.snapshot import NodeStatus, RankState, RankStatus
from pdtui.fleet.store import exit_words
from pdtui.fleet.strangers import ports_of
from pdtui.fleet.waiting import first_of
from pdtui.fleet.warming import WarmingUp
from pdtui.remote.interface import NodeAgent, ProcessState, RankSpec, StartResult
from pdtui.topology.plan import RankPlan
from pdtui.topology.script import run_script

NODE_PATIENCE = 60.0
"""Seconds that a node may be unreachable while one of its ranks starts."""

CAUSE_PATIENCE = 8.0
"""Seconds that are waited for the first cause of a failed start."""

LAUNCH_TIMEOUT = 60.0
"""Seconds that an agent has to start a process."""

CANCEL_PATIENCE = 10.0
"""Seconds that are waited, after a cancel, for the answer to a start that was told."""

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
        self._runs: dict[str, int] = {}
        self._since: dict[str, float] = {}
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
            if rank_id in self._runs and step.state == "running":
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
        async with self._crew.turn(self._crew.store.ranks[rank.id]):
            if self._operation.is_superseded(rank.id):
                self._operation.rank(rank.id, "skipped", "left to a later action")
                return
            if self._operation.rank_steps[rank.id].state in ("failed", "skipped"):
                return  # Its group was lost while it waited for its turn.
            agent = self._crew.agent_of(rank.id)
            if agent is None:
                self._operation.rank(rank.id, "failed", self._crew.unreachable(rank.node))
                return
            self._operation.rank(rank.id, "running", "starting")
            try:
                result = await self._started(agent, rank)
            except TimeoutError:
                self._operation.rank(rank.id, "failed", f"{rank.node} did not start it in {LAUNCH_TIMEOUT:.0f} s")
                return
            except RemoteError as error:
                self._operation.rank(rank.id, "failed", f"could not be started: {error.message}")
                return
        failed_before = result.record.warm_up is not None and result.record.warm_up.state == "failed"
        if result.outcome == "started" or failed_before:
            self._warm_up.expect(rank.id, result.record)
        if result.outcome == "already_running":
            by = f" (by {result.record.by})" if result.record.by else ""
            other = "" if result.record.digest == rank.digest else ", not as in the file: restart it to change it"
            self._operation.rank(rank.id, "running", f"already running{by}{other}")
        self._crew.watcher_of(rank.id).poke()

    async def _started(self, agent: NodeAgent, rank: RankPlan) -> StartResult:
        """Have a rank started; a start that was told is seen through even when it is cancelled meanwhile."""
        task = asyncio.ensure_future(agent.start_rank(self._spec(rank)))
        try:
            async with self._crew.clock.timeout(LAUNCH_TIMEOUT):
                result = await asyncio.shield(task)
        except asyncio.CancelledError:
            with suppress(RemoteError, TimeoutError):
                async with self._crew.clock.timeout(CANCEL_PATIENCE):
                    self._note(rank.id, (await task).record.run)
            raise
        finally:
            task.cancel()
        self._note(rank.id, result.record.run)
        return result

    def _note(self, rank_id: str, run: int) -> None:
        self._runs[rank_id] = run
        self._since[rank_id] = self._crew.clock.monotonic()

    def _spec(self, rank: RankPlan) -> RankSpec:
        crew = self._crew
        return RankSpec(
            cluster=crew.topology.name,
            rank=rank.id,
            script=run_script(rank, crew.topology.runtime),
            argv=rank.argv,
            env=rank.env,
            digest=rank.digest,
            address=rank.host,
            api_port=rank.api_port,
            ports=tuple(port for port, _ in ports_of(rank, crew.plan)),
            devices=rank.devices,
            by=crew.by,
            lease=self._operation.lease,
            hbm_before=_hbm_of(crew.store.nodes[rank.node], rank.devices),
        )

    async def _wait(self, ids: Sequence[str], launching: asyncio.Future[list[None]]) -> None:
        crew, operation = self._crew, self._operation
        while True:
            launched = launching.done()
            for rank_id in self._runs:  # Also those that are ready: one may die while others still start.
                if operation.rank_steps[rank_id].state in ("running", "done"):
                    self._look(rank_id)
            self._warm_up.go_on()
            self._fail_fast(ids)
            self._end_late()
            ready = sum(operation.rank_steps[rank_id].state == "done" for rank_id in ids)
            operation.phase(PHASE, "running", f"{ready} of {len(ids)} ready")
            pending = any(operation.rank_steps[rank_id].state == "running" for rank_id in self._runs)
            if launched and not pending:
                return
            await crew.clock.sleep(LOOK_INTERVAL)
            await first_of(crew.store.changed(), crew.clock.sleep(1.0))

    def _end_late(self) -> None:
        now = self._crew.clock.monotonic()
        for rank_id, since in self._since.items():
            if self._operation.rank_steps[rank_id].state == "running" and now - since >= self._deadline:
                self._operation.rank(rank_id, "failed", self._too_late(rank_id))

    def _too_late(self, rank_id: str) -> str:
        """Say where a rank hangs and since when."""
        status = self._crew.store.ranks[rank_id]
        words = f"not ready within {duration(self._deadline)}"
        if status.state is RankState.STARTING:
            where = status.stage or "no line of its log says how far it is"
            since = f" since {clock_time(status.stage_since)}" if status.stage and status.stage_since else ""
            words += f", stage: {where}{since}"
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
        elif status.run < self._runs[rank_id]:
            return
        elif self._warm_up.failed(rank_id) and status.state not in _ENDED:
            operation.rank(rank_id, "failed", f"{self._warm_up.failed(rank_id)}; kept out of rotation")
        elif status.state in (RankState.READY, RankState.STALLED) or _serves_unkept(status):
            self._arrived(rank_id, status, now)
        elif status.state is RankState.FAILED:
            self._ended(rank_id, status, now)
        elif status.state in (RankState.STOPPED, RankState.STOPPING):
            operation.rank(rank_id, "failed", "was stopped meanwhile")
        else:
            self._failed_at.pop(rank_id, None)
            operation.rank(rank_id, "running", status.stage or _waiting_words(status))

    def _arrived(self, rank_id: str, status: RankStatus, now: float) -> None:
        if self._operation.rank_steps[rank_id].state == "done":
            return
        before = self._operation.rank_steps[rank_id].detail
        if before.startswith("already running") and now - self._since[rank_id] < 5:
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
        if record is None or record.run < self._runs[rank_id] or record.state is not ProcessState.EXITED:
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
        for rank_id in self._runs:
            if steps[rank_id].state == "failed":
                dead.setdefault(plan[rank_id].group, rank_id)
        for rank_id in ids:
            group = plan[rank_id].group
            if group not in dead or steps[rank_id].state not in ("waiting", "running", "done"):
                continue
            if rank_id not in self._runs and steps[rank_id].state == "waiting":
                self._operation.rank(
                    rank_id, "skipped", f"not started: {dead[group]} failed, and its group with it"
                )
                continue
            if self._crew.store.ranks[rank_id].state is RankState.FAILED:
                continue  # Its own cause is being looked for.
            words = f"{dead[group]} failed, and its group with it; left as it is: stop or restart {group}"
            self._operation.rank(rank_id, "skipped", words)


def _hbm_of(node: NodeStatus, devices: Sequence[int]) -> Mapping[str, int]:
    return {str(npu.id): npu.hbm_used_mb for npu in node.npus if npu.id in devices and npu.hbm_used_mb is not None}


def _serves_unkept(status: RankStatus) -> bool:
    return status.state is RankState.UNKEPT and status.health == "200"


def _waiting_words(status: RankStatus) -> str:
    if status.state is RankState.STARTING:
        return "starting"
    return f"{status.state}, /health {status.health or 'not answered'}"
