"""What `check` finds in the topology file, for the list of findings: of a selection, what concerns it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pdtui.console.findings import Finding
from pdtui.console.rows import Row
from pdtui.console.strings import S
from pdtui.fleet.snapshot import RankStatus
from pdtui.topology import findings as static
from pdtui.topology.rules.explained import EXPLANATIONS


def of_file(found: Sequence[static.Finding], rank: RankStatus | None, node: str) -> list[Finding]:
    """Return the warnings of the file that concern a rank and a node; accepted ones come last, and say why."""
    told = [one for one in found if one.severity is static.Severity.WARNING or one.accepted]
    concerned = [one for one in told if _concerns(one.path, rank, node)]
    return [_finding(one) for one in sorted(concerned, key=lambda one: bool(one.accepted))]


def _concerns(path: str, rank: RankStatus | None, node: str) -> bool:
    """A line of a group, role or node concerns its ranks or itself; all others everybody."""
    kind, _, rest = path.partition(".")
    name = rest.partition(".")[0]
    if kind == "groups" and name:
        return rank is not None and rank.group == name
    if kind == "roles":
        return rank is not None and rank.role == name
    return name == node if kind == "nodes" else True


def _finding(one: static.Finding) -> Finding:
    rule = EXPLANATIONS[one.rule]
    return Finding(
        f"{Path(one.file).name}:{one.line}",
        f"{one.message} ({one.rule})",
        "dim" if one.accepted else "warning",
        "healthy" if one.accepted else "degraded",
        S.file_accepted if one.accepted else S.file_warning,
        rule.why,
        rule.remedy,
        more=(Row(one.accepted, label=S.file_accepted),) if one.accepted else (),
    )
