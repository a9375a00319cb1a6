"""One verdict for an NPU, and why. How it is reached is in `judge`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How an NPU is. Unknown (no answer, busy, empty, timed out, unreadable) is neither healthy nor failed."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    NA = "n/a"


SEVERITY = {
    Verdict.NA: 0,
    Verdict.HEALTHY: 1,
    Verdict.DEGRADED: 2,
    Verdict.UNKNOWN: 3,
    Verdict.FAILED: 4,
}
"""Which verdict counts when several things are said of one NPU: the highest."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for a verdict, with what it rests on."""

    verdict: Verdict
    summary: str
    """In the operator's words: `vnic link DOWN`."""
    command: str = ""
    """What was asked, as a shell line."""
    raw: str = ""
    """The cleaned answer."""
    observed_at: float | None = None
    remedy: str = ""
    """What to do about it."""
    id: str = ""
    """Stable name of this kind of reason, `link-down`; each has one verdict (see `reasons`)."""
    meaning: str = ""
    """What it means for the NPU and the ranks on it."""
