"""JSON as people write it: trailing commas, single quotes, bare keys and comments are read, and named."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"""(?P<blank>\s+)|(?P<comment>//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<mark>[{}\[\],:])"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*")|(?P<single>'(?:[^'\\]|\\.)*')|(?P<bare>[^\s{}\[\],:"']+)""",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_DEEPEST = 60
_MOST_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Tolerated:
    """A JSON value, and what of its text is no JSON."""

    value: Any
    faults: tuple[tuple[int, str], ...]
    """(lines after the first of the text, what is wrong)."""


def read(text: str) -> Tolerated | None:
    """Return the value of a text; None when it cannot be read even so."""
    try:
        return Tolerated(json.loads(text), ())
    except (ValueError, RecursionError):
        pass
    reader = _Reader(text)
    try:
        value = reader.value(0)
        reader.end()
    except _Unreadable:
        return None
    return Tolerated(value, tuple(reader.faults))


class _Unreadable(Exception):
    """The text is not even nearly JSON."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.faults: list[tuple[int, str]] = []

    def fault(self, message: str) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append((self.text.count("\n", 0, self.at), f"{message:.80}"))

    def peek(self) -> tuple[str, str]:
        while self.at < len(self.text):
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                raise _Unreadable
            kind = match.lastgroup or ""
            if kind == "comment":
                self.fault("a comment")
            elif kind != "blank":
                return kind, match[0]
            self.at = match.end()
        return "end", ""

    def take(self) -> tuple[str, str]:
        kind, text = self.peek()
        self.at += len(text)
        return kind, text

    def end(self) -> None:
        if self.peek()[0] != "end":
            raise _Unreadable

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise _Unreadable
        kind, text = self.take()
        if text == "{" and kind == "mark":
            return self.mapping(depth)
        if text == "[" and kind == "mark":
            return self.items(depth)
        if kind in {"string", "single", "bare"}:
            return self.scalar(kind, text)
        raise _Unreadable

    def scalar(self, kind: str, text: str) -> Any:
        if kind == "string":
            return _unquoted(text)
        if kind == "single":
            self.fault(f"{text} is in single quotes")
            return _unquoted('"' + text[1:-1].replace('"', '\\"').replace("\\'", "'") + '"')
        if text in _WORDS:
            if text not in {"true", "false", "null"}:
                self.fault(f"{text} is {text.lower() if text != 'None' else 'null'} in JSON")
            return _WORDS[text]
        if re.fullmatch(r"-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?", text):
            try:
                return json.loads(text)
            except ValueError:
                return int(text) if text.lstrip("-").isdecimal() else float(text)
        self.fault(f"{text} is not in quotes")
        return text

    def mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            kind, text = self.peek()
            if text == "}" and kind == "mark":
                self.take()
                return found
            self.take()
            if kind not in {"string", "single", "bare"}:
                raise _Unreadable
            key = _unquoted(text) if kind == "string" else str(self.scalar(kind, text))
            if self.take() != ("mark", ":"):
                raise _Unreadable
            found[key] = self.value(depth + 1)
            self.separator("}")

    def items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            if self.peek() == ("mark", "]"):
                self.take()
                return found
            found.append(self.value(depth + 1))
            self.separator("]")

    def separator(self, closing: str) -> None:
        """Take a comma, unless the end comes; one before the end is a fault."""
        if self.peek() == ("mark", ","):
            before = self.at
            self.take()
            if self.peek() == ("mark", closing):
                after, self.at = self.at, before
                self.fault(f"a comma before {closing}")
                self.at = after
        elif self.peek() != ("mark", closing):
            raise _Unreadable


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return text[1:-1]
    return value if isinstance(value, str) else text[1:-1]
