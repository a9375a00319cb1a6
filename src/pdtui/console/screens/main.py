"""The one screen: composition, layout, and what is shown for the newest snapshot and the selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Input

from pdtui.clock import Clock
from pdtui.console import chrome, describe
from pdtui.console.actions import Situation, Typing
from pdtui.console.chrome import Title
from pdtui.console.conduct import Severity
from pdtui.console.look import Look
from pdtui.console.selection import Area, Selection, Tab
from pdtui.console.strings import S
from pdtui.console.widgets.divider import Divider
from pdtui.console.widgets.line_view import Bar, LineView
from pdtui.console.widgets.log_view import LogView
from pdtui.console.widgets.npu_grid import MODES, NpuGrid
from pdtui.console.widgets.prompt import Prompt
from pdtui.console.widgets.rank_list import RankList
from pdtui.console.widgets.test_pane import TestPane
from pdtui.console.widgets.text_view import TextView
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.snapshot import OperationStatus, Snapshot

MIN_WIDTH, MIN_HEIGHT = 60, 15
_SIDE_BY_SIDE = (110, 28)
"""Width and height from which grid, ranks and detail are on the screen together."""
_RANKS = 64
"""Cells that a row of the list of ranks needs."""
_NOTICE_SECONDS = 8.0
_ENDED_SECONDS = 20.0
"""How long an operation that ended stays on the screen."""
_LOG_DELAY = 0.2
"""The cursor must rest on a rank so long before its log is fetched."""
AREAS: tuple[Area, ...] = ("npus", "ranks", "detail")


class ClusterView(Screen[None]):
    """Shows the cluster; what keys do is in `MainScreen`."""

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
        super().__init__()
        self.handle = handle
        self.look = look
        self.clock = clock
        self.read_only = read_only
        self.keys = keys
        self.snapshot: Snapshot = handle.snapshot
        self.selection = Selection()
        self._interval = interval
        self._painted_at = -interval
        self._pending: Timer | None = None
        self._log_timer: Timer | None = None
        self._notice: tuple[str, Severity, float] | None = None
        self._unsubscribe: Callable[[], None] = _nothing
        self._fetched = ""
        """Rank and tab that the text pane was made for."""

    def compose(self) -> ComposeResult:
        """Header, headline, grid, ranks beside detail, operations, prompt, notices, footer."""
        look = self.look
        yield Bar(look, id="header")
        yield Bar(look, id="headline")
        with Vertical(id="npus-area"):
            yield Bar(look, id="npus-title")
            yield NpuGrid(look, self.handle.topology.npus_per_node, id="npus")
            yield Bar(look, id="npu-line")
        with Horizontal(id="work"):
            with Vertical(id="ranks-area"):
                yield Bar(look, id="ranks-title")
                yield RankList(look, id="ranks")
            yield Divider(look, id="divider")
            with Vertical(id="detail-area"):
                yield Bar(look, id="detail-title")
                with ContentSwitcher(initial="log", id="panes"):
                    yield LogView(look, self.handle, id="log")
                    yield TextView(look, id="text")
                    yield TestPane(look, self.handle, id="test")
        yield Bar(look, id="operations")
        yield Prompt(look, id="prompt")
        yield Bar(look, id="notice")
        yield Bar(look, id="footer")
        yield Bar(look, id="too-small")

    def on_mount(self) -> None:
        """Find the widgets once, show what is known, then follow."""
        self.grid = self.query_one("#npus", NpuGrid)
        self.ranks = self.query_one("#ranks", RankList)
        self.log_view = self.query_one("#log", LogView)
        self.text = self.query_one("#text", TextView)
        self.test = self.query_one("#test", TestPane)
        self.panes = self.query_one("#panes", ContentSwitcher)
        self._lay_out()
        self._apply()
        self._select_rank(self.ranks.rank)
        self._unsubscribe = self.handle.subscribe(self._wake)
        self.set_interval(1.0, self.paint_all)
        self.set_interval(max(0.25, self._interval), self._poll_log)

    def on_unmount(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    # -- snapshots ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self.post_message(self.SnapshotArrived())

    @on(SnapshotArrived)
    def _arrived(self) -> None:
        """Show the newest snapshot, at most every `interval` seconds."""
        if self._pending is not None:
            return
        wait = self._painted_at + self._interval - self.clock.monotonic()
        if wait > 0 and self._interval:
            self._pending = self.set_timer(wait, self._apply)
        else:
            self._apply()

    def _apply(self) -> None:
        self._pending = None
        self._painted_at = self.clock.monotonic()
        self.snapshot = self.handle.snapshot
        self.paint_all()
        if not self.selection.rank and self.ranks.rank:
            self._select_rank(self.ranks.rank)

    def paint_all(self) -> None:
        """Show everything again; only lines that changed are sent to the terminal."""
        now = self.clock.wall()
        self.grid.show(self.snapshot.nodes, now)
        self.ranks.show(self.snapshot.ranks, now)
        marks = tuple(self.ranks.marks)
        if marks != self.selection.marks:
            self.selection = replace(self.selection, marks=marks)
        self._paint_text()
        self._paint_chrome()

    # -- layout -------------------------------------------------------------------------------------------

    @property
    def compact(self) -> bool:
        """Whether one area is shown at a time."""
        return self.size.width < _SIDE_BY_SIDE[0] or self.size.height < _SIDE_BY_SIDE[1]

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
            bar = self.query_one("#too-small", Bar)
            bar.show(bar.line().add(text, self.look.styles.warning))
        self.set_class(self.compact, "-compact")
        for area in AREAS:
            self.set_class(area == self.selection.area, f"-show-{area}")
        self.query_one("#ranks-area").styles.width = "100%" if self.compact else max(_RANKS, width * 46 // 100)
        rows = len(self.snapshot.nodes) + 1
        self.grid.styles.height = "1fr" if self.compact else max(3, min(rows, height * 2 // 5))

    def enter_area(self, area: Area) -> None:
        """Give an area the focus, and in the compact layout the screen."""
        self.selection = replace(self.selection, area=area)
        if area != "detail":
            self.set_class(False, "-zoom")
        self._lay_out()
        self._focus_area()
        self._paint_chrome()

    def _focus_area(self) -> None:
        area = self.selection.area
        if area == "npus":
            self.grid.focus()
        elif area == "ranks":
            self.ranks.focus()
        elif self.selection.tab == "test":
            self.test.take_focus()
        else:
            (self.log_view if self.selection.tab == "log" else self.text).focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Keep the area with a focus that the mouse moved."""
        area: Area | None = None
        if event.widget is self.grid:
            area = "npus"
        elif event.widget is self.ranks:
            area = "ranks"
        elif event.widget in (self.log_view, self.text) or event.widget.id == "test-prompt":
            area = "detail"
        if area is not None and area != self.selection.area:
            self.selection = replace(self.selection, area=area)
            self._lay_out()
            self._paint_chrome()

    # -- selection ----------------------------------------------------------------------------------------

    @on(RankList.Moved)
    def _rank_moved(self, event: RankList.Moved) -> None:
        self._select_rank(event.rank)

    @on(NpuGrid.Moved)
    def _npu_moved(self, event: NpuGrid.Moved) -> None:
        """The grid's cursor takes the list of ranks with it."""
        node = self.snapshot.node(event.node)
        npu = next((one for one in node.npus if one.id == event.npu), None) if node else None
        rank = npu.rank if npu is not None else ""
        if rank:
            self.ranks.select(rank)
        self._selected(replace(self.selection, node=event.node, npu=event.npu, rank=rank))

    def _select_rank(self, rank_id: str) -> None:
        """The list's cursor takes the grid's with it, unless that is on one of the rank's NPUs already."""
        rank = self.snapshot.rank(rank_id)
        selection = replace(self.selection, rank=rank_id, marks=tuple(self.ranks.marks))
        if rank is not None:
            npu = selection.npu if selection.node == rank.node and selection.npu in rank.devices else None
            if npu is None and rank.devices:
                npu = rank.devices[0]
            selection = replace(selection, node=rank.node, npu=npu)
            self.grid.select(rank.node, npu)
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
        self._paint_text()
        self._paint_chrome()

    def _fetch_log(self) -> None:
        self._log_timer = None
        if self.selection.tab == "log":
            self.log_view.set_rank(self.selection.rank)
            self._paint_detail_title()

    def _poll_log(self) -> None:
        if self.selection.tab == "log" and self.log_view.display:
            self.log_view.poll()

    @on(LogView.Changed)
    def _log_changed(self) -> None:
        self._paint_detail_title()

    def open_tab(self, tab: Tab, *, focus: bool = False) -> None:
        """Show a tab of the detail pane; in the compact layout it takes the screen."""
        self.selection = replace(self.selection, tab=tab)
        self.panes.current = tab if tab in ("log", "test") else "text"
        if tab == "log":
            self._fetch_log()
            self.log_view.poll()
        self._paint_text()
        if focus or self.compact or self.selection.area == "detail":
            self.enter_area("detail")
        self._paint_chrome()

    # -- painting -----------------------------------------------------------------------------------------

    def _paint_text(self) -> None:
        tab, selection, now = self.selection.tab, self.selection, self.clock.wall()
        if tab in ("log", "test"):
            return
        rank = self.snapshot.rank(selection.rank)
        if tab == "describe":
            node = self.snapshot.node(selection.node)
            if rank is not None:
                rows = describe.describe_rank(rank, self.handle.plan, now)
            else:
                rows = describe.describe_node(node, now) if node is not None else []
        elif tab == "metrics":
            rows = describe.metrics_rows(rank, now)
        elif tab == "reasons":
            rows = describe.reasons_rows(self.snapshot, rank, selection.node, selection.npu, now)
        else:
            rows = describe.events_rows(self.snapshot)
        made_for = f"{tab} {selection.rank} {selection.node} {selection.npu}"
        self.text.show(rows, keep=made_for == self._fetched)
        self._fetched = made_for

    def situation(self) -> Situation:
        """Return what the availability of actions depends on."""
        return Situation(self.snapshot, self.selection, self.read_only, self._headline_leads(), self.typing)

    @property
    def typing(self) -> Typing:
        """What letters go into now."""
        if self.query_one("#prompt").has_class("-open"):
            return "prompt"
        return "test" if self.selection.area == "detail" and self.selection.tab == "test" else ""

    def _headline_leads(self) -> bool:
        wrong = self.snapshot.headline
        if wrong is None:
            return False
        here = {self.selection.rank, self.selection.node, f"{self.selection.node}/{self.selection.npu}"}
        return wrong.subject not in here and self._leads_somewhere(wrong.subject)

    def _leads_somewhere(self, subject: str) -> bool:
        return self.snapshot.rank(subject) is not None or self.snapshot.node(subject.partition("/")[0]) is not None

    def _paint_chrome(self) -> None:
        """Show the lines around the areas."""
        now, width, look, snapshot = self.clock.wall(), self.size.width, self.look, self.snapshot
        header = chrome.header(snapshot, self.handle.topology, look, width, now, read_only=self.read_only)
        self._bar("header").show(header)
        wrong = chrome.headline(snapshot, look, width, leads=self._headline_leads())
        bar = self._bar("headline")
        bar.styles.height = len(wrong)
        bar.show(*wrong)
        names = (S.mode_verdict, S.mode_hbm, S.mode_util, S.mode_temp, S.mode_rank)
        title = Title(S.npus, names, MODES.index(self.grid.mode), self._range(self.grid.range_shown), "v")
        self._rule("npus-title", title, "npus")
        self._rule("ranks-title", Title(S.ranks, note=self._ranks_note()), "ranks")
        self._paint_detail_title()
        node = snapshot.node(self.selection.node)
        self._bar("npu-line").show(chrome.npu_line(node, self.selection.npu, look, width, now))
        self._paint_operations(now)
        self._paint_notice(width)
        self._bar("footer").show(chrome.footer_line(self.situation(), look, width, self.keys))

    def _bar(self, name: str) -> Bar:
        return self.query_one(f"#{name}", Bar)

    def _rule(self, name: str, title: Title, area: Area) -> None:
        bar = self._bar(name)
        bar.show(chrome.rule(title, self.look, bar.size.width, focused=self.selection.area == area))

    def _range(self, shown: tuple[int, int, int]) -> str:
        first, last, total = shown
        return S.more_above_below.format(first=first, last=last, total=total) if last - first + 1 < total else ""

    def _ranks_note(self) -> str:
        ranks = self.ranks
        if ranks.filter.text:
            parts = [S.filter_is.format(text=ranks.filter.text)]
            parts.append(S.ranks_filtered.format(n=ranks.row_count, total=ranks.total))
        else:
            parts = [self._range(ranks.range_shown) or S.ranks_count.format(n=ranks.total)]
        if ranks.marks:
            parts.append(S.ranks_marked.format(n=len(ranks.marks)))
        return "  ".join(parts)

    def _paint_detail_title(self) -> None:
        tab = self.selection.tab
        if tab == "test":
            subject = S.test_title.format(model=self.handle.topology.model.served_name)
        elif tab == "reasons" and self.selection.area == "npus" and self.selection.npu is not None:
            subject = S.npu_line.format(node=self.selection.node, npu=self.selection.npu)
        else:
            subject = self.selection.rank or self.selection.node
        note = (
            self.log_view.status() if tab == "log" and self.log_view.rank else self._range(self.text.range_shown)
        )
        title = chrome.detail_title(subject, tab, note if tab != "test" else "")
        self._rule("detail-title", title, "detail")

    def _paint_operations(self, now: float) -> None:
        shown = [operation for operation in self.snapshot.operations if _is_current(operation, now)]
        roomy = self.size.height >= 34
        lines = []
        for operation in shown[-3:]:
            lines += chrome.operation_lines(operation, self.look, now, 5 if roomy and len(shown) == 1 else 1)
        bar = self._bar("operations")
        bar.styles.height = len(lines)
        bar.show(*lines)

    def say(self, message: str, severity: Severity = "info") -> None:
        """Say something in the line above the footer."""
        self._notice = (message, severity, self.clock.monotonic() + _NOTICE_SECONDS)
        self._paint_notice(self.size.width)

    def _paint_notice(self, width: int) -> None:
        bar = self._bar("notice")
        line = bar.line()
        if self._notice is not None and self._notice[2] < self.clock.monotonic():
            self._notice = None
        rule = self.look.glyphs.rule
        if self._notice is not None:
            message, severity, _ = self._notice
            line.add(rule * 2, self.look.styles.rule).add(f" {message} ", self.look.severity(severity))
        bar.show(line.add(rule * max(0, width - line.length), self.look.styles.rule))

    def set_look(self, look: Look) -> None:
        """Change theme or signs everywhere."""
        self.look = look
        for view in self.query(LineView).results(LineView):
            view.set_look(look)
        self.test.set_look(look)
        self.paint_all()

    # -- prompt -------------------------------------------------------------------------------------------

    def open_prompt(self, label: str, text: str) -> None:
        """Ask for one line above the footer."""
        bar = self._bar("prompt-label")
        line = bar.line().add(f" {label} ", self.look.styles.key)
        bar.styles.width = line.length
        self.query_one("#prompt").set_class(True, "-open")
        bar.show(line)
        prompt = self.query_one("#prompt-text", Input)
        prompt.value = text
        prompt.cursor_position = len(text)
        prompt.focus()
        self._paint_chrome()

    def close_prompt(self) -> None:
        """Give the focus back to the area."""
        self.query_one("#prompt").set_class(False, "-open")
        self._focus_area()
        self._paint_chrome()


def _nothing() -> None:
    """Nothing to unsubscribe yet."""


def _is_current(operation: OperationStatus, now: float) -> bool:
    return operation.state == "running" or (operation.ended is not None and now - operation.ended < _ENDED_SECONDS)
