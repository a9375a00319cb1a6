"""Leases: who works on which ranks of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Who works on which ranks of a node: what a console writes beside the records while an operation runs."""

    id: str
    """One for all nodes of an operation."""
    holder: str
    """The console; its own operations are never in each other's way through leases."""
    by: str
    origin: str
    """Where the operator sits."""
    verb: str
    what: str
    """`group decode`."""
    ranks: tuple[str, ...]
    """Those of this node."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """How somebody's lease was taken from him."""

    by: str
    origin: str
    reason: str
    expired: bool = False
    """It had not been renewed in time: nobody broke it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its node sees it; durations instead of the node's times."""

    claim: LeaseClaim
    age: float
    """Seconds since it was taken."""
    left: float
    """Seconds until it ends by itself unless it is renewed."""
    end: LeaseEnd | None = None


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What became of taking or renewing a lease."""

    outcome: Literal["held", "refused", "broken"]
    leases: tuple[Lease, ...] = ()
    """Refused: those in the way. Held: those that were broken for it. Broken: the own one, with its end."""
