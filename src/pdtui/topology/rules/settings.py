"""What a group's flags and variables come to, however they are written, and where each piece of it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Group
from pdtui.topology.rules.registry import Context

_HYBRID = re.compile(r"qwen3[-_.]?next|qwen3[-_.]5(?!\d)", re.IGNORECASE)
_HUGE = 10**18
"""No setting is as large; what is cannot be reckoned with."""

_YES = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Config:
    """A flag with a JSON value, such as `additional-config`."""

    values: Mapping[str, Any]
    paths: Mapping[str, Path]
    """Where each first key is written; of those under one path the nested keys are found by `where`."""
    context: Context
    flag: Path
    """Where the flag itself is written, or else the group."""

    def where(self, *keys: str) -> Path:
        """Return where a nested key is written: as far as the file has keys of its own for it."""
        path = self.paths.get(keys[0], self.flag)
        for key in keys[1:]:
            if not self.context.document.has((*path, key)):
                break
            path = (*path, key)
        return path

    def part(self, key: str) -> Mapping[str, Any]:
        """Return the mapping under a key; empty when there is none."""
        value = self.values.get(key)
        return value if isinstance(value, Mapping) else {}


def config(context: Context, group: Group, flag: str) -> Config:
    """Return what a group says by a flag with a JSON value: as a mapping, as JSON text, or as `flag.key` each.

    vLLM puts the dotted ones together and takes them for the whole value, whatever the flag itself says.
    """
    at = context.where(group, "args", flag)
    dotted = {name: value for name, value in group.args.items() if name.startswith(f"{flag}.")}
    if dotted:
        values: dict[str, Any] = {}
        paths: dict[str, Path] = {}
        for name, value in dotted.items():
            first, *rest = name.removeprefix(f"{flag}.").split(".")
            paths.setdefault(first, context.where(group, "args", name))
            _put(values, [first, *rest], _plain(value))
        return Config(values, paths, context, at)
    said = _plain(group.args.get(flag))
    if isinstance(said, Mapping) and set(said) == {"json"}:
        said = said["json"]
    if not isinstance(said, Mapping):
        return Config({}, {}, context, at)
    has = context.document.has
    return Config(said, {key: (*at, key) if has((*at, key)) else at for key in said}, context, at)


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):  # Another rule's finding.
            return value
    return value


def _put(values: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = values.get(key)
        if not isinstance(inner, dict):
            inner = values[key] = {}
        values = inner
    values[keys[-1]] = value


def number(value: Any) -> float | None:
    """Return a finite number, also one that is written as text; None for everything else."""
    if isinstance(value, str) and len(value) < 20:
        try:
            value = float(value)
        except ValueError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < _HUGE else None


def count(group: Group, flag: str) -> int | None:
    """Return a whole number above zero that a flag says; vLLM takes `16k` and the like for some, which is None."""
    said = number(group.args.get(flag))
    return int(said) if said is not None and said == int(said) and said > 0 else None


def is_on(value: Any) -> bool:
    """Whether a switch is on, in any of the ways in which it can be written."""
    return value is True or value == 1 or (isinstance(value, str) and value.strip().lower() in _YES)


def is_enabled(value: Any) -> bool:
    """Whether a nested configuration is in force: its own `enabled` says so."""
    return is_on(value.get("enabled", False)) if isinstance(value, Mapping) else is_on(value)


def variable(group: Group, name: str) -> str:
    """Return a variable's text; empty when it is not set or its value is only known on the node."""
    said = group.env.get(name)
    return said.strip() if isinstance(said, str) and "$" not in said else ""


def speculative_tokens(context: Context, group: Group) -> int:
    """Return how many tokens are guessed ahead; 0 without speculation."""
    said = number(config(context, group, "speculative-config").values.get("num_speculative_tokens"))
    said = number(group.args.get("spec-tokens")) if said is None else said
    return int(said) if said is not None and 0 < said < 1000 else 0


def is_hybrid(context: Context) -> bool:
    """Whether the model's name tells that it is one of the Mamba hybrids that PD has rules of its own for."""
    model = context.topology.model
    return any(_HYBRID.search(text) for text in (model.path.rstrip("/").rpartition("/")[2], model.served_name))


def per_group(context: Context, *functions: Callable[[Context, Group], Iterator[Problem]]) -> Iterator[Problem]:
    """Yield what is found for each group, but nothing twice of one place: a level that groups share is one."""
    seen: set[tuple[str, Path]] = set()
    for group in context.topology.groups.values():
        found = [problem for function in functions for problem in function(context, group)]
        yield from (problem for problem in found if (problem.rule, problem.path) not in seen)
        seen.update((problem.rule, problem.path) for problem in found)
