"""The one screen: snapshots, layout and the selection. What it shows is in `painted`, what keys do in `keys`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from pdtui.clock import Clock
from pdtui.console.look import Look
from pdtui.console.screens.painted import PaintedScreen
from pdtui.console.selection import Area, Selection, Tab
from pdtui.console.strings import S
from pdtui.console.widgets.finding_list import FindingList
from pdtui.console.widgets.line_view import RowView
from pdtui.console.widgets.log_view import LogView
from pdtui.console.widgets.node_grid import NodeGrid, Spot
from pdtui.console.widgets.rank_list import RankList
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.transitions import Follower

MIN_WIDTH, MIN_HEIGHT = 60, 15
WIDE, HIGH = 110, 28
"""From this width ranks and detail are side by side; from this height the grid is above them."""
_DETAIL = 44
"""Cells that the detail pane keeps beside the list of ranks."""
_LOG_DELAY = 0.2
"""The cursor must rest on a rank so long before its log is fetched."""
AREAS: tuple[Area, ...] = ("grid", "ranks", "detail")


_PANES: Mapping[Tab, str] = {"log": "log", "test": "test", "reasons": "findings"}
"""The widgets that show a tab; the others are text."""


def _nothing() -> None:
    """Nothing to unsubscribe yet."""


class ClusterView(PaintedScreen):
    """Follows the fleet and the operator's cursor."""

    class SnapshotArrived(Message):
        """There is a newer snapshot; posted from the engine's thread."""

    AUTO_FOCUS: ClassVar[str | None] = "#ranks"

    def __init__(
        self,
        handle: FleetHandle,
        look: Look,
        clock: Clock,
        *,
        read_only: bool,
        interval: float,
        keys: Mapping[str, str],
    ) -> None:
        super().__init__(handle, look, clock, read_only=read_only, keys=keys)
        self.paint_interval = interval
        """Seconds between two paintings."""
        self._painted_at = -interval
        self._pending: Timer | None = None
        self._log_timer: Timer | None = None
        self._unsubscribe: Callable[[], None] = _nothing
        self._before_test: Tab = "log"
        self._follower = Follower(self.snapshot)

    def on_mount(self) -> None:
        """Show what is known, then follow."""
        self.find_widgets()
        self._lay_out()
        self._apply()
        self.select_rank(self.ranks.rank)
        self._unsubscribe = self.handle.subscribe(self._wake)
        self.set_interval(1.0, self._tick)
        self.set_interval(max(0.25, self.paint_interval), self._poll_log)

    def _tick(self) -> None:
        self.bell.ring()
        self.paint_all()

    def on_unmount(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    def _wake(self) -> None:
        self.post_message(self.SnapshotArrived())

    @on(SnapshotArrived)
    def _arrived(self) -> None:
        """Show the newest snapshot, at most every `interval` seconds."""
        if self._pending is not None:
            return
        wait = self._painted_at + self.paint_interval - self.clock.monotonic()
        if wait > 0 and self.paint_interval:
            self._pending = self.set_timer(wait, self._apply)
        else:
            self._apply()

    def _apply(self) -> None:
        self._pending = None
        self._painted_at = self.clock.monotonic()
        self.snapshot = self.handle.snapshot
        self.history.add(self.snapshot)
        self.bell.take(self._follower.take(self.snapshot))
        self.paint_all()
        # An idle NPU (or node) is a selection too, though it has no rank: only in the list of ranks is one needed.
        if not self.selection.node or self.selection.area == "ranks":
            self._select_listed()

    def _select_listed(self) -> None:
        """Select the rank under the list's cursor when no rank is selected."""
        if not self.selection.rank and self.ranks.rank:
            self.select_rank(self.ranks.rank)

    @property
    def areas_shown(self) -> tuple[Area, ...]:
        """Return the areas that are on the screen together: as many as fit, always the one with the focus."""
        area = self.selection.area
        wide, high = self.size.width >= WIDE, self.size.height >= HIGH
        if wide and high:
            return AREAS
        if wide:
            return ("grid",) if area == "grid" else ("ranks", "detail")
        if high:
            return ("detail",) if area == "detail" else ("grid", "ranks")
        return (area,)

    def on_resize(self, event: events.Resize) -> None:
        """Arrange the areas for the new size."""
        self._lay_out()
        self.call_after_refresh(self.paint_all)

    def _lay_out(self) -> None:
        width, height = self.size
        tiny = width < MIN_WIDTH or height < MIN_HEIGHT
        self.set_class(tiny, "-tiny")
        if tiny:
            text = S.too_small.format(width=width, height=height, min_width=MIN_WIDTH, min_height=MIN_HEIGHT)
            bar = self.bar("too-small")
            bar.show(bar.line().add(text, self.look.styles.warning))
        shown = self.areas_shown
        for area in AREAS:
            self.set_class(area not in shown, f"-no-{area}")
        self.set_class(shown == ("grid",), "-only-grid")
        beside = "ranks" in shown and "detail" in shown
        ranks_width = min(max(self.ranks.wanted_width, width * 46 // 100), width - _DETAIL)
        self.query_one("#ranks-area").styles.width = ranks_width if beside else "100%"
        rows = self.grid.rows_for(width) + 1
        self.grid.styles.height = "1fr" if shown == ("grid",) else max(2, min(rows, height * 2 // 5))

    def enter_area(self, area: Area) -> None:
        """Give an area the focus, and in the compact layout the screen."""
        self._set_area(area)
        if area != "detail":
            self.set_class(False, "-zoom")
        if area == "ranks":
            self._select_listed()
        self._lay_out()
        self._focus_area()
        self.paint_chrome()

    @on(RowView.Resized)
    def _rows_resized(self) -> None:
        """Say anew which rows are in view: that is known only when an area has its new size."""
        self.paint_chrome()

    def _focus_area(self) -> None:
        area = self.selection.area
        if area == "grid":
            self.grid.focus()
        elif area == "ranks":
            self.ranks.focus()
        elif self.selection.tab == "test":
            self.test.take_focus()
        else:
            self.pane.focus()

    @property
    def pane(self) -> Widget:
        """The widget of the detail pane, but for the test's."""
        if self.selection.tab == "log":
            return self.log_view
        return self.finding_list if self.selection.tab == "reasons" else self.text

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Keep the area with a focus that the mouse moved."""
        area: Area | None = None
        if event.widget is self.grid:
            area = "grid"
        elif event.widget is self.ranks:
            area = "ranks"
        elif event.widget in (self.log_view, self.text, self.finding_list) or event.widget.id == "test-prompt":
            area = "detail"
        if area is not None and area != self.selection.area:
            self._set_area(area)
            self._lay_out()
            self.paint_chrome()

    def _set_area(self, area: Area) -> None:
        self.selection = replace(self.selection, area=area)
        if area != "detail":
            self.npu_first = area == "grid" and self.has_npus

    @on(RankList.Moved)
    def _rank_moved(self) -> None:
        # The message may be older than a jump: what counts is where the cursors are now.
        if self.selection.area == "grid" and not self.typing:
            return
        if self.selection.area == "ranks" and not self.test.asking:
            self.close_test()
        self.select_rank(self.ranks.rank)

    @on(NodeGrid.Moved)
    def _grid_moved(self, event: NodeGrid.Moved) -> None:
        self.select_spot(event.spot)

    def select_spot(self, spot: Spot) -> None:
        """The grid's cursor takes the list of ranks with it; an idle NPU belongs to no rank."""
        if spot.rank:
            self.ranks.select(spot.rank)
        self._selected(replace(self.selection, node=spot.node, npu=spot.npu, rank=spot.rank))

    def select_rank(self, rank_id: str) -> None:
        """The list's cursor takes the grid's with it, unless that is on the rank already."""
        rank = self.snapshot.rank(rank_id)
        selection = replace(self.selection, rank=rank_id, marks=tuple(self.ranks.marks))
        if rank is not None:
            spot = self.grid.select_rank(rank)
            selection = replace(selection, node=spot.node, npu=spot.npu)
        self._selected(selection)

    def _selected(self, selection: Selection) -> None:
        changed = selection.rank != self.selection.rank
        self.selection = selection
        if changed:
            if self._log_timer is not None:
                self._log_timer.stop()
            self._log_timer = self.set_timer(_LOG_DELAY, self._fetch_log) if self.log_view.rank else None
            if self._log_timer is None:
                self._fetch_log()
        self.paint_text()
        self.paint_chrome()

    def _fetch_log(self) -> None:
        self._log_timer = None
        if self.selection.tab == "log":
            self.log_view.set_rank(self.selection.rank)
            self.paint_detail_title()

    def _poll_log(self) -> None:
        if self.selection.tab == "log" and self.log_view.display:
            self.log_view.poll()

    @on(FindingList.Moved)
    def _finding_moved(self) -> None:
        self.paint_chrome()

    @on(LogView.Changed)
    def _log_changed(self) -> None:
        self.paint_detail_title()

    def _show_tab(self, tab: Tab) -> None:
        if tab == "test" and self.selection.tab != "test":
            self._before_test = self.selection.tab
        self.selection = replace(self.selection, tab=tab)
        self.panes.current = _PANES.get(tab, "text")
        if tab == "log":
            self._fetch_log()
            self.log_view.poll()
        self.paint_text()

    def close_test(self) -> None:
        """Show again what the detail pane showed before the test."""
        if self.selection.tab == "test":
            self._show_tab(self._before_test)
            self.paint_chrome()

    def open_tab(self, tab: Tab, *, focus: bool = False) -> None:
        """Show a tab of the detail pane; in the compact layout it takes the screen."""
        self._show_tab(tab)
        if focus or "detail" not in self.areas_shown or self.selection.area == "detail":
            self.enter_area("detail")
        self.paint_chrome()

    def open_prompt(self, label: str, text: str) -> None:
        """Ask for one line above the footer."""
        bar = self.bar("prompt-label")
        line = bar.line().add(f" {label} ", self.look.styles.key)
        bar.styles.width = line.length
        self.query_one("#prompt").set_class(True, "-open")
        bar.show(line)
        prompt = self.query_one("#prompt-text", Input)
        prompt.value = text
        prompt.cursor_position = len(text)
        prompt.focus()
        self.paint_chrome()

    def close_prompt(self) -> None:
        """Give the focus back to the area."""
        self.query_one("#prompt").set_class(False, "-open")
        self._focus_area()
        self.paint_chrome()
