"""What is true of a group as a whole: who is waited for, who died in which order, who lives on in vain.

Pure functions over the ranks' states, so that every console says the same, whoever started the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pdtui.fleet.snapshot import (
    ALIVE_STATES,
    WARM_UP,
    Death,
    GroupStatus,
    OperationStatus,
    RankState,
    RankStatus,
)
from pdtui.readings.vllm_log import stage_step
from pdtui.topology.model import Group, Role, Topology

RENDEZVOUS = stage_step("weights")
"""The first milestone that a rank of a MoE group reaches only after its whole group has met."""

_WARMING = 98
SERVES = 99
"""Beyond all milestones of a log: a rank that takes requests."""

LATE = 60.0
"""Seconds after the last rank that serves from which on a start is no part of the same start."""

SECONDARY = 600.0
"""Seconds after the end of a decode rank in which what happens to prefill may be its consequence (cases 96)."""

_FORMED = frozenset({RankState.READY, RankState.UNHEALTHY, RankState.STALLED})


def how_far(stage: str) -> int:
    """Return how far a starting rank is, for ordering: the milestones of its log, then the warm-up."""
    return _WARMING if stage == WARM_UP else stage_step(stage)


def group_statuses(
    topology: Topology,
    ranks: Iterable[RankStatus],
    operations: Iterable[OperationStatus],
    now: float,
) -> tuple[GroupStatus, ...]:
    """Return every group of the file as it is now; `ranks` are those of the file."""
    members: dict[str, list[RankStatus]] = {name: [] for name in topology.groups}
    for rank in ranks:
        if rank.group in members:
            members[rank.group].append(rank)
    coming = _coming(operations)
    patience = max(15.0, 2 * topology.start.stagger + 5.0)
    found = {
        name: _status(group, members[name], coming, now - patience, moe=topology.model.kind == "moe")
        for name, group in topology.groups.items()
    }
    return tuple(_after_others(status, members[status.name], found) for status in found.values())


def _coming(operations: Iterable[OperationStatus]) -> frozenset[str]:
    """Return the ranks that an operation from here is about to start."""
    return frozenset(
        step.label
        for operation in operations
        if operation.state == "running" and operation.verb != "stop"
        for step in operation.steps
        if step.state in ("waiting", "running")
    )


def _status(
    group: Group,
    ranks: Sequence[RankStatus],
    coming: Collection[str],
    settled: float,
    *,
    moe: bool,
) -> GroupStatus:
    failed = sorted((rank for rank in ranks if rank.state is RankState.FAILED), key=_end)
    deaths = tuple(Death(rank.id, rank.ended, rank.exit_status) for rank in failed)
    status = GroupStatus(group.name, group.role, len(ranks), deaths)
    if not moe or len(ranks) < 2:
        return status
    must = tuple(rank.id for rank in ranks if rank.state in _FORMED and _outlives(rank, failed))
    late = _late(ranks)
    waiting = [rank for rank in ranks if _waits(rank) and rank.id not in late]
    missing = [rank for rank in ranks if _is_missing(rank) and rank.id not in coming]
    if not late and (
        not waiting or not missing or must or max(rank.started or settled for rank in waiting) > settled
    ):
        waiting, missing = [], []
    return GroupStatus(
        group.name,
        group.role,
        len(ranks),
        deaths,
        must_restart=must,
        waiting=tuple(rank.id for rank in waiting),
        waits_for=tuple(rank.id for rank in missing) if waiting else (),
        waits_on=tuple(dict.fromkeys(rank.node for rank in missing)) if waiting else (),
        waiting_since=min((rank.started for rank in waiting if rank.started), default=None),
        late=late,
    )


def _end(rank: RankStatus) -> float:
    return rank.ended if rank.ended is not None else float("inf")


def _outlives(rank: RankStatus, failed: Sequence[RankStatus]) -> bool:
    """Return whether a rank that formed a group with one that died lives on: nothing is ever joined again."""
    return any((rank.started or 0.0) < _end(dead) for dead in failed)


def _late(ranks: Sequence[RankStatus]) -> tuple[str, ...]:
    """Return the ranks that were started anew while the rest of their group serves: it takes none back."""
    formed = [rank.started or 0.0 for rank in ranks if rank.state in _FORMED]
    if not formed:
        return ()
    return tuple(rank.id for rank in ranks if _waits(rank) and (rank.started or 0.0) > max(formed) + LATE)


def _waits(rank: RankStatus) -> bool:
    """Return whether a rank starts and has not yet met its group."""
    return rank.state is RankState.STARTING and how_far(rank.stage) < RENDEZVOUS


def _is_missing(rank: RankStatus) -> bool:
    state = rank.last_state if rank.state is RankState.LOST else rank.state
    return state is not None and state is not RankState.UNKNOWN and state not in ALIVE_STATES


def _after_others(
    status: GroupStatus, ranks: Sequence[RankStatus], groups: Mapping[str, GroupStatus]
) -> GroupStatus:
    """Say that prefill broke shortly after decode did: it may be a consequence, and no reason to restart more."""
    if status.role is not Role.PREFILL:
        return status
    broken = [rank.ended or rank.since for rank in ranks if rank.state in (RankState.FAILED, RankState.UNHEALTHY)]
    ends = [death for other in groups.values() if other.role is Role.DECODE for death in other.deaths if death.at]
    if not broken or not ends:
        return status
    first = min(ends, key=lambda death: death.at or 0.0)
    seconds = min(broken) - (first.at or 0.0)
    if not 0 <= seconds <= SECONDARY:
        return status
    return replace(status, after=first.rank, after_s=round(seconds, 1))
