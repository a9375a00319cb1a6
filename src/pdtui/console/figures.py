"""The figures of a rank in few cells: what the list of ranks and the line below the grid show; no widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    decode = rank.role is Role.DECODE
    external = metrics.external_share if decode else None
    return (
        Figure(_of(S.running, metrics.running, str), 7),
        Figure(_of(S.kv, metrics.kv_usage, _percent), 8),
        Figure(rate, _SPEED + len(unit) + 2, dim=True),
        Figure(_of(S.waiting, metrics.waiting, str), 9),
        Figure(_of(S.short_ttft, metrics.ttft_s, latency), 13, dim=True),
        Figure(_of(S.short_tpot, metrics.tpot_s if decode else None, latency), 13, dim=True),
        Figure(_of(S.short_external, external, _percent), 11, dim=True),
        Figure(_of(S.short_preemptions, metrics.preemptions, str), 9, dim=True),
        Figure(_of(S.short_acceptance, metrics.acceptance, _percent), 10, dim=True),
    )


def _of(words: str, value: float | None, text: Callable[[float], str]) -> str:
    return words.format(n=text(value)) if value is not None else ""


def _percent(value: float) -> str:
    return f"{value * 100:.0f}"


def alarm_words(rank: RankStatus) -> str:
    """Return a rank's alarms in as few words as a row has room for."""
    return ", ".join(S.short_alarms[alarm.id] for alarm in rank.alarms)
