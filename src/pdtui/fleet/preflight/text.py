"""A report as text for a terminal or a mail: what is wrong first, with evidence and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdtui.fleet.preflight.compare import Comparison
from pdtui.fleet.preflight.grouping import Grouped, grouped, in_short, ping_table, reason_of
from pdtui.fleet.preflight.outcome import BAD, Evidence, Outcome
from pdtui.fleet.preflight.report import PreflightReport, counts_words

LINES = 8
"""Lines of an answer that are shown; JSON has all."""

LONG = 300
"""Characters of a line of an answer that are shown."""

_HEADS = {
    Outcome.FAIL: "FAILED",
    Outcome.UNKNOWN: "UNKNOWN: neither good nor bad",
    Outcome.WARN: "WARNED",
}


def text_of(report: PreflightReport, *, every: bool = False) -> Iterator[str]:
    """Yield the lines of a report; with `every` also each thing that is as it should be."""
    seconds = report.ended - report.began
    stopped = "" if report.complete else ", stopped early"
    nodes = f"{len(report.nodes)} node{'s' if len(report.nodes) != 1 else ''}"
    checks = f"{len(report.checks)} check{'s' if len(report.checks) != 1 else ''}"
    yield f"{report.cluster}: {nodes}, {checks}, {seconds:.1f} s{stopped}: {counts_words(report.counts)}"
    untold = [one for one in report.results if not one.known]
    for outcome, head in _HEADS.items():
        found = grouped(untold, outcome)
        if found:
            yield ""
            yield head
            for ids, one in _alike(found):
                yield from _trouble(ids, one)
    yield from _known(report)
    yield from _matrix(report)
    yield from _not_run(report)
    yield from _passed(report, every=every)
    yield from _not_applicable(report, every=every)


def _alike(found: Sequence[Grouped]) -> Iterator[tuple[str, Grouped]]:
    """Yield what several checks say in the same words of the same subjects once: a tool that hangs stops many."""
    same: dict[tuple[tuple[str, ...], str, str], list[Grouped]] = {}
    for one in found:
        same.setdefault((one.subjects, one.result.summary, one.result.remedy), []).append(one)
    for members in same.values():
        yield ", ".join(dict.fromkeys(one.result.check for one in members)), members[0]


def _trouble(ids: str, one: Grouped) -> Iterator[str]:
    yield f"  {ids}  {in_short(one.subjects)}: {one.result.summary}"
    for evidence in one.result.evidence[:1]:
        yield from _evidence(evidence)
    if one.result.remedy:
        yield f"      do: {one.result.remedy}"


def _known(report: PreflightReport) -> Iterator[str]:
    """Yield what is wrong and acknowledged, with who knows of it."""
    known = [one for one in report.results if one.known]
    if not known:
        return
    yield ""
    yield "ACKNOWLEDGED: no longer counted"
    for outcome in BAD:
        for one in grouped(known, outcome):
            yield f"  {one.result.check}  {in_short(one.subjects)}: {outcome}: {one.result.summary}"
            yield f"      {one.result.known}"


def _evidence(evidence: Evidence) -> Iterator[str]:
    yield f"      $ {evidence.command}"
    lines = [line for line in evidence.raw.split("\n") if line.strip()]
    for line in lines[:LINES]:
        yield f"        {line[:LONG]}{'…' if len(line) > LONG else ''}"
    if len(lines) > LINES:
        yield f"        … {len(lines) - LINES} more lines (--json has them)"


def _matrix(report: PreflightReport) -> Iterator[str]:
    if not report.pings:
        return
    head, rows = ping_table(report)
    widths = [max(len(row[index]) for row in (head, *rows)) for index in range(len(head))]
    yield ""
    for row in (head, *rows):
        cells = (cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def _not_run(report: PreflightReport) -> Iterator[str]:
    """Yield what was not run by the reason: one node that is not reached is one line."""
    reasons: dict[str, list[str]] = {}
    for one in report.results:
        if one.outcome is Outcome.NOT_RUN:
            reasons.setdefault(reason_of(one), []).append(one.check)
    if reasons:
        yield ""
        yield "NOT RUN"
    for because, ids in reasons.items():
        names = list(dict.fromkeys(ids))
        yield f"  {', '.join(names) if len(names) <= 6 else f'{len(names)} checks'}  {because}"


def _passed(report: PreflightReport, *, every: bool) -> Iterator[str]:
    good = [one for one in report.results if one.outcome is Outcome.PASS]
    if not good:
        return
    yield ""
    yield "PASSED"
    if every:
        for one in grouped(report.results, Outcome.PASS):
            yield f"  {one.result.check}  {in_short(one.subjects)}: {one.result.summary}"
        return
    troubled = {one.check for one in report.results if one.outcome not in (Outcome.PASS, Outcome.NA)}
    whole = [name for name in dict.fromkeys(one.check for one in good) if name not in troubled]
    partly = [name for name in dict.fromkeys(one.check for one in good) if name in troubled]
    if whole:
        yield from _wrapped(whole, "  ")
    if partly:
        yield from _wrapped(partly, "  in part: ")


def _wrapped(words: Sequence[str], first: str, width: int = 100) -> Iterator[str]:
    line, rest = first, " " * len(first)
    for index, word in enumerate(words):
        piece = word + (", " if index < len(words) - 1 else "")
        if len(line) + len(piece) > width and line.strip():
            yield line.rstrip()
            line = rest
        line += piece
    yield line


def _not_applicable(report: PreflightReport, *, every: bool) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in report.results:
        if one.outcome is Outcome.NA:
            reasons.setdefault(one.because or one.summary, []).append(one.check)
    if not reasons:
        return
    yield ""
    yield "NOT APPLICABLE"
    for because, ids in reasons.items():
        names = list(dict.fromkeys(ids))
        many = len(names) > 8 and not every
        yield f"  {f'{len(names)} checks' if many else ', '.join(names)}: {because}"


def comparison_of(found: Comparison) -> Iterator[str]:
    """Yield the lines that say what has changed since an earlier report."""
    yield f"AGAINST {found.old_name}"
    if not found:
        yield "  nothing has changed"
    for title, changes in found.parts:
        for change in changes:
            yield f"  {title}: {change}"
