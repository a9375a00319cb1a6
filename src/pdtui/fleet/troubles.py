"""What is wrong now, each with the key by which it can be acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pdtui.fleet.rank_words import describe_state
from pdtui.fleet.serving import is_serving
from pdtui.fleet.snapshot import (
    WRONG_STATES,
    Acknowledgement,
    Alarm,
    NodeState,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
    Snapshot,
)
from pdtui.readings.verdict import Reason, Verdict

FINE = frozenset({Verdict.HEALTHY, Verdict.NA})

UNREACHABLE = "unreachable"
"""Id of a node that does not answer."""

TOOLS = "tools"
"""Id of a node whose tools do not answer."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be."""

    kind: Literal["node", "npu", "rank", "alarm"]
    subject: str
    """A node, `node/npu` or a rank."""
    id: str
    """Stable within its subject: of a reason, condition or alarm, or a state."""
    severity: Literal["info", "warning", "error"]
    summary: str

    @property
    def key(self) -> str:
        """What acknowledges it."""
        return f"{self.subject}:{self.id}"


def troubles(snapshot: Snapshot) -> tuple[Trouble, ...]:
    """Return all that is wrong, acknowledged or not: nodes, their NPUs, ranks, their alarms."""
    found = [trouble for node in snapshot.nodes for trouble in of_node(node)]
    found += [trouble for node in snapshot.nodes for npu in node.npus for trouble in of_npu(node.name, npu)]
    found += [trouble for rank in snapshot.ranks for trouble in (*of_rank(rank), *of_alarms(rank))]
    return tuple(found)


def untold(snapshot: Snapshot) -> tuple[tuple[Trouble, Acknowledgement], ...]:
    """Return what is wrong and acknowledged, with why."""
    pairs = ((trouble, snapshot.acknowledged(trouble.key)) for trouble in troubles(snapshot))
    return tuple((trouble, known) for trouble, known in pairs if known is not None)


def of_node(node: NodeStatus) -> Iterable[Trouble]:
    """Return what is wrong with a server as such."""
    if is_away(node):
        words = node.error.splitlines()[0] if node.error else f"connection {node.state}"
        yield Trouble("node", node.name, UNREACHABLE, "error", words)
    elif node.state is NodeState.CONNECTING:
        yield Trouble("node", node.name, UNREACHABLE, "info", "connecting")
    elif node.error:
        yield Trouble("node", node.name, "error", "error", node.error.splitlines()[0])
    if node.tool_error:
        yield Trouble("node", node.name, TOOLS, "error", node.tool_error)
    for condition in node.conditions:
        yield Trouble("node", node.name, condition.id, "warning", condition.message)


def of_npu(node: str, npu: NpuStatus) -> Iterable[Trouble]:
    """Return the reasons for which an NPU is not healthy."""
    subject = f"{node}/{npu.id}"
    reasons = bad_reasons(npu)
    for reason in reasons:
        severity: Literal["warning", "error"] = "error" if reason.verdict is Verdict.FAILED else "warning"
        yield Trouble("npu", subject, reason_id(reason), severity, reason.summary)
    if not reasons and npu.verdict not in FINE:
        yield Trouble("npu", subject, str(npu.verdict), "warning", f"NPU {npu.verdict}")


def bad_reasons(npu: NpuStatus) -> Sequence[Reason]:
    """Return the reasons of an NPU that make it worse than healthy."""
    return [reason for reason in npu.reasons if reason.verdict not in FINE]


def reason_id(reason: Reason) -> str:
    """Return a reason's stable id."""
    return str(getattr(reason, "id", "")) or str(reason.verdict)


def of_rank(rank: RankStatus) -> Iterable[Trouble]:
    """Return the state of a rank that is not ready and does not serve."""
    if rank.state is RankState.READY or (rank.state is RankState.UNMANAGED and is_serving(rank)):
        return
    severity: Literal["info", "warning", "error"] = "error" if rank.state in WRONG_STATES else "info"
    if rank.state in (RankState.UNKEPT, RankState.UNMANAGED):
        severity = "warning"
    yield Trouble("rank", rank.id, str(rank.state), severity, describe_state(rank))


def of_alarms(rank: RankStatus) -> Iterable[Trouble]:
    """Return what the metrics of a rank say is wrong."""
    for alarm in rank.alarms:
        yield of_alarm(rank.id, alarm)


def of_alarm(rank: str, alarm: Alarm) -> Trouble:
    """Return an alarm as a trouble."""
    return Trouble("alarm", rank, alarm.id, alarm.severity, alarm.message)


def is_away(node: NodeStatus) -> bool:
    """Return whether a node cannot be reached."""
    return node.state in (NodeState.FAILED, NodeState.RECONNECTING) or (
        node.state is NodeState.CONNECTING and bool(node.error)
    )
