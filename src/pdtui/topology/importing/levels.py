"""Where a value goes: the defaults if all groups have it, a role if all of that have it, else the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdtui.topology.importing.groups import Formed
from pdtui.topology.importing.ranks import Sourced, sourced
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Role
from pdtui.topology.redact import redacted_text

_LOOKUP = ".extra.lookup_rpc_port"


@dataclass
class Level:
    """What one level of the file says."""

    args: dict[str, Sourced] = field(default_factory=dict)
    env: dict[str, Sourced] = field(default_factory=dict)
    config: dict[str, Sourced] = field(default_factory=dict)
    extra: dict[str, Sourced] = field(default_factory=dict)
    stores: dict[str, Sourced] = field(default_factory=dict)


@dataclass
class Levels:
    """All levels: defaults, roles, groups."""

    defaults: Level = field(default_factory=Level)
    roles: dict[Role, Level] = field(default_factory=dict)
    groups: dict[str, Level] = field(default_factory=dict)


KINDS = ("args", "env", "config", "extra", "stores")


def sort_out(groups: Sequence[Formed], own: Mapping[str, Mapping[str, Mapping[str, Sourced]]]) -> Levels:
    """Return the levels of what each group has: group -> kind -> name -> value."""
    levels = Levels(roles={role: Level() for role in Role}, groups={group.name: Level() for group in groups})
    for kind in KINDS:
        names = dict.fromkeys(name for group in groups for name in own[group.name][kind])
        for name in names:
            _place(levels, groups, own, kind, name)
    return levels


def _place(
    levels: Levels,
    groups: Sequence[Formed],
    own: Mapping[str, Mapping[str, Mapping[str, Sourced]]],
    kind: str,
    name: str,
) -> None:
    if _one(groups, own, kind, name):
        getattr(levels.defaults, kind)[name] = own[groups[0].name][kind][name]
        return
    for role in Role:
        mine = [group for group in groups if group.role is role]
        if mine and _one(mine, own, kind, name):
            getattr(levels.roles[role], kind)[name] = own[mine[0].name][kind][name]
            continue
        for group in mine:
            if name in own[group.name][kind]:
                getattr(levels.groups[group.name], kind)[name] = own[group.name][kind][name]


def _one(
    groups: Sequence[Formed], own: Mapping[str, Mapping[str, Mapping[str, Sourced]]], kind: str, name: str
) -> bool:
    """Whether all of some groups have the same value."""
    values = [own[group.name][kind].get(name) for group in groups]
    first = values[0]
    return first is not None and all(same(first, value) for value in values)


def same(one: Sourced | None, other: Sourced | None) -> bool:
    """Whether two values are the same, in kind too: 1 is neither True nor text."""
    if one is None or other is None:
        return one is other
    return bool(_typed(one.value) == _typed(other.value))


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return type(value), value


def _flat(stores: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Return stores as levels compare them, key by key: `AscendStoreConnector.extra.backend`."""
    found: dict[str, Sourced] = {}
    for store, said in stores.items():
        found[store] = Sourced({}, said.origin)
        for kind, values in said.value.items():
            found |= {f"{store}.{kind}.{key}": Sourced(value, said.origin) for key, value in values.items()}
    return found


def nested(stores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stores of a level as a file writes them."""
    found: dict[str, Any] = {}
    for name, value in stores.items():
        store, _, rest = name.partition(".")
        part = found.setdefault(store, {})
        if rest:
            kind, _, key = rest.partition(".")
            part.setdefault(kind, {})[key] = value
    return found


def of_group(group: Formed) -> tuple[dict[str, dict[str, Sourced]], list[Note]]:
    """Return what all ranks of a group have; where they differ the first counts, and both places are told."""
    found: dict[str, dict[str, Sourced]] = {}
    notes: list[Note] = []
    for kind in KINDS:
        merged: dict[str, Sourced] = {}
        has = [(rank, _flat(rank.stores) if kind == "stores" else getattr(rank, kind)) for rank in group.ranks]
        for name in dict.fromkeys(name for _, said in has for name in said):
            values = [(rank, said.get(name)) for rank, said in has]
            with_one = next(value for _, value in values if value is not None)
            if name.endswith(_LOOKUP) and not all(same(with_one, value) for _, value in values):
                message = f"{name} differs between ranks of {group.name}: each gets one of its own, which follows"
                notes.append(note(Kind.TRANSLATION, message, with_one.origin))
                continue
            merged[name] = with_one
            for rank, value in values:
                if same(with_one, value):
                    continue
                if value is None:
                    shown = _shown(kind, name)
                    message = f"{shown} is set for a part of the ranks of {group.name} only; it was taken for all"
                    places = (with_one.origin, rank.origin)
                else:
                    message = (
                        f"{_shown(kind, name)} differs between ranks of {group.name}, which no topology can say: "
                        f"{_text(with_one.value)} was taken, not {_text(value.value)}"
                    )
                    places = (with_one.origin, value.origin)
                notes.append(note(Kind.CONTRADICTION, message, *places))
                break
        found[kind] = merged
    return found, notes


def _shown(kind: str, name: str) -> str:
    if kind == "args":
        return f"--{name}"
    return name if kind == "env" else f"{name} of --kv-transfer-config"


def _text(value: Any) -> str:
    return redacted_text(str(value))[:60]


def parts_of(level: Level, *, kv: bool = True) -> dict[str, Any]:
    """Return `kv` (unless it stands elsewhere), `env` and `args` of a level, those that there are."""
    part: dict[str, Any] = {}
    if kv and (said := kv_part(level)):
        part["kv"] = said
    if level.env:
        part["env"] = sourced(level.env)
    if level.args:
        part["args"] = sourced(level.args)
    return part


def kv_part(level: Level) -> dict[str, Any]:
    """Return what a level says under `kv` besides the connector."""
    said = {
        "config": sourced(level.config),
        "extra": sourced(level.extra),
        "stores": nested(sourced(level.stores)),
    }
    return {key: value for key, value in said.items() if value}
