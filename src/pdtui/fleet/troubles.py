"""What is wrong now, each with the key by which it can be acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pdtui.fleet.rank_words import describe_state
from pdtui.fleet.serving import is_serving
from pdtui.fleet.snapshot import (
    UNSEEN_STATES,
    WRONG_STATES,
    Acknowledgement,
    Alarm,
    NodeState,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
    Snapshot,
    acknowledgement,
)
from pdtui.readings.verdict import Reason, Verdict

FINE = frozenset({Verdict.HEALTHY, Verdict.NA})

UNREACHABLE = "unreachable"
"""Id of a node that does not answer."""

TOOLS = "tools"
"""Id of a node whose tools do not answer."""


NO_RANKS = "no-ranks"
"""Id of a node that answers and does not let us to where its ranks run."""

NODE_IDS = (UNREACHABLE, TOOLS, NO_RANKS)


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
    unwell: bool = True
    """The cluster is not healthy with it; else it is said, and no more."""

    @property
    def key(self) -> str:
        """What acknowledges it."""
        return f"{self.subject}:{self.id}"


def troubles(snapshot: Snapshot) -> tuple[Trouble, ...]:
    """Return all that is wrong, acknowledged or not: nodes, their NPUs, ranks, their alarms."""
    away = {node.name for node in snapshot.nodes if node.state is not NodeState.CONNECTED}
    found = [trouble for node in snapshot.nodes for trouble in of_node(node)]
    for node in snapshot.nodes:
        for npu in node.npus:
            if not (node.name in away and npu.verdict is Verdict.UNKNOWN):  # Its node's own trouble says it.
                found += of_npu(node.name, npu)
    for rank in snapshot.ranks:
        if not (rank.node in away and rank.state in UNSEEN_STATES):
            found += of_rank(rank)
        found += of_alarms(rank)
    return tuple(found)


def healthy(snapshot: Snapshot) -> bool:
    """Return whether nothing is wrong but what is acknowledged, and warnings that hurt nobody yet."""
    return not any(trouble.unwell and not snapshot.acknowledged(trouble.key) for trouble in troubles(snapshot))


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
        yield Trouble("node", node.name, NO_RANKS, "error", node.error.splitlines()[0])
    if node.tool_error:
        yield Trouble("node", node.name, TOOLS, "error", node.tool_error)
    for condition in node.conditions:
        yield Trouble("node", node.name, condition.id, "warning", condition.message, unwell=False)


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
    return reason.id or str(reason.verdict)


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
    return Trouble("alarm", rank, alarm.id, alarm.severity, alarm.message, unwell=alarm.severity == "error")


def without_known(
    nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus], known: Sequence[Acknowledgement]
) -> tuple[Sequence[NodeStatus], Sequence[RankStatus]]:
    """Return nodes and ranks as they would be without what is acknowledged."""
    if not known:
        return nodes, ranks
    well = [_node_without(node, known) for node in nodes]
    hidden = {
        node.name
        for node, shown in zip(nodes, well, strict=True)
        if node.state is not NodeState.CONNECTED and shown.state is NodeState.CONNECTED
    }
    return well, [
        rank
        for rank in (_rank_without(rank, known) for rank in ranks)
        if rank is not None and not (rank.node in hidden and rank.state in UNSEEN_STATES)
    ]


def _is_known(trouble: Trouble, known: Sequence[Acknowledgement]) -> bool:
    return acknowledgement(known, trouble.key) is not None


def _node_without(node: NodeStatus, known: Sequence[Acknowledgement]) -> NodeStatus:
    hidden = {trouble.id for trouble in of_node(node) if _is_known(trouble, known)}
    if hidden & {UNREACHABLE, NO_RANKS}:
        node = replace(node, state=NodeState.CONNECTED, error="", remedy="")
    return replace(
        node,
        tool_error="" if TOOLS in hidden else node.tool_error,
        conditions=tuple(one for one in node.conditions if one.id not in hidden),
        npus=tuple(_npu_without(node.name, npu, known) for npu in node.npus),
    )


def _npu_without(node: str, npu: NpuStatus, known: Sequence[Acknowledgement]) -> NpuStatus:
    found = list(of_npu(node, npu))
    hidden = {trouble.id for trouble in found if _is_known(trouble, known)}
    if not hidden:
        return npu
    left = tuple(reason for reason in npu.reasons if reason_id(reason) not in hidden)
    bad = [reason.verdict for reason in left if reason.verdict not in FINE]
    return replace(npu, verdict=bad[0] if bad else Verdict.HEALTHY, reasons=left)


def _rank_without(rank: RankStatus, known: Sequence[Acknowledgement]) -> RankStatus | None:
    """Return a rank without what is known of it; None when its state is."""
    if any(_is_known(trouble, known) for trouble in of_rank(rank)):
        return None
    return replace(rank, alarms=tuple(one for one in rank.alarms if not _is_known(of_alarm(rank.id, one), known)))


def is_away(node: NodeStatus) -> bool:
    """Return whether a node cannot be reached."""
    return node.state in (NodeState.FAILED, NodeState.RECONNECTING) or (
        node.state is NodeState.CONNECTING and bool(node.error)
    )


def known_words(ack: Acknowledgement) -> str:
    """Return `acknowledged by ann@desk until 12-01 08:30: waits for a spare part`."""
    return f"acknowledged by {ack.by} until {until(ack)}: {ack.reason}"


def until(ack: Acknowledgement) -> str:
    """Return when an acknowledgement ends, local time: `12-01 08:30`."""
    return time.strftime("%m-%d %H:%M", time.localtime(ack.expires))
