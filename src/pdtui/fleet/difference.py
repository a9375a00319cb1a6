"""How a running rank differs from the plan, a line for each flag and variable; secrets are hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_SECRET = re.compile(r"(key|token|secret|passw|credential)", re.IGNORECASE)
_HIDDEN = "(hidden)"
_SHORT = 60


def is_secret(name: str) -> bool:
    """Return whether a flag or variable of this name may hold a secret (`--api-key`, `HF_TOKEN`).

    Numbers of tokens are none (`--max-num-batched-tokens`).
    """
    return bool(_SECRET.search(name)) and not re.search(r"tokens\b", name, re.IGNORECASE)


def shown_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of secret flags hidden."""
    shown: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("--"):
            shown.append(_HIDDEN)
            continue
        hide = word.startswith("--") and is_secret(word) and not equals
        if word.startswith("--") and equals and is_secret(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(word)
    return tuple(shown)


def argv_difference(planned: Sequence[str], running: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each flag that differs: `--seed: 1 -> 1024 (plan)`."""
    want, have = _flags(planned), _flags(running)
    lines: list[str] = []
    for name in sorted(want.keys() | have.keys(), key=lambda n: (n not in want, n)):
        if name in want and name in have and _equal(want[name], have[name]):
            continue
        lines.append(_line(name, have.get(name), want.get(name)))
    return tuple(lines)


def env_difference(planned: Mapping[str, str], running: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each variable that differs."""
    return tuple(
        _line(name, running.get(name), planned.get(name))
        for name in sorted(planned.keys() | running.keys())
        if planned.get(name) != running.get(name)
    )


def literal_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables whose value does not refer to the node's environment."""
    return {name: value for name, value in env.items() if "$" not in value}


def _line(name: str, have: str | None, want: str | None) -> str:
    if is_secret(name):
        have = _HIDDEN if have is not None else None
        want = _HIDDEN if want is not None else None
    return f"{name}: {_show(have)} -> {_show(want)} (plan)"


def _show(value: str | None) -> str:
    if value is None:
        return "absent"
    if value == "":
        return "set"
    return value if len(value) <= _SHORT else f"{value[: _SHORT - 1]}…"


def _flags(argv: Sequence[str]) -> Mapping[str, str]:
    flags: dict[str, str] = {}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
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
