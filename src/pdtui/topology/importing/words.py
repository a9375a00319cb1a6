"""Bash words: from the text of one command to pieces that are literal, a variable, arithmetic, or not known.

Statements are found by tree-sitter; its words are not used, because it drops escaped blanks and keeps words apart
that a continued line glues together. The rules are those of bash's manual, 3.1.2 Quoting and 3.5 Shell Expansions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ANSI = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\x1b",
    "E": "\x1b",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
"""What follows a backslash in $'..' and what it stands for."""

_ANSI_NUMBER = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BRACED = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*(?:\[(?:[0-9]+|@|\*)\])?|[0-9]+|[@*])(?:(:?[-=?+])(.*))?\Z", re.DOTALL
)
_REDIRECTED = re.compile(r"\d*[<>]")
_REDIRECTION = re.compile(r"&>>?|\d*(?:<<<|<<-?|>>|>&|<&|>\||<>|[<>])")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word."""

    kind: Literal["text", "variable", "arithmetic", "array", "unknown"]
    text: str
    """The literal text, the variable's name, the expression, the array's words, or what was not understood."""
    source: str
    """As it is written."""
    quoted: bool = False
    operator: str = ""
    """`:-`, `+` and so on, of `${NAME:-WORD}`."""
    operand: str = ""
    """What follows the operator, unevaluated."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    pieces: tuple[Piece, ...]
    line: int
    """Lines after the first of the text."""

    @property
    def source(self) -> str:
        """The word about as it is written."""
        return "".join(piece.source for piece in self.pieces)


def statements(text: str) -> list[list[Word]]:
    """Return the words of each command of a text, one a line unless lines are continued.

    Redirections, comments and what follows an operator are left out.
    """
    lexer = _Lexer(text)
    found: list[list[Word]] = []
    while not lexer.ended:
        found.append(lexer.words())
    return [words for words in found if words]


def pieces_of(text: str, *, quoted: bool = False) -> tuple[Piece, ...]:
    """Return the pieces of one word, such as the value of an assignment: blanks do not end it."""
    lexer = _Lexer(text)
    if quoted:
        lexer.double_quoted(stop="")
    else:
        lexer.plain(whole=True)
    return lexer.finished()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.pieces: list[Piece] = []
        self.literal: list[str] = []
        self.ended = not text
        self._counted = (0, 0)

    def words(self) -> list[Word]:
        """Return the words up to the end of a line, or of the text."""
        found: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self.at += 1
                return found
            if char in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char in "|;&()":
                if self.text.startswith("&>", self.at):
                    self._redirection()
                    continue
                break
            elif char == "#":
                while self.at < len(self.text) and self.text[self.at] != "\n":
                    self.at += 1
            elif _REDIRECTED.match(self.text, self.at):
                self._redirection()
            else:
                line = self._line()
                self.plain(whole=False)
                found.append(Word(self.finished(), line))
        self.ended = True
        return found

    def _line(self) -> int:
        """Return how many lines end before where it is."""
        at, lines = self._counted
        self._counted = (self.at, lines + self.text.count("\n", at, self.at))
        return self._counted[1]

    def _redirection(self) -> None:
        match = _REDIRECTION.match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in "\n|;&()<>":
            self.plain(whole=False)
            self.finished()

    def finished(self) -> tuple[Piece, ...]:
        self._flush(quoted=False)
        pieces, self.pieces = tuple(self.pieces), []
        return pieces

    def _flush(self, *, quoted: bool, always: bool = False) -> None:
        if self.literal or always:
            text = "".join(self.literal)
            self.pieces.append(Piece("text", text, text, quoted))
            self.literal = []

    def plain(self, *, whole: bool) -> None:
        """Read unquoted text, and the quoted parts within, up to the end of the word."""
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == "\\":
                self._escaped()
            elif char == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end < 0 else end
                self._flush(quoted=False)
                self.literal.append(text[self.at + 1 : end])
                self._flush(quoted=True, always=True)
                self.at = end + 1
            elif char == '"' or text.startswith('$"', self.at):
                self._flush(quoted=False)
                self.at += 1 if char == '"' else 2
                self.double_quoted(stop='"')
            elif text.startswith("$'", self.at):
                self._flush(quoted=False)
                self._ansi()
            elif char in "$`":
                self._expansion(quoted=False)
            elif char == "(" and not self.pieces and "".join(self.literal).endswith("="):
                end = _closing(text, self.at)
                self._add("array", text[self.at + 1 : end - 1], text[self.at : end], False, end)
            elif not whole and char in " \t\n|;&()<>":
                return
            else:
                self.literal.append(char)
                self.at += 1

    def _escaped(self) -> None:
        if self.text.startswith("\\\n", self.at):
            self.at += 2
            return
        self._flush(quoted=False)
        self.literal.append(self.text[self.at + 1 : self.at + 2] or "\\")
        self._flush(quoted=True)
        self.at += 2

    def double_quoted(self, stop: str) -> None:
        """Read the inside of double quotes up to `stop`; empty: to the end of the text."""
        text, began = self.text, len(self.pieces)
        while self.at < len(text):
            char = text[self.at]
            if char == stop:
                break
            if char == "\\" and text[self.at + 1 : self.at + 2] in {'"', "\\", "$", "`", "\n"}:
                self.literal.append(text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                self._expansion(quoted=True)
            else:
                self.literal.append(char)
                self.at += 1
        self.at += 1
        self._flush(quoted=True, always=len(self.pieces) == began)

    def _ansi(self) -> None:
        text = self.text
        self.at += 2
        while self.at < len(text) and text[self.at] != "'":
            if text[self.at] != "\\":
                self.literal.append(text[self.at])
                self.at += 1
                continue
            number = _ANSI_NUMBER.match(text, self.at + 1)
            if number:
                code = int(number[number.lastindex or 0], 8 if number[4] else 16)
                self.literal.append(chr(code) if code < 0x110000 else "\ufffd")
                self.at = number.end()
            else:
                char = text[self.at + 1 : self.at + 2]
                self.literal.append(ANSI.get(char, f"\\{char}"))
                self.at += 2
        self.at += 1
        self._flush(quoted=True, always=True)

    def _expansion(self, *, quoted: bool) -> None:
        """Read what begins with a dollar or a backquote."""
        text, start = self.text, self.at
        if text[start] == "`":
            end = start + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            self._add("unknown", text[start : end + 1], text[start : end + 1], quoted, end + 1)
        elif text.startswith("$((", start):
            end = _closing(text, start + 1)
            source = text[start:end]
            kind: Literal["arithmetic", "unknown"] = "arithmetic" if source.endswith("))") else "unknown"
            self._add(kind, source[3:-2] if kind == "arithmetic" else source, source, quoted, end)
        elif text.startswith("$(", start):
            end = _closing(text, start + 1)
            self._add("unknown", text[start:end], text[start:end], quoted, end)
        elif text.startswith("${", start):
            end = _closing(text, start + 1)
            self._braced(text[start:end], quoted, end)
        elif name := _NAME.match(text, start + 1):
            self._add("variable", name[0], text[start : name.end()], quoted, name.end())
        else:
            self.literal.append("$")
            self.at += 1

    def _braced(self, source: str, quoted: bool, end: int) -> None:
        match = _BRACED.match(source[2:-1])
        if match is None or not source.endswith("}"):
            self._add("unknown", source, source, quoted, end)
            return
        self._flush(quoted=quoted)
        self.pieces.append(Piece("variable", match[1], source, quoted, match[2] or "", match[3] or ""))
        self.at = end

    def _add(
        self,
        kind: Literal["variable", "arithmetic", "array", "unknown"],
        text: str,
        source: str,
        quoted: bool,
        end: int,
    ) -> None:
        self._flush(quoted=quoted)
        self.pieces.append(Piece(kind, text, source, quoted))
        self.at = end


_PAIRS = {"(": ")", "{": "}"}


def _closing(text: str, start: int) -> int:
    """Return the end of what the bracket at `start` opens, quotes and nested brackets skipped."""
    opening = text[start]
    closing, depth, at = _PAIRS[opening], 0, start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'" and opening == "(":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


_RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,4}))?\}")
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MOST_BRACES = 4096
"""More words than any real list has."""

_LONGEST_BRACES = 2000
"""Characters of a word in which braces are looked for."""


def braces(text: str) -> list[str]:
    """Return the words that unquoted `{0..3}` and `{a,b}` stand for."""
    if len(text) > _LONGEST_BRACES:
        return [text]
    found: list[str] = [text]
    done: list[str] = []
    while found and len(found) + len(done) < _MOST_BRACES:
        word = found.pop(0)
        match, other = _RANGE.search(word), _LIST.search(word)
        if match and not (other and other.start() < match.start()):
            first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
            pad = len(match[1]) if match[1].startswith("0") and len(match[1]) > 1 else 0
            numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
            items = [str(number).zfill(pad) for number in numbers[:_MOST_BRACES]]
        elif other:
            match = other
            items = other[1].split(",")
        else:
            done.append(word)
            continue
        found[:0] = [word[: match.start()] + item + word[match.end() :] for item in items]
    return done + found
