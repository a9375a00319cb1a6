"""`pdtui status`: nodes, NPUs and ranks now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pdtui.cli.live import SETTLE, clock_time, with_fleet
from pdtui.cli.output import columns, print_json
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.leases import lease_words
from pdtui.fleet.serving import is_serving
from pdtui.fleet.snapshot import (
    WRONG_STATES,
    NodeState,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
    Snapshot,
)
from pdtui.fleet.store import exit_words
from pdtui.fleet.targets import in_short
from pdtui.readings.verdict import Verdict

FINE = frozenset({Verdict.HEALTHY, Verdict.NA})
_ORDER = (
    RankState.FAILED,
    RankState.STALLED,
    RankState.UNHEALTHY,
    RankState.LOST,
    RankState.UNMANAGED,
    RankState.UNKEPT,
    RankState.STOPPING,
    RankState.STARTING,
    RankState.UNKNOWN,
    RankState.STOPPED,
    RankState.READY,
)


@click.command("status")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=SETTLE,
    show_default=True,
    metavar="SECONDS",
    help="How long nodes may take for their first answers.",
)
def command(file: Path, as_json: bool, wait: float) -> int:
    """Print nodes, NPUs and ranks of FILE as they are now.

    Exit status: 1 when something is not healthy: a node that cannot be reached, an NPU that is not healthy, a
    rank that is not ready.
    """

    async def work(fleet: Fleet) -> int:
        with contextlib.suppress(TimeoutError):  # What has not answered by then is unknown, and says why.
            async with asyncio.timeout(max(1.0, wait)):
                # Not the others: they have just refused, and sshd counts failed logins.
                if there := [node.name for node in fleet.snapshot.nodes if node.state is NodeState.CONNECTED]:
                    await fleet.poll_now(there, hanging=False)
                await _diagnosed(fleet)
        fleet.store.publish()
        snapshot = fleet.snapshot
        if as_json:
            print_json(as_dict(snapshot))
        else:
            click.echo("\n".join(as_text(snapshot)))
        return 0 if healthy(snapshot) else 1

    return with_fleet(file, work, read_only=True, wait=wait)


async def _diagnosed(fleet: Fleet) -> None:
    """Wait until the logs of all failed ranks have been looked through."""
    while any(
        rank.state is RankState.FAILED and rank.log and rank.diagnosis is None
        for rank in fleet.store.ranks.values()
    ):
        await fleet.store.changed()


def healthy(snapshot: Snapshot) -> bool:
    """Return whether every node is connected, every NPU healthy and every rank ready."""
    return (
        all(
            node.state is NodeState.CONNECTED and not node.error and not node.tool_error for node in snapshot.nodes
        )
        and all(npu.verdict in FINE for node in snapshot.nodes for npu in node.npus)
        and all(rank.state is RankState.READY or _serves_by_hand(rank) for rank in snapshot.ranks)
    )


def _serves_by_hand(rank: RankStatus) -> bool:
    return rank.state is RankState.UNMANAGED and is_serving(rank)


def as_dict(snapshot: Snapshot) -> dict[str, object]:
    """Return a snapshot as what `--json` prints: an interface.

    Times are seconds since the epoch, null when not known.
    """
    return {
        "schema_version": 1,
        "cluster": snapshot.cluster,
        "made_at": snapshot.made_at,
        "serving": asdict(snapshot.serving),
        "nodes": [_node(node) for node in snapshot.nodes],
        "ranks": [_rank(rank) for rank in snapshot.ranks],
        "groups": [asdict(group) for group in snapshot.groups],
        "leases": [asdict(lease) for lease in snapshot.leases],
    }


def _node(node: NodeStatus) -> dict[str, object]:
    return {
        "name": node.name,
        "host": node.host,
        "state": node.state.value,
        "error": node.error or node.tool_error,
        "remedy": node.remedy,
        "conditions": [asdict(condition) for condition in node.conditions],
        "npus": [_npu(npu) for npu in node.npus],
        "foreign": [asdict(one) for one in node.foreign],
        "ownerless_hbm": [asdict(one) for one in node.ownerless],
    }


def _npu(npu: NpuStatus) -> dict[str, object]:
    return {
        "id": npu.id,
        "verdict": npu.verdict.value,
        "link": npu.link,
        "net_health": npu.net_health,
        "health": npu.health,
        "processes": [{"pid": pid, "name": name, "hbm_mb": memory} for pid, name, memory in npu.processes],
        "hbm_used_mb": npu.hbm_used_mb,
        "hbm_total_mb": npu.hbm_total_mb,
        "temperature_c": npu.temperature_c,
        "observed_at": npu.observed_at,
        "reasons": [asdict(reason) for reason in npu.reasons],
    }


def _rank(rank: RankStatus) -> dict[str, object]:
    return {
        "id": rank.id,
        "group": rank.group,
        "role": rank.role.value,
        "node": rank.node,
        "devices": list(rank.devices),
        "api_port": rank.api_port,
        "state": rank.state.value,
        "stage": rank.stage,
        "pid": rank.pid,
        "exit_status": rank.exit_status,
        "since": rank.since or None,
        "flags": list(rank.flags),
        "diagnosis": asdict(rank.diagnosis) if rank.diagnosis is not None else None,
        "health": rank.health,
        "started": rank.started,
        "ended": rank.ended,
        "run": rank.run,
        "by": rank.by,
        "difference": list(rank.difference),
        "metrics": asdict(rank.metrics) if rank.metrics is not None else None,
        "last_state": rank.last_state.value if rank.last_state is not None else None,
        "last_start_s": rank.last_start_s,
        "observed_at": rank.observed_at,
        "log": rank.log,
        "log_note": rank.log_note,
    }


def as_text(snapshot: Snapshot) -> list[str]:
    """Return a snapshot as plain aligned lines, what is wrong first."""
    serving = snapshot.serving
    since = f" since {clock_time(serving.since)}" if serving.since is not None else ""
    lines = [
        f"{snapshot.cluster}  {serving.word}{since}  "
        f"P {serving.prefill_ready}/{serving.prefill_total}  D {serving.decode_ready}/{serving.decode_total}"
    ]
    if snapshot.headline is not None:
        lines.append(snapshot.headline.message)
    if snapshot.file_broken:
        lines.append(f"the file has changed on disk and is broken: {snapshot.file_broken}")
    elif snapshot.file_changed:
        lines.append("the file has changed on disk since it was loaded")
    lines += [f"in other hands: {lease_words(lease, snapshot.made_at)}" for lease in snapshot.leases]
    lines += ["", *columns(("NODE", "HOST", "STATE", "NPUS", "HBM", "MAX C", "NOTE"), _node_rows(snapshot.nodes))]
    npus = list(_npu_rows(snapshot.nodes))
    if npus:
        lines += ["", *columns(("NPU", "VERDICT", "RANK", "WHY"), npus)]
    foreign = list(_foreign_rows(snapshot.nodes))
    if foreign:
        heads = (
            "NOT OF THIS CLUSTER",
            "NODE",
            "USER",
            "SINCE",
            "NPUS",
            "HBM",
            "PORTS",
            "IN THE PLACE OF",
            "COMMAND",
        )
        lines += ["", *columns(heads, foreign)]
    lines += ["", *columns(("RANK", "NODE", "STATE", "SINCE", "PID", "NOTE"), _rank_rows(snapshot.ranks))]
    return lines


def _node_rows(nodes: Sequence[NodeStatus]) -> Iterable[Sequence[str]]:
    for node in sorted(nodes, key=lambda node: node.state is NodeState.CONNECTED):
        fine = sum(npu.verdict in FINE for npu in node.npus)
        used = [(npu.hbm_used_mb, npu.hbm_total_mb) for npu in node.npus]
        known = [(part, whole) for part, whole in used if part is not None and whole]
        hot = [npu.temperature_c for npu in node.npus if npu.temperature_c is not None]
        yield (
            node.name,
            node.host,
            node.state.value,
            f"{fine}/{len(node.npus)} ok" if node.npus else "-",
            f"{100 * sum(p for p, _ in known) // sum(w for _, w in known)} %" if known else "-",
            f"{max(hot):.0f}" if hot else "-",
            "; ".join(node.error.splitlines()) or node.tool_error or _conditions(node),
        )


def _conditions(node: NodeStatus) -> str:
    return "; ".join(condition.message for condition in node.conditions)


def _npu_rows(nodes: Sequence[NodeStatus]) -> Iterable[Sequence[str]]:
    """Return what is not healthy, worst first; neighbours of a node with the same trouble share a row."""
    order = (Verdict.FAILED, Verdict.DEGRADED, Verdict.UNKNOWN)
    found = [(node.name, npu) for node in nodes for npu in node.npus if npu.verdict not in FINE]
    runs: list[tuple[str, list[NpuStatus]]] = []
    for name, npu in sorted(found, key=lambda pair: order.index(pair[1].verdict)):
        if runs and runs[-1][0] == name and _same_trouble(runs[-1][1][-1], npu):
            runs[-1][1].append(npu)
        else:
            runs.append((name, [npu]))
    for name, npus in runs:
        first, last = npus[0], npus[-1]
        ids = f"{first.id}" if first is last else f"{first.id}-{last.id}"
        ranks = in_short(tuple(dict.fromkeys(npu.rank for npu in npus if npu.rank)))
        yield f"{name}/{ids}", first.verdict.value, ranks or "-", _why(first)


def _same_trouble(npu: NpuStatus, following: NpuStatus) -> bool:
    return (
        following.id == npu.id + 1 and following.verdict is npu.verdict and bool(npu.rank) == bool(following.rank)
    ) and _why(npu) == _why(following)


def _why(npu: NpuStatus) -> str:
    return npu.reasons[0].summary if npu.reasons else ""


def _foreign_rows(nodes: Sequence[NodeStatus]) -> Iterable[Sequence[str]]:
    """Return what uses the nodes and is no part of the cluster, and memory that nobody is known to hold."""
    for node in nodes:
        for one in node.foreign:
            yield (
                f"pid {one.pid}" if one.pid is not None else "not seen",
                node.name,
                one.user or "-",
                clock_time(one.since),
                ",".join(map(str, one.npus)) or "-",
                f"{one.hbm_mb / 1024:.1f} GB" if one.hbm_mb is not None else "-",
                ",".join(map(str, one.ports)) or "-",
                in_short(one.hits) or "-",
                "; ".join(word for word in (one.rank, one.command[:80], one.note) if word),
            )
        for left in node.ownerless:
            used = f"{left.used_mb / 1024:.1f} GB"
            yield (
                "no process",
                node.name,
                "-",
                "-",
                str(left.npu),
                used,
                "-",
                left.rank or "-",
                "HBM without an owner",
            )


def _rank_rows(ranks: Sequence[RankStatus]) -> Iterable[Sequence[str]]:
    for rank in sorted(ranks, key=lambda rank: _ORDER.index(rank.state)):
        pid = str(rank.pid) if rank.pid is not None else "-"
        yield rank.id, rank.node, rank.state.value, clock_time(rank.since or None), pid, rank_note(rank)


def rank_note(rank: RankStatus) -> str:
    """Return what there is to say about a rank besides its state."""
    notes: list[str] = []
    if rank.state is RankState.FAILED and rank.exit_status is not None:
        notes.append(exit_words(rank.exit_status))
    if rank.state is RankState.LOST and rank.last_state is not None:
        notes.append(f"was {rank.last_state}")
    if rank.stage:
        notes.append(rank.stage)
    if rank.state not in (RankState.READY, RankState.STARTING) and rank.health:
        notes.append(f"/health {rank.health}")
    if rank.state in WRONG_STATES and rank.diagnosis is not None:
        notes.append(rank.diagnosis.summary)
    if rank.state is RankState.UNMANAGED:
        notes.append(f"started by hand{f' by {rank.by}' if rank.by else ''}")
        notes += [rank.log_note] if rank.log_note else []
    notes.extend(rank.flags)
    if rank.difference:
        notes.append("; ".join(rank.difference))
    return ", ".join(notes)
