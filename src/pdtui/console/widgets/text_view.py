"""Rows of text that wrap and scroll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.strip import Strip

from pdtui.console.actions import bindings
from pdtui.console.look import Look
from pdtui.console.rows import Row, render
from pdtui.console.widgets.line_view import RowView


class TextView(RowView):
    """Describe, metrics, findings, events, help: rows without a cursor; keys scroll."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("text")

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._rows: tuple[Row, ...] = ()
        self._lines: list[Strip] = []
        self._made_for: tuple[object, ...] = ()

    @property
    def row_count(self) -> int:
        """Lines after wrapping."""
        return len(self._lines)

    def show(self, rows: Sequence[Row], *, keep: bool = True) -> None:
        """Show rows; `keep` stays where the operator scrolled to."""
        self._rows = tuple(rows)
        if not keep:
            self.top = 0
        self._wrap()
        self.paint()

    def lines_for(self, width: int) -> int:
        """Return how many lines the rows need in a width."""
        return len(render(self._rows, self.look, width))

    @property
    def plain_text(self) -> str:
        """All of it, as text to copy."""
        return "\n".join(f"{row.label}: {row.text}" if row.label.strip() else row.text for row in self._rows)

    def _wrap(self) -> None:
        key = (self._rows, self.look, self.size.width)
        if key != self._made_for and self.size.width:
            self._lines = render(self._rows, self.look, self.size.width)
            self._made_for = key
        self.clamp()

    def clamp(self) -> None:
        """Keep the viewport on the text; there is no cursor."""
        self.top = max(0, min(self.top, self.row_count - self.page_rows))
        self.cursor = self.top

    def go_to(self, row: int) -> None:
        """Scroll so that a line is the first."""
        self.top = row
        self.clamp()
        self.paint()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the visible lines."""
        self._wrap()
        return self._lines[self.top : self.top + height]
