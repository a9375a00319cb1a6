"""Ranks that died because a rank of their MoE group was stopped: no crash, though it looks like one."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.fleet.snapshot import Diagnosis, RankState, RankStatus

STOPPED = "stopped"
"""The signature of such a diagnosis."""


def stopped_mate(rank: RankStatus, mates: Sequence[RankStatus], now: float, *, window: float) -> RankStatus | None:
    """Return the rank of its group whose end was asked for while this one ran, shortly before it broke.

    `window`: how many seconds before, at most. It is the rank itself where it was stopped and started again
    without its group.
    """
    begun, end = rank.started or 0.0, rank.ended or now
    if rank.stopped_at is not None and rank.stopped_at <= begun:
        left = [mate for mate in mates if mate.id != rank.id and mate.started is not None]
        at = rank.stopped_at
        if any((mate.started or 0.0) < at < (mate.ended or now) for mate in left):
            return rank
    found = [
        mate
        for mate in mates
        if mate.id != rank.id and mate.stopped_at is not None and max(begun, end - window) < mate.stopped_at <= end
    ]
    return min(found, key=lambda mate: mate.stopped_at or 0.0, default=None)


def seen_since(ranks: Sequence[RankStatus], at: float) -> bool:
    """Return whether all ranks that can be reached were looked at after that time."""
    return all(
        rank.state is RankState.LOST or (rank.state is not RankState.UNKNOWN and (rank.observed_at or at) >= at)
        for rank in ranks
    )


def lost_to(mate: RankStatus, rank: RankStatus) -> Diagnosis:
    """Return what is to be said of a rank whose group died with a stop of `mate`."""
    by = f" by {mate.stopped_by}" if mate.stopped_by else ""
    return Diagnosis(
        f"lost its group: {mate.id} was stopped{by}",
        mate.id if mate is not rank else "",
        signature=STOPPED,
        remedy=f"a MoE group lives and dies together: restart {mate.group}",
    )
