"""The figures of a rank in few cells: what the list of ranks and the line below the grid show; no widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdtui.console.strings import S
from pdtui.console.timing import count, latency
from pdtui.fleet.snapshot import RankMetrics, RankStatus
from pdtui.topology.model import Role


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its name, in a column."""

    text: str
    """Empty when it is not known."""
    width: int
    """Cells of the column, with the blanks behind it."""
    dim: bool = False


_SPEED = 5
"""Cells of the number of tokens a second."""


def speed(rank: RankStatus, metrics: RankMetrics) -> float | None:
    """Return the tokens a second that a rank is there for: of prompts on prefill, put out on decode."""
    prompt, generation = metrics.prompt_tokens_per_s, metrics.generation_tokens_per_s
    first, second = (prompt, generation) if rank.role is Role.PREFILL else (generation, prompt)
    return first if first is not None else second


def figures(rank: RankStatus, *, roomy: bool) -> Sequence[Figure]:
    """Return a rank's figures, the most important first; `roomy` writes units in full."""
    metrics = rank.metrics
    if metrics is None:
        return ()
    unit = S.per_second if roomy else S.per_second_short
    tokens = speed(rank, metrics)
    rate = f"{count(tokens):>{_SPEED}}{unit}" if tokens is not None else ""
    return (
        Figure(S.running.format(n=metrics.running) if metrics.running is not None else "", 7),
        Figure(S.kv.format(n=f"{metrics.kv_usage * 100:.0f}") if metrics.kv_usage is not None else "", 8),
        Figure(rate, _SPEED + len(unit) + 2, dim=True),
        Figure(S.waiting.format(n=metrics.waiting) if metrics.waiting is not None else "", 9),
        Figure(S.short_ttft.format(t=latency(metrics.ttft_s)) if metrics.ttft_s is not None else "", 13, dim=True),
        Figure(S.short_tpot.format(t=latency(metrics.tpot_s)) if metrics.tpot_s is not None else "", 13, dim=True),
    )
