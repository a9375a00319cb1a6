"""/metrics of a vLLM server: the few series that say how it works, under their old and new names.

Series: vLLM's `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py` and its NIXL connector's `stats.py`; other
connectors count nothing. Labels come in any order, counters with or without `_total`; a server with several
engines has a series for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_PROMPT = "vllm:prompt_tokens_total"
_GENERATION = "vllm:generation_tokens_total"
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_QUERIES = "vllm:external_prefix_cache_queries_total"
_HITS = "vllm:external_prefix_cache_hits_total"
_PREEMPTIONS = "vllm:num_preemptions_total"
_ENDED = "vllm:request_success_total"
_TTFT = ("vllm:time_to_first_token_seconds",)
_TPOT = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
_LATE = "vllm:nixl_num_notifications_after_expiry_total"
_FAILED = "vllm:nixl_num_failed_transfers_total"

KEEP: tuple[str, ...] = (
    _RUNNING,
    _WAITING,
    *_KV,
    _PROMPT,
    _GENERATION,
    _BY_SOURCE,
    _QUERIES,
    _HITS,
    _PREEMPTIONS,
    _ENDED,
    *(f"{name}_{part}" for name in (*_TTFT, *_TPOT) for part in ("sum", "count")),
    _DRAFTS,
    _DRAFTED,
    _ACCEPTED,
    _BY_POSITION,
    _EXPIRED,
    _LATE,
    _FAILED,
)
"""Names of samples to keep where text is filtered on the node: 2 KB of 60 come over the line."""

_APART = {_BY_SOURCE: "source", _ENDED: "finished_reason", _BY_POSITION: "position"}
"""Series that are kept apart by a label; all others are summed over theirs."""
_SAMPLE = re.compile(
    r"(?P<name>[\w:]{1,100})"
    r'(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?'
    r"\s+(?P<value>\S{1,40})(?:\s+-?[\d.]{1,20})?\s*$"
)
"""A sample in Prometheus' text format, exposition 0.0.4."""
_LABEL = re.compile(r'(\w{1,100})\s*=\s*"((?:[^"\\]|\\.)*+)"')
_SHARES = frozenset(_KV)
"""Series of which several engines' mean is taken, not their sum."""
_POSITIONS = 64
"""Drafted tokens a step that are believed; more are a broken label."""


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
    """Prompt tokens that the server says it computed itself; see `own_prompt_tokens`."""
    cached_tokens: float | None = None
    """Prompt tokens whose KV was in its own prefix cache."""
    transferred_tokens: float | None = None
    """Prompt tokens whose KV came over the connector."""
    external_queries: float | None = None
    """Prompt tokens for whose KV the connector was asked, and of these the ones that it had."""
    external_hits: float | None = None
    preemptions: float | None = None
    ttft: Mean | None = None
    tpot: Mean | None = None
    drafts: float | None = None
    """Steps of speculative decoding, the tokens drafted in them, and of these the ones that the model took."""
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    expired_leases: float | None = None
    late_pulls: float | None = None
    failed_transfers: float | None = None
    errors: float | None = None
    aborts: float | None = None

    @property
    def own_prompt_tokens(self) -> float | None:
        """Prompt tokens that it computed itself.

        Some versions count a pulled prompt as computed too, or its last token; the tokens that came from elsewhere
        are right in all. Versions without sources say what the connector was asked for and did not have, which
        counts a preempted request again.
        """
        own = self.local_prefill_tokens
        if self.prompt_tokens is not None and self.transferred_tokens is not None:
            rest = max(0.0, self.prompt_tokens - self.transferred_tokens - (self.cached_tokens or 0.0))
            return rest if own is None else min(own, rest)
        if own is not None or self.external_queries is None or self.external_hits is None:
            return own
        if self.prompt_tokens and not self.external_queries:
            return None  # It has no connector.
        return max(0.0, self.external_queries - self.external_hits)

    @property
    def external_share(self) -> float | None:
        """Share of its prompt tokens whose KV came over the connector, 0 to 1; None before the first prompt."""
        return self.external_share_without(0.0)

    def external_share_without(self, tokens: float) -> float | None:
        """Return the same without so many prompt tokens that it computed itself: those of a warm-up."""
        part, whole = self.transferred_tokens, self.prompt_tokens
        if part is None:
            part, whole = self.external_hits, self.external_queries
        return _share(part, whole - tokens if whole is not None else None)


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two readings; None when it cannot be said."""

    seconds: float
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    prompt_tokens: float | None = None
    """How many in this time, and of these the ones that it computed itself."""
    own_prompt_tokens: float | None = None
    requests: float | None = None
    """Requests that got their first token."""
    preempted: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    acceptance: float | None = None
    """Share of the drafted tokens that were taken."""
    accepted_length: float | None = None
    """Tokens a step, the model's own one included."""
    acceptance_by_position: tuple[float, ...] = ()
    expired_leases: float | None = None
    late_pulls: float | None = None


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
        cached_tokens=sums.get((_BY_SOURCE, "local_cache_hit")),
        transferred_tokens=sums.get((_BY_SOURCE, "external_kv_transfer")),
        external_queries=sums.get((_QUERIES, "")),
        external_hits=sums.get((_HITS, "")),
        preemptions=sums.get((_PREEMPTIONS, "")),
        ttft=_mean(sums, _TTFT),
        tpot=_mean(sums, _TPOT),
        drafts=sums.get((_DRAFTS, "")),
        drafted_tokens=sums.get((_DRAFTED, "")),
        accepted_tokens=sums.get((_ACCEPTED, "")),
        accepted_by_position=_by_position(sums),
        expired_leases=sums.get((_EXPIRED, "")),
        late_pulls=sums.get((_LATE, "")),
        failed_transfers=sums.get((_FAILED, "")),
        errors=sums.get((_ENDED, "error")),
        aborts=sums.get((_ENDED, "abort")),
    )


def rates(old: MetricsReading, new: MetricsReading) -> Rates | None:
    """Return what happened between two readings; None when the second is not later.

    A counter that has gone back belongs to a server that was started anew: its rate cannot be said.
    """
    seconds = new.at - old.at
    if seconds <= 0:
        return None
    drafts = _grown(old.drafts, new.drafts)
    accepted = _grown(old.accepted_tokens, new.accepted_tokens)
    length = _share(accepted, drafts)
    return Rates(
        seconds,
        _per_second(old.prompt_tokens, new.prompt_tokens, seconds),
        _per_second(old.generation_tokens, new.generation_tokens, seconds),
        prompt_tokens=_grown(old.prompt_tokens, new.prompt_tokens),
        own_prompt_tokens=_grown(old.own_prompt_tokens, new.own_prompt_tokens),
        requests=_grown(old.ttft.count, new.ttft.count) if old.ttft and new.ttft else None,
        preempted=_grown(old.preemptions, new.preemptions),
        ttft_s=_mean_since(old.ttft, new.ttft),
        tpot_s=_mean_since(old.tpot, new.tpot),
        acceptance=_share(accepted, _grown(old.drafted_tokens, new.drafted_tokens)),
        accepted_length=None if length is None else 1.0 + length,
        acceptance_by_position=_positions_since(old, new, drafts),
        expired_leases=_grown(old.expired_leases, new.expired_leases),
        late_pulls=_grown(old.late_pulls, new.late_pulls),
    )


def _sums(text: str) -> dict[tuple[str, str], float]:
    """Sum the kept samples over engines and models, apart by name and by the label that matters."""
    sums: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], int] = {}
    for key, value in _samples(text):
        if 0 <= value < float("inf"):
            sums[key] = sums.get(key, 0.0) + value
            counts[key] = counts.get(key, 0) + 1
    return {key: value / counts[key] if key[0] in _SHARES else value for key, value in sums.items()}


_WANTED = frozenset(KEEP)
_NAMES = _WANTED | {name.removesuffix("_total") for name in KEEP}
_LONGEST = 512
"""Characters of a series that is remembered."""


def _samples(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield name and label of each sample that matters, with its value.

    /metrics has hundreds, most of them buckets; each line is read by itself, so a broken one loses nothing else.
    """
    for line in text.split("\n"):
        series, _, number = line.rpartition(" ")
        key = _series(series) if len(series) <= _LONGEST else None
        if key is None:  # No sample, or one with a time behind the value, or with blanks of its own.
            match = _SAMPLE.match(line) if line.split("{", 1)[0].split(" ", 1)[0] in _NAMES else None
            if match is None:
                continue
            key, number = _key(match["name"], match["labels"] or ""), match["value"]
        elif key is _OTHER:
            continue
        try:
            yield key, float(number)
        except ValueError:
            continue


_OTHER = ("", "")
"""A series that does not matter."""


@lru_cache(maxsize=1 << 14)
def _series(text: str) -> tuple[str, str] | None:
    """Return name and label of a series, which is the same text in every answer; None when it is none.

    As many are remembered as five hundred servers have that matter.
    """
    match = _SAMPLE.match(f"{text} 0")
    if match is None or match.end("value") <= len(text):
        return None
    if match["name"] not in _NAMES:
        return _OTHER
    return _key(match["name"], match["labels"] or "")


def _key(name: str, labels: str) -> tuple[str, str]:
    full = name if name in _WANTED else f"{name}_total"
    return full, dict(_LABEL.findall(labels)).get(_APART[full], "") if full in _APART else ""


def _by_position(sums: Mapping[tuple[str, str], float]) -> tuple[float, ...]:
    found = {key[1]: value for key, value in sums.items() if key[0] == _BY_POSITION}
    positions: list[float] = []
    while len(positions) < _POSITIONS and str(len(positions)) in found:
        positions.append(found[str(len(positions))])
    return tuple(positions)


def _positions_since(old: MetricsReading, new: MetricsReading, drafts: float | None) -> tuple[float, ...]:
    before, now = old.accepted_by_position, new.accepted_by_position
    if not drafts or len(before) != len(now):
        return ()
    grown = [_share(_grown(was, is_now), drafts) for was, is_now in zip(before, now, strict=True)]
    return tuple(share for share in grown if share is not None) if None not in grown else ()


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


def _share(part: float | None, whole: float | None) -> float | None:
    """Return part of whole; None when either is not known or the whole is nothing."""
    return part / whole if part is not None and whole is not None and whole > 0 else None


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
