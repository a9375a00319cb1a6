"""`pdtui status`: nodes, NPUs and ranks now."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pdtui.cli.live import SETTLE, clock_time, with_fleet
from pdtui.cli.output import columns, print_json
from pdtui.cli.rank_table import KNOWN, rank_table
from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.leases import lease_words
from pdtui.fleet.serving import is_serving
from pdtui.fleet.snapshot import Acknowledgement, NodeState, NodeStatus, NpuStatus, RankStatus, Snapshot
from pdtui.fleet.targets import in_short
from pdtui.fleet.troubles import FINE, Trouble, healthy, of_npu, troubles, until, untold
from pdtui.readings.verdict import Verdict


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
@click.option(
    "--over",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="How long to read metrics first: tokens/s, TTFT and TPOT need two readings (10 s), alarms more (30 s).",
)
def command(file: Path, as_json: bool, wait: float, over: float) -> int:
    """Print nodes, NPUs and ranks of FILE as they are now.

    Exit status: 1 when something is not healthy: a node that cannot be reached, an NPU that is not healthy, a
    rank that is not ready, or one whose metrics say that it does not do its part (an alarm that is an error). What
    is acknowledged (`pdtui ack`) is listed and does not count.
    """

    async def work(fleet: Fleet) -> int:
        await read_all(fleet, wait)
        await SystemClock().sleep(over)
        fleet.store.publish()
        snapshot = fleet.snapshot
        if as_json:
            print_json(as_dict(snapshot))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            click.echo("\n".join(as_text(snapshot, npus=fleet.topology.has_npus, width=width)))
        return 0 if healthy(snapshot) else 1

    return with_fleet(file, work, read_only=True, wait=wait)


async def read_all(fleet: Fleet, wait: float) -> None:
    """Wait at most so many seconds until every NPU was read, and every log that says why a rank is as it is."""
    with contextlib.suppress(TimeoutError):  # What has not answered by then is unknown, and says why.
        async with asyncio.timeout(max(1.0, wait)):
            # Not the others: they have just refused, and sshd counts failed logins.
            if there := [node.name for node in fleet.snapshot.nodes if node.state is NodeState.CONNECTED]:
                await fleet.poll_now(there, hanging=False)
            await _looked_through(fleet)


async def _looked_through(fleet: Fleet) -> None:
    """Wait until the logs of ranks that start or are broken have been looked through."""
    while fleet.is_reading:
        await fleet.store.changed()


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
        "healthy": healthy(snapshot),
        "acknowledgements": [acknowledgement(one, snapshot) for one in snapshot.acknowledgements],
    }


def acknowledgement(one: Acknowledgement, snapshot: Snapshot) -> dict[str, object]:
    """Return an acknowledgement as JSON has it, with the keys of what it is about now."""
    about = [trouble.key for trouble in troubles(snapshot) if snapshot.acknowledged(trouble.key) is one]
    return {**asdict(one), "troubles": about}


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
        "alarms": [asdict(alarm) for alarm in rank.alarms],
        "last_state": rank.last_state.value if rank.last_state is not None else None,
        "last_start_s": rank.last_start_s,
        "observed_at": rank.observed_at,
        "log": rank.log,
        "log_note": rank.log_note,
    }


def as_text(snapshot: Snapshot, *, npus: bool = True, width: int | None = None) -> list[str]:
    """Return a snapshot as plain aligned lines, what is wrong first.

    `npus`: the cluster has any; `width`: cells of the terminal, None without one.
    """
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
    elif snapshot.file_removed:
        lines.append("the file was removed from disk after it was loaded")
    elif snapshot.file_changed:
        lines.append("the file has changed on disk since it was loaded")
    known = untold(snapshot)
    if known:
        lines.append(f"{len(known)} acknowledged, not counted: see below")
    lines += [f"in other hands: {lease_words(lease, snapshot.made_at)}" for lease in snapshot.leases]
    nodes = sorted(snapshot.nodes, key=lambda node: node.state is NodeState.CONNECTED)
    if npus:
        lines += ["", *columns(("NODE", "HOST", "STATE", "NPUS", "HBM", "MAX C", "NOTE"), _node_rows(nodes))]
    else:
        lines += [
            "",
            *columns(("NODE", "HOST", "STATE", "READY", "NOTE"), _plain_node_rows(nodes, snapshot.ranks)),
        ]
    unwell = list(_npu_rows(snapshot))
    if unwell:
        lines += ["", *columns(("NPU", "VERDICT", "RANK", "WHY"), unwell)]
    foreign = list(_foreign_rows(snapshot.nodes))
    if foreign:
        heads = ["NOT OF THIS CLUSTER", "NODE", "USER", "SINCE", "PORTS", "IN THE PLACE OF", "COMMAND"]
        if npus:
            heads[4:4] = _OF_NPUS
        else:
            foreign = [(*row[:4], *row[4 + len(_OF_NPUS) :]) for row in foreign]
        lines += ["", *columns(heads, foreign)]
    lines += ["", *rank_table(snapshot.ranks, width, {trouble.subject for trouble, _ in known})]
    if known:
        lines += ["", *columns(("ACKNOWLEDGED", "UNTIL", "BY", "REASON", "WHAT"), _known_rows(known))]
    return lines


def _known_rows(known: Sequence[tuple[Trouble, Acknowledgement]]) -> Iterable[Sequence[str]]:
    """Return what is wrong and known, each with who knows of it and why."""
    for trouble, one in known:
        yield trouble.key, until(one), one.by, one.reason, trouble.summary


_OF_NPUS = ("NPUS", "HBM")


def _plain_node_rows(nodes: Sequence[NodeStatus], ranks: Sequence[RankStatus]) -> Iterable[Sequence[str]]:
    """Return the nodes of a cluster without NPUs."""
    for node in nodes:
        here = [is_serving(rank) for rank in ranks if rank.node == node.name]
        ready = f"{sum(here)}/{len(here)}" if here else "-"
        yield node.name, node.host, node.state.value, ready, _node_note(node)


def _node_note(node: NodeStatus) -> str:
    return "; ".join(node.error.splitlines()) or node.tool_error or _conditions(node)


def _node_rows(nodes: Sequence[NodeStatus]) -> Iterable[Sequence[str]]:
    for node in nodes:
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
            _node_note(node),
        )


def _conditions(node: NodeStatus) -> str:
    return "; ".join(condition.message for condition in node.conditions)


def _npu_rows(snapshot: Snapshot) -> Iterable[Sequence[str]]:
    """Return what is not healthy, worst first; neighbours of a node with the same trouble share a row."""
    words = {
        (node.name, npu.id): _why(node.name, npu, snapshot)
        for node in snapshot.nodes
        for npu in node.npus
        if npu.verdict not in FINE
    }
    order = (Verdict.FAILED, Verdict.DEGRADED, Verdict.UNKNOWN)
    found = [(node.name, npu) for node in snapshot.nodes for npu in node.npus if npu.verdict not in FINE]
    runs: list[tuple[str, list[NpuStatus]]] = []
    for name, npu in sorted(found, key=lambda pair: order.index(pair[1].verdict)):
        before = runs[-1][1][-1] if runs and runs[-1][0] == name else None
        if before and _is_next(before, npu) and words[name, before.id] == words[name, npu.id]:
            runs[-1][1].append(npu)
        else:
            runs.append((name, [npu]))
    for name, npus in runs:
        first, last = npus[0], npus[-1]
        ids = f"{first.id}" if first is last else f"{first.id}-{last.id}"
        ranks = in_short(tuple(dict.fromkeys(npu.rank for npu in npus if npu.rank)))
        yield f"{name}/{ids}", first.verdict.value, ranks or "-", words[name, first.id]


def _is_next(npu: NpuStatus, following: NpuStatus) -> bool:
    return (
        following.id == npu.id + 1 and following.verdict is npu.verdict and bool(npu.rank) == bool(following.rank)
    )


def _why(node: str, npu: NpuStatus, snapshot: Snapshot) -> str:
    """Return the worst reason that is not acknowledged; else the worst, marked."""
    found = list(of_npu(node, npu))
    told = [trouble for trouble in found if snapshot.acknowledged(trouble.key) is None]
    if told or not found:
        return told[0].summary if told and npu.reasons else ""
    return f"{KNOWN} {found[0].summary}"


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
