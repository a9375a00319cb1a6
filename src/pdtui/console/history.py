"""The last readings of every rank, kept by the console while it is open: what sparklines are drawn from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil

from pdtui.fleet.snapshot import RankMetrics, RankState, Snapshot

KEPT = 32
"""Readings of a rank."""

_OVER = frozenset({RankState.STOPPED, RankState.STARTING})
"""States that say nothing of the run before any more: it was ended on purpose, or another one has begun."""


class MetricsHistory:
    """View state: it begins when the console opens, and ends when a rank is stopped or begins another run.

    What a rank said before it failed, or stopped answering, stays.
    """

    def __init__(self) -> None:
        self._kept: dict[str, deque[RankMetrics]] = {}
        self._runs: dict[str, int] = {}
        """The run that a rank's readings are of."""

    def add(self, snapshot: Snapshot) -> None:
        """Keep the readings that are new."""
        for rank in snapshot.ranks:
            if rank.run != self._runs.get(rank.id) or (rank.metrics is None and rank.state in _OVER):
                self._runs[rank.id] = rank.run
                self._kept.pop(rank.id, None)
            if rank.metrics is None:
                continue
            kept = self._kept.get(rank.id)
            if kept is None:
                kept = self._kept[rank.id] = deque(maxlen=KEPT)
            if not kept or kept[-1].observed_at < rank.metrics.observed_at:
                kept.append(rank.metrics)

    def of(self, rank_id: str) -> Sequence[RankMetrics]:
        """Return the readings of a rank, the oldest first."""
        return tuple(self._kept.get(rank_id, ()))


def sparkline(values: Sequence[float | None], signs: str, *, top: float | None = None) -> str:
    """Return one sign a value between 0 and `top` (the greatest of them if None); a blank for an unknown one."""
    known = [value for value in values if value is not None]
    highest = max(known, default=0.0) if top is None else top
    return "".join(" " if value is None else _sign(value, highest, signs) for value in values)


def _sign(value: float, highest: float, signs: str) -> str:
    """Return the sign of a value; only nothing has the lowest one."""
    if value <= 0 or highest <= 0:
        return signs[0]
    return signs[min(max(1, ceil(value / highest * (len(signs) - 1))), len(signs) - 1)]
