"""The text of a topology: plain YAML in the order in which operators read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+=-]*(?::[A-Za-z0-9_./@+=-]+)*\Z")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "none", "~"})
_NUMBER = re.compile(r"[-+]?[\d._]+(?:[eE][-+]?\d+)?\Z")
_NO_NUMBER = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9]+[kmgKMG]")
"""Text that begins like a number and is none: addresses and sizes."""

WIDEST = 118
"""Columns up to which a mapping stands on one line."""

_BLOCKS = frozenset({"nodes", "defaults", "roles", "groups"})
"""Keys at the top whose values are blocks, however short."""


def scalar(value: Any, *, env: bool = False) -> str:
    """Return one value as YAML. Variables are text as written, so numbers and `false` need no quotes there."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if env and (re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{1,6})?", text) or text in {"true", "false", "True", "False"}):
        return text
    if (_PLAIN.match(text) and text.lower() not in _WORDS) or _NO_NUMBER.fullmatch(text):
        return text
    return f'"{"".join(map(_escaped, text))}"'


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(char: str) -> str:
    """Return a character as it stands in double quotes; what no terminal shows is written as its number."""
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def flow(value: Any, *, env: bool = False) -> str:
    """Return a value on one line."""
    if isinstance(value, Mapping):
        items = (f"{key(name)}: {flow(item, env=env or name == 'env')}" for name, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item, env=env) for item in value) + "]"
    return scalar(value, env=env)


def key(name: Any) -> str:
    """Return a key as YAML."""
    return scalar(str(name)) if not _NUMBER.match(str(name)) else json.dumps(str(name))


def block(values: Mapping[str, Any], indent: int = 0, *, env: bool = False) -> list[str]:
    """Return a mapping as lines: each value on one line if it fits, else as a block of its own."""
    lines = []
    space = " " * indent
    for name, value in values.items():
        head = f"{space}{key(name)}:"
        is_env = env or name == "env"
        line = f"{head} {flow(value, env=is_env)}"
        if isinstance(value, Mapping) and value and len(line) > WIDEST:
            lines += [head, *block(value, indent + 2, env=is_env)]
        elif isinstance(value, list | tuple) and value and len(line) > WIDEST:
            lines += [head, *(f"{space}  - {flow(item)}" for item in value)]
        else:
            lines.append(line)
    return lines


def document(sections: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> str:
    """Return the text of sections, each (its keys, comment by key), with a blank line between them.

    A mapping at the top is a block; a comment stands behind the first line of what it is about.
    """
    out: list[str] = []
    for values, comments in sections:
        if not values:
            continue
        if out:
            out.append("")
        for name, value in values.items():
            if isinstance(value, Mapping) and value and (len(flow(value)) > 90 or name in _BLOCKS):
                lines = [f"{name}:", *block(value, 2, env=False)]
            else:
                lines = block({name: value})
            comment = comments.get(name)
            if comment:
                lines[0] = f"{lines[0]:<33} # {comment}"
            out += lines
    return "\n".join(out) + "\n"
