"""Shell scripts as statements, by tree-sitter's grammar of bash. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_BLANKS = re.compile(rb"(?:[ \t]|\\[ \t]|\\\n)+")


@cache
def _parser() -> Parser:
    # Here: a shared library, which only an import needs.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class Script:
    """One parsed script. Lines are from 1, plus `first_line` when it is a part of a file."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.data = text.encode("utf-8", "replace")
        self.first_line = first_line
        self.root = _parser().parse(self.data).root_node

    def text(self, node: Node) -> str:
        """Return the text of a node."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def command(self, node: Node) -> str:
        """Return the text of a command, with the escaped blanks at its end, which the grammar leaves out."""
        more = _BLANKS.match(self.data, node.end_byte)
        end = more.end() if more is not None else node.end_byte
        return self.data[node.start_byte : end].decode("utf-8", "replace")

    def line(self, node: Node) -> int:
        """Return the line on which a node begins."""
        return node.start_point.row + self.first_line

    def errors(self) -> Iterator[tuple[int, str]]:
        """Yield line and text of what is not bash; parts of it may still have been understood."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node.is_error:
                text = self.text(node).strip()
                if text:
                    yield self.line(node), text.splitlines()[0]
            elif node.is_missing:
                yield self.line(node), f"{node.type} is missing"
            elif node.has_error:
                waiting.extend(reversed(node.children))
