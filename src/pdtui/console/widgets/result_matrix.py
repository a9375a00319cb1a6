"""Checks by nodes, one sign a cell: names of checks and of nodes stay in view whichever way it scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.preflight_run import CLUSTER, Table, worst
from pdtui.console.preflight_words import SIGNS, STYLES
from pdtui.console.strings import S
from pdtui.console.widgets.line_view import RowView
from pdtui.fleet.preflight.outcome import Outcome

_REVERSE = Style(reverse=True)
_NAMES = 8
"""Cells that the name of a node may take in the titles; beyond that its end is shown."""


class ResultMatrix(RowView):
    """One row a check, one column a node, the first column what is said of all together."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "column(-1)", show=False),
        Binding("right", "column(1)", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The operator moved the cursor."""

        check: str
        column: str

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._table = Table((), (), {})
        self._pending: frozenset[str] = frozenset()
        """Columns about which more will be said."""
        self._titles: tuple[str, ...] = ()
        self._strips: dict[str, tuple[tuple[object, ...], Strip]] = {}
        self.column = 0
        self.left = 0
        """The first node that is in view; the column of all is always."""

    @property
    def row_count(self) -> int:
        """Checks."""
        return len(self._table.checks)

    @property
    def page_rows(self) -> int:
        """Rows below the line of titles."""
        return max(1, self.size.height - 1)

    @property
    def spot(self) -> tuple[str, str]:
        """Check and column under the cursor; empty without any."""
        table = self._table
        if not table.checks or not table.columns:
            return "", ""
        return table.checks[self.cursor], table.columns[min(self.column, len(table.columns) - 1)]

    def show(self, table: Table, pending: frozenset[str]) -> None:
        """Show results; the cursor stays on its check and node."""
        check, column = self.spot
        self._table, self._pending = table, pending
        if check in table.checks:
            self.cursor = table.checks.index(check)
        self.column = table.columns.index(column) if column in table.columns else 0
        self._titles = short_names(table.columns[1:])
        self.clamp()
        self.paint()

    @property
    def _label(self) -> int:
        """Cells of the sign and the name of a check."""
        return 4 + max((len(check) for check in self._table.checks), default=8) + 1

    @property
    def _cell(self) -> int:
        return max([cell_len(title) for title in self._titles] + [2]) + 1

    @property
    def _all(self) -> int:
        """Cells of the column of all nodes."""
        return len(S.column_all) + 2

    @property
    def wanted_width(self) -> int:
        """Cells for all columns."""
        return self._label + self._all + self._cell * len(self._titles) + 1

    def _fitting(self, width: int) -> int:
        return max(1, (width - self._label - self._all) // self._cell)

    def clamp(self) -> None:
        """Keep the cursor on a cell and in view."""
        super().clamp()
        self.column = max(0, min(self.column, len(self._table.columns) - 1))
        fitting = self._fitting(self.size.width or 80)
        index = self.column - 1
        self.left = max(0, min(self.left, len(self._titles) - fitting))
        if index >= 0:
            self.left = min(self.left, index)
            self.left = max(self.left, index - fitting + 1)

    @property
    def columns_shown(self) -> tuple[int, int, int]:
        """First and last node in view, from 1, and how many there are."""
        total = len(self._titles)
        return min(self.left + 1, total), min(self.left + self._fitting(self.size.width or 80), total), total

    def moved(self) -> None:
        """Tell the screen."""
        self.post_message(self.Moved(*self.spot))

    def action_column(self, by: int) -> None:
        """Move to a neighbouring cell."""
        self.column += by
        self.go_to(self.cursor)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse points."""
        row, x = self.top + event.y - 1, event.x - self._label
        if event.y > 0 and row < self.row_count:
            if x >= self._all:
                self.column = self.left + (x - self._all) // self._cell + 1
            elif x >= 0:
                self.column = 0
            self.go_to(row)

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the titles and the visible rows."""
        rows = range(self.top, min(self.row_count, self.top + height - 1))
        return [self._title_line(width).strip(width), *(self._row(index, width) for index in rows)]

    def _visible(self, width: int) -> range:
        return range(self.left, min(len(self._titles), self.left + self._fitting(width)))

    def _title_line(self, width: int) -> Line:
        dim, here = self.look.styles.dim, self.look.styles.key
        line = self.line().pad_to(self._label)
        line.column(f"{S.column_all} ", self._all, here if self.column == 0 else dim, "right")
        for index in self._visible(width):
            style = here if index + 1 == self.column else dim
            line.column(f"{self._titles[index]} ", self._cell, style, "right")
        return line

    def _row(self, index: int, width: int) -> Strip:
        check = self._table.checks[index]
        here = index == self.cursor
        cells = self._cells_of(check)
        key = (
            cells,
            self._pending,
            here,
            self.column if here else -1,
            here and self.has_focus,
            self.left,
            self._titles,
            self._label,
            width,
            self.look,
        )
        known = self._strips.get(check)
        if known is not None and known[0] == key:
            return known[1]
        over = self.look.styles.cursor_idle if here and not self.has_focus else None
        strip = self._draw_row(check, cells, width, here=here).strip(width, over)
        self._strips[check] = (key, strip)
        return strip

    def _cells_of(self, check: str) -> tuple[Outcome | None, ...]:
        return tuple(self._table.cells.get((check, column)) for column in self._table.columns)

    def _draw_row(self, check: str, cells: Sequence[Outcome | None], width: int, *, here: bool) -> Line:
        styles, glyphs = self.look.styles, self.look.glyphs
        row = worst(outcome for outcome in cells if outcome is not None)
        bad = row in (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN)
        style = getattr(styles, STYLES[row]) if row is not None and bad else styles.text
        line = self.line().add(glyphs.cursor if here else " ", styles.key)
        sign = getattr(glyphs, SIGNS[row]) if row is not None and bad else " "
        line.add(f"{sign} ", style).column(check, self._label - 3, style if bad else styles.text)
        self._draw_cell(line, cells[0], CLUSTER, self._all, cursor=here and self.column == 0)
        for index in self._visible(width):
            column = self._table.columns[index + 1]
            self._draw_cell(line, cells[index + 1], column, self._cell, cursor=here and index + 1 == self.column)
        return line

    def _draw_cell(self, line: Line, outcome: Outcome | None, column: str, width: int, *, cursor: bool) -> None:
        styles, glyphs = self.look.styles, self.look.glyphs
        if outcome is None:
            sign, style = (glyphs.pending if column in self._pending else " "), styles.dim
        else:
            sign, style = getattr(glyphs, SIGNS[outcome]), getattr(styles, STYLES[outcome])
        if not cursor:
            line.add(" " * (width - 2), style).add(f"{sign} ", style)
            return
        bracket = styles.title_focused if self.has_focus else styles.key
        line.add(" " * (width - 3), style).add("[", bracket).add(sign, style).add("]", bracket)


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without what they all begin with, if that leaves something: `node1`, `node64` are 1, 64."""
    if not names:
        return ()
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(map(len, names)))
    common = first[:same].rstrip("0123456789") if len(names) > 1 else ""
    left = [name.removeprefix(common) for name in names]
    if common and all(left):
        return tuple(name[-_NAMES:] for name in left)
    return tuple(name[-_NAMES:] for name in names)
