"""Findings one below the other: all open where they have room, else the one that the operator has come to."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from pdtui.console.actions import bindings
from pdtui.console.findings import Finding, Findings, as_text, body, head, sign_of
from pdtui.console.lines import wrap
from pdtui.console.look import Look
from pdtui.console.rows import Row, render
from pdtui.console.widgets.line_view import RowView


class FindingList(RowView):
    """Up and down go through the findings, and through the text of a long one before the next."""

    class Moved(Message):
        """The operator has come to another finding, or to other lines."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("text")

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self.findings = Findings()
        self.chosen = 0
        """Index of the finding that the operator has come to."""
        self._touched = False
        """The operator has come to a finding; else what is worst now is shown."""
        self._now = 0.0
        self._lines: list[Strip] = []
        self._starts: list[int] = []
        """The line on which each finding begins."""
        self._made_for: tuple[object, ...] = ()

    @property
    def row_count(self) -> int:
        """Lines."""
        return len(self._lines)

    @property
    def current(self) -> Finding | None:
        """The finding that the operator has come to."""
        items = self.findings.items
        return items[self.chosen] if items else None

    def show(self, findings: Findings, now: float, *, keep: bool = True) -> None:
        """Show findings; `keep` stays with the one that is read, wherever it is now."""
        before = self.current
        self.findings, self._now = findings, now
        if not keep:
            self.chosen = self.top = 0
            self._touched = False
        elif not self._touched:
            self.chosen = 0
        elif before is not None:
            self.chosen = _place_of(before, findings.items, self.chosen)
        self.chosen = max(0, min(self.chosen, len(findings.items) - 1))
        self._arrange()
        self.paint()

    @property
    def plain_text(self) -> str:
        """The finding that the operator has come to, whole; without any what is said instead."""
        if self.current is not None:
            return as_text([self.current], self._now)
        return "\n".join(f"{row.label}: {row.text}" if row.label else row.text for row in self.findings.below)

    def _arrange(self) -> None:
        key = (self.findings, self.chosen, int(self._now), self.look, self.size, self.has_focus)
        if key == self._made_for or not self.size.width:
            return
        self._made_for = key
        self._lines, self._starts = self._drawn(whole=True)
        ends = self._starts[-1:] and len(self._lines) - len(render(self.findings.below, self.look, 80))
        if len(self.findings.items) > 1 and ends and ends > self.page_rows:
            self._lines, self._starts = self._drawn(whole=False)
        self.clamp()

    def _drawn(self, *, whole: bool) -> tuple[list[Strip], list[int]]:
        """Return the lines, with all findings open or only the current one, and where each begins."""
        width = self.size.width
        lines: list[Strip] = []
        starts: list[int] = []
        for index, finding in enumerate(self.findings.items):
            opened = whole or index == self.chosen
            starts.append(len(lines))
            lines += self._head(index, finding, width, opened=opened)
            if opened:
                lines += render([*body(finding, self._now), Row("")], self.look, width)
        if lines and not whole:
            lines.append(Strip.blank(width))
        return lines + render(self.findings.below, self.look, width), starts

    def _head(self, index: int, finding: Finding, width: int, *, opened: bool) -> list[Strip]:
        styles, many = self.look.styles, len(self.findings.items) > 1
        here = many and index == self.chosen
        style = getattr(styles, finding.style)
        text = head(finding)
        pieces = wrap(text, max(8, width - 5)) if opened else [text]
        strips = []
        for number, piece in enumerate(pieces):
            line = self.line()
            if number == 0:
                line.add(self.look.glyphs.cursor if here else " ", styles.key)
                line.add(f"{sign_of(finding, self.look)} ", style)
            else:
                line.add("   ")
            line.add(piece, style)
            over = (styles.cursor if self.has_focus else styles.cursor_idle) if here else None
            strips.append(line.strip(width, over))
        return strips

    def clamp(self) -> None:
        """Keep the viewport on the text."""
        self.top = max(0, min(self.top, self.row_count - self.page_rows))
        self.cursor = self.top

    def go_to(self, row: int) -> None:
        """Scroll so that a line is the first; what is then in view is what is read."""
        self.top = row
        self.clamp()
        self.paint()
        self.moved()

    def stay(self) -> None:
        """Stay with the finding that is read, wherever it goes."""
        self._touched = True

    def moved(self) -> None:
        """Tell the screen."""
        self.post_message(self.Moved())

    def choose(self, index: int) -> None:
        """Come to a finding, with as much of it in view as there is room for."""
        self.chosen = max(0, min(index, len(self.findings.items) - 1))
        self._touched = True
        self._arrange()
        start, end = self._span()
        if end > self.top + self.page_rows:
            self.top = min(start, end - self.page_rows)
        if start < self.top:
            self.top = start
        self.clamp()
        self.paint()
        self.moved()

    def _span(self) -> tuple[int, int]:
        """Return the first line of the current finding and the one after its last."""
        starts = self._starts
        if not starts:
            return 0, self.row_count
        end = starts[self.chosen + 1] if self.chosen + 1 < len(starts) else self.row_count
        return starts[self.chosen], end

    def action_move(self, by: int) -> None:
        """Go on reading: the lines of this finding that are not in view, then the next one."""
        start, end = self._span()
        if by > 0 and end <= self.top + self.page_rows and self.chosen + 1 < len(self.findings.items):
            self.choose(self.chosen + 1)
        elif by < 0 and start >= self.top and self.chosen > 0:
            self.choose(self.chosen - 1)
        else:
            self.go_to(self.top + by)

    def action_end(self, side: int) -> None:
        """Come to the first finding, or to the last with all that is below it."""
        self.choose(0 if side < 0 else len(self.findings.items) - 1)
        self.go_to(0 if side < 0 else self.row_count)

    def on_focus(self) -> None:  # type: ignore[override]
        """Draw the cursor bright."""
        self._arrange()
        self.paint()

    def on_blur(self) -> None:  # type: ignore[override]
        """Draw the cursor dim."""
        self._arrange()
        self.paint()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the visible lines."""
        self._arrange()
        return self._lines[self.top : self.top + height]


def _place_of(finding: Finding, items: tuple[Finding, ...], index: int) -> int:
    """Return where a finding is now: the same words, else the same key, else the same place."""
    if index < len(items) and items[index].subject == finding.subject and items[index].key == finding.key:
        return index
    for place, item in enumerate(items):
        if (item.subject, item.key or item.summary) == (finding.subject, finding.key or finding.summary):
            return place
    return index
