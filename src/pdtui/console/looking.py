"""The findings of a selection: of the rank, its node and its NPUs, in the order in which one looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pdtui.console import describe
from pdtui.console.file_findings import of_file
from pdtui.console.findings import LABEL, Finding, Findings, Shown, separated
from pdtui.console.rows import Row, heading
from pdtui.console.selection import Selection
from pdtui.console.staleness import shown_verdict
from pdtui.console.strings import S
from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus, RankStatus, Snapshot
from pdtui.fleet.troubles import TOOLS, UNREACHABLE, is_away, reason_id
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology import findings as static

_SIGNS = {
    Verdict.FAILED: "failed",
    Verdict.DEGRADED: "degraded",
    Verdict.UNKNOWN: "unknown",
    Verdict.HEALTHY: "healthy",
    Verdict.NA: "healthy",
}
_STYLES = {Verdict.FAILED: "failed", Verdict.DEGRADED: "warning", Verdict.UNKNOWN: "unknown"}


def findings_of(
    snapshot: Snapshot,
    selection: Selection,
    now: float,
    *,
    npu_first: bool,
    file: Sequence[static.Finding] = (),
) -> Findings:
    """Return what is wrong with the selection. `npu_first`: the operator points at an NPU, not at a rank.

    `file`: what was found in the topology file; what concerns a rank and its node comes last.
    """
    rank, node = snapshot.rank(selection.rank), snapshot.node(selection.node)
    of_rank = _of_rank(snapshot, rank) if rank is not None else []
    if node is None:
        rows = () if of_rank else (Row(S.nothing_selected, "dim"),)
        return Findings(tuple(of_rank), rows, selection.rank)
    of_node = _of_node(node)
    chosen = next((npu for npu in node.npus if npu.id == selection.npu), None)
    own = _of_npu(node, chosen) if chosen is not None else []
    devices = rank.devices if rank is not None and rank.node == node.name else ()
    others = [npu for npu in node.npus if npu is not chosen and npu.id in devices]
    of_others = [finding for npu in others for finding in _of_npu(node, npu)]
    items = [*own, *of_node, *of_rank, *of_others] if npu_first else [*of_rank, *of_node, *own, *of_others]
    items = [replace(item, known=snapshot.acknowledged(item.key) if item.key else None) for item in items]
    items.sort(key=lambda item: item.known is not None)
    below = separated(
        (
            _quiet_rows(node, chosen, now) if not (own if chosen is not None else items) else (),
            describe.foreign_rows(node),
            value_rows(node, chosen, now) if chosen is not None else (),
        )
    )
    items += of_file(file, rank, node.name) if not npu_first else []
    return Findings(tuple(items), below, _title(selection, chosen, own, of_node, of_rank, npu_first=npu_first))


def _title(
    selection: Selection,
    chosen: NpuStatus | None,
    own: list[Finding],
    of_node: list[Finding],
    of_rank: list[Finding],
    *,
    npu_first: bool,
) -> str:
    """Return whose findings they are in the main: whose come first."""
    if of_rank and not (npu_first and (own or of_node)):
        return selection.rank
    if of_node and not (npu_first and own):
        return selection.node
    if chosen is not None:
        return npu_words(selection.node, chosen.id)
    return selection.rank or selection.node


def npu_words(node: str, npu: int) -> str:
    """Return `node3 NPU 9`."""
    return S.npu_line.format(node=node, npu=npu)


def _of_rank(snapshot: Snapshot, rank: RankStatus) -> list[Finding]:
    found = []
    diagnosis, group = rank.diagnosis, snapshot.group(rank.group)
    if diagnosis is not None:
        failed = rank.exit_status is not None
        found.append(
            Finding(
                rank.id,
                diagnosis.summary,
                "failed" if failed else "warning",
                "failed" if failed else "degraded",
                S.rank_states[rank.state],
                remedy=diagnosis.remedy,
                since=rank.since or None,
                key=f"{rank.id}:{rank.state}",
                more=tuple(
                    Row(text, label=label)
                    for label, text in (
                        (S.first_cause, diagnosis.first_cause),
                        (S.shown_by, diagnosis.line),
                        (S.last_work, diagnosis.last_work),
                    )
                    if text
                ),
            )
        )
    for alarm in rank.alarms:
        error = alarm.severity == "error"
        found.append(
            Finding(
                rank.id,
                alarm.message,
                "failed" if error else "warning",
                "degraded",
                S.alarm,
                S.alarms[alarm.id],
                alarm.remedy,
                since=alarm.since,
                key=f"{rank.id}:{alarm.id}",
            )
        )
    if describe.is_lone(rank, group):
        rows = tuple(describe.group_rows(rank, group))
        found.append(Finding(rank.id, S.lost_group, "failed", "degraded", more=rows))
    return found


def _of_node(node: NodeStatus) -> list[Finding]:
    found = []
    if node.error:
        failed = node.state is NodeState.FAILED
        style, sign = ("failed", "failed") if failed else ("warning", "unknown")
        key = f"{node.name}:{UNREACHABLE if is_away(node) else 'error'}"
        word = S.node_states[node.state]
        found.append(Finding(node.name, node.error, style, sign, word, remedy=node.remedy, key=key))
    if node.tool_error:
        key = f"{node.name}:{TOOLS}"
        found.append(Finding(node.name, node.tool_error, "warning", "unknown", S.node_error, key=key))
    for condition in node.conditions:
        key = f"{node.name}:{condition.id}"
        found.append(
            Finding(
                node.name, condition.message, "warning", "degraded", S.condition, remedy=condition.remedy, key=key
            )
        )
    return found


def _of_npu(node: NodeStatus, npu: NpuStatus) -> list[Finding]:
    return [finding_of_reason(reason, node.name, npu.id) for reason in npu.reasons]


def finding_of_reason(reason: Reason, node: str, npu: int) -> Finding:
    """Return a reason of a verdict as a finding."""
    return Finding(
        npu_words(node, npu),
        reason.summary,
        _STYLES.get(reason.verdict, "text"),
        _SIGNS[reason.verdict],
        S.verdicts[reason.verdict],
        reason.meaning,
        reason.remedy,
        (Shown(reason.command, reason.raw, reason.observed_at),) if reason.command or reason.raw else (),
        None if reason.command or reason.raw else reason.observed_at,
        key=f"{node}/{npu}:{reason_id(reason)}",
    )


def _quiet_rows(node: NodeStatus, npu: NpuStatus | None, now: float) -> list[Row]:
    """Say that there is nothing to say, or that nobody knows now."""
    if npu is None:
        return [Row(S.healthy_quiet, "dim")]
    verdict = shown_verdict(node, npu, now)
    words = S.verdicts[npu.verdict]
    if verdict is not npu.verdict:
        return [Row(S.npu_was.format(verdict=words), "unknown")]
    return [Row(S.npu_quiet.format(verdict=words), _STYLES.get(verdict, "good"))]


def value_rows(node: NodeStatus, npu: NpuStatus, now: float) -> list[Row]:
    """Return what was read of an NPU, and how old it is."""
    rows = [heading(f"{npu_words(node.name, npu.id)}  {S.values}")]
    for label, text in describe.npu_values(node, npu, now):
        rows.append(Row(text, label=label, label_width=LABEL + 4, indent=2))
    return rows
