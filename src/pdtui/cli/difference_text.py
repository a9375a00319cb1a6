"""The differences between two files, or a file and what runs, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from pdtui.cli import changes
from pdtui.cli.check import findings_as_dicts, table
from pdtui.fleet.targets import in_short
from pdtui.text import clean_line, spans
from pdtui.topology.compare import Change, short
from pdtui.topology.differences import Alike, Differences, GroupDifference, NodeDifference, Step

_FATES = {
    "added": "new",
    "removed": "gone",
    "moved": "moved",
    "down": "not running",
    "unplanned": "running, but not in the file",
    "unknown": "not known",
}
_LONG = 200
"""Characters of a value that are shown."""

_RESERVED = ("transfer-engine", "transfer-engine-rpc", "hccl")
"""Uses that every node with NPUs has, in the same ranges unless the file says otherwise."""

_FEW = 3
"""Different values of one thing that get a line each; more share one."""


def as_dict(found: Differences, **also: object) -> dict[str, object]:
    """Return differences as `--json` prints them: an interface. `also`: what was compared."""
    return {
        "schema_version": 1,
        **also,
        "same": found.is_empty,
        "settings": [changes.as_dict(change) for change in found.settings],
        "nodes": [
            {
                "name": node.name,
                "fate": node.fate,
                "was": node.was or None,
                "changes": _dicts(node.changes),
                "note": node.note,
            }
            for node in found.nodes
        ],
        "groups": [_group_dict(group) for group in found.groups],
        "ports": [changes.as_dict(change) for change in found.ports],
        "steps": [asdict(step) for step in found.steps],
        "reordered": list(found.reordered),
        "new_findings": findings_as_dicts(found.new_findings),
        "gone_findings": findings_as_dicts(found.gone_findings),
    }


def _dicts(found: Sequence[Change]) -> list[dict[str, object]]:
    return [changes.as_dict(change) for change in found]


def _group_dict(group: GroupDifference) -> dict[str, object]:
    return {
        "name": group.name,
        "fate": group.fate,
        "size": group.size,
        "ranks": [
            {"id": rank.id, "fate": rank.fate, "node": rank.node, "note": rank.note} for rank in group.ranks
        ],
        "changes": [
            {
                **changes.as_dict(alike.change),
                "by_position": alike.change.by_position,
                "ranks": list(alike.ranks),
            }
            for alike in group.alike()
        ],
    }


def as_lines(found: Differences, *, same: str, head: str = "") -> list[str]:
    """Return differences as text; `same` is said when there are none, else `head` first."""
    lines: list[str] = [head] if head and not found.is_empty else []
    if found.is_empty:
        lines.append(same)
        if found.reordered:
            lines.append(
                f"{in_short(found.reordered)}: the same flags and variables in another order; status calls them "
                "outdated, and they need no restart"
            )
    lines += _block("cluster", (change.words(limit=_LONG) for change in found.settings))
    lines += _block("nodes", _nodes(found.nodes))
    bodies: dict[tuple[str, ...], list[str]] = {}
    for group in found.groups:
        bodies.setdefault(tuple(_group(group)), []).append(group.name)
    for body, names in bodies.items():
        lines += _block(f"group{'s' * (len(names) > 1)} {', '.join(names)}", body)
    lines += _block("ports", _ports(found.ports))
    lines += _block("for this to take effect" if found.steps else "", map(_step, found.steps))
    lines += _block("findings that are new", table(found.new_findings))
    lines += _block("findings that are gone", table(found.gone_findings))
    return [clean_line(line) for line in lines]


def _block(head: str, body: Iterable[str]) -> Iterator[str]:
    rows = list(body)
    if rows:
        yield head
        yield from (f"  {row}" for row in rows)


def _nodes(nodes: Sequence[NodeDifference]) -> Iterator[str]:
    """Yield what is not the same about servers, once for those that change alike."""
    for node in nodes:
        if node.fate == "added":
            yield f"{node.name} is new: {node.changes[0].new}"
        elif node.fate == "removed":
            yield f"{node.name} is gone: {node.changes[0].old}"
        elif node.fate == "unknown":
            yield f"{node.name} is not known: {node.note}"
        elif node.fate == "renamed":
            yield f"{node.name} was called {node.was}"
    alike: dict[str, list[str]] = {}
    for node in nodes:
        if node.fate in ("renamed", "changed"):
            for change in node.changes:
                alike.setdefault(change.words(limit=_LONG), []).append(node.name)
    for words, names in alike.items():
        yield f"{words}  ({', '.join(names)})"


def _group(group: GroupDifference) -> Iterator[str]:
    if group.fate != "changed":
        node = ", ".join(dict.fromkeys(rank.node for rank in group.ranks))
        where = "on" if group.fate == "added" else "was on"
        yield f"is {_FATES[group.fate]}: {len(group.ranks)} rank{'s' * (len(group.ranks) != 1)}, {where} {node}"
        return
    for fate, words in _FATES.items():
        for (node, note), ids in _by_place(group, fate).items():
            at = f" to {node}" if fate == "moved" else f" ({node})"
            yield f"{words}: {in_short(ids)}{at}{f': {note}' if note else ''}"
    for (node, note), ids in _by_place(group, "changed").items():
        if note:
            yield f"{in_short(ids)} ({node}): {note}"
    by_name: dict[str, list[Alike]] = {}
    for alike in group.alike():
        # Places are told as moves and ports, and what is bound to a node follows from the move.
        if alike.change.kind != "place" and not alike.change.by_position:
            by_name.setdefault(alike.change.name, []).append(alike)
    for alikes in by_name.values():
        if len(alikes) <= _FEW:
            yield from (f"{alike.change.words(limit=_LONG)}{_who(alike.ranks, group)}" for alike in alikes)
        else:
            yield _each(alikes, group)


def _ports(found: Sequence[Change]) -> Iterator[str]:
    """Yield what changes in the port map, once for all hosts where it is the same."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for change in found:
        host, _, use = change.name.partition(" ")
        if use in _RESERVED and None in (change.old, change.new):
            continue  # A new node has them, too.
        hosts.setdefault((use, f"{short(change.old)} -> {short(change.new)}"), []).append(host)
    for (use, words), where in hosts.items():
        yield f"{use}: {words}  ({', '.join(where)})"


def _by_place(group: GroupDifference, fate: str) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for rank in group.ranks:
        if rank.fate == fate:
            found.setdefault((rank.node, rank.note), []).append(rank.id)
    return found


def _who(ids: Sequence[str], group: GroupDifference) -> str:
    """Say which ranks have a change, unless all have it."""
    return "" if len(ids) == group.before else f"  ({in_short(ids)})"


def _each(alikes: Sequence[Alike], group: GroupDifference) -> str:
    """Return one line for a change that is another one for each rank."""
    ids = [rank_id for rank_id in (rank.id for rank in group.ranks) if any(rank_id in one.ranks for one in alikes)]
    sides = ([one.change.old for one in alikes], [one.change.new for one in alikes])
    old, new = (_together(side) for side in sides)
    who = "each rank its own" if len(ids) == group.before else f"{in_short(ids)}, each its own"
    return f"{alikes[0].change.name}: {old} -> {new}  ({who})"


def _together(values: Sequence[str | None]) -> str:
    """Return many values in few words: numbers as ranges, others by the first and the last."""
    numbers = [number for value in values if value is not None for number in _numbers(value)]
    if numbers and all(value is not None and _numbers(value) for value in values):
        return spans(numbers)
    distinct = list(dict.fromkeys(short(value) for value in values))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} … {distinct[-1]}"


def _numbers(value: str) -> list[int]:
    """Return the numbers of `7`, `7-9` and `7,8,9`; empty for other text."""
    numbers: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 5 or len(last) > 5:
            return []
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _step(step: Step) -> str:
    count = len(step.ranks)
    which = f"group {step.group} ({count} rank{'s' * (count != 1)})" if step.group else in_short(step.ranks)
    words = {
        "stop": f"stop {which}",
        "recreate": "recreate the containers (`pdtui container recreate`)",
        "restart": f"restart {which}",
        "start": f"start {which}",
        "proxy": "restart the proxy",
    }
    return f"{words[step.action]}{f': {step.why}' if step.why else ''}"
