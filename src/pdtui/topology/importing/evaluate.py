"""What a script would run, as far as that is certain: variables, quotes, loops over lists; nothing is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pdtui.topology.importing.observed import Origin, Said
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.importing.shell import Script
from pdtui.topology.importing.words import Piece, Word, braces, pieces_of, statements

if TYPE_CHECKING:
    from tree_sitter import Node

Value = Said | tuple[Said, ...]
"""A variable: text, or an array."""

MOST_COMMANDS = 8_000
"""Commands after which a script is not followed further: loops that no deployment has."""

LONGEST = 128 * 1024
"""Characters of a value; Linux takes no longer one."""

_DEEPEST = 60
"""Levels of nesting that are followed; deeper ones are named."""

_DEEPEST_DEFAULT = 10
"""Levels of `${A:-${B:-...}}` that are followed."""

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)\Z", re.DOTALL)
_IP = r"(?:\d{1,3}(?:\.\d{1,3}){3})"
_ON_HOST = re.compile(
    rf"#+\W*(?:(?:on|node|host|server|run on|在|节点)\s*[:：]?\s*)?({_IP})\W*(?:上)?\W*\Z|"
    rf"#+\W*(?:on|run on)\s+(?:(?:node|host|server)\s+)?([A-Za-z0-9][\w.-]*)\W*\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One command as it would run."""

    words: tuple[Said, ...]
    env: Mapping[str, Said]
    """Exported variables, and those before the command."""
    variables: Mapping[str, Value]
    """All variables, exported or not."""
    origin: Origin
    host: str
    """What the last comment such as `# on 192.0.0.1` says; empty without one."""
    removed: frozenset[str] = frozenset()
    """Variables that were unset before it."""


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


class Evaluator:
    """Follows one script and says what it runs."""

    def __init__(
        self,
        script: Script,
        source: str,
        state: State | None = None,
        *,
        host: str = "",
        budget: list[int] | None = None,
    ) -> None:
        self.script = script
        self.source = source
        self.state = state or State()
        self.host = host
        self.notes: list[Note] = []
        self.files: dict[str, tuple[str, int]] = {}
        """Name of a file that the script writes by a here-document -> its text and the line of its first."""
        self._functions: dict[str, Node] = {}
        self._budget = budget if budget is not None else [MOST_COMMANDS]
        self._depth = 0
        self._nested = 0

    def run(self) -> list[Ran]:
        """Return all commands in order; `notes` then says what could not be followed."""
        found = list(self._walk(self.script.root))
        if self._budget[0] <= 0:
            self._unread(f"more than {MOST_COMMANDS} commands; what follows was not read", Origin(self.source))
        return found

    def _origin(self, line: int) -> Origin:
        return Origin(self.source, line)

    def _unread(self, message: str, origin: Origin) -> None:
        self.notes.append(note(Kind.UNREAD, message, origin))

    def _walk(self, node: Node) -> Iterator[Ran]:
        if self._budget[0] <= 0:
            return
        if self._depth >= _DEEPEST:
            self._unread("nested too deeply to be followed", self._origin(self.script.line(node)))
            return
        self._depth += 1
        try:
            step = _STEPS.get(node.type)
            if step is not None:
                yield from step(self, node)
            else:
                for child in node.named_children:
                    yield from self._walk(child)
        finally:
            self._depth -= 1

    def _comment(self, node: Node) -> Iterator[Ran]:
        match = _ON_HOST.match(self.script.text(node).strip())
        if match:
            self.host = match[1] or match[2]
        return iter(())

    def _simple(self, node: Node) -> Iterator[Ran]:
        first = self.script.line(node)
        for words in statements(self.script.command(node)):
            self._budget[0] -= 1
            yield from self._command(words, first)

    def _command(self, words: Sequence[Word], first: int) -> Iterator[Ran]:
        assigned: dict[str, Value] = {}
        rest = list(words)
        while rest and (pair := self._assignment(rest[0], first)) is not None:
            assigned[pair[0]] = pair[1]
            rest.pop(0)
        if not rest:
            for name, value in assigned.items():
                self._assign(name, value)
            return
        name = rest[0].source
        if name in {"export", "declare", "typeset", "local", "readonly"}:
            self._declare(name, rest[1:], first)
        elif name == "unset":
            self._unset(rest[1:])
        elif name == "set":
            self._set([word.source for word in rest[1:]])
        elif name == "shift" and self.state.positional:
            self.state.positional = self.state.positional[1:]
        elif name in self._functions and not assigned:
            yield from self._call(name, rest[1:], first)
        else:
            said = tuple(value for word in rest for value in self.values(word.pieces, first + word.line))
            env = self.state.env() | {key: value for key, value in assigned.items() if isinstance(value, Said)}
            line = first + rest[0].line
            yield Ran(
                said,
                env,
                dict(self.state.variables) | assigned,
                self._origin(line),
                self.host,
                frozenset(self.state.removed),
            )

    def _assignment(self, word: Word, first: int) -> tuple[str, Value] | None:
        head = word.pieces[0] if word.pieces else None
        if head is None or head.kind != "text" or head.quoted:
            return None
        match = _ASSIGNED.match(head.text)
        if match is None:
            return None
        rest = (Piece("text", match[3], match[3]),) if match[3] else ()
        value = self._assigned_value(match[1], (*rest, *word.pieces[1:]), first + word.line)
        old = self.state.variables.get(match[1])
        if match[2] and isinstance(value, Said) and isinstance(old, Said):
            value = replace(value, value=old.text + value.text, unknown=old.unknown or value.unknown)
        elif match[2] and isinstance(value, tuple) and old is not None:
            value = (*((old,) if isinstance(old, Said) else old), *value)
        return match[1], value

    def _assigned_value(self, name: str, pieces: tuple[Piece, ...], line: int) -> Value:
        if len(pieces) == 1 and pieces[0].kind == "array":
            words = [word for words in statements(pieces[0].text) for word in words]
            return tuple(value for word in words for value in self.values(word.pieces, line + word.line))
        before = self._before_own(name, pieces)
        if before is not None:
            said = self.one(before, line)
            text = said.text.removesuffix(":")
            old = self.state.variables.get(name)
            if isinstance(old, Said):
                return replace(said, value=f"{text}:{old.text}", prepended=old.prepended)
            return replace(said, value=text, prepended=True)
        return self.one(pieces, line)

    def _before_own(self, name: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...] | None:
        """Return what is put in front of a variable's old value, as in `X=/a:$X`; None if it is not that."""
        last = pieces[-1] if pieces else None
        if last is None or last.kind != "variable" or last.text != name or len(pieces) < 2:
            return None
        before = pieces[:-1]
        colon = before[-1].kind == "text" and before[-1].text.endswith(":")
        own = {f":${name}", f":${{{name}}}"}
        return (
            before
            if (last.operator in ("", ":-", "-") and not last.operand and colon)
            or (last.operator in (":+", "+") and last.operand in own and not colon)
            else None
        )

    def _assign(self, name: str, value: Value) -> None:
        self.state.variables[name] = value
        self.state.removed.discard(name)
        if self.state.export_all:
            self.state.exported[name] = None

    def _declare(self, command: str, words: Sequence[Word], first: int) -> None:
        flags = "".join(word.source for word in words if word.source.startswith("-"))
        exports = command == "export" or "x" in flags
        for word in words:
            pair = self._assignment(word, first)
            if pair is not None:
                self._assign(*pair)
            name = pair[0] if pair else word.source
            if exports and not name.startswith("-"):
                if "n" in flags:
                    self.state.exported.pop(name, None)
                else:
                    self.state.exported[name] = None

    def _unset(self, words: Sequence[Word]) -> None:
        for word in words:
            if not word.source.startswith("-"):
                self.state.variables.pop(word.source, None)
                self.state.exported.pop(word.source, None)
                self.state.removed.add(word.source)

    def _set(self, words: Sequence[str]) -> None:
        if any(re.fullmatch(r"-[a-zA-Z]*a[a-zA-Z]*", word) for word in words) or words == ["-o", "allexport"]:
            self.state.export_all = True
        elif any(re.fullmatch(r"\+[a-zA-Z]*a[a-zA-Z]*", word) for word in words) or words == ["+o", "allexport"]:
            self.state.export_all = False

    def _call(self, name: str, words: Sequence[Word], first: int) -> Iterator[Ran]:
        before = self.state.positional
        self.state.positional = tuple(
            value for word in words for value in self.values(word.pieces, first + word.line)
        )
        yield from self._walk(self._functions[name])
        self.state.positional = before

    def _function(self, node: Node) -> Iterator[Ran]:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self.script.text(name)] = body
        return iter(())

    def _for(self, node: Node) -> Iterator[Ran]:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return
        text = self.script.data[node.start_byte : body.start_byte].decode("utf-8", "replace")
        head = re.match(r"(?:for|select)\s+\w+\s+in\b", text)
        inside = text[head.end() :] if head else '"$@"'
        line = self.script.line(node)
        values = [
            value for words in statements(inside)[:1] for word in words for value in self.values(word.pieces, line)
        ]
        name = self.script.text(variable)
        unknown = next((value.unknown for value in values if value.unknown), "")
        if unknown:
            yield from self._not_followed(node, f"the list of the loop is only known where it runs: {unknown}")
            return
        for value in values:
            self.state.variables[name] = value
            yield from self._walk(body)

    def _c_for(self, node: Node) -> Iterator[Ran]:
        text = self.script.text(node)
        head = re.match(
            r"for\s*\(\(\s*(\w+)\s*=\s*([^;]*?)\s*;\s*\1\s*(<=?)\s*([^;]*?)\s*;\s*(?:\1\+\+|\+\+\1|\1\s*\+=\s*(\d+))\s*\)\)",
            text,
        )
        body = node.child_by_field_name("body")
        line = self.script.line(node)
        if head and body is not None:
            first, last = self.arithmetic(head[2]), self.arithmetic(head[4])
            if first is not None and last is not None:
                step = int(head[5] or 1) or 1
                for number in range(first, last + (head[3] == "<="), step):
                    if self._budget[0] <= 0:
                        return
                    self.state.variables[head[1]] = Said(str(number), self._origin(line))
                    yield from self._walk(body)
                return
        yield from self._not_followed(node, "a loop whose ends are only known where it runs")

    def _while(self, node: Node) -> Iterator[Ran]:
        yield from self._not_followed(node, "a loop that runs as long as something holds")

    def _case(self, node: Node) -> Iterator[Ran]:
        value = node.child_by_field_name("value")
        subject = (
            self.one(pieces_of(self.script.text(value)), self.script.line(node)) if value is not None else None
        )
        if subject is None or subject.unknown:
            yield from self._not_followed(node, "a choice that is only known where it runs")
            return
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = [self.script.text(child).strip("'\"") for child in item.children_by_field_name("value")]
            if subject.text in patterns or "*" in patterns:
                for child in item.named_children:
                    if child not in item.children_by_field_name("value"):
                        yield from self._walk(child)
                return

    def _if(self, node: Node) -> Iterator[Ran]:
        """Follow the branch whose condition holds; when that is not known, the first, and say so if it matters."""
        branches = _branches(node)
        for condition, body in branches:
            holds = True if condition is None else self._holds(condition)
            if holds is None and self._ends_the_script(body):
                holds = False  # Where it does, nothing runs.
            if holds is None:
                if any(map(self._matters, (part for _, parts in branches for part in parts))):
                    text = self.script.text(condition).splitlines()[0] if condition is not None else ""
                    self.notes.append(
                        note(
                            Kind.ASSUMPTION,
                            f"`if {text}` was read as if it held"
                            + (", not its other branches" if branches[1:] else ""),
                            self._origin(self.script.line(node)),
                        )
                    )
                holds = True
            if holds:
                for part in body:
                    yield from self._walk(part)
                return

    def _ends_the_script(self, body: Sequence[Node]) -> bool:
        return bool(body) and re.match(r"(?:exit|return)\b", self.script.text(body[-1])) is not None

    def _holds(self, condition: Node) -> bool | None:
        """Return whether a condition holds; None when only the machine knows."""
        text = self.script.text(condition).strip()
        match = re.fullmatch(r"\[\[?\s+(.*?)\s+\]\]?", text, re.DOTALL)
        if match is None:
            return {"true": True, "false": False, ":": True}.get(text)
        words = [self.one(word.pieces, 0) for words in statements(match[1]) for word in words]
        if any(word.unknown for word in words):
            return None
        texts = [word.text for word in words]
        if len(texts) == 3 and texts[1] in {"=", "==", "-eq"}:
            return texts[0] == texts[2]
        if len(texts) == 3 and texts[1] in {"!=", "-ne"}:
            return texts[0] != texts[2]
        if len(texts) == 2 and texts[0] in {"-z", "-n"}:
            return (texts[1] == "") == (texts[0] == "-z")
        return None

    def _list(self, node: Node) -> Iterator[Ran]:
        """Follow both sides of `&&`, and of `||` the left one, which is what runs when all goes well."""
        children = node.named_children
        operator = next((child.type for child in node.children if child.type in {"&&", "||"}), "&&")
        if (
            operator == "&&"
            and children
            and children[0].type == "test_command"
            and (self._holds(children[0]) is False)
        ):
            return
        for child in children[: 1 if operator == "||" else None]:
            yield from self._walk(child)

    def _redirected(self, node: Node) -> Iterator[Ran]:
        body = node.child_by_field_name("body")
        here = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if here is not None:
            inside = next((child for child in here.named_children if child.type == "heredoc_body"), None)
            target = re.search(
                r"(?<![<>&\d])>\s*(?!&)(\S+)",
                self.script.text(node).split("<<", 1)[0] + " " + (self.script.text(here).splitlines() or [""])[0],
            )
            if inside is not None and target is not None:
                name = target[1].strip("'\"").rsplit("/", 1)[-1]
                self.files[name] = (self.script.text(inside), self.script.line(inside))
        if body is not None and body.type == "command" and here is None:
            yield from self._simple(node)  # Words may follow a redirection.
        elif body is not None:
            yield from self._walk(body)

    def _skip(self, node: Node) -> Iterator[Ran]:
        del node
        return iter(())

    def _subshell(self, node: Node) -> Iterator[Ran]:
        before = self.state
        self.state = State(
            dict(before.variables),
            dict(before.exported),
            before.positional,
            set(before.removed),
            before.export_all,
        )
        for child in node.named_children:
            yield from self._walk(child)
        self.state = before

    def _not_followed(self, node: Node, why: str) -> Iterator[Ran]:
        if self._matters(node):
            self._unread(f"{why}: not read from here to the end of it", self._origin(self.script.line(node)))
        return iter(())

    def _matters(self, node: Node) -> bool:
        """Whether something within can change what serves."""
        return _MATTERS.search(self.script.text(node)) is not None

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
            return f"({int(text)})"

        text = re.sub(r"\$\{(\w+)\}|\$(\w+)|(?<![\w$])([A-Za-z_]\w*)", number, expression.strip())
        if not known or len(text) > 200 or "**" in text:
            return None
        text = re.sub(r"(?<!\d)0+(?=\d)", "", text)
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
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
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


_MATTERS = re.compile(r"\bvllm\b|launch_online_dp|_proxy|docker\s+run|\bexport\b|run_dp_template|\.sh\b")


def _branches(node: Node) -> list[tuple[Node | None, list[Node]]]:
    """Return condition and statements of every branch; the condition of `else` is None."""
    conditions = node.children_by_field_name("condition")
    found: list[tuple[Node | None, list[Node]]] = [(conditions[0] if conditions else None, [])]
    for child in node.named_children:
        if child.type == "elif_clause":
            inner = child.named_children
            found.append((inner[0] if inner else None, inner[1:]))
        elif child.type == "else_clause":
            found.append((None, child.named_children))
        elif child not in conditions:
            found[0][1].append(child)
    return found


_STEPS: Mapping[str, Callable[[Evaluator, Node], Iterator[Ran]]] = {
    "comment": Evaluator._comment,
    "command": Evaluator._simple,
    "variable_assignment": Evaluator._simple,
    "variable_assignments": Evaluator._simple,
    "declaration_command": Evaluator._simple,
    "unset_command": Evaluator._simple,
    "function_definition": Evaluator._function,
    "for_statement": Evaluator._for,
    "c_style_for_statement": Evaluator._c_for,
    "while_statement": Evaluator._while,
    "case_statement": Evaluator._case,
    "if_statement": Evaluator._if,
    "list": Evaluator._list,
    "redirected_statement": Evaluator._redirected,
    "subshell": Evaluator._subshell,
    "test_command": Evaluator._skip,
    "heredoc_redirect": Evaluator._skip,
    "file_redirect": Evaluator._skip,
}
