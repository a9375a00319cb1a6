"""A rank's start as a bash script, safe for any value."""

from __future__ import annotations

import re
import shlex

from pdtui.topology.model import Runtime
from pdtui.topology.plan import RankPlan

_NAME = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_OPENING = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?[-+]")


def run_script(rank: RankPlan, runtime: Runtime) -> str:
    """Return the script that becomes the rank: source the set-up files, export the environment, exec the server.

    A set-up file that is missing ends it with status 1 and a line that names the file.
    """
    lines = ["#!/bin/bash", f"# {rank.id} on {rank.node}", "set +H", """pdtui_quote="'\""""]
    for path in runtime.setup:
        word = double_quoted(path)
        lines += [
            f"if [ ! -r {word} ]; then",
            f"  printf 'pdtui: cannot read %s (runtime.setup of the topology file)\\n' {word} >&2",
            "  exit 1",
            "fi",
            f". {word}",
        ]
    lines += [f"export {name}={double_quoted(value)}" for name, value in rank.env.items()]
    lines.append(f"exec {' '.join(map(shlex.quote, rank.argv))}")
    return "\n".join(lines) + "\n"


def double_quoted(text: str) -> str:
    """Return text as a bash word in which only $NAME, ${NAME}, ${NAME:-text} and ${NAME:+text} are alive.

    Needs `pdtui_quote` to hold a single quote: bash takes one inside "${NAME:-text}" for the begin of a string.
    """
    alive = _expansions(text)
    parts: list[str] = []
    at = depth = 0
    while at < len(text):
        end = alive.get(at)
        if end is None:
            character = text[at]
            if character == "'" and depth:
                character = "${pdtui_quote}"
            elif character in '"\\$`':
                character = f"\\{character}"
            parts.append(character)
            at += 1
        else:
            piece = text[at:end]
            depth += -1 if piece == "}" else piece.startswith("${") and not piece.endswith("}")
            parts.append(piece)
            at = end
    return f'"{"".join(parts)}"'


def _expansions(text: str) -> dict[int, int]:
    """Return start -> end of every piece that bash shall read: names, openings that are closed, their braces."""
    alive: dict[int, int] = {}
    open_: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        if match := _NAME.match(text, at):
            alive[at] = match.end()
            at = match.end()
        elif match := _OPENING.match(text, at):
            open_.append((at, match.end()))
            at = match.end()
        else:
            if text[at] == "}" and open_:
                start, end = open_.pop()
                alive[start] = end
                alive[at] = at + 1
            at += 1
    return alive
