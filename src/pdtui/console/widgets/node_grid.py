"""What both grids of nodes share: a cursor on one cell, kinds of values, and a row's name, age and trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.strings import S
from pdtui.console.timing import duration
from pdtui.console.widgets.line_view import RowView
from pdtui.fleet.snapshot import NodeState, NodeStatus, RankStatus, Snapshot

_REVERSE, _UNDERLINE = Style(reverse=True), Style(underline=True)


@dataclass(frozen=True, slots=True)
class Spot:
    """What a cell of the grid is about."""

    node: str = ""
    npu: int | None = None
    rank: str = ""
    """Empty: an idle NPU, or a node without ranks."""


class NodeGrid(RowView):
    """Rows of nodes below a line of titles; the cursor is on a cell."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "column(-1)", show=False),
        Binding("right", "column(1)", show=False),
    ]
    TITLE: ClassVar[str]
    MODES: ClassVar[tuple[str, ...]]
    """What cells can show; the first is how things are, in signs."""

    @dataclass
    class Moved(Message):
        """The operator moved the cursor."""

        spot: Spot

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self.now = 0.0
        """Wall-clock time of what is shown."""
        self.column = 0
        self.mode = self.MODES[0]
        self.strips: dict[object, tuple[tuple[object, ...], Strip]] = {}
        """What each row was drawn from, and the row."""

    @property
    def page_rows(self) -> int:
        """Rows below the line of titles."""
        return max(1, self.size.height - 1)

    @property
    def spot(self) -> Spot:
        """What is under the cursor."""
        raise NotImplementedError

    def show(self, snapshot: Snapshot, marks: Sequence[str], now: float) -> None:
        """Show the newest values; `marks` are marked ranks, `now` is wall-clock time."""
        raise NotImplementedError

    def select_node(self, name: str, npu: int | None = None) -> None:
        """Put the cursor on a node, on one NPU of it if said, without telling anybody."""
        raise NotImplementedError

    def select_rank(self, rank: RankStatus) -> Spot:
        """Put the cursor on a rank without telling anybody; returns where that is."""
        raise NotImplementedError

    def rows_for(self, width: int) -> int:
        """Return how many rows there are in a width."""
        return self.row_count

    def counts(self, now: float) -> Sequence[str]:
        """Return how many cells are not well, in view or not, by their signs."""
        raise NotImplementedError

    def next_mode(self) -> None:
        """Show the next kind of value in the cells."""
        self.mode = self.MODES[(self.MODES.index(self.mode) + 1) % len(self.MODES)]
        self.clamp()
        self.paint()

    def moved(self) -> None:
        """Tell the screen."""
        if self.row_count:
            self.post_message(self.Moved(self.spot))

    def action_column(self, by: int) -> None:
        """Move to a neighbouring cell."""
        self.go_sideways(by)
        self.go_to(self.cursor)

    def go_sideways(self, by: int) -> None:
        """Change the column, and the row where rows go on in another."""
        raise NotImplementedError

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse points."""
        row = self.top + event.y - 1
        if event.y > 0 and row < self.row_count:
            self.column = self.column_at(row, event.x)
            self.go_to(row)

    def column_at(self, row: int, x: int) -> int:
        """Return the cell of a row that is drawn at a place; the one of the cursor beside them."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the titles and the visible rows."""
        visible = range(self.top, min(self.row_count, self.top + height - 1))
        return [self.titles(width).strip(width)] + [self.row(index, width) for index in visible]

    def titles(self, width: int) -> Line:
        """Return the line above the rows."""
        raise NotImplementedError

    def row(self, index: int, width: int) -> Strip:
        """Return a row."""
        raise NotImplementedError

    def cached(self, of: object, key: tuple[object, ...]) -> Strip | None:
        """Return a row as it was drawn when it was drawn from the same."""
        known = self.strips.get(of)
        return known[1] if known is not None and known[0] == key else None

    def kept(self, of: object, key: tuple[object, ...], line: Line, width: int, *, here: bool) -> Strip:
        """Finish a row and keep it."""
        strip = line.strip(width, self.look.styles.cursor_idle if here and not self.has_focus else None)
        self.strips[of] = (key, strip)
        return strip

    def draw_name(self, line: Line, text: str, width: int, *, here: bool, stale: bool) -> None:
        """Draw the cursor and a node's name in `width` cells."""
        styles = self.look.styles
        line.add(f"{self.look.glyphs.cursor} " if here else "  ", styles.key)
        line.column(text, width - 2, styles.stale if stale else styles.text)

    def draw_cell(
        self, line: Line, text: str, style: Style, width: int, *, cursor: bool, marked: bool = False
    ) -> None:
        """Draw a sign or figures in `width` cells, which leaves a blank before them where there is room."""
        styles = self.look.styles
        if width == 1:
            if marked:
                style = style + _UNDERLINE
            line.add(text[:1], styles.cursor + style + _REVERSE if cursor else style)
            return
        sign = len(text) == 1
        before, after = (self.look.glyphs.mark if marked else " "), " " if sign else ""
        if cursor and sign:
            bracket = styles.title_focused if self.has_focus else styles.key
            line.add("[" if not marked else before, bracket).add(text, style).add("]", bracket)
            return
        figures = f"{text:>{width - 1 - len(after)}}"[1 - width :]
        if marked:
            line.add(before, styles.mark)
        elif cursor:
            line.add(before, style)
        else:
            # In one style, so that equal cells beside each other are one run on the line to the terminal.
            figures = before + figures
        # Figures leave no room for a closing bracket.
        line.add(figures, styles.cursor + style + _REVERSE if cursor else style).add(after, style)

    def draw_age(self, line: Line, observed_at: float | None, width: int, *, stale: bool) -> None:
        """Draw how old a row's values are."""
        text = self.age_text(observed_at)
        line.column(text, width, self.look.styles.warning if stale else self.look.styles.dim, "right")

    def age_text(self, observed_at: float | None) -> str:
        """Return how old values are."""
        return duration(self.now - observed_at) if observed_at is not None else "-"

    def draw_trouble(self, line: Line, node: NodeStatus) -> bool:
        """Draw what is wrong with a node, and what is being done about it; False when nothing is."""
        styles = self.look.styles
        retry = self.retry_text(node)
        if retry:
            error = node.error.removeprefix(f"{node.host}: ")
            if node.state is NodeState.FAILED and error:
                line.add(error, self.look.node(node.state))
            else:
                line.add(retry, self.look.node(node.state)).add(f"  {error}" if error else "", styles.dim)
        elif node.error:
            line.add(node.error, styles.failed)
        elif node.tool_error or node.conditions:
            line.add(node.tool_error or node.conditions[0].message, styles.warning)
        else:
            return False
        return True

    def retry_text(self, node: NodeStatus) -> str:
        """Return when a node that is not connected is tried again; empty for one that is."""
        if node.state is NodeState.CONNECTED:
            return ""
        if node.state is NodeState.FAILED or not node.attempt:
            return S.node_states[node.state]
        if node.next_try is not None and node.next_try > self.now:
            return S.retry_in.format(n=node.attempt, t=duration(node.next_try - self.now))
        return S.retry.format(state=S.node_states[node.state], n=node.attempt)
