"""What a check says: an outcome, in words, with what it rests on and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdtui.readings.verdict import Verdict


class Outcome(StrEnum):
    """How a check ended. Unknown (no answer, a hang, an unreadable answer) is neither good nor bad."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NA = "n/a"
    """It makes no sense here: no NPUs, a plane that is not deployed."""
    NOT_RUN = "not run"
    """Something before it failed: `because` says what."""


BAD = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN)
"""Outcomes that call for an operator, worst first."""

WORST_FIRST = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN, Outcome.NOT_RUN, Outcome.PASS, Outcome.NA)
"""The order in which results are shown."""

OF_VERDICT: Mapping[Verdict, Outcome] = {
    Verdict.HEALTHY: Outcome.PASS,
    Verdict.DEGRADED: Outcome.WARN,
    Verdict.FAILED: Outcome.FAIL,
    Verdict.UNKNOWN: Outcome.UNKNOWN,
    Verdict.NA: Outcome.NA,
}
"""What a verdict on one reading is as the outcome of a check."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer that a result rests on."""

    command: str
    raw: str
    at: float
    """Wall clock (ours)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of one device, rank or node, before it is known which."""

    outcome: Outcome
    summary: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check says of one subject."""

    check: str
    subject: str
    """`cluster`, `node3`, `node3/9` (NPU), `decode/17` (rank), `node3/9 -> node1/2`."""
    outcome: Outcome
    summary: str
    remedy: str = ""
    evidence: tuple[Evidence, ...] = ()
    because: str = ""
    """Why it was not run, or makes no sense here."""
    by_choice: bool = False
    """It was not run because nobody asked for it: that is no reason to call the cluster not good."""
    known: str = ""
    """Who has acknowledged it, until when and why: shown as known, and no reason to call the cluster not good."""
