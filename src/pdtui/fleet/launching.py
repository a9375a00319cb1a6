"""Having ranks started by their nodes: each is asked for once, and again where the answer was lost on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pdtui.errors import AgentError, AgentLost, RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.operations import Operation, StepState
from pdtui.fleet.snapshot import NodeStatus
from pdtui.fleet.strangers import ports_of
from pdtui.remote.interface import LinkState, NodeAgent
from pdtui.remote.messages.ranks import ProcessState, RankSpec, StartResult
from pdtui.topology.plan import RankPlan
from pdtui.topology.script import run_script

NODE_PATIENCE = 60.0
"""Seconds that a node may be unreachable while one of its ranks starts."""

LAUNCH_TIMEOUT = 60.0
"""Seconds that an agent has to start a process."""

RECONNECT_LOOK = 0.5
"""Seconds between two looks whether a node whose connection broke is back."""

STARTING, RUNS = "starting", "already running"
"""What is said of a rank until its node has answered; the other where it is known to run."""

CANCEL_PATIENCE = 10.0
"""Seconds that are waited, after a cancel, for the answer to a start that was told."""


class Launching:
    """The launches of one start."""

    def __init__(self, crew: Crew, operation: Operation) -> None:
        self._crew = crew
        self._operation = operation
        self.runs: dict[str, int] = {}
        """Ranks that run by what their nodes have answered, and the number of that run."""
        self.since: dict[str, float] = {}
        """When they did, on the monotonic clock."""
        self._asked: set[str] = set()

    async def launch(self, rank: RankPlan) -> StartResult | None:
        """Have a rank started in its turn; where the connection breaks meanwhile, ask again when it is back.

        None when its line of the operation says why it does not run.
        """
        known, give_up_at = self._newest_run(rank), 0.0
        while True:
            async with self._crew.turn(self._crew.store.ranks[rank.id]):
                try:
                    return await self._ask(rank, known)
                except AgentLost as lost:
                    state: StepState = "running" if rank.id in self._asked else "waiting"
                    self._operation.rank(rank.id, state, f"{lost.message}; it goes on when {rank.node} is back")
            # Out of turn: others start meanwhile, and a later action may take this rank over.
            give_up_at = give_up_at or self._crew.clock.monotonic() + NODE_PATIENCE
            if not await self._back(rank, give_up_at):
                asked = "; it may have been started: look at it" if rank.id in self._asked else ""
                self._operation.rank(rank.id, "failed", f"{self._crew.unreachable(rank.node)}{asked}")
                return None

    def _newest_run(self, rank: RankPlan) -> int | None:
        watcher = self._crew.watcher_of(rank.id)
        record = watcher.record(rank.id)
        if record is not None:
            return record.run
        return 0 if watcher.answered else None

    async def _back(self, rank: RankPlan, until: float) -> bool:
        """Wait for a node until that monotonic time; returns whether it can be asked."""
        crew = self._crew
        while crew.clock.monotonic() < until and not self._is_settled(rank.id):
            await crew.clock.sleep(RECONNECT_LOOK)
            if crew.agent_of(rank.id) is not None:
                return True
            if crew.links[rank.node].status.state is LinkState.FAILED:
                return False  # It does not come back by itself.
        return self._is_settled(rank.id)

    def _is_settled(self, rank_id: str) -> bool:
        """Return whether a rank is to be started no more: left to a later action, or its group is lost."""
        operation = self._operation
        return operation.is_superseded(rank_id) or operation.rank_steps[rank_id].state in ("failed", "skipped")

    async def _ask(self, rank: RankPlan, known: int | None) -> StartResult | None:
        """Ask for a rank once; None when its line says why it is not started. Raises `AgentLost`.

        `known` is the newest run that there was before it was asked for.
        """
        operation = self._operation
        if operation.is_superseded(rank.id):
            operation.rank(rank.id, "skipped", "left to a later action")
            return None
        if self._is_settled(rank.id):
            return None  # Its group was lost while it waited for its turn.
        agent = self._crew.agent_of(rank.id)
        if agent is None:
            raise AgentLost(self._crew.unreachable(rank.node))
        operation.rank(rank.id, "running", RUNS if self._runs(rank) else STARTING)
        try:
            if rank.id in self._asked and (earlier := await self._started_before(agent, rank, known)) is not None:
                return earlier
            self._asked.add(rank.id)
            return await self._started(agent, rank)
        except TimeoutError:
            operation.rank(rank.id, "failed", f"{rank.node} did not start it in {LAUNCH_TIMEOUT:.0f} s")
        except AgentLost:
            raise
        except RemoteError as error:
            operation.rank(rank.id, "failed", f"could not be started: {error.message}")
        return None

    def _runs(self, rank: RankPlan) -> bool:
        """Return whether a rank runs by what is known; after the stop of a restart that may be of before."""
        record = self._crew.watcher_of(rank.id).record(rank.id)
        live = record is not None and record.state in (ProcessState.RUNNING, ProcessState.UNKEPT)
        return live and self._operation.verb == "start"

    async def _started_before(self, agent: NodeAgent, rank: RankPlan, known: int | None) -> StartResult | None:
        """Return what came of a start whose answer was lost: it may have ended already, and is not repeated then.

        Raises `AgentLost`, and `AgentError` (`lease_lost`) when others have these ranks by now.
        """
        crew = self._crew
        if (why := await self._operation.hold.lost_on(rank.node)) != "":
            raise AgentError(why, code="lease_lost")
        async with crew.clock.timeout(LAUNCH_TIMEOUT):
            records = await agent.ranks(crew.topology.name)
        for record in records:
            ours = (record.rank, record.by, record.digest) == (rank.id, crew.by, rank.digest)
            if ours and known is not None and record.run > known:
                self._note(rank.id, record.run)
                return StartResult("started", record)
        return None

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
        self.runs[rank_id] = run
        self.since[rank_id] = self._crew.clock.monotonic()

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


def _hbm_of(node: NodeStatus, devices: Sequence[int]) -> Mapping[str, int]:
    return {str(npu.id): npu.hbm_used_mb for npu in node.npus if npu.id in devices and npu.hbm_used_mb is not None}
