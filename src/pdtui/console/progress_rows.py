"""What is under way, as rows of text: each operation's steps, and who of a group has arrived where."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pdtui.console.progress import operation_words
from pdtui.console.rows import BLANK, Row, heading
from pdtui.console.strings import S
from pdtui.console.timing import duration
from pdtui.fleet.arrivals import GroupArrivals, coming_up, last_words, waits_since
from pdtui.fleet.snapshot import OperationStatus, OperationStep, RankStatus, Snapshot
from pdtui.fleet.targets import in_short

_STYLES = {"waiting": "dim", "running": "starting", "done": "good", "failed": "failed", "skipped": "warning"}
_OPERATION_STYLES = {"running": "starting", "done": "good", "failed": "failed", "cancelled": "warning"}
_WIDTH = 18
_NUMBER = re.compile(r"\d{1,9}")


def progress_rows(snapshot: Snapshot, now: float) -> list[Row]:
    """Return the operations, newest first, and the groups that come up, also those started elsewhere."""
    rows: list[Row] = []
    running = [one for one in snapshot.operations if one.state == "running"]
    started = [rank for one in running if one.verb != "stop" for rank in one.targets]
    groups = coming_up(snapshot.ranks, started)
    for group in sorted(groups, key=lambda group: group.ready == group.total):
        rows += [*group_rows(group, now), BLANK]
    for operation in reversed(snapshot.operations):
        rows += [*_operation_rows(operation, now), BLANK]
    return rows[:-1] or [Row(S.nothing_moves, "dim")]


def group_rows(group: GroupArrivals, now: float) -> list[Row]:
    """Return a table of stages: how many are there, and who is not; a set of ranks that was named is not again."""
    rows = [heading(S.comes_up.format(group=group.group, ready=group.ready, total=group.total))]
    if group.ready == group.total:
        return rows
    named: tuple[str, ...] = ()
    for stage in group.stages:
        text = f"{stage.arrived}/{group.total}"
        if stage.missing and stage.arrived and stage.missing != named:
            text += f"  {S.not_yet.format(ranks=_numbers(stage.missing))}"
        named = stage.missing
        style = "good" if not stage.missing else "starting" if stage.arrived else "dim"
        rows.append(Row(text, style, S.stages[stage.stage], label_width=_WIDTH))
    if group.last is not None:
        rows.append(_last_row(group.last, now))
    return rows


def _numbers(ids: Sequence[str]) -> str:
    """Return ranks of one group by their numbers: `0-13, 17`."""
    return in_short(ids).replace(f"{ids[0].partition('/')[0]}/", "")


def _last_row(rank: RankStatus, now: float) -> Row:
    at = waits_since(rank)
    for_long = f"  ({duration(now - at)})" if at else ""
    return Row(f"{last_words(rank)}{for_long}", "text", S.last_one, label_width=_WIDTH)


def _operation_rows(operation: OperationStatus, now: float) -> list[Row]:
    took = duration((operation.ended or now) - operation.since)
    words = f"{operation_words(operation)}  {S.operation_states[operation.state]}  {took}"
    by = S.operation_by.format(who=operation.by)
    rows = [Row(f"{words}  {by}", _OPERATION_STYLES[operation.state])]
    rows += [Row(operation.error, "failed", indent=2)] if operation.error else []
    targets = frozenset(operation.targets)
    alike: dict[tuple[str, str], list[OperationStep]] = {}
    for step in operation.steps:
        if step.label in targets:
            alike.setdefault((step.state, _NUMBER.sub("#", step.detail)), []).append(step)
        else:
            rows.append(_step_row(step))
    for (state, _), steps in alike.items():
        shown = _common([step.detail for step in steps]) or S.step_states.get(state, "")
        rows.append(Row(f"{in_short([step.label for step in steps])}  {shown}", _STYLES[state], indent=2))
    return rows


def _common(details: Sequence[str]) -> str:
    """Return words that differ in numbers only, with their span: `ready after 3-11 s`."""
    found = [[int(number) for number in _NUMBER.findall(detail)] for detail in details]
    spans = iter([(min(column), max(column)) for column in zip(*found, strict=True)])

    def span(_: re.Match[str]) -> str:
        low, high = next(spans)
        return str(low) if low == high else f"{low}-{high}"

    return _NUMBER.sub(span, details[0])


def _step_row(step: OperationStep) -> Row:
    text = step.detail or S.step_states.get(step.state, "")
    return Row(text, _STYLES[step.state], step.label, label_width=12, indent=2)
