"""What a static rule found: one type for the loader, the rules and their readers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the file."""


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
    accepted: str = ""
    """Why the file accepts it; empty when it does not."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule reports; the loader looks up where its path stands and makes a `Finding` of it."""

    rule: str
    severity: Severity
    message: str
    path: Path
    on_key: bool = False
    """The key is the trouble, not its value."""
    mark: tuple[int, int] | None = None
    """Line and column, when they are known without the path."""
    accepted: str = ""
    """Why the file accepts it."""
