"""What two topology files make run differently, and what has to be done for the second to take effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pdtui.topology.compare import NODE_BOUND, Change, rank_changes
from pdtui.topology.findings import Finding, Severity
from pdtui.topology.model import Node, Topology
from pdtui.topology.plan import Plan, PortUse
from pdtui.topology.planner import make_plan
from pdtui.topology.redact import redacted_text

Fate = Literal["changed", "added", "removed", "moved", "down", "unplanned", "unknown"]
"""`down`: planned and not running; `unplanned`: running and not planned; `unknown`: nobody could be asked."""

Action = Literal["stop", "recreate", "restart", "start", "proxy"]


@dataclass(frozen=True, slots=True)
class RankDifference:
    """One rank that is not the same."""

    id: str
    group: str
    fate: Fate
    node: str
    """Where it is to run; for one that is to go, where it runs."""
    changes: tuple[Change, ...] = ()
    note: str = ""
    """What else must be known: why nobody could be asked, who started it."""


@dataclass(frozen=True, slots=True)
class Alike:
    """A change that several ranks of a group have in common."""

    change: Change
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """What is not the same about the ranks of one group."""

    name: str
    fate: Literal["changed", "added", "removed"]
    size: int
    """Ranks that it is to have; of one that is to go, those that it has."""
    ranks: tuple[RankDifference, ...]

    @property
    def before(self) -> int:
        """How many of its ranks were there before and can be compared."""
        return self.size - len(self.of("added", "down", "unknown"))

    def of(self, *fates: Fate) -> tuple[str, ...]:
        """Return the ids of the ranks with one of these fates."""
        return tuple(rank.id for rank in self.ranks if rank.fate in fates)

    def alike(self) -> tuple[Alike, ...]:
        """Return each change once, with the ranks that have it."""
        found: dict[Change, list[str]] = {}
        for rank in self.ranks:
            for change in rank.changes:
                found.setdefault(change, []).append(rank.id)
        order = {name: place for place, name in enumerate(dict.fromkeys(change.name for change in found))}
        return tuple(
            Alike(change, tuple(ids))
            for change, ids in sorted(found.items(), key=lambda item: order[item[0].name])
        )


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """A server that is not the same."""

    name: str
    fate: Literal["added", "removed", "renamed", "changed", "unknown"]
    was: str = ""
    """Its name before."""
    changes: tuple[Change, ...] = ()
    note: str = ""
    """Why it could not be asked."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do, in the order in which it is to be done."""

    action: Action
    ranks: tuple[str, ...]
    group: str
    """The group, when the ranks are all of it."""
    why: str


@dataclass(frozen=True, slots=True)
class Differences:
    """All that is not the same; everything empty: what runs is the same."""

    settings: tuple[Change, ...] = ()
    """Of the cluster as a whole: versions, runtime, safety, proxy."""
    nodes: tuple[NodeDifference, ...] = ()
    groups: tuple[GroupDifference, ...] = ()
    ports: tuple[Change, ...] = ()
    steps: tuple[Step, ...] = ()
    new_findings: tuple[Finding, ...] = ()
    gone_findings: tuple[Finding, ...] = ()
    reordered: tuple[str, ...] = ()
    """Ranks that run the same, with their flags or variables in another order."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.settings or self.nodes or self.groups or self.ports)


def compare_files(
    old: Topology, new: Topology, old_findings: Sequence[Finding] = (), new_findings: Sequence[Finding] = ()
) -> Differences:
    """Return what differs between what two files make run."""
    before, after = make_plan(old), make_plan(new)
    names = _renamed(old.nodes, new.nodes)
    ranks = list(_ranks(before, after, names))
    changed = {rank.id for rank in ranks}
    settings = tuple(_settings(old, new))
    groups = tuple(_groups(ranks, old, new))
    return Differences(
        settings=settings,
        nodes=tuple(_nodes(old.nodes, new.nodes, names)),
        groups=groups,
        ports=_ports(before.ports, after.ports),
        steps=tuple(_steps(old, new, (before, after), settings, groups)),
        new_findings=_missing_in(old_findings, new_findings),
        gone_findings=_missing_in(new_findings, old_findings),
        reordered=tuple(
            rank.id
            for rank in after.ranks
            if rank.id not in changed and before.by_id[rank.id].digest != rank.digest
        ),
    )


def whole_groups(ids: Iterable[str], topology: Topology, plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (group, ranks) of what must restart when these ranks must: of a MoE group, all."""
    wanted = set(ids)
    for group in topology.groups:
        members = tuple(rank.id for rank in plan.of_group(group))
        if hit := tuple(rank_id for rank_id in members if rank_id in wanted):
            yield group, members if topology.model.kind == "moe" else hit


# --- ranks and groups


def _ranks(before: Plan, after: Plan, names: Mapping[str, str]) -> Iterator[RankDifference]:
    for rank in after.ranks:
        old = before.by_id.get(rank.id)
        if old is None:
            yield RankDifference(rank.id, rank.group, "added", rank.node)
            continue
        old = replace(old, node=names.get(old.node, old.node))
        changes = rank_changes(old, rank)
        if old.node != rank.node:
            changes = tuple(replace(one, by_position=one.name in NODE_BOUND) for one in changes)
            yield RankDifference(rank.id, rank.group, "moved", rank.node, changes)
        elif changes:
            yield RankDifference(rank.id, rank.group, "changed", rank.node, changes)
    for rank in before.ranks:
        if rank.id not in after.by_id:
            yield RankDifference(rank.id, rank.group, "removed", names.get(rank.node, rank.node))


def _groups(ranks: Sequence[RankDifference], old: Topology, new: Topology) -> Iterator[GroupDifference]:
    for name in dict.fromkeys((*new.groups, *old.groups)):
        mine = tuple(rank for rank in ranks if rank.group == name)
        if name not in new.groups:
            yield GroupDifference(name, "removed", len(mine), mine)
        elif name not in old.groups:
            yield GroupDifference(name, "added", len(mine), mine)
        elif mine:
            size = sum(new.groups[name].ranks_per_node.values())
            yield GroupDifference(name, "changed", size, mine)


# --- nodes


def _renamed(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, str]:
    """Return old name -> new name of servers that only have another name."""
    added = {(node.host, node.address): name for name, node in new.items() if name not in old}
    gone = ((name, added.get((node.host, node.address))) for name, node in old.items() if name not in new)
    return {name: now for name, now in gone if now is not None}


def _nodes(old: Mapping[str, Node], new: Mapping[str, Node], names: Mapping[str, str]) -> Iterator[NodeDifference]:
    before = {names.get(name, name): node for name, node in old.items()}
    for name, node in new.items():
        if name not in before:
            yield NodeDifference(name, "added", changes=(Change("place", "host", None, node.host),))
            continue
        was = before[name]
        changes = tuple(_fields("", replace(was, name=name), node))
        if was.name != name:
            yield NodeDifference(name, "renamed", was.name, changes)
        elif changes:
            yield NodeDifference(name, "changed", changes=changes)
    for name, node in before.items():
        if name not in new:
            yield NodeDifference(name, "removed", changes=(Change("place", "host", node.host, None),))


# --- settings


_ELSEWHERE = frozenset({"path", "digest", "nodes", "groups", "flow", "connector"})
"""Fields of a topology that are told as nodes, groups and flags of ranks, or follow from them."""

_IN_COMMANDS = frozenset({"model.path", "model.served_name"})


def _settings(old: Topology, new: Topology) -> Iterator[Change]:
    for field in dataclasses.fields(Topology):
        if field.name not in _ELSEWHERE:
            found = _fields(field.name, getattr(old, field.name), getattr(new, field.name))
            yield from (change for change in found if change.name not in _IN_COMMANDS)


def _fields(name: str, old: Any, new: Any) -> Iterator[Change]:
    """Yield where two values of the model differ, by field and key."""
    if old == new:
        return
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
        for field in dataclasses.fields(new):
            inner = f"{name}.{field.name}" if name else field.name
            yield from _fields(inner, getattr(old, field.name, None), getattr(new, field.name))
    elif dataclasses.is_dataclass(new) or dataclasses.is_dataclass(old):
        whole = new if old is None else old
        for field in dataclasses.fields(whole):
            pair = [None if side is None else getattr(side, field.name) for side in (old, new)]
            yield from _fields(f"{name}.{field.name}", *pair)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*new, *old)):
            yield from _fields(f"{name}.{key}", old.get(key), new.get(key))
    elif isinstance(old, tuple) and isinstance(new, tuple) and set(old) != set(new):
        yield from (Change("setting", name, _text(item), None) for item in old if item not in new)
        yield from (Change("setting", name, None, _text(item)) for item in new if item not in old)
    else:
        yield Change("setting", name, _text(old), _text(new))


def _text(value: Any) -> str | None:
    if value is None or value in ((), ""):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(filter(None, map(_text, value)))
    return redacted_text(str(value))


# --- ports


def _ports(old: Sequence[PortUse], new: Sequence[PortUse]) -> tuple[Change, ...]:
    before, after = _by_owner(old), _by_owner(new)
    return tuple(
        Change("port", " ".join(filter(None, key)), before.get(key), after.get(key))
        for key in dict.fromkeys((*after, *before))
        if before.get(key) != after.get(key)
    )


def _by_owner(uses: Sequence[PortUse]) -> dict[tuple[str, str, str], str]:
    """Return (host, use, group) -> ports in words; ranges from which a whole node picks have no group."""
    found: dict[tuple[str, str, str], list[list[int]]] = {}
    for use in sorted(uses, key=lambda use: use.first):
        exact = use.use in ("api", "kv", "rpc")
        ranges = found.setdefault((use.host, use.use, use.owner.partition("/")[0] if exact else ""), [])
        if ranges and use.first <= ranges[-1][1] + 1:
            ranges[-1][1] = max(ranges[-1][1], use.last)
        else:
            ranges.append([use.first, use.last])
    return {
        key: ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for key, ranges in found.items()
    }


# --- what has to be done

_OTHER_PLACE = {
    "name": "they belong to the cluster's name",
    "runtime.container": "the new file looks for them in another container",
    "runtime.exec": "the new file looks for them in another way",
    "runtime.state_dir": "the new file looks for their records elsewhere",
}
"""Settings after a change of which pdtui no longer finds what was started before."""

_OF_CONTAINER = ("runtime.image", "runtime.shm_size", "runtime.devices", "runtime.mounts", "runtime.options")


def _steps(
    old: Topology,
    new: Topology,
    plans: tuple[Plan, Plan],
    settings: Sequence[Change],
    groups: Sequence[GroupDifference],
) -> Iterator[Step]:
    before, after = plans
    names = {change.name for change in settings}
    everyone = tuple(rank.id for rank in after.ranks)
    lost = "; ".join(why for name, why in _OTHER_PLACE.items() if name in names)
    recreate = new.runtime.container is not None and not names.isdisjoint(_OF_CONTAINER)
    if lost:
        yield Step("stop", tuple(rank.id for rank in before.ranks), "", f"with the old file: {lost}")
    elif leaving := [rank_id for group in groups for rank_id in group.of("removed", "moved")]:
        yield Step("stop", tuple(leaving), "", "with the old file: in the new one they are gone or elsewhere")
    if recreate:
        yield Step("recreate", everyone, "", "a container keeps the settings it was made with; its ranks end")
    if lost or recreate:
        yield Step("start", everyone, "", "")
    else:
        yield from _restarts(new, after, names, groups)
    if new.proxy is not None and old.proxy is not None and _proxy_changes(names, before, after):
        yield Step("proxy", (), "", "its address or its list of servers changes")


def _restarts(new: Topology, after: Plan, names: set[str], groups: Sequence[GroupDifference]) -> Iterator[Step]:
    if "runtime.setup" in names:
        yield Step(
            "restart", tuple(rank.id for rank in after.ranks), "", "their environment is set up in another way"
        )
        return
    moe = new.model.kind == "moe"
    for group in groups:
        added = group.of("added")
        outdated = group.of("changed", "moved")
        if group.fate == "removed":
            continue
        if group.fate == "added":
            yield Step("start", added, group.name, "")
        elif moe:
            why = "" if len(outdated) == group.size else "the ranks of a MoE group live and die together"
            yield Step("restart", tuple(rank.id for rank in after.of_group(group.name)), group.name, why)
        else:
            if outdated:
                yield Step("restart", outdated, group.name if len(outdated) == group.size else "", "")
            if added:
                yield Step("start", added, "", "")


def _proxy_changes(names: set[str], before: Plan, after: Plan) -> bool:
    return any(name.startswith("proxy.") for name in names) or _servers(before) != _servers(after)


def _servers(plan: Plan) -> set[tuple[str, str, int]]:
    return {(rank.role.value, rank.host, rank.api_port) for rank in plan.ranks}


# --- findings


def _missing_in(known: Sequence[Finding], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings that the others have not; what is no error may have other words at the same place."""
    seen = set(map(_finding_key, known))
    return tuple(one for one in findings if _finding_key(one) not in seen)


def _finding_key(one: Finding) -> tuple[str, ...]:
    return one.rule, one.severity, one.path, one.message if one.severity is Severity.ERROR else ""
