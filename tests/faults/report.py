"""The table with measured times, as text for a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.faults.table import Outcome

PROPERTY = "fault"
TABLE = "PDTUI_FAULT_TABLE"
"""Variable with the path of a file to which the table is written, as Markdown."""


def record(outcome: Outcome, note: Callable[[str, object], None]) -> None:
    """Leave a row with its result in a test's report."""
    row = outcome.row
    line = {
        "id": row.id,
        "happens": row.happens,
        "made": row.made,
        "shown": "; ".join(str(shown) for shown in row.shows),
        "within": row.within,
        "seconds": outcome.seconds,
        "missing": outcome.missing,
        "told": list(outcome.told),
    }
    note(PROPERTY, json.dumps(line))


def lines_of(reports: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return the rows that pytest's reports hold; a test's report of its end repeats them."""
    found = []
    for report in (report for report in reports if getattr(report, "when", "") == "call"):
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                found.append(json.loads(value))
    return found


def as_markdown(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the table as Markdown."""
    head = ["| | event | made by | shown | after | within |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {line['id']} | {line['happens']} | {line['made']} | {_shown(line)} | "
        f"{_after(line['seconds'])} | {line['within']:.0f} s |"
        for line in lines
    ]
    return "\n".join([*head, *rows])


def as_text(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the table for a terminal, a line each."""
    rows = [
        (line["id"], _after(line["seconds"]), f"{line['within']:.0f} s", line["missing"] or line["shown"])
        for line in lines
    ]
    wide = max((len(row[0]) for row in rows), default=0)
    return [f"{name:<{wide}}  {after:>7}  of {within:>5}  {shown}" for name, after, within, shown in rows]


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def _shown(line: Mapping[str, Any]) -> str:
    return str(line["missing"] or line["shown"]).replace("|", "\\|")
