"""What came out of a preflight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.fleet.preflight.outcome import WORST_FIRST, Outcome, Result


@dataclass(frozen=True)
class PreflightReport:
    """One run, whole or as far as it came."""

    cluster: str
    digest: str
    """Of the topology file."""
    by: str
    began: float
    ended: float
    nodes: tuple[str, ...]
    checks: tuple[str, ...]
    results: tuple[Result, ...]
    """In the order of the checks, then of the nodes."""
    targets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    complete: bool = True
    """Whether it came to its end."""

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many results there are of each outcome."""
        return Counter(result.outcome for result in self.results)

    def good(self, *, allow_unknown: bool = False) -> bool:
        """Whether nothing failed, and (unless it is allowed) nothing is unknown."""
        counts = self.counts
        return not counts[Outcome.FAIL] and (allow_unknown or not counts[Outcome.UNKNOWN])


def counts_words(counts: Mapping[Outcome, int]) -> str:
    """Return how many results there are of each outcome, the worst first: `2 fail, 1 unknown, 120 pass`."""
    return (
        ", ".join(f"{counts[outcome]} {outcome}" for outcome in WORST_FIRST if counts.get(outcome)) or "no results"
    )
