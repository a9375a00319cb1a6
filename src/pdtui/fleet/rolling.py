"""Rolling restart: one group after the other, so that the others of its role serve all the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pdtui.fleet.crew import Crew
from pdtui.fleet.operations import Operation
from pdtui.fleet.scope import rolling_order, whole_groups
from pdtui.fleet.serving import usable_ranks

PHASE = "rolling"


async def roll(
    crew: Crew, operation: Operation, ids: Sequence[str], restart: Callable[[Sequence[str]], Awaitable[None]]
) -> None:
    """Restart the groups of these ranks one by one; end where one does not come back or nobody else would serve.

    `restart` restarts one group and returns when it serves again or has failed.
    """
    groups = rolling_order(whole_groups(ids, crew.plan), _serving(crew))
    for number, group in enumerate(groups, 1):
        ranks = [rank.id for rank in crew.plan.of_group(group) if rank.id in ids]
        serving, role = _serving(crew), crew.topology.groups[group].role
        others = [name for name in serving if name != group and crew.topology.groups[name].role is role]
        if group in serving and not others:
            _leave(crew, operation, groups[number - 1 :], ids, f"{group} is the only {role} group that serves")
            return
        operation.phase(PHASE, "running", f"{number} of {len(groups)}: {group}")
        await restart(ranks)
        if operation.failed(ranks):
            _leave(crew, operation, groups[number:], ids, f"{group} did not come back")
            return
    operation.phase(PHASE, "done", f"{len(groups)} of {len(groups)}")


def _serving(crew: Crew) -> Sequence[str]:
    """Return the groups that take requests now, as the ranks' newest states say."""
    ranks = crew.store.ranks
    usable = usable_ranks(crew.topology, (ranks[rank.id] for rank in crew.plan.ranks))
    return tuple(dict.fromkeys(rank.group for rank in crew.plan.ranks if rank.id in usable))


def _leave(crew: Crew, operation: Operation, groups: Sequence[str], ids: Sequence[str], why: str) -> None:
    """Say which groups are left untouched, and why."""
    for group in groups:
        for rank in crew.plan.of_group(group):
            if rank.id in ids:
                operation.rank(rank.id, "skipped", f"left untouched: {why}")
    left = f"; left untouched: {', '.join(groups)}" if groups else ""
    operation.phase(PHASE, "failed", f"{why}{left}")
