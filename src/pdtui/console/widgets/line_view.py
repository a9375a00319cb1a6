"""Bases of our line-API widgets: they compute the visible lines and repaint only those that changed.

Textual's own list widgets repaint everything for one changed cell and hand remote text to the terminal as it is.
Here a widget is a function from its state to a list of strips; `paint` compares with what is on the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from pdtui.console.lines import Line
from pdtui.console.look import Look


class LineView(Widget):
    """A widget made of lines."""

    DEFAULT_CSS = """
    LineView { width: 1fr; height: 1fr; background: $background; color: $foreground; }
    """

    def __init__(self, look: Look, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.look = look
        self._painted: list[Strip] = []

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the visible lines, each exactly `width` cells; fewer than `height` leave blanks."""
        raise NotImplementedError

    def line(self) -> Line:
        """Return an empty line with this look's ellipsis."""
        return Line(self.look.glyphs.ellipsis)

    def set_look(self, look: Look) -> None:
        """Change theme or signs."""
        self.look = look
        self.paint()

    def paint(self) -> None:
        """Draw again; only lines that differ go to the terminal."""
        width, height = self.size
        if not self.is_attached or not width or not height:
            return
        fresh = self.draw(width, height)[:height]
        fresh += [Strip.blank(width)] * (height - len(fresh))
        old, self._painted = self._painted, fresh
        if len(old) != height:
            self.refresh()
            return
        changed = [y for y in range(height) if old[y] is not fresh[y] and old[y] != fresh[y]]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """Return a line that was drawn, on the background of the widget."""
        strip = self._painted[y] if y < len(self._painted) else Strip.blank(self.size.width)
        return strip.apply_style(self.visual_style.rich_style)

    def on_resize(self, event: events.Resize) -> None:
        """Draw in the new size."""
        self.paint()

    def on_focus(self, event: events.Focus) -> None:
        """Draw the cursor bright."""
        self.paint()

    def on_blur(self, event: events.Blur) -> None:
        """Draw the cursor dim."""
        self.paint()

    @property
    def lines_shown(self) -> list[str]:
        """The text on the screen, for tests and copying."""
        return [strip.text.rstrip() for strip in self._painted]


def _no_lines(width: int) -> Sequence[Line]:
    return ()


class Bar(LineView):
    """A few fixed lines without a focus: header, headline, rules, footer."""

    DEFAULT_CSS = """
    Bar { height: 1; }
    """

    def __init__(self, look: Look, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id, classes=classes)
        self._make: Callable[[int], Sequence[Line]] = _no_lines

    def show(self, *content: Line) -> None:
        """Put these lines on the screen."""
        self.show_for(lambda width: content)

    def show_for(self, make: Callable[[int], Sequence[Line]]) -> None:
        """Put the lines on the screen that `make` returns for a width, also for a later one."""
        self._make = make
        self.paint()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the lines for this width."""
        return [line.strip(width) for line in self._make(width)]


class RowView(LineView, can_focus=True):
    """A list of rows with a viewport and a row cursor."""

    class Resized(Message):
        """Other rows are in view, as there is more or less room."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "end(-1)", show=False),
        Binding("end,G", "end(1)", show=False),
    ]

    def __init__(self, look: Look, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id, classes=classes)
        self.top = 0
        """Index of the first visible row."""
        self.cursor = 0
        """Index of the row that the cursor is on."""

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    @property
    def page_rows(self) -> int:
        """How many rows are visible at once."""
        return max(1, self.size.height)

    def moved(self) -> None:
        """Tell the screen that the operator moved the cursor."""

    def clamp(self) -> None:
        """Keep the cursor on a row and in view."""
        self.cursor = max(0, min(self.cursor, self.row_count - 1))
        rows = self.page_rows
        self.top = max(0, min(self.top, self.row_count - rows))
        if self.cursor < self.top:
            self.top = self.cursor
        elif self.cursor >= self.top + rows:
            self.top = self.cursor - rows + 1

    def go_to(self, row: int) -> None:
        """Put the cursor on a row."""
        self.cursor = row
        self.clamp()
        self.paint()
        self.moved()

    def action_move(self, by: int) -> None:
        """Move by rows."""
        self.go_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move by pages."""
        self.go_to(self.cursor + by * self.page_rows)

    def action_end(self, side: int) -> None:
        """Move to the first or the last row."""
        self.go_to(0 if side < 0 else self.row_count - 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move as the wheel does."""
        event.stop()
        self.go_to(self.cursor + 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move as the wheel does."""
        event.stop()
        self.go_to(self.cursor - 3)

    def on_resize(self, event: events.Resize) -> None:
        """Keep the cursor in view in the new size."""
        self.clamp()
        self.paint()
        self.post_message(self.Resized())

    @property
    def range_shown(self) -> tuple[int, int, int]:
        """First and last visible row from 1, and the number of rows."""
        count = self.row_count
        return min(self.top + 1, count), min(self.top + self.page_rows, count), count
