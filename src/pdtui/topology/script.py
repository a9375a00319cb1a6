"""A rank's start as a bash script, safe for any value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from pdtui.topology.model import Runtime
from pdtui.topology.plan import RankPlan
from pdtui.topology.redact import is_secret
from pdtui.topology.reference import Reference

HOME = "~/"
"""How a path in the home where ranks run begins."""

SERVE = ("vllm", "serve")
"""What stands before the model's path in a rank's command."""

QUOTE = """pdtui_quote="'\""""
"""The line that has to come before words of `double_quoted`."""

_NAME = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_OPENING = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?[-+]")


def run_script(rank: RankPlan, runtime: Runtime) -> str:
    """Return the script that becomes the rank: source the set-up files, export the environment, exec the server.

    A leading `~/` of a set-up file and of the model's path is the home of whoever the rank runs as. A set-up file
    or a secret that is missing ends it with status 1 and a line that names it.
    """
    lines = ["#!/bin/bash", f"# {rank.id} on {rank.node}", "set +H", QUOTE, *setup_lines(runtime)]
    for name, value in rank.env.items():
        lines += export_lines(name, value)
    lines.append(f"exec {command_line(rank.argv)}")
    return "\n".join(lines) + "\n"


def setup_lines(runtime: Runtime) -> list[str]:
    """Return the lines that source the set-up files; each ends the script where it cannot be read."""
    lines = []
    for path in runtime.setup:
        word = _at_home(path, double_quoted)
        lines += [*_unless_readable(word, "runtime.setup of the topology file"), f". {word}"]
    return lines


def export_lines(name: str, value: str) -> list[str]:
    """Return the lines that export one variable of a rank's environment.

    The value of a `Reference` is read here: from a file, or from the node's environment, where one that bears the
    name of a secret must not be empty.
    """
    lines: list[str] = []
    if isinstance(value, Reference) and value.file:
        lines = _unless_readable(_at_home(value.file, shlex.quote), f"{name} of the topology file")
    elif isinstance(value, Reference) and is_secret(name):
        text = f"pdtui: {value.name} is not set where the rank runs ({name} of the topology file)"
        lines = [
            f'if [ -z "${{{value.name}:-}}" ]; then',
            f"  printf '%s\\n' {shlex.quote(text)} >&2",
            "  exit 1",
            "fi",
        ]
    return [*lines, f"export {name}={double_quoted(value)}"]


def _unless_readable(word: str, what: str) -> list[str]:
    return [
        f"if [ ! -r {word} ]; then",
        f"  printf 'pdtui: cannot read %s ({what})\\n' {word} >&2",
        "  exit 1",
        "fi",
    ]


def command_line(argv: Sequence[str]) -> str:
    """Return a command as bash reads it; of its words only the model's path is looked for in the home."""
    return " ".join(command_words(argv))


def command_words(argv: Sequence[str]) -> list[str]:
    """Return a command's words, each as bash reads it; see `command_line`."""
    words = list(map(shlex.quote, argv))
    if tuple(argv[: len(SERVE)]) == SERVE and len(argv) > len(SERVE):
        words[len(SERVE)] = _at_home(argv[len(SERVE)], shlex.quote)
    return words


def in_home(argv: Sequence[str], home: str) -> tuple[str, ...]:
    """Return a rank's command as its process shows it, `home` being the home there; empty: unchanged."""
    at = len(SERVE)
    if not home or tuple(argv[:at]) != SERVE or not "".join(argv[at : at + 1]).startswith(HOME):
        return tuple(argv)
    return (*SERVE, f"{home.rstrip('/')}/{argv[at][len(HOME) :]}", *argv[at + 1 :])


def _at_home(path: str, quote: Callable[[str], str]) -> str:
    """Return a path as a bash word; bash puts the home for an unquoted `~/`, also where HOME is unset."""
    return f"{HOME}{quote(path[len(HOME) :])}" if path.startswith(HOME) else quote(path)


def double_quoted(text: str) -> str:
    """Return text as a bash word in which only $NAME, ${NAME}, ${NAME:-text} and ${NAME:+text} are alive.

    Needs `QUOTE` before it: bash takes one inside "${NAME:-text}" for the begin of a string.
    A reference to a file becomes what stands in it, without the newlines at its end.
    """
    if isinstance(text, Reference) and text.file:
        return f'"$(< {_at_home(text.file, shlex.quote)})"'
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
