"""What a vLLM server logs of its work every ten seconds: requests, KV cache, throughput, transfers of KV.

Wording: vLLM's `v1/metrics/loggers.py` and the connectors' `stats.py`, and captured logs. Of a server that no
longer answers, so that its /metrics cannot be asked, this is what is known of its work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THROUGHPUT = re.compile(
    r"(?:Engine \d{1,6}: |\d{1,6} Engines Aggregated: )?"
    r"Avg prompt throughput: [\d.]{1,20} tokens/s, "
    r"Avg generation throughput: (?P<generation>[\d.]{1,20}) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs, "
    r"(?:Swapped: \d{1,9} reqs, Pending: (?P<pending>\d{1,9}) reqs|Waiting: (?P<waiting>\d{1,9}) reqs)"
    r"(?:, Deferred: (?P<deferred>\d{1,9}) reqs)?"
)
"""Version 0.7 and older: no engine, Swapped and Pending. The rest of the line is read part by part."""
_PREEMPTIONS = re.compile(r", Preemptions: (\d{1,9})")
_KV_USAGE = re.compile(r", \w{1,20} KV cache usage: ([\d.]{1,20})%")


@dataclass(frozen=True, slots=True)
class Throughput:
    """A server's work since its last such line; None where the line does not say it."""

    generation_tokens_per_s: float
    running: int
    waiting: int
    deferred: int | None = None
    """Of the waiting ones, those that may not run yet: their KV is under way."""
    preemptions: int | None = None
    kv_usage: float | None = None
    """0 to 1."""


def throughput_of(line: str) -> Throughput | None:
    """Return what a throughput line says; None for any other line."""
    match = _THROUGHPUT.search(line)
    if match is None:
        return None
    preemptions, usage = _PREEMPTIONS.search(line), _KV_USAGE.search(line)
    try:
        return Throughput(
            float(match["generation"]),
            int(match["running"]),
            int(match["waiting"] or match["pending"] or 0),
            int(match["deferred"]) if match["deferred"] else None,
            int(preemptions[1]) if preemptions else None,
            float(usage[1]) / 100 if usage else None,
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
    )
