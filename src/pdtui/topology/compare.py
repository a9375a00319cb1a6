"""How two commands with their environments differ: by flag, key of a JSON value, variable. The one comparison.

What is only spelt in another way (`--seed=1`, `--max_num_seqs`, `-tp`, order of flags and of JSON keys) is no
difference. Values of secrets are compared and never returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdtui.text import spans
from pdtui.topology.model import Group, Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.redact import HIDDEN, is_secret, redacted
from pdtui.topology.reference import refers
from pdtui.topology.vllm_flags import long_name

ChangeKind = Literal["place", "flag", "env", "setting", "port"]

COMMAND = "command"
"""Name of what stands before the flags: the program and the model."""

_SHORT = 60

NODE_BOUND = frozenset(
    {
        *("node", "address", "--host", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
        *("HCCL_IF_IP", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"),
    }
)
"""What follows from the node of a rank."""

_BY_POSITION = NODE_BOUND | {
    *("devices", "API port", "KV ports", "--port"),
    *("--data-parallel-rank", "--data-parallel-address", "--data-parallel-rpc-port"),
    *("ASCEND_RT_VISIBLE_DEVICES", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
}
"""What follows from where a rank stands: its node, its number, its NPUs."""

_POSITION_KEYS = ("kv_port", "lookup_rpc_port", "engine_id")
"""Keys of `--kv-transfer-config`, and of its connectors', of which the same is true."""

_KV = "--kv-transfer-config"
_MOST_BRACKETS = 400
"""A JSON value with more is compared as text: it could be nested more deeply than Python compares."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; None is absent, an empty text is a flag without a value."""

    kind: ChangeKind
    name: str
    """`--seed`, `--kv-transfer-config.kv_port`, `HCCL_BUFFSIZE`, `devices`."""
    old: str | None
    new: str | None
    by_position: bool = False
    """It follows from where the ranks stand, and nobody wrote it."""

    def words(self, mark: str = "", limit: int = _SHORT) -> str:
        """Return it on one line: `--seed: 1 -> 1024`; `mark` goes to its end, `limit` cuts the values."""
        return f"{self.name}: {short(self.old, limit)} -> {short(self.new, limit)}{mark}"


def short(value: str | None, limit: int = _SHORT) -> str:
    """Return a value in so many characters."""
    if value is None:
        return "absent"
    if value == "":
        return "set"
    return value if len(value) <= limit else f"{value[: limit - 1]}…"


def argv_changes(old: Sequence[str], new: Sequence[str]) -> tuple[Change, ...]:
    """Return what differs between two commands, first what the new one has."""
    before, after = _values(flags_of(old)), _values(flags_of(new))
    names = sorted(before.keys() | after.keys(), key=lambda name: (name not in after, name))
    return tuple(
        Change("flag", name, _shown(name, one), _shown(name, other))
        for flag in names
        for name, one, other in _walk(flag, before.get(flag, _ABSENT), after.get(flag, _ABSENT))
    )


def env_changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the variables that differ, as they are written."""
    return tuple(
        Change("env", name, _variable(name, old), _variable(name, new))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def seen_env_changes(seen: Mapping[str, str], planned: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the planned variables that a process has with another value, or has not.

    `seen` is what the process really has; `$NAME` in a planned value stands for any text of the node.
    """
    return tuple(
        Change("env", name, _variable(name, seen), _variable(name, planned))
        for name in sorted(planned)
        if not _may_become(planned[name], seen.get(name))
    )


def rank_changes(old: RankPlan, new: RankPlan) -> tuple[Change, ...]:
    """Return all that differs between two ranks: place, command, environment."""
    places = (
        ("node", old.node, new.node),
        ("address", old.host, new.host),
        ("devices", spans(old.devices), spans(new.devices)),
        ("API port", str(old.api_port), str(new.api_port)),
        ("KV ports", spans(old.kv_ports), spans(new.kv_ports)),
    )
    return (
        *(Change("place", name, one or None, other or None) for name, one, other in places if one != other),
        *argv_changes(old.argv, new.argv),
        *env_changes(old.env, new.env),
    )


def ranks_compared(topology: Topology, one: RankPlan, other: RankPlan) -> tuple[Change, ...]:
    """Return all that differs between two ranks of a file; what follows from where they stand says so."""
    groups = (topology.groups[one.group], topology.groups[other.group])
    return tuple(
        Change(change.kind, change.name, change.old, change.new, by_position=_is_by_position(change, groups))
        for change in rank_changes(one, other)
    )


def _is_by_position(change: Change, groups: Iterable[Group]) -> bool:
    root, _, rest = change.name.partition(".")
    if root == _KV and rest:
        key = rest.rpartition(".")[2]
        return key in _POSITION_KEYS and not any(key in said for group in groups for said in _kv_said(group))
    said = {f"--{name}" for group in groups for name in group.args} | {
        key for group in groups for key in group.env
    }
    return change.name in _BY_POSITION and change.name not in said


def _kv_said(group: Group) -> Iterator[Mapping[str, Any]]:
    """Yield what the file itself says of a group's KV transfer."""
    yield group.kv_config
    for store in group.stores:
        yield store.extra
        yield store.config


def flags_of(argv: Sequence[str]) -> Mapping[str, str]:
    """Return a command's flags and values under their long names with dashes; what comes before is `command`."""
    flags: dict[str, str] = {}
    name = COMMAND
    for word in argv:
        if word.startswith("--") or long_name(word):
            _, equals, value = word.partition("=")
            name = f"--{long_name(word)}"
            flags[name] = value if equals else ""
        else:
            flags[name] = f"{flags[name]} {word}" if flags.get(name) else word
    return flags


class _Absent:
    """Stands for a value that one side does not have; None is one of JSON's."""


_ABSENT = _Absent()


def _values(flags: Mapping[str, str]) -> dict[str, Any]:
    """Return flags with JSON values read, and `--flag.key value` put into the value of `--flag`."""
    values: dict[str, Any] = {}
    for name, text in flags.items():
        flag, *keys = name.split(".")
        if not keys or not flag.startswith("--"):
            values[name] = _read(text)
            continue
        tree = values.setdefault(flag, {})
        for key in keys[:-1]:
            tree = tree.setdefault(key, {}) if isinstance(tree, dict) else None
        if isinstance(tree, dict):
            tree[keys[-1]] = _read(text)
        else:
            values[name] = text
    return values


def _read(text: str) -> Any:
    if not text.startswith(("{", "[")) or text.count("{") + text.count("[") > _MOST_BRACKETS:
        return text
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


def _walk(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, old, new) of each place where two values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*new, *old)):
            yield from _walk(f"{name}.{key}", old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _has_objects(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _walk(f"{name}[{index}]", one, other)
    elif not _same(name, old, new):
        yield name, old, new


def _has_objects(items: Sequence[Any]) -> bool:
    return any(isinstance(item, dict) for item in items)


def _same(name: str, old: Any, new: Any) -> bool:
    if isinstance(old, bool) is not isinstance(new, bool):
        return False
    if name.endswith("_port") and {type(old), type(new)} == {int, str}:
        return str(old) == str(new)  # The connectors read both.
    return bool(old == new)


def _shown(name: str, value: Any) -> str | None:
    """Return a flag's value, or that of a JSON key, as it may be seen."""
    if value is _ABSENT:
        return None
    key = re.split(r"[.\[]", name)[-1]
    if is_secret(key.rstrip("]")) and value not in ("", None):
        return HIDDEN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    flag = name.partition(".")[0]
    words, _ = redacted((flag, text) if flag.startswith("--") and text else (text,), {})
    return words[-1] if text else ""


def _variable(name: str, env: Mapping[str, str]) -> str | None:
    return redacted((), {name: env[name]})[1][name] if name in env else None


_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*(?::?[-+](?:[^{}]|\$\{\w+\})*)?\}")


def _may_become(planned: str, seen: str | None) -> bool:
    """Whether a value may be what bash makes of a planned one."""
    if refers(planned):
        return True
    if "$" not in planned:
        return planned == seen
    pattern = ".*".join(map(re.escape, _REFERENCE.split(planned)))
    return re.fullmatch(pattern, seen or "", re.DOTALL) is not None
