"""Who of a group has arrived at which stage of a start, who is last and since when: from the ranks' states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pdtui.fleet.groups import RENDEZVOUS, SERVES, how_far
from pdtui.fleet.headline import clock_time
from pdtui.fleet.rank_words import describe_state
from pdtui.fleet.snapshot import RankState, RankStatus
from pdtui.readings.vllm_log import stage_step

READY = "ready"

_STEPS: Mapping[str, int] = {
    "process": 0,
    "configuration": stage_step("configuration"),
    "rendezvous": RENDEZVOUS,
    "weights": stage_step("weights loaded"),
    "KV cache": stage_step("KV cache"),
    "engine": stage_step("engine ready"),
    "API server": stage_step("API server"),
    READY: SERVES,
}
"""What a rank has reached -> the first milestone of its log that shows it. The engine's includes graph capture."""

_UP = frozenset({RankState.READY, RankState.STALLED, RankState.UNHEALTHY})


@dataclass(frozen=True, slots=True)
class Arrival:
    """One stage and who is there."""

    stage: str
    arrived: int
    missing: tuple[str, ...]
    """The ranks that are not there yet, in the order of the file."""


@dataclass(frozen=True, slots=True)
class GroupArrivals:
    """How far a group is that comes up."""

    group: str
    total: int
    stages: tuple[Arrival, ...]
    """In the order in which ranks reach them; the last one is `ready`."""
    last: RankStatus | None
    """The rank that is least far, for the longest time; None when all are ready."""

    @property
    def ready(self) -> int:
        """Ranks that take requests."""
        return self.stages[-1].arrived


def coming_up(ranks: Iterable[RankStatus], also: Iterable[str] = ()) -> tuple[GroupArrivals, ...]:
    """Return the groups of which a rank starts, and those of the ranks `also`."""
    groups: dict[str, list[RankStatus]] = {}
    for rank in ranks:
        groups.setdefault(rank.group, []).append(rank)
    named = frozenset(also)
    return tuple(
        arrivals(members)
        for members in groups.values()
        if any(rank.state is RankState.STARTING or rank.id in named for rank in members)
    )


def arrivals(ranks: Sequence[RankStatus]) -> GroupArrivals:
    """Return how far the ranks of one group are."""
    reached = {rank.id: _reached(rank) for rank in ranks}
    stages = []
    for stage, step in _STEPS.items():
        missing = tuple(rank.id for rank in ranks if reached[rank.id] < step)
        stages.append(Arrival(stage, len(ranks) - len(missing), missing))
    behind = [rank for rank in ranks if rank.state not in _UP]
    last = min(behind, key=lambda rank: (reached[rank.id], _since(rank)), default=None)
    return GroupArrivals(ranks[0].group, len(ranks), tuple(stages), last)


def _reached(rank: RankStatus) -> int:
    if rank.state in _UP or (rank.state is RankState.UNKEPT and rank.health == "200"):
        return _STEPS[READY]
    return how_far(rank.stage) if rank.state is RankState.STARTING else -1


def _since(rank: RankStatus) -> float:
    return waits_since(rank) or float("inf")


def waits_since(rank: RankStatus) -> float | None:
    """Return since when a rank is as far as it is; None when that is not known."""
    if rank.state is RankState.STARTING:
        return rank.stage_since or rank.started
    return rank.since or None


def in_one_line(group: GroupArrivals) -> str:
    """Return `14 of 16 ready; process 16, rendezvous 14; last decode/7 on node4: weights 31 % since 12:03:49`."""
    parts = [f"{group.ready} of {group.total} ready"]
    reached = [f"{one.stage} {one.arrived}" for one in group.stages[:-1] if one.arrived]
    parts += [", ".join(reached)] if reached and group.ready < group.total else []
    if group.last is not None:
        parts.append(f"last {last_words(group.last)}")
    return "; ".join(parts)


def last_words(rank: RankStatus) -> str:
    """Return where a rank is and since when: `decode/7 on node4: weights 31 % since 12:03:49`."""
    stage = (rank.stage or "starting") if rank.state is RankState.STARTING else describe_state(rank)
    at = waits_since(rank)
    return f"{rank.id} on {rank.node}: {stage}{f' since {clock_time(at)}' if at else ''}"
