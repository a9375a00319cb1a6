"""What a static rule found: one type for the loader, the rules and their readers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a static rule, with the place in the file that it is about."""

    rule: str
    severity: Severity
    message: str
    """Names both sides of a contradiction and the remedy, in the operator's words."""
    file: str
    line: int
    """From 1; 0 when the finding is about the file as a whole."""
    column: int
    """From 1; 0 when the finding is about the file as a whole."""
    path: str
    """Keys from the top, joined by dots: `groups.decode.kv_port`."""
