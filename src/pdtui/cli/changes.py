"""Changes between two commands, files or clusters as commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.cli.output import columns
from pdtui.topology.compare import Change, short
from pdtui.topology.model import Topology
from pdtui.topology.plan import RankPlan


def as_dict(change: Change) -> dict[str, object]:
    """Return a change as JSON has it; null is absent, an empty text a flag without a value."""
    return {"kind": change.kind, "name": change.name, "old": change.old, "new": change.new}


def of_two_ranks(topology: Topology, ranks: tuple[RankPlan, RankPlan], changes: Sequence[Change]) -> list[str]:
    """Return what differs between two ranks of a file, what somebody wrote first."""
    one, other = ranks
    written = [change for change in changes if not change.by_position]
    placed = [change for change in changes if change.by_position]
    head = (one.id, other.id)
    if not changes:
        return [f"{one.id} and {other.id} differ in nothing"]
    lines: list[str] = []
    if written:
        lines += columns(("BY FILE OR ROLE", *head), map(_row, written))
    elif topology.groups[one.group] is topology.groups[other.group]:
        lines.append("nothing but what follows from where they stand")
    else:
        lines.append("the file asks the same of both; what differs follows from where they stand")
    if placed:
        lines += ["", *columns(("BY POSITION", *head), map(_row, placed))]
    return lines


def two_ranks_as_dict(ranks: tuple[RankPlan, RankPlan], changes: Sequence[Change]) -> dict[str, object]:
    """Return what differs between two ranks as `plan --diff --json` prints it: an interface."""
    return {
        "schema_version": 1,
        "ranks": [rank.id for rank in ranks],
        "changes": [{**as_dict(change), "by_position": change.by_position} for change in changes],
    }


def _row(change: Change) -> tuple[str, str, str]:
    return change.name, short(change.old), short(change.new)
