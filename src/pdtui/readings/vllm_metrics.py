"""/metrics of a vLLM server: the few series that say how it works, under their old and new names.

Series: vLLM's `v1/metrics/loggers.py`, old and new names.
Labels come in any order, counters with or without `_total`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_PROMPT = "vllm:prompt_tokens_total"
_GENERATION = "vllm:generation_tokens_total"
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_PREEMPTIONS = "vllm:num_preemptions_total"
_TTFT = ("vllm:time_to_first_token_seconds",)
_TPOT = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")

KEEP: tuple[str, ...] = (
    _RUNNING,
    _WAITING,
    *_KV,
    _PROMPT,
    _GENERATION,
    _BY_SOURCE,
    _PREEMPTIONS,
    *(f"{name}_{part}" for name in (*_TTFT, *_TPOT) for part in ("sum", "count")),
)
"""Names of samples to keep where text is filtered on the node."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A histogram's sum and count."""

    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One scrape; None where a version does not say it."""

    at: float
    """Seconds on any clock that is used for all readings of a server."""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    local_prefill_tokens: float | None = None
    """Prompt tokens that the server computed itself."""
    transferred_tokens: float | None = None
    """Prompt tokens whose KV came over the connector."""
    preemptions: float | None = None
    ttft: Mean | None = None
    tpot: Mean | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two readings; None when it cannot be said."""

    seconds: float
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    local_prefill_tokens: float | None = None
    """How many in this time."""
    ttft_s: float | None = None
    tpot_s: float | None = None


def read_metrics(text: str, at: float) -> MetricsReading | None:
    """Read Prometheus text; None when it is none, or has nothing of vLLM in it. Never raises."""
    sums = _sums(text)
    if not sums:
        return None
    return MetricsReading(
        at,
        running=_whole(sums.get((_RUNNING, ""))),
        waiting=_whole(sums.get((_WAITING, ""))),
        kv_usage=_first(sums, _KV),
        prompt_tokens=sums.get((_PROMPT, "")),
        generation_tokens=sums.get((_GENERATION, "")),
        local_prefill_tokens=sums.get((_BY_SOURCE, "local_compute")),
        transferred_tokens=sums.get((_BY_SOURCE, "external_kv_transfer")),
        preemptions=sums.get((_PREEMPTIONS, "")),
        ttft=_mean(sums, _TTFT),
        tpot=_mean(sums, _TPOT),
    )


def rates(old: MetricsReading, new: MetricsReading) -> Rates | None:
    """Return what happened between two readings; None when the second is not later.

    A counter that has gone back belongs to a server that was started anew: its rate cannot be said.
    """
    seconds = new.at - old.at
    if seconds <= 0:
        return None
    return Rates(
        seconds,
        _per_second(old.prompt_tokens, new.prompt_tokens, seconds),
        _per_second(old.generation_tokens, new.generation_tokens, seconds),
        _grown(old.local_prefill_tokens, new.local_prefill_tokens),
        _mean_since(old.ttft, new.ttft),
        _mean_since(old.tpot, new.tpot),
    )


def _sums(text: str) -> dict[tuple[str, str], float]:
    """Sum the kept samples over engines and models, apart by name and `source`."""
    wanted = frozenset(KEEP)
    sums: dict[tuple[str, str], float] = {}
    try:
        samples = [
            (sample.name, sample.labels, float(sample.value))
            for family in text_string_to_metric_families(_relevant(text, wanted))
            for sample in family.samples
        ]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {}
    for name, labels, value in samples:
        full = name if name in wanted else f"{name}_total"
        if full in wanted and abs(value) < float("inf"):
            key = (full, labels.get("source", "") if full == _BY_SOURCE else "")
            sums[key] = sums.get(key, 0.0) + value
    return sums


def _relevant(text: str, wanted: Iterable[str]) -> str:
    """Keep the lines that matter: /metrics has hundreds, most of them buckets."""
    names = {*wanted, *(name.removesuffix("_total") for name in wanted)}
    lines = (line for line in text.split("\n") if line.split("{", 1)[0].split(" ", 1)[0] in names)
    return "\n".join(lines) + "\n"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _first(sums: Mapping[tuple[str, str], float], names: Iterable[str]) -> float | None:
    return next((sums[name, ""] for name in names if (name, "") in sums), None)


def _mean(sums: Mapping[tuple[str, str], float], names: Iterable[str]) -> Mean | None:
    for name in names:
        total, count = sums.get((f"{name}_sum", "")), sums.get((f"{name}_count", ""))
        if total is not None and count is not None:
            return Mean(total, count)
    return None


def _grown(old: float | None, new: float | None) -> float | None:
    return new - old if old is not None and new is not None and new >= old else None


def _per_second(old: float | None, new: float | None, seconds: float) -> float | None:
    grown = _grown(old, new)
    return None if grown is None else grown / seconds


def _mean_since(old: Mean | None, new: Mean | None) -> float | None:
    if old is None or new is None:
        return None
    count, total = new.count - old.count, new.sum - old.sum
    return total / count if count > 0 and total >= 0 else None
