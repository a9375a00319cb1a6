"""What a script would run, as far as that is certain: variables, quotes, loops over lists; nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdtui.topology.importing.observed import Origin, Said
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.importing.shell import Script
from pdtui.topology.importing.values import State, Value, Values
from pdtui.topology.importing.words import Piece, Word, pieces_of, statements
from pdtui.topology.redact import redacted_text

if TYPE_CHECKING:
    from tree_sitter import Node


MOST_COMMANDS = 8_000
"""Commands after which a script is not followed further: loops that no deployment has."""


_DEEPEST = 60
"""Levels of nesting that are followed; deeper ones are named."""


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


class Evaluator(Values):
    """Follows one script and says what it runs."""

    def __init__(
        self,
        script: Script,
        source: str,
        state: State | None = None,
        *,
        host: str = "",
        ends: bool = True,
        others: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Read a script; `ends`: an `exit` ends it, which in a guide is only typed on the way.

        `others` are the files that it may source: by their last name, their name and text.
        """
        self.others = others or {}
        self.sourced: set[str] = set()
        """Names of those that it did."""
        self.script = script
        super().__init__(source, state or State())
        self.host = host
        self.notes: list[Note] = []
        self.files: dict[str, tuple[str, int]] = {}
        """Name of a file that the script writes by a here-document -> its text and the line of its first."""
        self._functions: dict[str, Node] = {}
        self._budget = MOST_COMMANDS
        self._depth = 0
        self._ends = ends
        self._leaving = ""
        """`exit`, `return`, `break` or `continue`, until what it leaves is left."""
        self._assumed = 0
        """Conditions around that are only taken to hold."""
        self._locals: list[dict[str, Value | None]] = []
        """What `local` hides, for each function that is being followed."""

    def run(self) -> list[Ran]:
        """Return all commands in order; `notes` then says what could not be followed."""
        found = list(self._walk(self.script.root))
        if self._budget <= 0:
            self._unread(f"more than {MOST_COMMANDS} commands; what follows was not read", Origin(self.source))
        return found

    def _unread(self, message: str, origin: Origin) -> None:
        self.notes.append(note(Kind.UNREAD, message, origin))

    def _walk(self, node: Node) -> Iterator[Ran]:
        if self._leaving:
            if self._leaving == "exit" and self._serves(node):
                self._leaving = "exit, told"
                message = "comes after an `exit`: not read from here to the end"
                self.notes.append(note(Kind.ASSUMPTION, message, self._origin(self.script.line(node))))
            return
        if self._budget <= 0:
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
            self._budget -= 1
            yield from self._command(words, first)

    def _command(self, words: Sequence[Word], first: int) -> Iterator[Ran]:
        rest = list(words)
        while rest and self._assignment(rest[0], first) is not None:
            rest.pop(0)
        before = words[: len(words) - len(rest)]
        if not rest:
            for word in before:  # Each sees those before it.
                if (pair := self._assignment(word, first)) is not None:
                    self._assign(*pair)
            return
        # The words of a command are filled in before the assignments in front of it count.
        said = tuple(value for word in rest for value in self.values(word.pieces, first + word.line))
        assigned = self._only_for_it(before, first)
        name = rest[0].source
        if name in {"export", "declare", "typeset", "local", "readonly"}:
            self._declare(name, rest[1:], first)
        elif name == "unset":
            self._unset(rest[1:])
        elif name == "set":
            self._set([word.source for word in rest[1:]])
            if any(word.source == "--" for word in rest[1:]):
                texts = [value.text for value in said]
                given = said[texts.index("--") + 1 :]
                # `A=("$@") ... set -- "${A[@]}"`: the script's own words again, which are not known.
                own = len(given) == 1 and given[0].unknown.strip('"') in {"$@", "${@}"}
                self.state.positional = None if own else given
        elif name == "shift" and self.state.positional:
            count = said[1].number if len(said) > 1 else 1
            self.state.positional = None if count is None else self.state.positional[count:]
        elif name in {"exit", "return", "break", "continue"}:
            self._leave(name)
        elif name in {"let", "read", "mapfile", "readarray", "getopts"}:
            self._changed(name, said, rest[0].line + first)
        elif name == "printf" and len(said) > 2 and said[1].text == "-v":
            self._forget(said[2].text, "printf -v", rest[0].line + first)
        elif name in self._functions and not assigned:
            yield from self._call(name, rest[1:], first)
        else:
            if name in {"source", "."} and len(said) > 1:
                yield from self._source(said[1].text.rsplit("/", 1)[-1])
            env = self.state.env() | {key: value for key, value in assigned.items() if isinstance(value, Said)}
            line = first + rest[0].line
            yield Ran(
                said,
                env,
                dict(self.state.variables) | assigned,
                self._origin(line),
                self.host,
            )

    def _source(self, last: str) -> Iterator[Ran]:
        """Follow a file that is sourced, if it is here: what it sets counts from here on."""
        name, text = self.others.get(last, ("", ""))
        if not name or self._depth >= _DEEPEST:
            return  # Files that source each other end at the latest when nothing is left to follow.
        self.sourced.add(name)
        inner = Evaluator(Script(text), name, self.state, host=self.host, ends=self._ends, others=self.others)
        inner.sourced = self.sourced
        inner._budget, inner._depth = self._budget, self._depth + 1
        yield from inner._walk(inner.script.root)
        self._budget = inner._budget
        self.notes += inner.notes

    def _only_for_it(self, words: Sequence[Word], first: int) -> dict[str, Value]:
        """Return the assignments in front of a command, each made in sight of those before it, and undone."""
        if not words:
            return {}
        before, assigned = dict(self.state.variables), {}
        for word in words:
            if (pair := self._assignment(word, first)) is not None:
                self.state.variables[pair[0]] = assigned[pair[0]] = pair[1]
        self.state.variables = before
        return assigned

    def _leave(self, name: str) -> None:
        if self._assumed or (not self._ends and not self._locals and name in {"exit", "return"}):
            return
        self._leaving = "exit" if name == "return" and not self._locals else name

    def _changed(self, command: str, said: Sequence[Said], line: int) -> None:
        """Follow a builtin that sets variables as far as that is certain; what it sets is else not known."""
        for word in said[1:]:
            if command == "let":
                self._calculated(word.text, line)
            elif re.fullmatch(r"[A-Za-z_]\w*", word.text):
                self._forget(word.text, command, line)

    def _calculated(self, expression: str, line: int) -> None:
        """Follow an arithmetic assignment, `X++` or `X += 2`; other ones leave what they set unknown."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))\s*", expression, re.DOTALL)
        if match is not None:
            right = f"{match[1]} {match[2][0]} 1" if match[2] else match[4]
            right = f"{match[1]} {match[3]} ({right})" if match[3] else right
            number = self.arithmetic(right)
            if number is not None:
                self._assign(match[1], Said(str(number), self._origin(line)))
                return
        for name in _CALCULATED.findall(expression):
            self._forget("".join(name), "arithmetic", line)

    def _forget(self, name: str, why: str, line: int) -> None:
        self._assign(name, Said(f"${name}", self._origin(line), f"{why}: {name}"))

    def _forget_all(self, node: Node, why: str) -> None:
        """Take what is assigned in a part that is not followed for unknown."""
        text = self.script.text(node)
        line = self.script.line(node)
        names = [*_NAMED.findall(text), *("".join(found) for found in _CALCULATED.findall(text) if "((" in text)]
        for name in dict.fromkeys(names):
            self._forget(name, why, line)

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
        if pieces and pieces[0].kind == "text" and not pieces[0].quoted and re.match(r"~(?:/|\Z)", pieces[0].text):
            rest = Piece("text", pieces[0].text[1:], pieces[0].text[1:])
            pieces = (Piece("variable", "HOME", "$HOME"), *((rest,) if rest.text else ()), *pieces[1:])
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
        pairs = [(word, self._assignment(word, first)) for word in words]  # All are filled in before any counts.
        for word, pair in pairs:
            name = pair[0] if pair else word.source
            if command in {"local", "declare", "typeset"} and self._locals and not name.startswith("-"):
                self._locals[-1].setdefault(name, self.state.variables.get(name))
            if pair is not None:
                self._assign(*pair)
                if "i" in flags and isinstance(pair[1], Said):
                    self._calculated(f"{name}={pair[1].text}", first + word.line)
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
        self._locals.append({})
        yield from self._walk(self._functions[name])
        for hidden, value in self._locals.pop().items():
            if value is None:
                self.state.variables.pop(hidden, None)
            else:
                self.state.variables[hidden] = value
        self._leaving = "" if self._leaving == "return" else self._leaving
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
            if self._left_loop():
                return

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
                    if self._budget <= 0:
                        return
                    self.state.variables[head[1]] = Said(str(number), self._origin(line))
                    yield from self._walk(body)
                    if self._left_loop():
                        return
                return
        yield from self._not_followed(node, "a loop whose ends are only known where it runs")

    def _left_loop(self) -> bool:
        """Whether what ran in a loop leaves it; `continue` has only ended this time."""
        leaving = self._leaving
        if leaving in {"break", "continue"}:
            self._leaving = ""
        return leaving not in {"", "continue"}

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
                if any(map(self._changes, (part for _, parts in branches for part in parts))):
                    text = self.script.text(condition).splitlines()[0] if condition is not None else ""
                    self.notes.append(
                        note(
                            Kind.ASSUMPTION,
                            f"`if {redacted_text(text)}` was read as if it held"
                            + (", not its other branches" if branches[1:] else ""),
                            self._origin(self.script.line(node)),
                        )
                    )
                holds = True
            if holds:
                certain = condition is None or self._holds(condition) is not None
                self._assumed += not certain
                for part in body:
                    yield from self._walk(part)
                self._assumed -= not certain
                return

    def _ends_the_script(self, body: Sequence[Node]) -> bool:
        return bool(body) and re.match(r"(?:exit|return|break|continue)\b", self.script.text(body[-1])) is not None

    def _holds(self, condition: Node) -> bool | None:
        """Return whether a condition holds; None when only the machine knows."""
        text = self.script.text(condition).strip()
        match = re.fullmatch(r"\[\[?\s+(.*?)\s+\]\]?", text, re.DOTALL)
        if text.startswith("((") and text.endswith("))"):
            number = self.arithmetic(text[2:-2])
            return None if number is None else number != 0
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
        if len(texts) == 3 and texts[1] in _COMPARED:
            number = self.arithmetic(f"{texts[0]} {_COMPARED[texts[1]]} {texts[2]}")
            return None if number is None else number != 0
        if len(texts) == 2 and texts[0] in {"-z", "-n"}:
            return (texts[1] == "") == (texts[0] == "-z")
        return None

    def _list(self, node: Node) -> Iterator[Ran]:
        """Follow both sides of `&&`, and of `||` the left one, which is what runs when all goes well.

        What depends on a condition that only the machine knows is followed after `&&`, and said; not after `||`.
        """
        left, *rights = node.named_children
        operator = next((child.type for child in node.children if child.type in {"&&", "||"}), "&&")
        holds = self._truth(left)
        yield from self._walk(left)
        if not rights or holds is (operator == "||"):
            return
        right = rights[-1]
        tested = left.type == "test_command" or self.script.text(left).startswith("((")
        if holds is None and operator == "&&" and tested:
            if self._ends_the_script([right]):
                return
            self._say(right, f"`{self._first_line(left)} && ...` was read as if it held")
            self._assumed += 1
            yield from self._walk(right)
            self._assumed -= 1
        elif holds is None and operator == "||":
            self._forget_all(right, "||")
            if self._serves(right):
                what = "a server that runs when what is before `||` fails"
                self._unread(f"{what}: not read", self._origin(self.script.line(right)))
            elif self._matters(right) and not _HANDLED.match(self.script.text(right)):
                self._say(right, f"`... || {self._first_line(right)}` was read as if what is before it did well")
        else:
            yield from self._walk(right)

    def _truth(self, node: Node) -> bool | None:
        """Return whether what stands before `&&` or `||` does well; None when only the machine knows."""
        if node.type != "list":
            return self._holds(node)
        left, right = node.named_children[0], node.named_children[-1]
        first = self._truth(left)
        if any(child.type == "||" for child in node.children):
            return True if first else self._truth(right)
        if not first:
            return first
        return True if right.type == "command" else self._truth(right)

    def _say(self, node: Node, message: str) -> None:
        if self._changes(node):
            place = self._origin(self.script.line(node))
            self.notes.append(note(Kind.ASSUMPTION, redacted_text(message), place))

    def _first_line(self, node: Node) -> str:
        text = self.script.text(node).strip()
        line = text.splitlines()[0] if text else ""
        return line if len(line) <= 60 else f"{line[:57]}..."

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
                text = self.script.text(inside)
                quoted = re.match(r"<<-?\s*[\"'\\]", self.script.text(here)) is not None
                self.files[name] = (text if quoted else _unescaped(text), self.script.line(inside))
        if body is not None:
            self._written(node, body, here, target is not None if here is not None else False)
        if body is not None and body.type == "command" and here is None:
            yield from self._simple(node)  # Words may follow a redirection.
        elif body is not None:
            yield from self._walk(body)

    def _written(self, node: Node, body: Node, here: Node | None, is_kept: bool) -> None:
        """Name what is handed to a program as its input, or written to a script, when that starts a server."""
        program = self.script.text(body).split(None, 1)[0].rsplit("/", 1)[-1] if self.script.text(body) else ""
        text = self.script.text(node)
        handed = here is not None and not is_kept and (program != "cat" or "|" in text.split("\n", 1)[0])
        written = here is None and program in {"echo", "printf"} and re.search(r">\s*\S+\.sh\b", text) is not None
        if (handed or written) and self._serves(node):
            what = "its input" if handed else "a script that is written here"
            self._unread(
                f"{program}: {what} starts a server, and is not followed", self._origin(self.script.line(node))
            )

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
        self._leaving = ""

    def _compound(self, node: Node) -> Iterator[Ran]:
        text = self.script.text(node)
        if text.startswith("((") and text.endswith("))"):
            self._calculated(text[2:-2], self.script.line(node))
            return
        for child in node.named_children:
            yield from self._walk(child)

    def _not_followed(self, node: Node, why: str) -> Iterator[Ran]:
        self._forget_all(node, why.partition(":")[0])
        if self._matters(node):
            self._unread(f"{why}: not read from here to the end of it", self._origin(self.script.line(node)))
        return iter(())

    def _matters(self, node: Node) -> bool:
        """Whether something within can change what serves."""
        return _MATTERS.search(self.script.text(node)) is not None

    def _changes(self, node: Node) -> bool:
        """Whether it matters, or sets a variable that may."""
        return self._matters(node) or _NAMED.search(self.script.text(node)) is not None

    def _serves(self, node: Node) -> bool:
        text = self.script.text(node)
        return _STARTS.search(text) is not None and _HANDLED.match(text) is None


_HANDLED = re.compile(r"\s*(?:ln|cp|mv|rm|cat|ls|chmod|test|\[|scp|wget|curl)\s")
"""What does something with a file and starts nothing of it."""

_STARTS = re.compile(r"\bvllm\s+serve\b|vllm\.entrypoints|launch_online_dp|_proxy\w*\.py|run_dp_template")
"""What starts a part of a cluster."""

_NAMED = re.compile(r"(?:^|[\s;({&|])([A-Za-z_]\w*)\+?=", re.MULTILINE)
"""An assignment of a shell."""

_CALCULATED = re.compile(r"(\w+)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*(\w+)")
"""An assignment in arithmetic."""

_COMPARED = {"-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}

_MATTERS = re.compile(r"\bvllm\b|launch_online_dp|_proxy|docker\s+run|\bexport\b|run_dp_template|\.sh\b")


def _unescaped(text: str) -> str:
    """Return a here-document as the file has it whose delimiter is not quoted."""
    return re.sub(r"\\([\\$`\n])", lambda match: "" if match[1] == "\n" else match[1], text)


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
    "compound_statement": Evaluator._compound,
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
