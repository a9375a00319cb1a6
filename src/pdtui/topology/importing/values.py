"""Words of a script as values: variables, defaults, arithmetic, braces, as far as that is certain."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq, ge, gt, le, lt, ne

from pdtui.topology.importing.observed import Origin, Said
from pdtui.topology.importing.words import Piece, braces, pieces_of

Value = Said | tuple[Said, ...]
"""A variable: text, or an array."""

LONGEST = 128 * 1024
"""Characters of a value; Linux takes no longer one."""

_DEEPEST_DEFAULT = 10
"""Levels of `${A:-${B:-...}}` that are followed."""


@dataclass
class State:
    """Variables while a script is followed."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    positional: tuple[Said, ...] | None = None
    """Words after the script's name; None when it is not known with which it runs."""
    removed: set[str] = field(default_factory=set)
    export_all: bool = False

    def env(self) -> dict[str, Said]:
        """Return the exported variables."""
        found = {}
        for name in self.exported:
            value = self.variables.get(name)
            if isinstance(value, Said):
                found[name] = value
        return found


class Values:
    """Evaluates words; a reader of statements builds on it."""

    def __init__(self, source: str, state: State) -> None:
        self.source = source
        self.state = state
        self._nested = 0

    def _origin(self, line: int) -> Origin:
        return Origin(self.source, line)

    def values(self, pieces: tuple[Piece, ...], line: int) -> list[Said]:
        """Return the words that one written word becomes."""
        if len(pieces) == 1 and (many := self._all(pieces[0])) is not None:
            return many
        return [said for word in _without_braces(pieces) for said in self._fields(word, line)]

    def _fields(self, pieces: tuple[Piece, ...], line: int) -> list[Said]:
        """Return the words that a word without braces becomes: unquoted variables are split at blanks."""
        if not any(piece.kind == "variable" and not piece.quoted for piece in pieces):
            return [self.one(pieces, line)]
        found: list[Said] = []
        open_: list[Said] = []
        for piece in pieces:
            said = self._piece(piece, line)
            if piece.quoted or piece.kind != "variable" or said.unknown:
                open_.append(said)
                continue
            parts = re.split(r"[ \t\n]+", said.text)
            for number, part in enumerate(parts):
                if number and open_:
                    found.append(self._joined(open_, line))
                    open_ = []
                if part:
                    open_.append(replace(said, value=part))
        return [*found, self._joined(open_, line)] if open_ else found

    def _joined(self, parts: Sequence[Said], line: int) -> Said:
        if len(parts) == 1:
            return parts[0]
        unknown = next((part.unknown for part in parts if part.unknown), "")
        return Said("".join(part.text for part in parts), self._origin(line), unknown)

    def _all(self, piece: Piece) -> list[Said] | None:
        """Return the words of `"$@"` or `"${ARRAY[@]}"`; None if it is neither, or not known."""
        if piece.kind != "variable" or piece.operator:
            return None
        if piece.text in {"@", "*"}:
            return list(self.state.positional) if self.state.positional is not None else None
        match = re.fullmatch(r"(\w+)\[[@*]\]", piece.text)
        value = self.state.variables.get(match[1]) if match else None
        return list(value) if isinstance(value, tuple) else None

    def one(self, pieces: tuple[Piece, ...], line: int) -> Said:
        """Return the one text of a word, what is not known in it left as it is written."""
        origin = self._origin(line)
        parts = [self._piece(piece, line) for piece in pieces]
        if len(parts) == 1 and pieces[0].kind == "variable":
            return replace(parts[0], prepended=False) if not parts[0].prepended else parts[0]
        if sum(len(part.text) for part in parts) > LONGEST:
            return Said("", origin, f"more than {LONGEST // 1024} KiB")
        unknown = next((part.unknown for part in parts if part.unknown), "")
        return Said("".join(part.text for part in parts), origin, unknown)

    def _piece(self, piece: Piece, line: int) -> Said:
        origin = self._origin(line)
        if piece.kind == "text":
            return Said(piece.text, origin)
        if piece.kind == "arithmetic":
            number = self.arithmetic(piece.text)
            if number is not None:
                return Said(str(number), origin)
        if piece.kind == "variable" and self._nested < _DEEPEST_DEFAULT:
            self._nested += 1
            said = self._variable(piece, line)
            self._nested -= 1
            if said is not None:
                return said
        return Said(piece.source, origin, piece.source)

    def _variable(self, piece: Piece, line: int) -> Said | None:
        value = self._lookup(piece.text)
        operator, operand = piece.operator, pieces_of(piece.operand, quoted=piece.quoted)
        if value is not None and value.unknown and operator:
            return None
        empty = value is None or (operator.startswith(":") and not value.text)
        if operator.endswith(("-", "=")):
            if empty and not self._from_outside(piece.text):
                return self.one(operand, line)
            return value
        if operator.endswith("+"):
            return Said("", self._origin(line)) if empty else self.one(operand, line)
        return value

    def _from_outside(self, name: str) -> bool:
        """Whether a parameter of the script is meant, and it is not known with which it runs."""
        return name.isdecimal() and self.state.positional is None

    def _lookup(self, name: str) -> Said | None:
        if name.isdecimal() and name != "0":
            words = self.state.positional
            if words is None:
                return None
            number = int(name)
            return words[number - 1] if number <= len(words) else Said("", self._origin(0))
        if name in {"@", "*"} and self.state.positional is not None:
            words = self.state.positional
            return Said(" ".join(word.text for word in words), self._origin(0))
        if name == "#" and self.state.positional is not None:
            return Said(str(len(self.state.positional)), self._origin(0))
        match = re.fullmatch(r"(\w+)\[(\d+|@|\*)\]", name)
        value = self.state.variables.get(match[1] if match else name)
        if match and isinstance(value, tuple):
            if match[2] in "@*":
                return Said(" ".join(item.text for item in value), self._origin(0))
            return value[int(match[2])] if int(match[2]) < len(value) else Said("", self._origin(0))
        if isinstance(value, tuple):
            return value[0] if value else Said("", self._origin(0))
        if value is None and name in self.state.removed:
            return Said("", self._origin(0))
        return value

    def arithmetic(self, expression: str) -> int | None:
        """Return the value of whole-number arithmetic; None when it is not that or not known."""
        known = True

        def number(match: re.Match[str]) -> str:
            nonlocal known
            said = self._lookup(match[1] or match[2] or match[3])
            text = said.text.strip() if said is not None and not said.unknown else ""
            if not re.fullmatch(r"-?\d{1,9}", text):
                known = False
                return "0"
            return f"({text})"

        text = re.sub(r"\$\{(\w+)\}|\$(\w+)|(?<![\w$])([A-Za-z_]\w*)", number, expression.strip())
        if not known or len(text) > 200 or "**" in text:
            return None
        if re.search(r"(?<![\w.])0[0-9]*[89]", text):
            return None  # Bash refuses it: what begins with 0 is octal.
        text = re.sub(r"(?<![\w.])0+(?=[0-7])", "0o", text)
        try:
            return _calculate(ast.parse(text.replace("/", "//"), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None


def _calculate(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _calculate(node.operand)
        return None if value is None else (-value if isinstance(node.op, ast.USub) else value)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _calculate(node.left), _calculate(node.comparators[0])
        compare = _COMPARISONS.get(type(node.ops[0]))
        return None if left is None or right is None or compare is None else int(compare(left, right))
    if isinstance(node, ast.BinOp):
        left, right = _calculate(node.left), _calculate(node.right)
        operation = _OPERATIONS.get(type(node.op))
        if left is not None and right is not None and operation is not None:
            return operation(left, right)
    return None


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (-1 if left < 0 else 1),
}

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Gt: gt,
    ast.GtE: ge,
    ast.Lt: lt,
    ast.LtE: le,
    ast.Eq: eq,
    ast.NotEq: ne,
}

_STANDS_IN = 0xE000
"""First of the characters that stand for pieces while braces are looked for; no script has them."""


def _without_braces(pieces: tuple[Piece, ...]) -> list[tuple[Piece, ...]]:
    """Return the words that a word with unquoted `{a,b}` or `{0..3}` becomes, before variables are filled in."""
    alive = [piece.kind == "text" and not piece.quoted for piece in pieces]
    text = "".join(
        piece.text if is_alive else chr(_STANDS_IN + number)
        for number, (piece, is_alive) in enumerate(zip(pieces, alive, strict=True))
    )
    if (
        "{" not in text
        or len(pieces) > 1000
        or any(_STANDS_IN <= ord(char) < 0xF900 for piece in pieces for char in piece.text if not char.isascii())
    ):
        return [pieces]
    return [tuple(_back(word, pieces)) for word in braces(text)]


def _back(word: str, pieces: tuple[Piece, ...]) -> Iterator[Piece]:
    literal = ""
    for char in word:
        number = ord(char) - _STANDS_IN
        if not 0 <= number < len(pieces):
            literal += char
            continue
        if literal:
            yield Piece("text", literal, literal)
            literal = ""
        yield pieces[number]
    if literal or not word:
        yield Piece("text", literal, literal)
