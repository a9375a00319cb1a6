"""What whoever watches a preflight gets to know while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.report import PreflightReport


@dataclass(frozen=True, slots=True)
class Began:
    """It runs."""

    nodes: tuple[str, ...]
    checks: tuple[str, ...]
    at: float


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """How far one node is."""

    node: str
    done: int
    total: int
    """Answers; grows when more is asked."""
    waits_for: str = ""
    """The call, of those that are out, that was sent first; empty: none is out."""
    since: float = 0.0
    """Wall clock at which that was sent."""


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """One node has answered, or its time is over: what its own checks say."""

    node: str
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class AcrossProgress:
    """What is asked between the nodes now that each has answered."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Ended:
    """All is said; always the last event."""

    report: PreflightReport


PreflightEvent = Began | NodeProgress | NodeEnded | AcrossProgress | Ended
