"""A report as Markdown: what a colleague reads who was not there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.compare import Comparison
from pdtui.fleet.preflight.grouping import Grouped, grouped, in_short, ping_table, reason_of, worst
from pdtui.fleet.preflight.outcome import WORST_FIRST, Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport, counts_words

LINES = 40
"""Lines of an answer that are kept."""

VERSIONS = ("driver", "firmware", "cann", "vllm", "vllm-ascend", "mooncake")
"""Checks whose results say which versions there are."""

_MARKS = {
    Outcome.PASS: "pass",
    Outcome.WARN: "**warn**",
    Outcome.FAIL: "**FAIL**",
    Outcome.UNKNOWN: "**?**",
    Outcome.NA: "n/a",
    Outcome.NOT_RUN: "not run",
}


def markdown_of(report: PreflightReport, comparison: Comparison | None = None) -> str:
    """Return the whole report, with what has changed since another one if there is a comparison."""
    return "\n".join(_lines(report, comparison)) + "\n"


def _lines(report: PreflightReport, comparison: Comparison | None) -> Iterator[str]:
    yield f"# Preflight of {_cell(report.cluster)}"
    yield ""
    yield from _summary(report)
    if comparison is not None:
        yield from _changes(comparison)
    for outcome, title in (
        (Outcome.FAIL, "Failed"),
        (Outcome.UNKNOWN, "Unknown"),
        (Outcome.WARN, "Warned"),
    ):
        found = grouped(report.results, outcome)
        if found:
            yield f"## {title}"
            yield ""
            for one in found:
                yield from _trouble(one)
    yield from _table(report)
    yield from _matrix(report)
    yield from _versions(report)
    yield from _reasons(report)


def _summary(report: PreflightReport) -> Iterator[str]:
    began = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(report.began))
    asked = f" (targets: {', '.join(report.targets)})" if report.targets else ""
    only = f" (only {', '.join(report.only)})" if report.only else ""
    yield f"**{counts_words(report.counts)}**"
    yield ""
    if not report.complete:
        yield "- stopped before its end: what follows is what was known by then"
    yield f"- when: {began}, {report.ended - report.began:.1f} s, by {_cell(report.by)}"
    yield f"- nodes: {in_short(report.nodes)}{asked}"
    yield f"- checks: {len(report.checks)}{only}"
    yield f"- topology file: SHA-256 {report.digest[:16]}"
    yield ""


def _changes(comparison: Comparison) -> Iterator[str]:
    yield f"## Against {_cell(comparison.old_name)}"
    yield ""
    if not comparison:
        yield "Nothing has changed."
    for title, changes in comparison.parts:
        for change in changes:
            yield f"- {title}: {_cell(change)}"
    yield ""


def _trouble(one: Grouped) -> Iterator[str]:
    result = one.result
    yield f"### {result.check}: {_cell(in_short(one.subjects))}"
    yield ""
    yield _cell(result.summary) + (f" ({_cell(result.known)})" if result.known else "")
    yield ""
    for evidence in result.evidence:
        at = time.strftime("%H:%M:%S", time.localtime(evidence.at))
        lines = evidence.raw.rstrip("\n").split("\n")
        cut = [f"... {len(lines) - LINES} more lines"] if len(lines) > LINES else []
        # Indented blocks: no text of a node can end them.
        yield from (f"    {line}".rstrip() for line in (f"# {at}", f"$ {evidence.command}", *lines[:LINES], *cut))
        yield ""
    if result.remedy:
        yield f"What to do: {_cell(result.remedy)}"
        yield ""


def _table(report: PreflightReport) -> Iterator[str]:
    """Yield the table of checks and nodes; what concerns no single node is in a column of its own."""
    found = worst(report.results)
    titles = {one.id: one.title for one in registered()}
    others = any(node not in report.nodes for _, node in found)
    columns = (*report.nodes, *(("cluster",) if others else ()))
    yield "## Checks"
    yield ""
    yield f"| check | {' | '.join(map(_cell, columns))} | |"
    yield f"|---|{'---|' * (len(columns) + 1)}"
    for check in report.checks:
        cells = []
        for column in columns:
            outcome = found.get((check, column))
            if column == "cluster":
                rest = [one for (name, node), one in found.items() if name == check and node not in report.nodes]
                outcome = min(rest, key=WORST_FIRST.index, default=None)
            cells.append(_MARKS[outcome] if outcome is not None else "")
        yield f"| {check} | {' | '.join(cells)} | {_cell(titles.get(check, ''))} |"
    yield ""


def _matrix(report: PreflightReport) -> Iterator[str]:
    if not report.pings:
        return
    head, rows = ping_table(report)
    yield "## Pings between NPUs, answered of all"
    yield ""
    yield f"| {' | '.join(map(_cell, head))} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _versions(report: PreflightReport) -> Iterator[str]:
    rows = [one for one in report.results if one.check in VERSIONS and one.summary]
    if not rows:
        return
    yield "## Versions"
    yield ""
    for one in rows:
        yield f"- {one.check}, {_cell(one.subject)}: {_cell(one.summary)}"
    yield ""


def _reasons(report: PreflightReport) -> Iterator[str]:
    """Yield why checks were not run or make no sense."""
    reasons: dict[tuple[Outcome, str], list[str]] = {}
    for one in report.results:
        if one.outcome in (Outcome.NOT_RUN, Outcome.NA):
            reasons.setdefault((one.outcome, _reason(one)), []).append(one.check)
    if not reasons:
        return
    yield "## Not run, not applicable"
    yield ""
    for (outcome, because), ids in reasons.items():
        yield f"- {outcome}: {', '.join(dict.fromkeys(ids))}: {_cell(because)}"
    yield ""


def _reason(one: Result) -> str:
    return reason_of(one) if one.outcome is Outcome.NOT_RUN else one.because or one.summary


def _cell(text: str) -> str:
    """Return text that ends no table cell, begins no HTML, link, list or block; nodes' words are not markup."""
    plain = text.replace("\n", " ").lstrip()
    begins_list = plain[:1] in ("-", "+", "=") or re.match(r"\d+[.)](?:\s|$)", plain)
    marked = "".join(f"\\{char}" if char in "\\`*_[]<>|#~&" else char for char in plain)
    return re.sub(r"[-+=.)]", r"\\\g<0>", marked, count=1) if begins_list else marked
