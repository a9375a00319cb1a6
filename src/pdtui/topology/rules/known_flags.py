"""Which flags there are: names of `vllm serve`, and those that a rank under supervision cannot have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from pdtui.topology.findings import Path, Problem
from pdtui.topology.rules.registry import Context, error, info, rule, warning
from pdtui.topology.vllm_flags import BREAKING, DOUBTFUL, KNOWN

CONFIGS = frozenset(name for name in KNOWN if name.endswith("-config"))

_LONGEST = 80
"""Letters of a name that are compared; none is longer."""

_CLOSE = 0.82
"""How near an unknown name must be to a known one to be taken for a slip of the pen."""


@rule("S29", "S30", "S31")
def names(context: Context) -> Iterator[Problem]:
    """Flags exist (S29), suit a rank that pdtui runs (S30), and are said in one way of which all counts (S31)."""
    for path, args in context.levels("args"):
        for key, value in args.items():
            if value is None or key.startswith("-") or not key.strip():
                continue
            where, plain = (*path, key), key.partition(".")[0].replace("_", "-")
            if plain.startswith("no-") and plain not in KNOWN:
                plain = plain[3:]
                if not isinstance(value, bool):
                    message = f"`{key}` takes no value; write `{plain}: false`"
                    yield warning("S29", message, where)
            if plain not in KNOWN:
                yield _unknown(key, plain, where)
            elif "." in key and plain not in CONFIGS:
                yield warning(
                    "S29", f"`{plain}` has no parts; only flags that take JSON are written with a dot", where
                )
            else:
                yield from _unsuited(plain, value, where)
    yield from _two_forms(context)


def _unknown(key: str, plain: str, where: Path) -> Problem:
    near = difflib.get_close_matches(plain[:_LONGEST], KNOWN, n=1, cutoff=_CLOSE)
    if near:
        message = f"`{key}` is no flag of vllm serve; did you mean `{near[0]}`?"
        return warning("S29", message, where, on_key=True)
    message = f"`{key}` is no flag of vllm serve that is known here; if yours does not have it, ranks do not start"
    return info("S29", message, where, on_key=True)


def _unsuited(plain: str, value: Any, where: Path) -> Iterator[Problem]:
    if value is False:
        return
    if plain in BREAKING:
        yield error("S30", f"`{plain}` cannot be used: {BREAKING[plain]}; delete it", where, on_key=True)
    elif plain in DOUBTFUL and (plain, value) != ("data-parallel-backend", "mp"):
        yield warning("S30", f"`{plain}`: {DOUBTFUL[plain]}; delete it", where, on_key=True)
    elif plain == "api-server-count" and value != 1:
        message = "a rank is one API server here (--data-parallel-rank allows no more); delete api-server-count"
        yield error("S30", message, where)
    elif plain == "distributed-executor-backend" and value == "ray":
        message = "the processes of ray are not the rank's own: stop and health do not reach them; delete it"
        yield warning("S30", message, where)


def _two_forms(context: Context) -> Iterator[Problem]:
    seen: set[Path] = set()
    for group in context.topology.groups.values():
        for key in group.args:
            flag, dot, _ = key.partition(".")
            if dot and group.args.get(flag) is not None and flag in CONFIGS:
                where = context.where(group, "args", key)
                if where not in seen:
                    seen.add(where)
                    message = f"with `{key}` vLLM drops all that `{flag}` says; write it into `{flag}`"
                    yield error("S31", message, where, on_key=True)
