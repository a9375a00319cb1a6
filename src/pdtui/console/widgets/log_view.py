"""A rank's log: visible slices pulled by sequence number, never the whole of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from pdtui.console.actions import bindings
from pdtui.console.lines import wrap
from pdtui.console.log_finder import LogFinder, first_in_run
from pdtui.console.log_scan import SLICE
from pdtui.console.look import Look
from pdtui.console.strings import S
from pdtui.console.widgets.line_view import LineView
from pdtui.console.widgets.log_rows import Drawing, between, line_rows
from pdtui.fleet.handle import FleetHandle, LogLine
from pdtui.fleet.handle import LogView as LogState

_CACHED = 4_000
_TRIES = 8
"""Polls in which a line that is sought may still come."""


class LogView(LineView, can_focus=True):
    """Follows, or stays where the operator scrolled to; anchored at a line, so that pruning moves nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("log"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "to_top", show=False),
        Binding("end,G", "to_end", show=False),
        Binding("left", "sideways(-16)", show=False),
        Binding("right", "sideways(16)", show=False),
    ]

    @dataclass
    class Changed(Message):
        """What the title says about the log changed."""

    def __init__(self, look: Look, source: FleetHandle, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._source = source
        self.rank = ""
        self.state = LogState("", 0, 0, 0)
        self.follow = True
        self.wrap = True
        self.times = False
        self._top = 0
        """Sequence number of the first visible line."""
        self._skip = 0
        """Rows of that line that are above the view."""
        self._left = 0
        self._lines: dict[int, LogLine] = {}
        self._rows: dict[int, list[Strip]] = {}
        self._rows_key: tuple[object, ...] = ()
        self.finder = LogFinder()
        self._shown: Sequence[int] = range(0)
        """Sequence numbers of the lines that can be scrolled to."""
        self._seek, self._tries = ("", ""), 0
        """Rank and text of a line to go to when it has come, and how often it is still looked for."""
        self._status = ""

    # -- what is shown ------------------------------------------------------------------------------------

    def set_rank(self, rank: str) -> None:
        """Show another rank's log."""
        if rank == self.rank:
            return
        if self.rank:
            self._source.unfollow(self.rank)
        self.rank = rank
        self.follow = True
        self._left = self._top = self._skip = 0
        self.finder.reset()
        self._forget()
        self.poll()

    def poll(self) -> None:
        """Look at what is new."""
        if not self.rank:
            self.state = LogState("", 0, 0, 0)
            self.paint()
            return
        before = self.state
        self.state = self._source.log(self.rank)
        if (before.first_seq, before.dropped) != (self.state.first_seq, self.state.dropped):
            self._rows.pop(self.state.first_seq, None)
        first, end = self.state.first_seq, self.state.next_seq
        self.finder.advance(self._fetch, first, end)
        self._shown = self.finder.shown(first, end)
        if self._top < first:
            self._top, self._skip = first, 0
        self._look_for_sought()
        self.paint()

    def set_look(self, look: Look) -> None:
        """Change theme or signs."""
        self._rows.clear()
        super().set_look(look)

    def search(self, text: str) -> None:
        """Search for a pattern; empty ends the search."""
        self.finder.search(text)
        self._look_again()

    def filter(self, text: str) -> None:
        """Show only lines with a pattern (and lines around them); empty shows all."""
        self.finder.filter(text)
        self._look_again()

    def next_context(self) -> None:
        """Show more, then no, lines around those that the filter finds."""
        self.finder.next_context()
        self._look_again()

    def _look_again(self) -> None:
        """Look at one slice now, at the rest with the next polls."""
        first, end = self.state.first_seq, self.state.next_seq
        if self.rank:
            self.finder.advance(self._fetch, first, end)
        self._shown = self.finder.shown(first, end)
        self._rows.clear()
        self.paint()

    def toggle_quiet(self) -> None:
        """Leave out health checks, or show them."""
        self.finder.toggle_quiet()
        self._look_again()

    def toggle_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.wrap, self._skip, self._left = not self.wrap, 0, 0
        self.paint()

    def toggle_times(self) -> None:
        """Show when each line was read, or do not."""
        self.times = not self.times
        self.paint()

    def toggle_follow(self) -> None:
        """Follow the end, or stay."""
        self.follow = not self.follow
        self.paint()

    def jump(self, direction: int) -> bool:
        """Go to the next or previous match, or error without a search; False without any."""
        seq = self.finder.next(direction, self.state.next_seq if self.follow else self._top - (direction > 0))
        if seq is None:
            return False
        self._go_to_line(seq)
        return True

    def _go_to_line(self, seq: int) -> None:
        self.finder.current = seq
        self.follow = False
        self._rows.clear()
        self._top, self._skip = seq, 0
        self._move(-(self.size.height // 3))
        self.paint()

    def seek(self, rank: str, text: str) -> None:
        """Go to the first line of a rank's newest run that has `text`, as soon as it is held."""
        self._seek, self._tries = (rank, text), _TRIES
        self._look_for_sought()

    def _look_for_sought(self) -> None:
        first, end = self.state.first_seq, self.state.next_seq
        rank, text = self._seek
        if not text or rank != self.rank or first == end:
            return
        self._tries -= 1
        found = first_in_run(self._fetch(max(first, end - SLICE), SLICE), text)
        if found >= 0:
            self._go_to_line(found)
        if found >= 0 or not self._tries:
            self._seek = ("", "")

    def status(self) -> str:
        """Return what the title says about the log."""
        parts = self.finder.status(self.look.glyphs.failed)
        behind = 0 if self.follow else self._count() - self._position(self._bottom()) - 1
        if behind > 0:
            parts.append(S.log_behind.format(n=behind))
        elif not self.follow:
            parts.append(S.log_stays)
        return "  ".join(parts)

    def visible_text(self) -> str:
        """Return the lines that can be scrolled to, as text."""
        wanted, first = self._shown, self.state.first_seq
        if len(wanted) == self.state.next_seq - first:
            return "\n".join(line.text for line in self._fetch(first, len(wanted)))
        return "\n".join(line.text for seq in wanted for line in self._fetch(seq, 1))

    # -- positions ----------------------------------------------------------------------------------------

    def _fetch(self, first: int, count: int) -> Sequence[LogLine]:
        return self._source.log_lines(self.rank, first, count)

    def _count(self) -> int:
        return len(self._shown)

    def _seq(self, position: int) -> int:
        return self._shown[position]

    def _position(self, seq: int) -> int:
        """Return the position of the line, or of the next one that is shown."""
        return bisect_left(self._shown, seq)

    def _bottom(self) -> int:
        """Sequence number of the last visible line."""
        position, left = self._position(self._top), self.size.height + self._skip
        while position < self._count() - 1:
            left -= len(self._rows_of(position))
            if left <= 0:
                break
            position += 1
        return self._seq(position) if 0 <= position < self._count() else self.state.next_seq - 1

    def _move(self, by: int) -> None:
        """Move the anchor by rows."""
        count = self._count()
        if not count:
            return
        position, skip = min(self._position(self._top), count - 1), self._skip + by
        while skip < 0 and position > 0:
            position -= 1
            skip += len(self._rows_of(position))
        skip = max(0, skip)
        while position < count - 1 and skip >= len(self._rows_of(position)):
            skip -= len(self._rows_of(position))
            position += 1
        self._top, self._skip = self._seq(position), min(skip, len(self._rows_of(position)) - 1)

    def _at_end(self) -> bool:
        position, rows = self._position(self._top), -self._skip
        while position < self._count():
            rows += len(self._rows_of(position))
            if rows > self.size.height:
                return False
            position += 1
        return True

    # -- keys ---------------------------------------------------------------------------------------------

    def action_scroll(self, by: int) -> None:
        """Scroll by rows; reaching the end follows again."""
        self._seek = ("", "")
        if self.follow and by > 0:
            return
        self.follow = False
        self._move(by)
        if by > 0 and self._at_end():
            self.follow = True
        self.paint()

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        self.action_scroll(by * max(1, self.size.height - 1))

    def action_to_top(self) -> None:
        """Go to the oldest line held."""
        self.follow = False
        self._top, self._skip = self.state.first_seq, 0
        self.paint()

    def action_to_end(self) -> None:
        """Follow: what is looked for now is at the end."""
        self._seek = ("", "")
        self.finder.current = -1
        self.follow = True
        self.paint()

    def action_sideways(self, by: int) -> None:
        """Scroll sideways while lines are cut."""
        if not self.wrap:
            self._left = max(0, self._left + by)
            self.paint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll as the wheel does."""
        event.stop()
        self.action_scroll(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll as the wheel does."""
        event.stop()
        self.action_scroll(-3)

    # -- drawing ------------------------------------------------------------------------------------------

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the visible rows; while following, the last line is at the bottom of what is filled."""
        key = (self._drawing(), self.finder.quiet)
        if key != self._rows_key or len(self._rows) > _CACHED:
            self._rows, self._rows_key = {}, key
        strips = self._follow_rows(height) if self.follow else self._anchored_rows(height)
        if self.follow and self.state.partial and not self.finder.filtered:
            unfinished = LogLine(self.state.next_seq, 0.0, self.state.partial)
            strips = (strips + line_rows(unfinished, replace(self._drawing(), times=False)))[-height:]
        if not strips:
            said = wrap(self._nothing(), width - 2)[:height]
            strips = [self.line().add(f" {words}", self.look.styles.dim).strip(width) for words in said]
        elif self.state.error and len(strips) < height:
            strips.append(self.line().add(f" {self.state.error}", self.look.styles.warning).strip(width))
        status = self.status()
        if status != self._status:
            self._status = status
            self.post_message(self.Changed())
        if self.wrap:
            return strips
        return [strip.crop(self._left, self._left + width).extend_cell_length(width) for strip in strips]

    def _nothing(self) -> str:
        if not self.rank:
            return S.log_no_rank
        if self.state.error:
            return self.state.error
        finder = self.finder
        if finder.filtered:
            text = S.log_none_match.format(text=finder.only_text)
            return f"{text} {S.log_hidden_have.format(n=n)}" if (n := finder.hidden_matches) else text
        return S.log_only_checks.format(n=finder.hidden) if finder.hidden else S.log_empty

    def _follow_rows(self, height: int) -> list[Strip]:
        rows: list[Strip] = []
        position = self._count()
        while position > 0 and len(rows) < height:
            position -= 1
            rows = self._rows_of(position) + rows
        if self._count():
            self._top, self._skip = self._seq(position), max(0, len(rows) - height)
        return rows[-height:]

    def _anchored_rows(self, height: int) -> list[Strip]:
        rows: list[Strip] = []
        position = self._position(self._top)
        while position < self._count() and len(rows) < height + self._skip:
            rows += self._rows_of(position)
            position += 1
        if len(rows) < height + self._skip:
            return self._follow_rows(height)
        return rows[self._skip : self._skip + height]

    def _rows_of(self, position: int) -> list[Strip]:
        """Return the rows of one line, with what is missing before it."""
        seq = self._seq(position)
        known = self._rows.get(seq)
        if known is not None:
            return known
        line = self._line_at(seq)
        rows = self._gap_rows(position, seq) + (line_rows(line, self._drawing()) if line is not None else [])
        rows = rows or [Strip.blank(self.size.width)]
        self._rows[seq] = rows
        return rows

    def _line_at(self, seq: int) -> LogLine | None:
        if seq not in self._lines:
            if len(self._lines) > _CACHED:
                self._lines.clear()
            count = 1 if self.finder.filtered else 64
            start = max(self.state.first_seq, seq - count // 2)
            for line in self._fetch(start, count):
                self._lines[line.seq] = line
        return self._lines.get(seq)

    def _gap_rows(self, position: int, seq: int) -> list[Strip]:
        if position == 0 and self.state.dropped and not self.finder.filtered:
            return [self._between(S.log_dropped.format(n=self.state.dropped))]
        if self.finder.filtered and self.finder.context and position:
            missing = self.finder.left_out(self._seq(position - 1), seq)
            if missing:
                return [self._between(S.log_gap.format(n=missing))]
        return []

    def _between(self, text: str) -> Strip:
        return between(text, self.look, self.size.width)

    def _drawing(self) -> Drawing:
        return Drawing(self.look, self.size.width, self.wrap, self.times, self.finder.pattern, self.finder.current)

    def _forget(self) -> None:
        self._lines.clear()
        self._rows.clear()
        self._shown = range(0)
