"""What an operation does to ranks: stops them, keeps what explains their death, starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdtui.fleet.crew import Crew
from pdtui.fleet.evidence import in_order_of_death, save_evidence
from pdtui.fleet.intents import RankIntent, RestartRanks, StopRanks
from pdtui.fleet.operations import Operation
from pdtui.fleet.rolling import roll
from pdtui.fleet.snapshot import BROKEN_STATES
from pdtui.fleet.starting import Starting
from pdtui.fleet.stopping import Stopping
from pdtui.fleet.targets import in_short


class RankWork:
    """The work of one operation; the supervisor guards the door."""

    def __init__(self, crew: Crew, operation: Operation, *, ready_deadline: float) -> None:
        self._crew = crew
        self._operation = operation
        self._ready_deadline = ready_deadline

    async def run(self, intent: RankIntent, ids: Sequence[str], left_out: Mapping[str, str]) -> None:
        """Do what is asked of these ranks; `left_out`: those of which nothing can be asked, and why."""
        crew, operation = self._crew, self._operation
        for rank_id, why in left_out.items():
            operation.rank(rank_id, "failed", why)
        ids = [rank_id for rank_id in ids if rank_id not in left_out]
        if isinstance(intent, StopRanks):
            await Stopping(crew, operation, grace=intent.grace, drain=intent.drain).run(ids)
        elif isinstance(intent, RestartRanks) and intent.rolling:
            await roll(crew, operation, ids, lambda group: self._restart(intent, group))
        elif isinstance(intent, RestartRanks):
            await self._restart(intent, ids)
        elif ids:
            await Starting(crew, operation, deadline=self._ready_deadline).run(ids)

    async def _restart(self, intent: RestartRanks, ids: Sequence[str]) -> None:
        crew, operation = self._crew, self._operation
        await self._save_evidence(ids)
        # All of them, by what the nodes say then: what was seen last may be older than another console's start.
        stopping = Stopping(crew, operation, grace=intent.grace, drain=intent.drain, by_the_way=True)
        await stopping.run(ids)
        able = self._can_start(ids)
        if able:
            await Starting(crew, operation, deadline=self._ready_deadline).run(able)

    async def _save_evidence(self, ids: Sequence[str]) -> None:
        """Keep what explains the ranks that are broken, before the restart; what cannot be kept is told."""
        crew, operation = self._crew, self._operation
        broken = [rank_id for rank_id in ids if crew.store.ranks[rank_id].state in BROKEN_STATES]
        if not broken:
            return
        operation.phase("evidence", "running", f"of {in_short(broken)}")
        saved = await save_evidence(crew, broken)
        broken = [rank_id for rank_id in in_order_of_death(crew, broken) if rank_id in saved]
        kept = {rank_id: saved[rank_id].folder for rank_id in broken if saved[rank_id].folder}
        missing = {rank_id: saved[rank_id].error for rank_id in broken if saved[rank_id].error}
        many = "1 rank" if len(kept) == 1 else f"{len(kept)} ranks"
        first_kept = next(iter(kept), "")
        words = f"of {many}; {first_kept}: {kept[first_kept]}" if kept else "nothing was saved"
        if missing:
            first = next(iter(missing))
            words += f"; {first}: {missing[first]}"
            crew.store.event("warning", operation.id, f"evidence of {in_short(tuple(missing))}: {missing[first]}")
        operation.phase("evidence", "done" if kept else "failed", words)
        crew.journal.write("evidence", operation=operation.id, ranks=broken, folders=kept, missing=missing or None)

    def _can_start(self, ids: Sequence[str]) -> list[str]:
        """Return the ranks that may start; one that did not stop keeps its MoE group from starting."""
        operation = self._operation
        bad = set(operation.failed(ids))
        if self._crew.topology.model.kind == "moe":
            plan = self._crew.plan.by_id
            broken = {plan[rank_id].group: rank_id for rank_id in bad}
            for rank_id in ids:
                if rank_id not in bad and plan[rank_id].group in broken:
                    operation.rank(rank_id, "skipped", f"not started: {broken[plan[rank_id].group]} did not stop")
                    bad.add(rank_id)
        return [rank_id for rank_id in ids if rank_id not in bad]
