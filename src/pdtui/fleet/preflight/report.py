"""What came out of a preflight, and its form as JSON: an interface, by `SCHEMA_VERSION`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pdtui.errors import FileError
from pdtui.fleet.preflight.outcome import BAD, WORST_FIRST, Evidence, Outcome, Result
from pdtui.fleet.snapshot import Acknowledgement, acknowledgement
from pdtui.fleet.troubles import known_words
from pdtui.text import clean, clean_line
from pdtui.topology.redact import redacted_text

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class PingCell:
    """One ping between two NPUs: a cell of the matrix."""

    source: str
    """`node3/9`."""
    target: str
    plane: str
    """`roce` or `hccs`."""
    outcome: Outcome
    summary: str
    again: bool = False
    """A second look, because another ping had failed."""


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
    pings: tuple[PingCell, ...] = ()
    """In the order of their sources and targets; empty when nobody was pinged."""
    complete: bool = True
    """Whether it came to its end."""

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many results there are of each outcome."""
        return Counter(result.outcome for result in self.results)

    def good(self, *, allow_unknown: bool = False) -> bool:
        """Whether it came to its end, nothing failed, and (unless it is allowed) nothing is unknown.

        What was not run, and not by choice, is not known to be good either. What is acknowledged does not count.
        """
        counted = [one for one in self.results if not one.known]
        failed = any(one.outcome is Outcome.FAIL for one in counted)
        unknown = any(
            one.outcome is Outcome.UNKNOWN or (one.outcome is Outcome.NOT_RUN and not one.by_choice)
            for one in counted
        )
        return self.complete and not failed and (allow_unknown or not unknown)

    def with_known(self, acknowledgements: Sequence[Acknowledgement]) -> PreflightReport:
        """Return it with what is wrong and acknowledged marked as known."""
        return replace(self, results=tuple(_marked(one, acknowledgements) for one in self.results))

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints. Times are wall clock, seconds since the epoch."""
        return {
            "schema_version": SCHEMA_VERSION,
            "cluster": self.cluster,
            "file_digest": self.digest,
            "by": self.by,
            "began": round(self.began, 3),
            "ended": round(self.ended, 3),
            "complete": self.complete,
            "targets": list(self.targets),
            "only": list(self.only),
            "nodes": list(self.nodes),
            "checks": list(self.checks),
            "counts": {outcome.value: self.counts.get(outcome, 0) for outcome in Outcome},
            "results": [asdict(result) for result in self.results],
            "pings": [asdict(cell) for cell in self.pings],
        }


def _marked(result: Result, acknowledgements: Sequence[Acknowledgement]) -> Result:
    if result.outcome not in BAD:
        return result
    found = acknowledgement(acknowledgements, f"{result.subject}:{result.check}")
    return result if found is None else replace(result, known=shown_line(known_words(found)))


def hidden(result: Result) -> Result:
    """Return a result without secrets and without what a terminal would take for commands.

    Only an answer has lines: what a node said must not look like another result.
    """
    return replace(
        result,
        check=clean_line(result.check),
        subject=shown_line(result.subject),
        summary=shown_line(result.summary),
        remedy=shown_line(result.remedy),
        because=shown_line(result.because),
        known=shown_line(result.known),
        evidence=tuple(
            replace(one, command=shown_line(one.command), raw=redacted_text(clean(one.raw)))
            for one in result.evidence
        ),
    )


def shown_line(text: str) -> str:
    """Return words of a node on one line, without secrets."""
    return redacted_text(clean_line(text))


def counts_words(counts: Mapping[Outcome, int]) -> str:
    """Return how many results there are of each outcome, the worst first: `2 fail, 1 unknown, 120 pass`."""
    words = [f"{counts[outcome]} {outcome}" for outcome in WORST_FIRST if counts.get(outcome)]
    return ", ".join(words) or "no results"


def read_report(path: Path) -> PreflightReport:
    """Read what `--json` printed. Raises `FileError` for a file that cannot be read or is no such report."""
    remedy = f"pdtui preflight FILE --json > {path.name} makes one"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}", remedy=remedy) from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: no JSON: {clean_line(str(error))}", remedy=remedy) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise FileError(f"{path}: no report of a preflight in version {SCHEMA_VERSION} of its form", remedy=remedy)
    try:
        return _from_json(data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path}: not a whole report: {clean_line(str(error))}", remedy=remedy) from None


def _from_json(data: Mapping[str, Any]) -> PreflightReport:
    results = tuple(
        hidden(
            Result(
                str(one["check"]),
                str(one["subject"]),
                Outcome(one["outcome"]),
                str(one["summary"]),
                str(one["remedy"]),
                tuple(Evidence(str(e["command"]), str(e["raw"]), float(e["at"])) for e in one["evidence"]),
                str(one["because"]),
                bool(one["by_choice"]),
                str(one.get("known", "")),
            )
        )
        for one in data["results"]
    )
    return PreflightReport(
        cluster=clean_line(str(data["cluster"])),
        digest=clean_line(str(data["file_digest"])),
        by=clean_line(str(data["by"])),
        began=float(data["began"]),
        ended=float(data["ended"]),
        nodes=tuple(clean_line(str(name)) for name in data["nodes"]),
        checks=tuple(clean_line(str(name)) for name in data["checks"]),
        results=results,
        targets=tuple(clean_line(str(word)) for word in data["targets"]),
        only=tuple(clean_line(str(word)) for word in data["only"]),
        complete=bool(data["complete"]),
        pings=tuple(
            PingCell(
                clean_line(str(one["source"])),
                clean_line(str(one["target"])),
                clean_line(str(one["plane"])),
                Outcome(one["outcome"]),
                shown_line(str(one["summary"])),
                bool(one["again"]),
            )
            for one in data["pings"]
        ),
    )
