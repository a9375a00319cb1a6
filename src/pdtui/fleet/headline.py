"""What is wrong, in one sentence: the worst thing first, since when, and its first cause."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pdtui.fleet.snapshot import FileState, GroupStatus, Headline, NodeState, NodeStatus, RankState, RankStatus
from pdtui.fleet.targets import in_short
from pdtui.readings.verdict import Verdict


def make_headline(
    nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus], groups: Sequence[GroupStatus] = ()
) -> Headline | None:
    """Return the one sentence, or None when nothing needs an operator."""
    return (
        _failed_rank(ranks, groups)
        or _unreachable_node(_carrying(nodes, ranks), ranks)
        or _broken_group(groups)
        or _no_container(nodes, ranks)
        or _sick_rank(ranks)
        or _failed_npu(nodes)
        or _alarm(ranks, "error")
        or _foreign(nodes, ranks)
        or _unmanaged(ranks)
        or _unreachable_node(nodes, ranks)
        or _alarm(ranks, "warning")
        or _weak_npu(nodes)
        or _condition(nodes)
    )


def file_trouble(name: str, state: FileState, error: str) -> Headline | None:
    """Return what to say of a topology file that was broken or removed since it was loaded: after all troubles."""
    if state == "broken":
        return Headline(f"{name} is broken on disk: {error}; what was loaded stays", "", "warning")
    if state == "removed":
        return Headline(f"{name} was removed from disk; what was loaded stays", "", "warning")
    return None


def journal_trouble(error: str) -> Headline | None:
    """Return what to say of a journal that cannot be written: the last of all troubles."""
    if not error:
        return None
    return Headline(f"what is done here is not in the journal of this machine: {error}", "", "warning")


def _carrying(nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus]) -> Sequence[NodeStatus]:
    """Return all nodes when one with ranks cannot be reached; idle ones alone hide no other trouble."""
    gone = {node.name for node in _gone(nodes)}
    return nodes if any(rank.node in gone for rank in ranks) else ()


def clock_time(at: float) -> str:
    """Return the local time of day, `12:03:49`."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _failed_rank(ranks: Sequence[RankStatus], groups: Sequence[GroupStatus]) -> Headline | None:
    failed = [rank for rank in ranks if rank.state is RankState.FAILED]
    if not failed:
        return None
    first = min(failed, key=_since)
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    group = next((group for group in groups if group.name == first.group), None)
    message = f"{first.id} failed{_time('at', first)}{more}{_why(first)}{_survivors(group)}"
    cause = first.diagnosis.first_cause if first.diagnosis else ""
    return Headline(message, cause or first.id, "error")


def _survivors(group: GroupStatus | None) -> str:
    """Say who lives on in vain."""
    if group is None or not group.must_restart:
        return ""
    verb = "runs" if len(group.must_restart) == 1 else "run"
    return f" {in_short(group.must_restart)} still {verb}, without a group: restart {group.name}."


def _broken_group(groups: Sequence[GroupStatus]) -> Headline | None:
    for group in groups:
        if group.late:
            verb = "waits" if len(group.late) == 1 else "wait"
            return Headline(
                f"{in_short(group.late)} {verb} in vain: a MoE group that serves takes no rank back; "
                f"restart {group.name}",
                group.late[0],
                "error",
            )
        if group.waits_for:
            since = f" since {clock_time(group.waiting_since)}" if group.waiting_since else ""
            return Headline(
                f"{group.name} waits for {in_short(group.waits_for)} on {', '.join(group.waits_on)}{since}: "
                f"{len(group.waits_for)} of {group.total} ranks do not run",
                group.waits_for[0],
                "error",
            )
    return None


def _since(rank: RankStatus) -> float:
    """Return when it began, for sorting; what is not known comes last."""
    return rank.since or float("inf")


def _time(word: str, rank: RankStatus) -> str:
    return f" {word} {clock_time(rank.since)}" if rank.since else ""


def _why(rank: RankStatus) -> str:
    if rank.diagnosis is not None and rank.diagnosis.summary:
        cause, summary = rank.diagnosis.first_cause, rank.diagnosis.summary
        said = not cause or cause == rank.id or summary.startswith(f"lost its group: {cause}")
        named = "" if said else f" First cause: {cause}."
        return f": {rank.diagnosis.summary.rstrip('.')}.{named}"
    if rank.exit_status is None:
        return ""
    words = f"signal {-rank.exit_status}" if rank.exit_status < 0 else f"exit {rank.exit_status}"
    return f": {words}"


def _gone(nodes: Sequence[NodeStatus]) -> Sequence[NodeStatus]:
    """Return the nodes that cannot be reached."""
    return [
        node
        for node in nodes
        if node.state in (NodeState.FAILED, NodeState.RECONNECTING)
        or (node.state is NodeState.CONNECTING and node.error)
    ]


def _unreachable_node(nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus]) -> Headline | None:
    gone = _gone(nodes)
    if not gone:
        return None
    first = min(gone, key=lambda node: (node.state is not NodeState.FAILED, node.since))
    reasons: dict[str, list[str]] = {}
    for node in (first, *(node for node in gone if node is not first)):
        reasons.setdefault(_reason(node), []).append(node.name)
    why, *others = reasons
    if len(gone) == 1 and first.error:
        why = first.error.splitlines()[0]  # With the address.
    names = ", ".join(reasons.pop(_reason(first)))
    also = "".join(f"; {', '.join(reasons[other])}: {other}" for other in others)
    lost = sum(rank.node in {node.name for node in gone} for rank in ranks)
    behind = f"; {lost} ranks not seen since" if lost else ""
    nobody = "no node answers: " if len(gone) == len(nodes) > 1 else ""
    return Headline(
        f"{nobody}{names} unreachable since {clock_time(first.since)}: {why}{also}{behind}", first.name, "error"
    )


def _no_container(nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus]) -> Headline | None:
    """The host answers, and where ranks run is out of reach."""
    gone = [node for node in nodes if node.state is NodeState.CONNECTED and node.error]
    if not gone:
        return None
    why = gone[0].error.splitlines()[0]
    names = ", ".join(node.name for node in gone if node.error == gone[0].error)
    others = sum(node.error != gone[0].error for node in gone)
    also = f"; and {others} more" if others else ""
    lost = sum(rank.state is RankState.LOST and rank.node in {node.name for node in gone} for rank in ranks)
    behind = f"; {lost} ranks not seen since" if lost else ""
    return Headline(f"{names}: {why}{also}{behind}", gone[0].name, "error")


def _condition(nodes: Sequence[NodeStatus]) -> Headline | None:
    found = [node for node in nodes if node.conditions]
    if not found:
        return None
    more = f", and {len(found) - 1} more nodes" if len(found) > 1 else ""
    return Headline(f"{found[0].name}{more}: {found[0].conditions[0].message}", found[0].name, "warning")


def _reason(node: NodeStatus) -> str:
    """Return why a node cannot be reached without its address, so that nodes with the same reason share it."""
    if not node.error:
        return "no answer"
    place, colon, rest = node.error.splitlines()[0].partition(": ")
    named = place == node.host or place.removeprefix(f"{node.host}:").isdigit()
    return rest if colon and named else node.error.splitlines()[0]


def _sick_rank(ranks: Sequence[RankStatus]) -> Headline | None:
    sick = [rank for rank in ranks if rank.state in (RankState.STALLED, RankState.UNHEALTHY)]
    if not sick:
        return None
    first = min(sick, key=_since)
    more = f", and {len(sick) - 1} more" if len(sick) > 1 else ""
    what = "requests run but no tokens come" if first.state is RankState.STALLED else f"/health {first.health}"
    if first.state is RankState.UNHEALTHY and first.health == "200":
        what = "answers on /health, but no request"
    since = _time("since", first)
    return Headline(f"{first.id} {first.state}{since}{more}: {what}{_diagnosed(first)}", first.id, "error")


def _diagnosed(rank: RankStatus) -> str:
    return f". {rank.diagnosis.summary}" if rank.diagnosis is not None and rank.diagnosis.summary else ""


def _alarm(ranks: Sequence[RankStatus], severity: Literal["warning", "error"]) -> Headline | None:
    """Return what the metrics of ranks that answer say is wrong: the first, and who has the same.

    A warning in any case: nothing has ended, and the service goes on.
    """
    found = [(rank, alarm) for rank in ranks for alarm in rank.alarms if alarm.severity == severity]
    if not found:
        return None
    first, alarm = min(found, key=lambda pair: pair[1].since)
    same = [rank.id for rank, other in found if other.id == alarm.id and rank is not first]
    more = f"; also {in_short(same)}" if same else ""
    return Headline(f"{first.id} {alarm.message}{more}", first.id, "warning")


def _failed_npu(nodes: Sequence[NodeStatus]) -> Headline | None:
    return _npu(nodes, Verdict.FAILED)


def _weak_npu(nodes: Sequence[NodeStatus]) -> Headline | None:
    return _npu(nodes, Verdict.DEGRADED)


def _npu(nodes: Sequence[NodeStatus], verdict: Verdict) -> Headline | None:
    found = [(node, npu) for node in nodes for npu in node.npus if npu.verdict is verdict]
    if not found:
        return None
    node, npu = found[0]
    why = npu.reasons[0].summary if npu.reasons else str(verdict)
    carries = f", carries {npu.rank}" if npu.rank else ""
    more = f" (and {len(found) - 1} more NPUs)" if len(found) > 1 else ""
    return Headline(
        f"{node.name} NPU {npu.id} {verdict}: {why}{carries}{more}",
        f"{node.name}/{npu.id}",
        "error" if verdict is Verdict.FAILED else "warning",
    )


def _unmanaged(ranks: Sequence[RankStatus]) -> Headline | None:
    found = [rank for rank in ranks if rank.state is RankState.UNMANAGED]
    if not found:
        return None
    first = found[0]
    if len(found) == 1:
        pid = f" (pid {first.pid} on {first.node})" if first.pid is not None else f" on {first.node}"
        who = f"{first.id} was started by hand{pid}: restart takes it over"
    elif len(found) == len(ranks):
        who = f"all {len(found)} ranks were started by hand, not by pdtui: restart takes a group over"
    else:
        who = f"{first.id} and {len(found) - 1} more ranks were started by hand: restart takes a group over"
    return Headline(f"unmanaged: {who}", first.id, "warning")


def _foreign(nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus]) -> Headline | None:
    """Return who holds what a rank needs that does not run."""
    down = {rank.id for rank in ranks if rank.state in (RankState.STOPPED, RankState.FAILED)}
    for node in nodes:
        for one in node.foreign:
            hits = [rank for rank in one.hits if rank in down]
            if hits:
                what = f"NPU {', '.join(map(str, one.npus[:4]))}" if one.npus else f"port {one.ports[0]}"
                who = one.rank or one.command[:40] or "another process"
                pid = f" (pid {one.pid}{f', {one.user}' if one.user else ''})" if one.pid is not None else ""
                return Headline(
                    f"{node.name}: {who}{pid} holds {what}, where {hits[0]} belongs", node.name, "warning"
                )
        for left in node.ownerless:
            if left.rank in down:
                used = f"{left.used_mb / 1024:.1f} GB"
                words = f"{node.name} NPU {left.npu}: {used} of HBM in use without a process"
                return Headline(f"{words}, where {left.rank} belongs", f"{node.name}/{left.npu}", "warning")
    return None
