"""Guides as text: the scripts, commands and Python files that stand in it, each with the line where it begins."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_COMMAND = re.compile(
    r"\s*(?:[$#>] )?(?:nohup |exec |sudo )?(?:export |unset |source |\. |rm |vllm serve|docker run|podman run|"
    r"nerdctl run|(?:bash|sh) \S+\.sh|python3? \S*(?:launch|proxy)\S*\.py|python3? -m vllm|"
    r"[A-Za-z_]\w*=\S)"
)
"""How a line begins that is part of a script."""

_SHEBANG = re.compile(r"#!.*\b(?:ba|z|da)?sh\b")
_COMMENT = re.compile(r"\s*#")
_PYTHON = re.compile(r"(?:import|from) \w+")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_LAST = re.compile(r"\s*(?:vllm serve|docker run|podman run|python)")
"""Commands that end a script of a guide: what follows is another one."""

_MOST_BLOCKS = 40
"""Parts between blank lines that a Python program in a guide may have."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a document."""

    kind: Literal["shell", "python"]
    text: str
    first_line: int


def parts(text: str) -> list[Part]:
    """Return the scripts of a document in its order."""
    lines = text.split("\n")
    found: list[Part] = []
    at = 0
    current: list[tuple[int, int]] = []
    while at < len(lines):
        line = lines[at]
        if _PYTHON.match(line):
            end = _python_end(lines, at)
            if end > at:
                _close(found, lines, current)
                found.append(Part("python", "\n".join(lines[at:end]), at + 1))
                at = end
                continue
        if _SHEBANG.match(line):
            _close(found, lines, current)
            at += 1
            continue
        if _COMMENT.match(line) and not _FENCE.match(line):
            current.append((at, at + 1))
            at += 1
            continue
        if _COMMAND.match(line) and not (line[:1].isspace() and line.rstrip().endswith(",")):
            end = _command_end(lines, at)
            current.append((at, end))
            if _LAST.match(line):
                _close(found, lines, current)
            at = end
            continue
        if line.strip() and not _FENCE.match(line):
            _close(found, lines, current)
        at += 1
    _close(found, lines, current)
    return found


def _close(found: list[Part], lines: Sequence[str], spans: list[tuple[int, int]]) -> None:
    """Make a part of what was collected, unless it is comments only; blank lines keep its lines in place."""
    if any(not _COMMENT.match(lines[first]) for first, _ in spans):
        first, last = spans[0][0], spans[-1][1]
        kept = {number for start, end in spans for number in range(start, end)}
        text = "\n".join(lines[number] if number in kept else "" for number in range(first, last))
        found.append(Part("shell", text.rstrip("\\\n \t") + "\n", first + 1))
    spans.clear()


def _command_end(lines: Sequence[str], start: int) -> int:
    """Return the line after a command: it goes on behind a backslash, and while a quote is open."""
    quote = ""
    for at in range(start, len(lines)):
        line = lines[at]
        index = 0
        continued = False
        while index < len(line):
            char = line[index]
            if quote == "'":
                quote = "" if char == "'" else quote
            elif char == "\\":
                continued = index == len(line) - 1
                index += 1
            elif quote == '"':
                quote = "" if char == '"' else quote
            elif char in "'\"":
                quote = char
            elif char == "#" and (index == 0 or line[index - 1] in " \t"):
                break
            index += 1
        blank_next = at + 1 < len(lines) and not lines[at + 1].strip()
        if not quote and (not continued or blank_next):
            return at + 1
    return len(lines)


def _python_end(lines: Sequence[str], start: int) -> int:
    """Return the line after a Python program: up to a blank line behind which it is not Python any more."""
    end = start
    for _ in range(_MOST_BLOCKS):
        if end >= len(lines):
            break
        stop = end
        while stop < len(lines) and lines[stop].strip():
            stop += 1
        block = lines[start:stop]
        if any(
            not line.isascii() and not line.lstrip().startswith("#") and "#" not in line
            for line in lines[end:stop]
        ):
            break
        try:
            ast.parse("\n".join(block))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            break
        if end > start and _PYTHON.match(lines[end]) and lines[end].startswith("import multiprocessing"):
            break
        end = stop
        while end < len(lines) and not lines[end].strip():
            end += 1
        if end >= len(lines):
            return stop
    while end > start and not lines[end - 1].strip():
        end -= 1
    return end
