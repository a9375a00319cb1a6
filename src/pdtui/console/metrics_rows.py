"""What a rank's /metrics says, as rows of text, and how it went over the last minutes; no widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdtui.console.describe import alarm_rows, at_and_age
from pdtui.console.glyphs import Glyphs
from pdtui.console.history import sparkline
from pdtui.console.rows import BLANK, Row, heading
from pdtui.console.strings import S
from pdtui.console.timing import count, duration, latency
from pdtui.fleet.snapshot import RankMetrics, RankStatus
from pdtui.topology.model import Role

_LABEL, _VALUE = 23, 10
"""Cells of the names, and of the values before their history."""
_SHORT = 6
"""A history of fewer cells says nothing."""
_OLD = 12.0
"""Seconds behind the reading itself from which on the age of a mean is said."""

Value = Callable[[RankMetrics], float | None]


def metrics_rows(
    rank: RankStatus | None, history: Sequence[RankMetrics], glyphs: Glyphs, width: int, now: float
) -> list[Row]:
    """Return a rank's figures, each with its history where `width` has room for it.

    The figures of a rank that has failed, or does not answer, are the last of `history`, and marked as old.
    """
    if rank is None:
        return [Row(S.nothing_selected, "dim")]
    metrics = rank.metrics or (history[-1] if history else None)
    old = rank.metrics is None
    rows = [heading(rank.id)]
    if rank.alarms:
        rows += [*alarm_rows(rank, now), BLANK]
    if metrics is None:
        return [*rows, Row(S.no_metrics[rank.state], "dim")]
    if old:
        rows += [Row(_last_read(rank, metrics, now), "warning"), BLANK]
    room = width - _LABEL - _VALUE - 2
    shown = history[-room:] if room >= _SHORT and len(history) > 1 else ()

    def figure(label: str, text: str, value: Value, top: float | None = None) -> list[Row]:
        """Return a figure with its history at the right of all of them, cut at the left where the text is long."""
        if not text:
            return []
        line = sparkline([value(one) for one in shown], glyphs.spark, top=top)
        over = len(text) + 1 - _VALUE
        if over > 0:
            text, line = f"{text} ", line[over:]
        return [Row(f"{text:<{_VALUE}}{line}".rstrip(), "dim" if old else "text", label, label_width=_LABEL)]

    rows += figure(S.metric_running, _whole(metrics.running), lambda one: one.running)
    rows += figure(S.metric_waiting, _whole(metrics.waiting), lambda one: one.waiting)
    rows += figure(S.metric_kv, _percent(metrics.kv_usage, 1), lambda one: one.kv_usage, 1.0)
    rows += figure(S.metric_prompt, _count(metrics.prompt_tokens_per_s), lambda one: one.prompt_tokens_per_s)
    rows += figure(
        S.metric_generation, _count(metrics.generation_tokens_per_s), lambda one: one.generation_tokens_per_s
    )
    rows += figure(S.metric_ttft, _mean(metrics.ttft_s, metrics.ttft_at, metrics, now), _new_ttft)
    if rank.role is Role.DECODE:
        rows += figure(S.metric_tpot, _mean(metrics.tpot_s, metrics.tpot_at, metrics, now), _new_tpot)
    rows += figure(S.metric_acceptance, _acceptance(metrics), lambda one: one.acceptance, 1.0)
    rows += figure(S.metric_preemptions, _preemptions(metrics), lambda one: one.preempted)
    if rank.role is Role.DECODE:
        rows += figure(S.metric_external, _percent(metrics.external_share), lambda one: one.external_share, 1.0)
    rows += _prompts(rank, metrics)
    rows += _troubles(metrics)
    rows += _row(S.metric_age, _reading(metrics, now), "dim")
    if shown:
        rows += _row(S.metric_history, duration(shown[-1].observed_at - shown[0].observed_at), "dim")
    return rows


def _last_read(rank: RankStatus, metrics: RankMetrics, now: float) -> str:
    """Say how old figures are that a rank does not give any more, and what has come between."""
    since = S.metric_before.get(rank.state, "")
    return S.metric_last.format(t=duration(now - metrics.observed_at)) + (f", {since}" if since else "")


def _new_ttft(metrics: RankMetrics) -> float | None:
    """Return a mean only where the reading had one of its own."""
    return metrics.ttft_s if metrics.ttft_at in (None, metrics.observed_at) else None


def _new_tpot(metrics: RankMetrics) -> float | None:
    return metrics.tpot_s if metrics.tpot_at in (None, metrics.observed_at) else None


def _row(label: str, value: str, style: str = "text") -> list[Row]:
    return [Row(value, style, label, label_width=_LABEL)] if value else []


def _whole(value: int | None) -> str:
    return str(value) if value is not None else ""


def _count(value: float | None) -> str:
    return count(value) if value is not None else ""


def _percent(value: float | None, digits: int = 0) -> str:
    return f"{value * 100:.{digits}f} %" if value is not None else ""


def _mean(value: float | None, at: float | None, metrics: RankMetrics, now: float) -> str:
    """Return a mean, and from when it is where that was not in the last reading."""
    if value is None:
        return ""
    old = at is not None and metrics.observed_at - at > _OLD
    return latency(value) + (f"  {S.ago.format(t=duration(now - (at or now)))}" if old else "")


def _acceptance(metrics: RankMetrics) -> str:
    if metrics.acceptance is None:
        return ""
    text = _percent(metrics.acceptance)
    if metrics.accepted_length is not None:
        text += f"  {S.metric_length.format(n=metrics.accepted_length)}"
    if metrics.acceptance_by_position:
        text += f"  ({' '.join(f'{share * 100:.0f}' for share in metrics.acceptance_by_position)})"
    return text


def _preemptions(metrics: RankMetrics) -> str:
    text = _whole(metrics.preemptions)
    return f"{text}  {S.metric_just_now.format(n=metrics.preempted)}" if text and metrics.preempted else text


def _prompts(rank: RankStatus, metrics: RankMetrics) -> list[Row]:
    """Return what a decode rank computed although it should compute nothing."""
    tokens = metrics.local_prefill_tokens
    if tokens is None:
        return []
    bad = rank.role is Role.DECODE and tokens > 0
    rows = _row(S.metric_local, count(tokens), "warning" if bad else "text")
    return [*rows, Row(S.metric_local_note, "warning", indent=2)] if bad else rows


def _troubles(metrics: RankMetrics) -> list[Row]:
    """Return the counts of what should not happen, and of clients that left."""
    rows = []
    for label, number in (
        (S.metric_expired, metrics.expired_leases),
        (S.metric_late, metrics.late_pulls),
        (S.metric_failed, metrics.failed_transfers),
        (S.metric_errors, metrics.errors),
    ):
        rows += _row(label, _whole(number), "warning" if number else "dim")
    return rows + _row(S.metric_aborts, _whole(metrics.aborts), "text" if metrics.aborts else "dim")


def _reading(metrics: RankMetrics, now: float) -> str:
    over = S.metric_over.format(t=duration(metrics.interval_s)) if metrics.interval_s is not None else ""
    return f"{at_and_age(metrics.observed_at, now)}{over}"
