"""What runs held against the plan: the differences, in the words of two files that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdtui.fleet.observation import UNREAD_ENV, by_hand_changes, outdated_changes
from pdtui.fleet.servers import server_words
from pdtui.fleet.snapshot import NodeState, NodeStatus, RankState, RankStatus
from pdtui.fleet.strangers import Unmanaged
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.topology.differences import (
    Differences,
    GroupDifference,
    NodeDifference,
    RankDifference,
    Step,
    whole_groups,
)
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan, RankPlan

OTHERS = "other servers"
"""Stands for the group of servers that belong to no planned rank."""

_ALIVE = (ProcessState.RUNNING, ProcessState.UNKEPT)
_UNKNOWN = (RankState.UNKNOWN, RankState.LOST)


@dataclass(frozen=True, slots=True)
class Running:
    """What is known of a rank's place: its status, its record, who is there instead."""

    status: RankStatus
    record: RankRecord | None = None
    unmanaged: Unmanaged | None = None

    @property
    def is_ours(self) -> bool:
        """Whether processes of ours run."""
        return self.record is not None and self.record.state in _ALIVE


def compare_running(
    topology: Topology, plan: Plan, ranks: Mapping[str, Running], nodes: Sequence[NodeStatus]
) -> Differences:
    """Return what differs from what runs to the plan. What nobody could be asked about is not the same."""
    found = [one for rank in plan.ranks for one in _difference(rank, ranks.get(rank.id))]
    strays = [_stray(one) for rank_id, one in ranks.items() if rank_id not in plan.by_id and one.is_ours]
    others = [rank for node in nodes for rank in _others(node)]
    return Differences(
        nodes=tuple(_unreachable(nodes)),
        groups=tuple(_groups((*found, *strays), others, topology)),
        steps=tuple(_steps(found, strays, topology, plan)),
        reordered=tuple(
            rank.id
            for rank in plan.ranks
            if (one := ranks.get(rank.id)) is not None
            and one.is_ours
            and one.record is not None
            and one.record.digest != rank.digest
            and not outdated_changes(rank, one.record)
        ),
    )


def _difference(rank: RankPlan, found: Running | None) -> Iterator[RankDifference]:
    """Yield how a planned rank differs; nothing for one that runs as planned."""
    if found is None or found.status.state in _UNKNOWN:
        last = found.status.last_state if found is not None else None
        note = f"last known: {last.value}" if last is not None else ""
        yield RankDifference(rank.id, rank.group, "unknown", rank.node, note=note)
    elif found.is_ours and found.record is not None:
        if changes := outdated_changes(rank, found.record):
            yield RankDifference(rank.id, rank.group, "changed", rank.node, changes)
    elif found.unmanaged is not None:
        yield from _by_hand(rank, found.unmanaged)
    else:
        yield RankDifference(rank.id, rank.group, "down", rank.node, note=_end(found.status))


def _by_hand(rank: RankPlan, found: Unmanaged) -> Iterator[RankDifference]:
    pid = f", pid {found.pid}" if found.pid is not None else ""
    if found.server is None:
        note = f"something holds its port{pid}, and cannot be read"
        yield RankDifference(rank.id, rank.group, "unknown", rank.node, note=note)
        return
    changes = by_hand_changes(rank, found)
    unread = "" if found.server.process.env_known else f"; {UNREAD_ENV}"
    note = f"started by hand{pid}{unread}"
    if changes:
        yield RankDifference(rank.id, rank.group, "changed", rank.node, changes, note)
    elif unread:
        yield RankDifference(rank.id, rank.group, "unknown", rank.node, note=note)


def _end(status: RankStatus) -> str:
    return status.state.value if status.state is not RankState.STOPPED else ""


def _stray(found: Running) -> RankDifference:
    status = found.status
    pid = f"pid {status.pid}" if status.pid is not None else ""
    return RankDifference(status.id, status.group, "unplanned", status.node, note=pid)


def _others(node: NodeStatus) -> Iterator[RankDifference]:
    """Yield the servers on a node that are no planned rank's and none of ours."""
    for one in node.foreign:
        if server_words(tuple(one.command.split())) and one.pid is not None:
            whose = one.rank or one.command
            yield RankDifference(f"pid {one.pid}", OTHERS, "unplanned", node.name, note=whose)


def _unreachable(nodes: Sequence[NodeStatus]) -> Iterator[NodeDifference]:
    for node in nodes:
        if node.state is not NodeState.CONNECTED:
            yield NodeDifference(node.name, "unknown", note=" ".join(node.error.split()) or node.state.value)


def _groups(
    ranks: Sequence[RankDifference], others: Sequence[RankDifference], topology: Topology
) -> Iterator[GroupDifference]:
    for name in dict.fromkeys((*topology.groups, *(rank.group for rank in ranks))):
        if mine := tuple(rank for rank in ranks if rank.group == name):
            group = topology.groups.get(name)
            yield GroupDifference(name, "changed", sum(group.ranks_per_node.values()) if group else 0, mine)
    if others:
        yield GroupDifference(OTHERS, "changed", 0, tuple(others))


def _steps(
    found: Sequence[RankDifference], strays: Sequence[RankDifference], topology: Topology, plan: Plan
) -> Iterator[Step]:
    if strays:
        yield Step("stop", tuple(rank.id for rank in strays), "", "")
    fates = {rank.id: rank.fate for rank in found}
    for group, ids in whole_groups(_of(found, "changed", "down"), topology, plan):
        size = len(plan.of_group(group))
        down = tuple(rank_id for rank_id in ids if fates.get(rank_id) == "down")
        if topology.model.kind == "moe" and len(down) < size:
            hit = sum(fates.get(rank_id) in ("changed", "down") for rank_id in ids)
            yield Step(
                "restart", ids, group, "" if hit == size else "the ranks of a MoE group live and die together"
            )
            continue
        if outdated := tuple(rank_id for rank_id in ids if fates.get(rank_id) == "changed"):
            yield Step("restart", outdated, group if len(outdated) == size else "", "")
        if down:
            yield Step("start", down, group if len(down) == size else "", "")


def _of(found: Iterable[RankDifference], *fates: str) -> list[str]:
    return [rank.id for rank in found if rank.fate in fates]
