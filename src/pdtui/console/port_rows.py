"""The port map as rows: who binds what on a server or on all, what lies near, and who is there now."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.console.rows import BLANK, Row, heading
from pdtui.console.strings import S
from pdtui.fleet.snapshot import ALIVE_STATES, NodeState, NodeStatus, RankState, RankStatus, Snapshot
from pdtui.text import width
from pdtui.topology.port_map import CLOSE, EPHEMERAL_USE, HostPorts, Near, PortRow, span

_LABEL = 13


def port_rows(maps: Sequence[HostPorts], snapshot: Snapshot, node: str, only: str) -> list[Row]:
    """Return the map of a node (empty: of all), of it what shows the words of `only`; a number is a port."""
    hosts = [host for host in maps if node in ("", host.node)]
    found = [(host, [row for row in host.rows if _shows(host, row, only)]) for host in hosts]
    bound = [row for _, shown in found for row in shown if not row.is_range]
    uses = max((width(S.port_uses[row.use]) for row in bound), default=0)
    owners = max((width(row.owner) for row in bound), default=0)
    rows: list[Row] = []
    for host, shown in found:
        if shown:
            rows += [*([BLANK] if rows else []), heading(S.ports_of.format(node=host.node, address=host.host))]
        for row in shown:
            use = S.port_uses[row.use]
            if row.is_range:
                rows.append(Row(use, "dim", row.ports, label_width=_LABEL))
                continue
            now, style = _now(row, snapshot.node(host.node), snapshot)
            text = f"{_padded(use, uses)}  {_padded(row.owner, owners)}  {now}".rstrip()
            rows.append(Row(text, style, row.ports, label_width=_LABEL))
            rows += [_near_row(near) for near in row.near if near.distance <= CLOSE]
    return rows or [Row(S.ports_none, "dim")]


def _shows(host: HostPorts, row: PortRow, only: str) -> bool:
    text = f"{host.node} {host.host} {S.port_uses[row.use]} {row.owner}".lower()
    return all(
        row.first <= int(word) <= row.last if word.isdecimal() and len(word) < 7 else word in text
        for word in only.lower().split()
    )


def _padded(text: str, cells: int) -> str:
    return text + " " * (cells - width(text))


def _near_row(near: Near) -> Row:
    text = S.port_near[near.where].format(
        n=near.distance, range=span(near.first, near.last), use=S.port_uses[near.use]
    )
    style = "dim" if near.where != "inside" or near.use == EPHEMERAL_USE else "warning"
    return Row(text, style, " ", label_width=_LABEL)


def _now(row: PortRow, node: NodeStatus | None, snapshot: Snapshot) -> tuple[str, str]:
    """Return who is there now, as far as the snapshot knows, and the style of it."""
    if node is None or node.state is not NodeState.CONNECTED:
        return S.ports_not_known, "dim"
    for one in node.foreign:
        held = [port for port in one.ports if row.first <= port <= row.last]
        if held:
            who = one.rank or one.command or S.ports_somebody
            pid = f" ({one.pid})" if one.pid is not None else ""
            return S.ports_held.format(port=held[0], who=f"{who}{pid}"), "error"
    if not row.bound:
        return S.ports_kept, "dim"
    ranks = _ranks(row, snapshot)
    if not ranks:
        return "", "text"
    if row.use == "api":
        there, words = (
            [rank for rank in ranks if _answers(rank)],
            (S.ports_answers, S.ports_no_answer, S.ports_answer),
        )
    else:
        there, words = [rank for rank in ranks if _runs(rank)], (S.ports_runs, S.ports_no_rank, S.ports_run)
    unmanaged = sum(rank.state is RankState.UNMANAGED for rank in there)
    note = S.ports_by_hand.format(n=unmanaged) if unmanaged else ""
    every, none, some = words
    if not there:
        return none, "dim"
    if len(there) == len(ranks):
        return (every if len(ranks) == 1 else some.format(n=len(there), total=len(ranks))) + note, "text"
    return some.format(n=len(there), total=len(ranks)) + note, "warning"


def _ranks(row: PortRow, snapshot: Snapshot) -> list[RankStatus]:
    """Return the ranks whose ports they are; a group's RPC port belongs to its rank 0."""
    names = [f"{owner}/0" if row.use == "rpc" else owner for owner in row.owners]
    return [rank for name in names if (rank := snapshot.rank(name)) is not None]


def _answers(rank: RankStatus) -> bool:
    return _runs(rank) and rank.health not in ("", "refused")


def _runs(rank: RankStatus) -> bool:
    return rank.state in ALIVE_STATES or rank.state is RankState.UNMANAGED
