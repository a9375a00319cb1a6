"""Build one line of cells. Everything that reaches the terminal from a line-API widget passes through here.

Text is cleaned here once more (it was cleaned where it was parsed): the terminal is the last place where an
escape sequence could do harm. Neighbours of equal style become one segment, which cuts the bytes to the terminal
to a fifth.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from pdtui.text import clean_line

NO_STYLE = Style.null()


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """Return `text` in exactly `width` cells, cut with an ellipsis or padded with blanks."""
    if width <= 0:
        return ""
    length = cell_len(text)
    if length <= width:
        return text + " " * (width - length)
    mark = ellipsis if cell_len(ellipsis) < width else ""
    return set_cell_size(text, width - cell_len(mark)) + mark


_UNIT = re.compile(r"(?:s|ms|min|h|%|[MG]i?B)(?!\w)")
"""What belongs on a line with the number before it."""


def _same_blank(one: Style, other: Style) -> bool:
    """Return whether blanks look the same in two styles."""
    return one.bgcolor == other.bgcolor and not any(
        style.reverse or style.underline or style.strike for style in (one, other)
    )


class Line:
    """Cells from left to right."""

    __slots__ = ("_pieces", "ellipsis", "length")

    def __init__(self, ellipsis: str = "…") -> None:
        self._pieces: list[tuple[str, Style]] = []
        self.length = 0
        """Cells so far."""
        self.ellipsis = ellipsis

    def add(self, text: str, style: Style = NO_STYLE) -> Self:
        """Append text as it is, cleaned."""
        text = clean_line(text)
        if text:
            self._append(text, style)
            self.length += cell_len(text)
        return self

    def _append(self, text: str, style: Style) -> None:
        """Add a piece; blanks take the style beside them where nobody sees it: longer runs, fewer bytes."""
        if self._pieces:
            before, its_style = self._pieces[-1]
            if its_style == style or (text.isspace() and _same_blank(its_style, style)):
                self._pieces[-1] = (before + text, its_style)
                return
            if before.isspace() and _same_blank(its_style, style):
                self._pieces[-1] = (before + text, style)
                return
        self._pieces.append((text, style))

    def column(
        self, text: str, width: int, style: Style = NO_STYLE, align: Literal["left", "right"] = "left"
    ) -> Self:
        """Append text in exactly `width` cells."""
        text = clean_line(text)
        length = cell_len(text)
        if align == "right" and length < width:
            text = " " * (width - length) + text
        text = fit(text, width, self.ellipsis)
        if text:
            self._append(text, style)
            self.length += width
        return self

    def pad_to(self, column: int) -> Self:
        """Append blanks up to a column; nothing when the line is longer."""
        if self.length < column:
            self._append(" " * (column - self.length), NO_STYLE)
            self.length = column
        return self

    def right(self, other: Line, width: int) -> Self:
        """Put another line at the right end, over what does not fit beside it."""
        room = max(0, width - other.length - 1)
        if self.length > room:
            self._cut(room)
        self.pad_to(width - other.length)
        for text, style in other._pieces:
            self._append(text, style)
        self.length += other.length
        return self

    def extend(self, other: Line) -> Self:
        """Append another line."""
        for text, style in other._pieces:
            self._append(text, style)
        self.length += other.length
        return self

    def _cut(self, width: int) -> None:
        kept: list[tuple[str, Style]] = []
        left = width
        for text, style in self._pieces:
            length = cell_len(text)
            if length > left:
                if left > 0:
                    kept.append((fit(text, left, self.ellipsis), style))
                break
            kept.append((text, style))
            left -= length
        self._pieces = kept
        self.length = sum(cell_len(text) for text, _ in kept)

    def strip(self, width: int, over: Style | None = None) -> Strip:
        """Return the line in exactly `width` cells; `over` is laid over all of it, the blanks too."""
        if self.length > width:
            self._cut(width)
        pieces = self._pieces
        if self.length < width:
            pieces = [*pieces, (" " * (width - self.length), NO_STYLE)]
        if over is not None:
            pieces = [(text, style + over) for text, style in pieces]
        return Strip([Segment(text, style) for text, style in pieces], width)

    @property
    def text(self) -> str:
        """The characters alone."""
        return "".join(text for text, _ in self._pieces)


def wrap(text: str, width: int, hang: int = 0) -> list[str]:
    """Return `text` in pieces of at most `width` cells, broken at blanks where there are any near.

    Pieces after the first have `hang` cells less. Nothing is left out: joined they are `text` again.
    """
    pieces: list[str] = []
    room = max(width, 4)
    while cell_len(text) > room:
        cut = len(set_cell_size(text, room).rstrip(" ")) if not text.isascii() else room
        cut = max(1, min(cut, len(text) - 1))
        blank = text.rfind(" ", cut // 2, cut + 1)
        if blank > 0 and text[blank - 1].isdigit() and _UNIT.match(text, blank + 1):
            blank = max(text.rfind(" ", cut // 2, blank), 0) or blank
        if blank > 0:
            cut = min(blank + 1, cut)
        pieces.append(text[:cut])
        text = text[cut:]
        room = max(width - hang, 4)
    return [*pieces, text]
