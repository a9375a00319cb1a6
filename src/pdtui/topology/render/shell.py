"""How rendered scripts look: their head, and commands over several lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pdtui.text import clean_line
from pdtui.topology.model import Topology

SEVEN = ("NPUs", "API port", "DP size", "DP rank", "DP address", "DP RPC port", "TP size")
"""What the arguments of run_dp_template.sh are, in the order in which launch_online_dp.py gives them."""

TEMPLATE = "run_dp_template.sh"
LAUNCHER = "launch_online_dp.py"

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def head(topology: Topology, *comments: str) -> list[str]:
    """Return the first lines of a script: what wrote it, from what, and what it is for."""
    return ["#!/bin/bash", f"# {origin(topology)}", *(f"# {clean_line(comment)}" for comment in comments)]


def origin(topology: Topology) -> str:
    """Return one line that says where a rendered file comes from."""
    name = clean_line(topology.path.name)
    return f"Written by `pdtui render` from {name} ({topology.name}). Change that file and render again."


def script(lines: Iterable[str]) -> str:
    """Return lines as a file's text."""
    return "\n".join(lines) + "\n"


def is_plain(text: str) -> bool:
    """Whether bash takes a text as it is without quotes."""
    return _PLAIN.fullmatch(text) is not None


def flag_lines(words: Sequence[str], raw: Sequence[str]) -> str:
    """Return a command with a line for each flag and its values; `raw` are its words without quotes."""
    lines: list[str] = []
    for word, text in zip(words, raw, strict=True):
        if lines and not text.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return " \\\n".join(lines)
