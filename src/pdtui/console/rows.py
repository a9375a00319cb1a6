"""Text with meaning but without colours: what describe, metrics, findings and help hand to their widget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from pdtui.console.lines import Line, wrap
from pdtui.console.look import Look
from pdtui.text import clean

LABEL_WIDTH = 16
"""Cells of the column of labels."""


@dataclass(frozen=True, slots=True)
class Row:
    """One paragraph: a label (or none) and text, wrapped under itself."""

    text: str
    style: str = "text"
    """Name of a style."""
    label: str = ""
    label_style: str = "dim"
    label_width: int = LABEL_WIDTH
    indent: int = 0


BLANK = Row("")


def heading(text: str) -> Row:
    """Return a row that begins a part."""
    return Row(text, "title_focused")


def paragraphs(text: str, style: str = "text", *, indent: int = 0) -> list[Row]:
    """Return one row for each line of a longer text."""
    return [Row(line.expandtabs(4), style, indent=indent) for line in clean(text).splitlines()]


def render(rows: Sequence[Row], look: Look, width: int) -> list[Strip]:
    """Return the rows as lines of `width` cells."""
    strips: list[Strip] = []
    for row in rows:
        strips += _render_row(row, look, width)
    return strips


def _render_row(row: Row, look: Look, width: int) -> list[Strip]:
    ellipsis = look.glyphs.ellipsis
    offset = 1 + row.indent + (row.label_width if row.label else 0)
    style = getattr(look.styles, row.style)
    strips = []
    for number, piece in enumerate(wrap(row.text, max(8, width - offset - 1))):
        line = Line(ellipsis).pad_to(1 + row.indent)
        if row.label:
            label = row.label if number == 0 else ""
            line.column(label, row.label_width, getattr(look.styles, row.label_style))
        strips.append(line.add(piece.lstrip(" ") if number else piece, style).strip(width))
    return strips
