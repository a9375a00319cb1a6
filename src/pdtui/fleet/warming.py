"""Warm-up: a short completion to each rank that was started here, before it takes requests.

The first request of a server can take seconds, or show that an engine does not work though /health says 200. The
result stays with the run on the node, so that every console shows the same; ranks that were ready before are left
alone.
"""

from __future__ import annotations

import asyncio

from pdtui.errors import RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.operations import Operation
from pdtui.fleet.snapshot import WARM_UP, RankState, RankStatus
from pdtui.remote.messages.ranks import RankRecord, WarmUp
from pdtui.topology.model import Role

WARM_UP_TIMEOUT = 120.0
"""Seconds that a rank has for its first completion; ten were seen, and once thirty."""

MARGIN = 10.0
"""Seconds beyond that until its agent has answered."""

PROMPT = "Hello"
TOKENS = {Role.PREFILL: 1, Role.DECODE: 2}
"""Tokens that are asked for; a decode rank computes the prompt itself."""

_UP = frozenset({RankState.READY, RankState.STALLED})


class WarmingUp:
    """The warm-ups of one start."""

    def __init__(self, crew: Crew, operation: Operation) -> None:
        self._crew = crew
        self._operation = operation
        self._expected: dict[str, RankRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._results: dict[str, WarmUp] = {}

    def expect(self, rank_id: str, record: RankRecord) -> None:
        """Hold this rank back from the rotation until it has answered a completion."""
        if self._crew.topology.start.warm_up:
            self._expected[rank_id] = record
            self._crew.watcher_of(rank_id).warming.add(rank_id)

    def go_on(self) -> None:
        """Send what can be sent: to a rank of a MoE group when all that start with it answer on /health."""
        ranks, plan = self._crew.store.ranks, self._crew.plan
        together = self._crew.topology.model.kind == "moe"
        for rank_id, record in self._expected.items():
            if rank_id in self._tasks or self._operation.is_superseded(rank_id):
                continue
            mates = [mate.id for mate in plan.of_group(plan.by_id[rank_id].group)] if together else [rank_id]
            ready = _is_up(ranks[rank_id]) and ranks[rank_id].run == record.run
            if ready and not any(self._is_coming(ranks[mate]) for mate in mates):
                task = asyncio.get_running_loop().create_task(self._send(rank_id, record))
                self._tasks[rank_id] = task

    def _is_coming(self, mate: RankStatus) -> bool:
        """Return whether a rank is on its way; one that nobody starts is not waited for."""
        step = self._operation.rank_steps.get(mate.id)
        started_here = step is not None and step.state in ("waiting", "running")
        return not _is_up(mate) and (mate.state is RankState.STARTING or started_here)

    def failed(self, rank_id: str) -> str:
        """Return why the warm-up of a rank failed, or empty."""
        result = self._results.get(rank_id)
        failed = result is not None and result.state == "failed"
        return f"its warm-up request failed: {result.error or 'no answer'}" if result and failed else ""

    def note(self, rank_id: str) -> str:
        """Return what there is to say about the warm-up of a rank that is ready."""
        result = self._results.get(rank_id)
        skipped = result is not None and result.state == "skipped"
        return f", not warmed up: {result.error}" if result and skipped else ""

    async def _send(self, rank_id: str, record: RankRecord) -> None:
        crew, node = self._crew, self._crew.plan.by_id[rank_id].node
        body = {
            "model": crew.topology.model.served_name,
            "prompt": PROMPT,
            "max_tokens": TOKENS[crew.plan.by_id[rank_id].role],
            "temperature": 0,
        }
        agent = crew.agent_of(rank_id)
        try:
            if agent is None:
                raise TimeoutError
            async with crew.clock.timeout(WARM_UP_TIMEOUT + MARGIN):
                self._results[rank_id] = await agent.warm_up(record, body, timeout=WARM_UP_TIMEOUT, by=crew.by)
        except TimeoutError:
            self._results[rank_id] = WarmUp("skipped", error=f"{node} gave no answer")
        except RemoteError as error:
            self._results[rank_id] = WarmUp("skipped", error=error.message)
        finally:
            self._release(rank_id)

    def _release(self, rank_id: str) -> None:
        watcher = self._crew.watcher_of(rank_id)
        watcher.warming.discard(rank_id)
        watcher.poke()

    async def close(self) -> None:
        """Wait for nothing more; what is known of each rank is on its node."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for rank_id in self._expected:
            self._release(rank_id)


def _is_up(rank: RankStatus) -> bool:
    return rank.state in _UP or (rank.state is RankState.STARTING and rank.stage == WARM_UP)
