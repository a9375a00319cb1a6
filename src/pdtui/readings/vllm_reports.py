"""What a vLLM server logs of its work every ten seconds: throughput, speculative decoding, transfers of KV.

Wording: vLLM's `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py` and the connectors' `stats.py`, and captured
logs. Servers whose /metrics cannot be asked say this much; of Mooncake's expired requests it is all there is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THROUGHPUT = re.compile(
    r"(?:Engine (?P<engine>\d{1,6}): |(?P<engines>\d{1,6}) Engines Aggregated: )?"
    r"Avg prompt throughput: (?P<prompt>[\d.]{1,20}) tokens/s, "
    r"Avg generation throughput: (?P<generation>[\d.]{1,20}) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs, "
    r"(?:Swapped: \d{1,9} reqs, Pending: (?P<pending>\d{1,9}) reqs|Waiting: (?P<waiting>\d{1,9}) reqs)"
    r"(?:, Deferred: (?P<deferred>\d{1,9}) reqs)?"
)
"""Version 0.7 and older: no engine, Swapped and Pending. The rest of the line is read part by part."""
_FETCHES = re.compile(
    r", KV fetch: (\d{1,9}) waiting to start, (\d{1,9}) in progress, (\d{1,9}) completed waiting"
)
_PREEMPTIONS = re.compile(r", Preemptions: (\d{1,9})")
_KV_USAGE = re.compile(r", \w{1,20} KV cache usage: ([\d.]{1,20})%")
_HIT_RATE = re.compile(r", Prefix cache hit rate: ([\d.]{1,20})%")
_EXTERNAL_HIT_RATE = re.compile(r", External prefix cache hit rate: ([\d.]{1,20})%")


@dataclass(frozen=True, slots=True)
class Throughput:
    """A server's work since its last such line; shares are 0 to 1, None where the line does not say it."""

    engine: int | None
    """None: all engines of the server together."""
    prompt_tokens_per_s: float
    """Prompt tokens that it computed; newer versions leave pulled ones out."""
    generation_tokens_per_s: float
    running: int
    waiting: int
    deferred: int | None = None
    """Of the waiting ones, those that may not run yet: their KV is under way."""
    fetching: tuple[int, int, int] | None = None
    """KV fetches that wait to start, are in progress, and are done while their request waits."""
    preemptions: int | None = None
    kv_usage: float | None = None
    hit_rate: float | None = None
    external_hit_rate: float | None = None
    """Share of prompt tokens whose KV came over the connector, of those for which it was asked."""


def throughput_of(line: str) -> Throughput | None:
    """Return what a throughput line says; None for any other line."""
    match = _THROUGHPUT.search(line)
    if match is None:
        return None
    fetches, preemptions = _FETCHES.search(line), _PREEMPTIONS.search(line)
    try:
        return Throughput(
            int(match["engine"]) if match["engine"] else None,
            float(match["prompt"]),
            float(match["generation"]),
            int(match["running"]),
            int(match["waiting"] or match["pending"] or 0),
            int(match["deferred"]) if match["deferred"] else None,
            (int(fetches[1]), int(fetches[2]), int(fetches[3])) if fetches else None,
            int(preemptions[1]) if preemptions else None,
            _share(_KV_USAGE, line),
            _share(_HIT_RATE, line),
            _share(_EXTERNAL_HIT_RATE, line),
        )
    except ValueError:
        return None


def _share(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return float(match[1]) / 100 if match else None


_DRAFTING = re.compile(r"SpecDecoding metrics: (?P<said>.{1,1000})$")
_LENGTH = re.compile(r"Mean acceptance length: ([\d.]{1,20})")
_ACCEPTED = re.compile(r"Accepted: (\d{1,12}) tokens, Drafted: (\d{1,12}) tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: (\d\.\d{1,6}(?:, \d\.\d{1,6}){0,63})")
_RATE = re.compile(r"[Dd]raft acceptance rate: ([\d.]{1,20})%")


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculative decoding since the last such line; shares are 0 to 1, None where the line does not say it."""

    accepted: int
    drafted: int
    acceptance: float | None = None
    mean_length: float | None = None
    """Tokens a step, the model's own one included; since version 0.10."""
    by_position: tuple[float, ...] = ()


def drafting_of(line: str) -> Drafting | None:
    """Return what a line about speculative decoding says; None for any other line."""
    match = _DRAFTING.search(line)
    counts = _ACCEPTED.search(match["said"]) if match is not None else None
    if match is None or counts is None:
        return None
    said = match["said"]
    length, positions = _LENGTH.search(said), _POSITIONS.search(said)
    try:
        return Drafting(
            int(counts[1]),
            int(counts[2]),
            _share(_RATE, said),
            float(length[1]) if length else None,
            tuple(float(part) for part in positions[1].split(", ")) if positions else (),
        )
    except ValueError:
        return None


_TRANSFERS = re.compile(r"KV Transfer metrics: (?P<pairs>.{1,1000})$")
_PAIR = re.compile(r"(?P<name>[A-Z][\w ()/]{0,60})=(?P<value>[\d.]{1,20})")


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers of KV since the last such line; 0 where a connector does not say it."""

    done: int = 0
    failed: int = 0
    expired: int = 0
    """Requests whose KV was given up before it was fetched; said by the rank that had it."""
    late: int = 0
    """Fetches that ended after that."""
    mean_ms: float = 0.0
    p90_ms: float = 0.0
    megabytes: float = 0.0
    """Mean of one transfer."""
    megabytes_per_s: float = 0.0


def transfers_of(line: str) -> Transfers | None:
    """Return what a line about KV transfers says; None for any other line, or one that says none of it."""
    match = _TRANSFERS.search(line)
    if match is None:
        return None
    try:
        said = {pair["name"]: float(pair["value"]) for pair in _PAIR.finditer(match["pairs"])}
    except ValueError:
        return None
    if "Num successful transfers" not in said:
        return None
    return Transfers(
        done=int(said["Num successful transfers"]),
        failed=int(said.get("Num failed transfers", 0) + said.get("Num failed recvs", 0)),
        expired=int(said.get("Num KV expired reqs", 0)),
        late=int(said.get("Num notifs after expiry", 0)),
        mean_ms=said.get("Avg xfer time (ms)", 0.0),
        p90_ms=said.get("P90 xfer time (ms)", 0.0),
        megabytes=said.get("Avg MB per transfer", 0.0),
        megabytes_per_s=said.get("Throughput (MB/s)", 0.0),
    )
