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
