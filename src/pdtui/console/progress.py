"""How far operations are: their phases, and how many ranks are at which stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.style import Style

from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.strings import S, nodes_of, ranks_of
from pdtui.console.timing import duration
from pdtui.fleet.groups import how_far
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.fleet.snapshot import LeaseStatus, OperationStatus, OperationStep, PreflightStatus

_PERCENT = re.compile(r"(?P<words>.*\S) (?P<n>\d{1,3}) %$")
_STYLES = {"waiting": "dim", "running": "starting", "done": "good", "failed": "failed", "skipped": "dim"}
_ORDER = ("failed", "done", "running", "waiting", "skipped")
_OPERATION = {"running": "running", "done": "done", "failed": "failed", "cancelled": "skipped"}
_OPERATION_STYLES = {"running": "starting", "done": "good", "failed": "failed", "cancelled": "warning"}


def operation_words(operation: OperationStatus) -> str:
    """Return what is done to what: up to two targets by name, else how many."""
    targets = operation.targets
    many = nodes_of(len(targets)) if operation.of_nodes else ranks_of(len(targets))
    return f"{operation.verb} {' '.join(targets) if len(targets) <= 2 else many}"


@dataclass
class Stage:
    """Ranks of an operation that are equally far."""

    state: str
    words: str
    count: int = 0
    percents: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        """`4 weights 31-63 %`."""
        text = f"{self.count} {self.words}"
        if not self.percents:
            return text
        low, high = min(self.percents), max(self.percents)
        return f"{text} {low} %" if low == high else f"{text} {low}-{high} %"


def stages(operation: OperationStatus) -> list[Stage]:
    """Return how many of an operation's ranks are where, failed ones first, then the farthest."""
    found: dict[tuple[str, str], Stage] = {}
    targets = frozenset(operation.targets)
    for step in operation.steps:
        if step.label not in targets:
            continue
        percent = _PERCENT.match(step.detail) if step.state == "running" else None
        words = percent["words"] if percent else step.detail
        if step.state != "running" or not words:
            words = S.step_done[operation.verb] if step.state == "done" else S.step_states[step.state]
        stage = found.setdefault((step.state, words), Stage(step.state, words))
        stage.count += 1
        if percent:
            stage.percents.append(int(percent["n"]))
    return sorted(found.values(), key=lambda one: (_ORDER.index(one.state), -how_far(one.words), one.words))


def operation_lines(operation: OperationStatus, look: Look, width: int, now: float, most: int) -> list[Line]:
    """Return an operation in at most `most` lines: one quiet line once it has ended."""
    styles, state = look.styles, operation.state
    style: Style = getattr(styles, _OPERATION_STYLES[state])
    first = Line(look.glyphs.ellipsis).add(f" {_sign(_OPERATION[state], look)} ", style)
    first.add(f"{operation_words(operation)}  ", styles.title_focused)
    took = duration((operation.ended or now) - operation.since)
    short = state == "running" and most <= 1
    first.add(took if short else f"{S.operation_states[state]}  {took}", style)
    if not short:
        first.add(f"  {S.operation_by.format(who=operation.by)}", styles.dim)
    if operation.error:
        first.add(f"  {operation.error}", styles.failed)
    if state != "running":
        return [first]
    targets = frozenset(operation.targets)
    phases = [step for step in operation.steps if step.label not in targets]
    if most <= 1:
        current = next((step for step in phases if step.state == "running"), None)
        if current is not None:
            first.add(f"  {current.label}", styles.text)
        return [_add_stages(first, operation, look, width, "  ")]
    lines = [first]
    if phases:
        lines.append(_phases(phases, look))
    counted = _add_stages(Line(look.glyphs.ellipsis).add("   "), operation, look, width, "")
    if counted.length > 3:
        lines.append(counted)
    failed = [step for step in operation.steps if step.label in targets and step.state == "failed"]
    for step in failed[: most - len(lines)]:
        line = Line(look.glyphs.ellipsis).add(f"   {_sign('failed', look)} {step.label}  ", styles.failed)
        lines.append(line.add(step.detail, styles.text))
    return lines


def lease_line(lease: LeaseStatus, look: Look, now: float) -> Line:
    """Return what another console does, in one line."""
    line = Line(look.glyphs.ellipsis).add(f" {look.glyphs.mark} ", look.styles.warning)
    line.add(f"{S.lease_line.format(verb=lease.verb, what=lease.what)}  ", look.styles.title_focused)
    line.add(duration(max(0.0, now - lease.since)), look.styles.warning)
    where = S.lease_from.format(origin=lease.origin) if lease.origin not in ("", "local") else ""
    words = S.lease_by.format(who=lease.by, where=where, nodes=" ".join(lease.nodes))
    return line.add(f"  {words}", look.styles.text)


def preflight_line(status: PreflightStatus, look: Look, now: float) -> Line:
    """Return how a preflight is, in one line: what it has found, and whom it waits for."""
    styles, glyphs, running = look.styles, look.glyphs, status.state == "running"
    bad = status.failed or status.unknown
    sign = glyphs.starting if running else glyphs.failed if bad else glyphs.ready
    style = styles.starting if running else styles.warning if bad else styles.good
    line = Line(glyphs.ellipsis).add(f" {sign} ", style).add(f"{S.preflight}  ", styles.title_focused)
    line.add(f"{duration((status.ended or now) - status.began)}  ", style)
    if running:
        nodes = S.preflight_nodes.format(n=status.nodes_done, total=status.nodes_total)
        line.add(f"{nodes}  ", styles.text)
    counts = (
        (status.failed, S.outcomes[Outcome.FAIL], styles.failed),
        (status.unknown, S.outcomes[Outcome.UNKNOWN], styles.unknown),
        (status.warned, S.outcomes[Outcome.WARN], styles.warning),
        (status.passed, S.outcomes[Outcome.PASS], styles.dim),
    )
    for count, word, count_style in counts:
        line.add(f"{count} {word}  " if count else "", count_style)
    return line.add(f" {S.preflight_shows}", styles.key)


def _phases(phases: Sequence[OperationStep], look: Look) -> Line:
    line = Line(look.glyphs.ellipsis).add("  ")
    for step in phases:
        running = step.state == "running"
        line.add(f" {_sign(step.state, look)} ", _style(step.state, look))
        line.add(step.label, look.styles.text if running else look.styles.dim)
        if running and step.detail:
            line.add(f"  {step.detail}", look.styles.text)
        line.add("  ")
    return line


def _add_stages(line: Line, operation: OperationStatus, look: Look, width: int, gap: str) -> Line:
    """Add as many of the stages as fit."""
    for stage in stages(operation):
        text = f"{gap}{stage.text}"
        if line.length + len(text) > width - 2:
            return line.add(f" {look.glyphs.ellipsis}", look.styles.dim)
        line.add(text, _style(stage.state, look))
        gap = "   "
    return line


def _sign(state: str, look: Look) -> str:
    glyphs = look.glyphs
    return {
        "waiting": glyphs.waiting,
        "running": glyphs.starting,
        "done": glyphs.ready,
        "failed": glyphs.failed,
        "skipped": "-",
    }[state]


def _style(state: str, look: Look) -> Style:
    style: Style = getattr(look.styles, _STYLES[state])
    return style
