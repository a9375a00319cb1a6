"""How a running rank differs from the plan, a line for each flag and variable; secrets are hidden."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pdtui.topology.redact import redacted

_SHORT = 60

_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-q": "--quantization",
}
"""Short forms of `vllm serve` (`vllm/engine/arg_utils.py`)."""


def argv_difference(planned: Sequence[str], running: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each flag that differs: `--seed: 1 -> 1024 (plan)`."""
    want, have = flags_of(planned), flags_of(running)
    shown_want, shown_have = flags_of(redacted(planned, {})[0]), flags_of(redacted(running, {})[0])
    return tuple(
        _line(name, shown_have.get(name), shown_want.get(name))
        for name in sorted(want.keys() | have.keys(), key=lambda n: (n not in want, n))
        if name not in want or name not in have or not _equal(want[name], have[name])
    )


def env_difference(planned: Mapping[str, str], running: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each variable that differs."""
    shown_want, shown_have = redacted((), planned)[1], redacted((), running)[1]
    return tuple(
        _line(name, shown_have.get(name), shown_want.get(name))
        for name in sorted(planned.keys() | running.keys())
        if planned.get(name) != running.get(name)
    )


def literal_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables whose value does not refer to the node's environment."""
    return {name: value for name, value in env.items() if "$" not in value}


def _line(name: str, have: str | None, want: str | None) -> str:
    return f"{name}: {_show(have)} -> {_show(want)} (plan)"


def _show(value: str | None) -> str:
    if value is None:
        return "absent"
    if value == "":
        return "set"
    return value if len(value) <= _SHORT else f"{value[: _SHORT - 1]}…"


def flags_of(argv: Sequence[str]) -> Mapping[str, str]:
    """Return a command's flags and values under their long names with dashes; what comes before is `command`."""
    flags: dict[str, str] = {}
    name = "command"
    for word in argv:
        if word.startswith("--") or word in _ALIASES:
            name, equals, value = word.partition("=")
            name = _ALIASES.get(name, name.replace("_", "-"))
            flags[name] = value if equals else ""
        else:
            flags[name] = f"{flags[name]} {word}" if flags.get(name) else word
    return flags


def _equal(one: str, other: str) -> bool:
    if one == other:
        return True
    if not (one.startswith("{") and other.startswith("{")):
        return False
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False
