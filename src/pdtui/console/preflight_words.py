"""What a preflight says, as findings and lines; no widgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len, set_cell_size

from pdtui.console.chrome import NARROW
from pdtui.console.findings import Finding, Findings, Shown
from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.preflight_run import CLUSTER, Run
from pdtui.console.rows import BLANK, Row
from pdtui.console.strings import S
from pdtui.console.timing import clock_time, duration
from pdtui.fleet.preflight.grouping import in_short, ping_table
from pdtui.fleet.preflight.outcome import BAD, WORST_FIRST, Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.snapshot import Snapshot
from pdtui.topology.model import Topology

SIGNS: Mapping[Outcome, str] = {
    Outcome.FAIL: "failed",
    Outcome.UNKNOWN: "unknown",
    Outcome.WARN: "degraded",
    Outcome.NOT_RUN: "not_run",
    Outcome.PASS: "healthy",
    Outcome.NA: "blank",
}
"""Names of glyphs."""
STYLES: Mapping[Outcome, str] = {
    Outcome.FAIL: "failed",
    Outcome.UNKNOWN: "unknown",
    Outcome.WARN: "warning",
    Outcome.NOT_RUN: "dim",
    Outcome.PASS: "healthy",
    Outcome.NA: "dim",
}
_FOLDED = 4
"""Checks that are named of those that were not run for the same reason."""


def words_of(result: Result) -> str:
    """Return what a result says."""
    return result.summary or result.because


def finding_of(result: Result, snapshot: Snapshot, *, new: bool) -> Finding:
    """Return a result as a finding."""
    key = key_of(result, snapshot)
    word = S.outcomes[result.outcome]
    return Finding(
        f"{result.subject}  {result.check}" if result.subject != CLUSTER else result.check,
        words_of(result),
        STYLES[result.outcome] if result.outcome not in (Outcome.PASS, Outcome.NA) else "text",
        SIGNS[result.outcome],
        f"{S.new}, {word}" if new else word,
        remedy=result.remedy,
        shown=tuple(Shown(one.command, one.raw, one.at) for one in result.evidence),
        more=(Row(result.because, label=S.because),) if result.because and result.summary else (),
        key=key,
        about=result.check,
        known=snapshot.acknowledged(key) if key else None,
    )


def key_of(result: Result, snapshot: Snapshot) -> str:
    """Return what acknowledges a result: only what is bad, and of one node, NPU or rank, has a key."""
    node = snapshot.node(result.subject.partition("/")[0])
    single = " " not in result.subject and (node is not None or snapshot.rank(result.subject) is not None)
    return f"{result.subject}:{result.check}" if single and result.outcome in BAD else ""


def troubles(run: Run, snapshot: Snapshot, matches: Callable[[Result], bool], *, only_new: bool) -> Findings:
    """Return what a run has found, worst first; what was not run for one reason is one finding."""
    shown = [result for result in run.results if matches(result) and (run.is_new(result) or not only_new)]
    items = [_of_group(same, run, snapshot) for outcome in BAD for same in _same(shown, outcome)]
    items.sort(key=lambda item: item.known is not None)
    if not only_new:
        items += _not_run(run, matches)
    return Findings(tuple(items), tuple(_below(run, matches, only_new=only_new, empty=not items)))


def _same(results: Sequence[Result], outcome: Outcome) -> list[list[Result]]:
    """Return the results of one outcome, those together that say the same of several subjects."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for one in results:
        if one.outcome is outcome:
            found.setdefault((one.check, one.summary, one.remedy), []).append(one)
    return list(found.values())


def _of_group(same: Sequence[Result], run: Run, snapshot: Snapshot) -> Finding:
    """Return results that say the same as one finding, with what shows it on the first."""
    first, new = same[0], any(run.is_new(result) for result in same)
    finding = finding_of(first, snapshot, new=new)
    if len(same) == 1:
        return finding
    keys = [key for result in same if (key := key_of(result, snapshot))]
    known = [snapshot.acknowledged(key) for key in keys]
    return replace(
        finding,
        subject=f"{in_short([result.subject for result in same])}  {first.check}",
        shown=tuple(Shown(f"{first.subject}: {one.command}", one.raw, one.at) for one in first.evidence),
        key=keys[0] if keys else "",
        also=tuple(keys[1:]),
        known=known[0] if known and all(known) else None,
    )


def _not_run(run: Run, matches: Callable[[Result], bool]) -> list[Finding]:
    groups: dict[tuple[str, str], list[str]] = {}
    for result in run.results:
        if result.outcome is Outcome.NOT_RUN and matches(result):
            groups.setdefault((result.subject, words_of(result)), []).append(result.check)
    found = []
    for (subject, because), checks in groups.items():
        names = " ".join(checks[:_FOLDED]) + (f" +{len(checks) - _FOLDED}" if len(checks) > _FOLDED else "")
        rows = (Row(" ".join(checks), label=S.checks),) if len(checks) > _FOLDED else ()
        found.append(
            Finding(f"{subject}  {names}", because, "dim", "not_run", S.outcomes[Outcome.NOT_RUN], more=rows)
        )
    return found


def _below(run: Run, matches: Callable[[Result], bool], *, only_new: bool, empty: bool) -> list[Row]:
    rows: list[Row] = []
    shown = [result for result in run.results if matches(result)]
    if empty and not run.running and shown:
        hidden = len([result for result in run.results if result.outcome in BAD and not matches(result)])
        if run.fate != "done":
            rows.append(Row(S.preflight_good_so_far, "unknown"))
        elif hidden:
            rows.append(Row(S.preflight_good_shown.format(n=hidden), "warning"))
        else:
            rows.append(Row(S.preflight_no_news if only_new else S.preflight_good, "good"))
    elif empty and run.running:
        rows.append(Row(S.preflight_nothing_yet, "dim"))
    elif empty and run.error:
        rows.append(Row(run.error, "failed"))
    if run.compares:
        gone = run.gone()
        if gone:
            rows += [BLANK, Row(S.preflight_gone, "good")]
            rows += [Row(f"{subject}  {check}", indent=2) for check, subject in gone]
    return [row for row in rows if row is BLANK or row.text]


def cell_findings(results: Sequence[Result], run: Run, snapshot: Snapshot, title: str) -> Findings:
    """Return everything that is said of one check on one node, what passed too."""
    items = tuple(finding_of(result, snapshot, new=run.is_new(result)) for result in results)
    return Findings(items, () if items else (Row(S.preflight_cell_empty, "dim"),), title)


def ping_rows(report: PreflightReport) -> list[Row]:
    """Return how many pings were answered from node to node, `good/all`; nothing without pings."""
    if not report.pings:
        return []
    head, rows = ping_table(report)
    widths = [max(cell_len(line[column]) for line in (head, *rows)) + 2 for column in range(len(head))]
    lines = [
        "".join(set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True)) for line in rows
    ]
    title = "".join(set_cell_size(cell, width) for cell, width in zip(head, widths, strict=True))
    return [BLANK, Row(title, "dim"), *(Row(line) for line in lines)]


def counts_line(run: Run, look: Look, *, words: bool) -> Line:
    """Return how many results there are of each outcome, by their signs, with their words where there is room."""
    line = Line(look.glyphs.ellipsis)
    counts = run.counts
    for outcome in WORST_FIRST:
        if counts[outcome]:
            passed = outcome is Outcome.PASS
            style = getattr(look.styles, "good" if passed else STYLES[outcome])
            sign = look.glyphs.ready if passed else getattr(look.glyphs, SIGNS[outcome]).strip()
            if words or sign:
                word = f" {S.outcomes[outcome]}" if words else ""
                line.add(f"{sign} " if sign else "", style).add(f"{counts[outcome]}{word}  ", style)
    return line


def header(run: Run | None, scope: str, topology: Topology, look: Look, width: int, now: float) -> Line:
    """Return the one line that says how it stands: over what, how far, what has come out, how old."""
    styles = look.styles
    line = Line(look.glyphs.ellipsis).add(" ").add(topology.name, styles.cluster).add("  ")
    line.add(f"{S.preflight}  ", styles.title_focused)
    right = Line().add(f"{clock_time(now)} ", styles.dim)
    if run is None:
        return line.add(scope, styles.text).right(right, width)
    if run.running:
        line.add(f"{look.glyphs.starting} {duration(now - run.began)}  ", styles.starting)
        nodes = S.preflight_nodes.format(n=len(run.answered), total=len(run.nodes))
        line.add(f"{nodes}  ", styles.text)
    else:
        style = {"done": styles.text, "cancelled": styles.warning, "failed": styles.failed}[run.fate]
        age = S.ago.format(t=duration(now - (run.ended or now)))
        took = duration((run.ended or now) - run.began)
        line.add(f"{S.preflight_fates[run.fate].format(age=age, took=took)}  ", style)
    return line.extend(counts_line(run, look, words=width >= NARROW)).right(right, width)


def waiting_line(run: Run, look: Look, now: float) -> Line:
    """Return what a run waits for: the node that is farthest behind, and its call."""
    line = Line(look.glyphs.ellipsis).add(" ")
    if run.across is not None:
        across = S.preflight_across.format(what=run.across.what, n=run.across.done, total=run.across.total)
        return line.add(across, look.styles.starting)
    out = [one for name, one in run.progress.items() if name not in run.answered]
    if not out:
        return line
    behind = min(out, key=lambda one: one.done / max(1, one.total))
    line.add(S.preflight_behind.format(node=behind.node, n=behind.done, total=behind.total), look.styles.starting)
    if behind.waits_for:
        waits = f"  {behind.waits_for}  {duration(now - behind.since)}"
        line.add(waits, look.styles.warning if now - behind.since > _SLOW else look.styles.dim)
    return line


_SLOW = 5.0
"""Seconds from which a call is told as slow."""
