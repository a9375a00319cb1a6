"""YAML text as a tree in which every key and value knows where it stands.

Built from the parser's events without recursion, so neither deep nesting nor alias bombs can hurt. Scalars follow
the core schema of YAML 1.2 (`on` and `no` are text, `010` is text): the 1.1 rules surprise people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import yaml

from pdtui.text import clean_line
from pdtui.topology.findings import Path, Problem, Severity

MAX_BYTES = 4 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*(?:[eE][-+]?[0-9]{1,3})?|[1-9][0-9]*[eE][-+]?[0-9]{1,3})\Z")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""What escapes in double quotes can bring into a value; and what nobody sees, but comes along from web pages."""
_LOOKALIKE = re.compile("[\u00a0\u2002-\u200a\u202f\u3000\uff0c\uff1a]")
"""What an input method or a web page puts in the place of a space, a comma or a colon."""

_CAUSES = (
    ("cannot start any token", "this character cannot begin a value; put the value in quotes"),
    ("mapping values are not allowed", "a colon where none can be; check the indentation, or quote the value"),
    ("could not find expected ':'", "a key without its colon; write `key: value`, with a space after the colon"),
    ("expected ',' or", "a bracket that is not closed, or a comma that is missing"),
    ("unexpected end of stream", "a quotation mark that is not closed"),
    ("expected <block end>", "not aligned with the keys above; indent one level by the same spaces"),
    ("did not find expected key", "not aligned with the keys above; indent one level by the same spaces"),
    ("block sequence entries are not allowed", "a list entry where none can be; put `- ` on a line of its own"),
    ("unknown escape", 'an unknown escape; use single quotes, or double the backslash inside "..."'),
    ("nesting", "nested too deeply; nothing in this file needs that"),
    ("scanning an a", "* and & mean alias and anchor in YAML; put the value in quotes"),
)
"""Fragment of the parser's message -> what an operator understands."""


class Mark(NamedTuple):
    """A place in the file, both from 1."""

    line: int
    column: int


class WrittenInt(int):
    """A whole number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Read a decimal number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        """Return the number as written."""
        return self.text


class WrittenFloat(float):
    """A number with a fraction that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Read a decimal number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        """Return the number as written."""
        return self.text


@dataclass(slots=True)
class Scalar:
    """One value."""

    mark: Mark
    text: str
    plain: bool
    """Written without quotes and without a tag."""

    @property
    def is_null(self) -> bool:
        """Nothing, `~` or `null` was written."""
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}

    def value(self) -> Any:
        """Return None, a bool, a number or text, by the core schema of YAML 1.2."""
        if not self.plain:
            return self.text
        if self.is_null:
            return None
        if self.text in {"true", "True", "TRUE"}:
            return True
        if self.text in {"false", "False", "FALSE"}:
            return False
        if _INT.match(self.text):
            return WrittenInt(self.text)
        if _FLOAT.match(self.text):
            return WrittenFloat(self.text)
        return self.text


@dataclass(slots=True)
class Sequence:
    """A list."""

    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    """Keys and values in the order of the file."""

    mark: Mark
    items: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file."""

    file: str
    root: Node | None

    def walk(self, path: Path) -> Iterator[tuple[Mark | None, Node | None]]:
        """Yield (mark of the key, node) for each step of a path, as far as it exists."""
        node = self.root
        yield None, node
        for part in path:
            key = None
            if isinstance(node, Mapping) and str(part) in node.items:
                key, node = node.keys[str(part)], node.items[str(part)]
            elif isinstance(node, Sequence) and isinstance(part, int) and 0 <= part < len(node.items):
                node = node.items[part]
            else:
                return
            yield key, node

    def has(self, path: Path) -> bool:
        """Whether the file says something at a path."""
        return sum(1 for _ in self.walk(path)) == len(path) + 1

    def rename(self, path: Path, name: str) -> None:
        """Let a key be found under another name, so that what is said about its value has a place."""
        *_, (_, parent) = self.walk(path[:-1])
        if isinstance(parent, Mapping):
            parent.items[name] = parent.items.pop(str(path[-1]))
            parent.keys[name] = parent.keys.pop(str(path[-1]))

    def mark(self, path: Path, *, on_key: bool = False) -> Mark:
        """Return where a path stands; where its nearest ancestor stands if it is not in the file."""
        steps = list(self.walk(path))
        key, node = steps[-1]
        if key is not None and (on_key or len(steps) <= len(path) or not isinstance(node, Scalar)):
            return key
        if key is not None and isinstance(node, Scalar) and node.is_null:
            return key
        return node.mark if node is not None else Mark(0, 0)


class Broken(Exception):
    """The text is no usable YAML; carries the one problem that says why."""

    def __init__(self, message: str, mark: Mark) -> None:
        super().__init__(message)
        self.problem = Problem("F02", Severity.ERROR, message, (), mark=(mark.line, mark.column))


def parse(data: bytes, file: str) -> tuple[Document, list[Problem]]:
    """Return the tree of a file and what is wrong with its YAML. Never raises, whatever the bytes are."""
    problems: list[Problem] = []
    try:
        root = _Composer(problems).compose(_text(data))
    except Broken as broken:
        return Document(file, None), [*problems, broken.problem]
    if root is None and not problems:
        message = "the file is empty; see sample_configs/ for files to start from"
        problems.append(Problem("F02", Severity.ERROR, message, (), mark=(1, 1)))
    return Document(file, root), problems


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Broken(f"the file has more than {MAX_BYTES >> 20} MiB; a topology never has", Mark(1, 1))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        raise Broken(
            f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8 without another encoding",
            _mark_at(before, len(before)),
        ) from None
    if bad := _UNPRINTABLE.search(text):
        raise Broken(
            f"the character U+{ord(bad[0]):04X} is not allowed in YAML; delete it", _mark_at(text, bad.start())
        )
    return text


def _mark_at(text: str, offset: int) -> Mark:
    start = text.rfind("\n", 0, offset) + 1
    return Mark(text.count("\n", 0, offset) + 1, offset - start + 1)


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


class _Composer:
    """Turns events into a tree with a stack of its own."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.anchors: dict[str, Node] = {}
        self.measured: dict[int, tuple[int, int, Node]] = {}
        """Size and depth by identity; the node is kept so that its identity stays its own."""
        self.nodes = 0
        self.stack: list[tuple[Sequence | Mapping, Scalar | None]] = []
        """Open collections; with a mapping its key that waits for a value."""
        self.root: Node | None = None
        self.documents = 0

    def compose(self, text: str) -> Node | None:
        """Return the root, None for an empty file. Raises `Broken`."""
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                if not self._take(event):
                    break
        except yaml.MarkedYAMLError as error:
            raise _broken(error, text) from None
        except yaml.YAMLError as error:
            raise Broken(f"no valid YAML: {clean_line(str(error))}", Mark(1, 1)) from None
        return self.root

    def _take(self, event: Any) -> bool:
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                message = "a second document begins here (---); a topology is one document"
                self._problem("F02", message, _mark(event))
                return False
        elif isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0])
            if event.tag not in (None, "!", "tag:yaml.org,2002:str") and not plain:
                self._tag(event)
            if bad := _CONTROL.search(event.value):
                message = f"the control character U+{ord(bad[0]):04X} in a value; nothing here needs one"
                self._problem("F02", message, _mark(event))
            # An empty document comes as one empty scalar.
            self._add(event, Scalar(_mark(event), event.value, plain and not event.style))
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if event.tag not in (None, "!", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"):
                self._tag(event)
            kind = Sequence if isinstance(event, yaml.SequenceStartEvent) else Mapping
            node = kind(_mark(event))
            self._add(event, node)
            self.stack.append((node, None))
            if len(self.stack) > MAX_DEPTH:
                raise Broken(f"nested more than {MAX_DEPTH} levels deep; nothing here needs that", _mark(event))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self.stack.pop()
        return True

    def _add(self, event: Any, node: Node, size: int = 1) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise Broken(f"more than {MAX_NODES} values, aliases included; no topology needs that", _mark(event))
        anchor = getattr(event, "anchor", None)
        if anchor and not isinstance(event, yaml.AliasEvent):
            self.anchors[anchor] = node
        if not self.stack:
            if not (isinstance(node, Scalar) and node.plain and node.text == ""):
                self.root = node
            return
        parent, key = self.stack[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif key is None:
            self.stack[-1] = (parent, self._key(event, node))
        else:
            self.stack[-1] = (parent, None)
            self._entry(parent, key, node)

    def _key(self, event: Any, node: Node) -> Scalar:
        if isinstance(node, Scalar):
            return node
        self._problem("F02", "a key must be a word, not a list or a mapping", _mark(event))
        return Scalar(_mark(event), "", plain=False)

    def _entry(self, parent: Mapping, key: Scalar, node: Node) -> None:
        name = key.text
        if name == "<<" and key.plain:
            message = "merge keys (<<) are not used here; put what is common into `defaults` or `roles`"
            self._problem("F02", message, key.mark)
        elif name in parent.items:
            first = parent.keys[name]
            message = f"`{clean_line(name)}` is written twice: first on line {first.line}; keep one of the two"
            self._problem("F03", message, key.mark, name)
        else:
            parent.items[name] = node
            parent.keys[name] = key.mark

    def _alias(self, event: Any) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            raise Broken(f"the alias *{clean_line(event.anchor)} has no anchor before it", _mark(event))
        if any(node is collection for collection, _ in self.stack):
            raise Broken(f"the alias *{clean_line(event.anchor)} contains itself", _mark(event))
        size, depth = self._measure(node)
        if len(self.stack) + depth > MAX_DEPTH:
            raise Broken(f"nested more than {MAX_DEPTH} levels deep through aliases", _mark(event))
        self._add(event, node, size)

    def _measure(self, node: Node) -> tuple[int, int]:
        """Return how many values a node stands for, aliases inside it expanded, and how deep it is.

        Recursion stays below MAX_DEPTH: what an alias brings in was measured when it was met.
        """
        if isinstance(node, Scalar):
            return 1, 0
        if id(node) not in self.measured:
            children = node.items.values() if isinstance(node, Mapping) else node.items
            sizes = [self._measure(child) for child in children]
            total = min(MAX_NODES + 1, 1 + sum(size for size, _ in sizes))
            self.measured[id(node)] = (total, 1 + max((depth for _, depth in sizes), default=0), node)
        total, depth, _ = self.measured[id(node)]
        return total, depth

    def _tag(self, event: Any) -> None:
        self._problem("F02", f"the tag {clean_line(str(event.tag))} is not used here; delete it", _mark(event))

    def _problem(self, rule: str, message: str, mark: Mark, *last: str) -> None:
        path = (*(key.text for _, key in self.stack if key is not None), *last)
        self.problems.append(Problem(rule, Severity.ERROR, message, path, mark=(mark.line, mark.column)))


def _broken(error: yaml.MarkedYAMLError, text: str) -> Broken:
    said = " ".join(filter(None, (error.context, error.problem)))
    place = error.problem_mark or error.context_mark
    mark = Mark(place.line + 1, place.column + 1) if place is not None else Mark(1, 1)
    cause = next((cause for fragment, cause in _CAUSES if fragment in said), clean_line(said))
    lines = text.splitlines()
    if mark.line <= len(lines) and lines[mark.line - 1][: mark.column].strip(" ").startswith("\t"):
        cause = "a tab in the indentation; YAML takes spaces only"
    elif error.context_mark is not None and error.context_mark.line + 1 < mark.line:
        cause = f"{cause} (begun on line {error.context_mark.line + 1})"
    begun = error.context_mark.line if error.context_mark is not None else mark.line - 1
    for number, line in enumerate(lines[begun : mark.line], begun + 1):
        if seen := _LOOKALIKE.search(line.partition(" #")[0]):
            what = "colon" if seen[0] == "\uff1a" else "comma" if seen[0] == "\uff0c" else "space"
            cause += f"; U+{ord(seen[0]):04X} on line {number} only looks like a {what}"
            break
    return Broken(f"no valid YAML: {cause}", mark)
