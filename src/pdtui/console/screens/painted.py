"""What the one screen shows: its widgets, and every line of them for a snapshot and a selection."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from pdtui.clock import Clock
from pdtui.console import chrome, describe
from pdtui.console.actions import Situation, Typing
from pdtui.console.bell import Bell
from pdtui.console.chrome import Title
from pdtui.console.conduct import Severity
from pdtui.console.findings import Finding
from pdtui.console.history import MetricsHistory
from pdtui.console.look import Look
from pdtui.console.looking import findings_of
from pdtui.console.metrics_rows import metrics_rows
from pdtui.console.port_rows import port_rows
from pdtui.console.progress import lease_line, operation_lines, preflight_line
from pdtui.console.progress_rows import progress_rows
from pdtui.console.rank_line import rank_line
from pdtui.console.rank_order import without_group
from pdtui.console.selection import Area, Selection
from pdtui.console.strings import S
from pdtui.console.widgets.divider import Divider
from pdtui.console.widgets.finding_list import FindingList
from pdtui.console.widgets.line_view import Bar, LineView
from pdtui.console.widgets.log_view import LogView
from pdtui.console.widgets.node_grid import NodeGrid
from pdtui.console.widgets.npu_grid import NpuGrid
from pdtui.console.widgets.prompt import Prompt
from pdtui.console.widgets.rank_grid import RankGrid
from pdtui.console.widgets.rank_list import RankList
from pdtui.console.widgets.test_pane import TestPane
from pdtui.console.widgets.text_view import TextView
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.snapshot import OperationStatus, PreflightStatus, Snapshot
from pdtui.topology import findings as static
from pdtui.topology.port_map import port_map_of

_NOTICE_SECONDS = 8.0
_ENDED_SECONDS = 20.0
"""How long an operation that ended stays on the screen."""


@dataclass(frozen=True, slots=True)
class _Notice:
    """What the line above the footer says."""

    message: str
    severity: Severity
    until: float
    """On the monotonic clock."""
    operation: str = ""
    """It is said about this operation, and only while that runs."""


class PaintedScreen(Screen[None]):
    """Holds what is shown and paints it; only lines that changed go to the terminal."""

    def __init__(
        self,
        handle: FleetHandle,
        look: Look,
        clock: Clock,
        *,
        read_only: bool,
        keys: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.handle = handle
        self.look = look
        self.clock = clock
        self.read_only = read_only
        self.keys = keys
        self._port_map = port_map_of(handle.topology, handle.plan)
        self.file_findings: Sequence[static.Finding] = ()
        """What is wrong with the topology file that is shown."""
        self.all_ports = False
        self.ports_filter = ""
        self.snapshot: Snapshot = handle.snapshot
        self.selection = Selection()
        self._notice: _Notice | None = None
        self.history = MetricsHistory()
        self._made_for = ""
        """Tab and selection that the text pane shows."""
        self.bell = Bell(self._write, clock, handle.topology.name, os.environ)
        self.npu_first = False
        """The operator looks at the grid, or came from there into the detail: an NPU's findings come first."""

    def _write(self, sequence: str) -> None:
        """Send a control sequence to the terminal, if there is one."""
        if not self.app.is_headless and self.app._driver is not None:
            self.app._driver.write(sequence)

    def compose(self) -> ComposeResult:
        """Header, headline, grid, ranks beside detail, operations, prompt, notices, footer."""
        look = self.look
        yield Bar(look, id="header")
        yield Bar(look, id="headline")
        with Vertical(id="grid-area"):
            yield Bar(look, id="grid-title")
            npus = self.handle.topology.npus_per_node
            yield NpuGrid(look, npus, id="grid") if self.has_npus else RankGrid(look, id="grid")
            yield Bar(look, id="grid-line")
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
                    yield FindingList(look, id="findings")
                    yield TestPane(look, self.handle, id="test")
        yield Bar(look, id="operations")
        yield Prompt(look, id="prompt")
        yield Bar(look, id="notice")
        yield Bar(look, id="footer")
        yield Bar(look, id="too-small")

    def find_widgets(self) -> None:
        """Look the widgets up once they are there."""
        self.grid = self.query_one("#grid", NodeGrid)
        self.ranks = self.query_one("#ranks", RankList)
        self.log_view = self.query_one("#log", LogView)
        self.text = self.query_one("#text", TextView)
        self.finding_list = self.query_one("#findings", FindingList)
        self.test = self.query_one("#test", TestPane)
        self.panes = self.query_one("#panes", ContentSwitcher)

    def situation(self) -> Situation:
        """Return what the availability of actions depends on."""
        finding = self.finding()
        return Situation(
            self.snapshot,
            self.selection,
            self.read_only,
            self.headline_leads(),
            searching=bool(self.log_view.finder.search_text),
            quiet=self.log_view.finder.quiet,
            asking=self.test.asking,
            typing=self.typing,
            npus=self.has_npus,
            moe=self.handle.topology.model.kind == "moe",
            all_ports=self.all_ports,
            bell=self.bell.on,
            contained=self.handle.topology.runtime.container is not None,
            finding=finding.key if finding is not None else "",
            finding_known=finding is not None and finding.known is not None,
        )

    @property
    def _ports_node(self) -> str:
        """Whose ports are shown; empty: everybody's."""
        return "" if self.all_ports else self.selection.node

    def finding(self) -> Finding | None:
        """Return the finding that is read, else the first of the selection that can be acknowledged."""
        if self.selection.tab == "reasons":
            current = self.finding_list.current
            return current if current is not None and current.key else None
        now = self.clock.wall()
        items = findings_of(self.snapshot, self.selection, now, npu_first=self.npu_first).items
        return next((item for item in items if item.key), None)

    @property
    def has_npus(self) -> bool:
        """Whether ranks run on NPUs; without any the grid is of ranks."""
        return self.handle.topology.has_npus

    @property
    def typing(self) -> Typing:
        """What letters go into now."""
        if self.query_one("#prompt").has_class("-open"):
            return "prompt"
        return "test" if self.selection.area == "detail" and self.selection.tab == "test" else ""

    def headline_leads(self) -> bool:
        wrong = self.snapshot.headline
        if wrong is None:
            return False
        selection = self.selection
        here = {selection.rank}
        if selection.area == "grid" or selection.tab == "reasons":
            # In the list of ranks the grid's cursor only follows: an NPU's findings are not on the screen then.
            here |= {selection.node, f"{selection.node}/{selection.npu}"}
        return wrong.subject not in here and self._leads_somewhere(wrong.subject)

    def _leads_somewhere(self, subject: str) -> bool:
        return self.snapshot.rank(subject) is not None or self.snapshot.node(subject.partition("/")[0]) is not None

    def paint_all(self) -> None:
        """Show everything again; only lines that changed are sent to the terminal."""
        now = self.clock.wall()
        self.ranks.show(self.snapshot.ranks, now, without_group(self.snapshot))
        marks = tuple(self.ranks.marks)
        self.grid.show(self.snapshot, marks, now)
        if marks != self.selection.marks:
            self.selection = replace(self.selection, marks=marks)
        self.paint_text()
        self.paint_chrome()

    def paint_text(self) -> None:
        tab, selection, now = self.selection.tab, self.selection, self.clock.wall()
        if tab in ("log", "test"):
            return
        made_for = f"{tab} {selection.rank} {selection.node} {selection.npu}"
        if tab == "ports":
            made_for = f"{tab} {self._ports_node} {self.ports_filter}"
        keep = made_for == self._made_for
        self._made_for = made_for
        if tab == "reasons":
            found = findings_of(self.snapshot, selection, now, npu_first=self.npu_first, file=self.file_findings)
            self.finding_list.show(found, now, keep=keep)
            return
        rank = self.snapshot.rank(selection.rank)
        if tab == "describe":
            node = self.snapshot.node(selection.node)
            if rank is not None:
                rows = describe.describe_rank(rank, self.handle.plan, now, self.snapshot.group(rank.group))
            else:
                rows = describe.describe_node(node, now) if node is not None else []
        elif tab == "metrics":
            history = self.history.of(selection.rank)
            rows = metrics_rows(rank, history, self.look.glyphs, self.text.size.width, now)
        elif tab == "ports":
            rows = port_rows(self._port_map, self.snapshot, self._ports_node, self.ports_filter)
        elif tab == "progress":
            rows = progress_rows(self.snapshot, now)
        else:
            rows = describe.events_rows(self.snapshot)
        self.text.show(rows, keep=keep)

    def paint_chrome(self) -> None:
        """Show the lines around the areas."""
        now, width, look, snapshot = self.clock.wall(), self.size.width, self.look, self.snapshot
        header = chrome.header(snapshot, self.handle.topology, look, width, now, read_only=self.read_only)
        self.bar("header").show(header)
        # While something is typed, enter belongs to that.
        wrong = chrome.headline(snapshot, look, width, leads=self.headline_leads() and not self.typing)
        bar = self.bar("headline")
        bar.styles.height = len(wrong)
        bar.show(*wrong)
        modes = self.grid.MODES
        names = tuple(S.grid_modes[mode] for mode in modes)
        title = Title(self.grid.TITLE, names, modes.index(self.grid.mode), self._grid_note(), "v")
        self._rule("grid-title", title, "grid")
        self._rule("ranks-title", Title(S.ranks, note=self._ranks_note()), "ranks")
        self.paint_detail_title()
        node, rank = snapshot.node(self.selection.node), snapshot.rank(self.selection.rank)
        if self.has_npus:
            known = snapshot.acknowledged
            self.bar("grid-line").show(chrome.npu_line(node, self.selection.npu, look, width, now, known))
        else:
            group = snapshot.group(rank.group) if rank is not None else None
            self.bar("grid-line").show(rank_line(node, rank, look, width, now, group))
        self._paint_operations(now)
        self._paint_notice(width)
        self.bar("footer").show(chrome.footer_line(self.situation(), look, width, self.keys))

    def bar(self, name: str) -> Bar:
        return self.query_one(f"#{name}", Bar)

    def _rule(self, name: str, title: Title, area: Area) -> None:
        look, focused = self.look, self.selection.area == area
        self.bar(name).show_for(lambda width: (chrome.rule(title, look, width, focused=focused),))

    def _range(self, shown: tuple[int, int, int]) -> str:
        first, last, total = shown
        return S.more_above_below.format(first=first, last=last, total=total) if last - first + 1 < total else ""

    def _grid_note(self) -> str:
        """Say how many cells are not well, also those out of view, and which rows are in view."""
        parts = self.grid.counts(self.clock.wall())
        return "  ".join([*parts, self._range(self.grid.range_shown)]).strip()

    def _ranks_note(self) -> str:
        ranks = self.ranks
        if ranks.filter.text:
            parts = [S.filter_is.format(text=ranks.filter.text)]
            parts.append(S.ranks_filtered.format(n=ranks.row_count, total=ranks.total))
        else:
            parts = [self._range(ranks.range_shown) or S.ranks_count.format(n=ranks.total)]
        if ranks.marks:
            parts.append(S.ranks_marked.format(n=len(ranks.marks)))
        if ranks.nothing_runs and not ranks.hints_below:
            parts.insert(0, S.nothing_runs_short)
        return "  ".join(parts)

    def paint_detail_title(self) -> None:
        tab = self.selection.tab
        if tab == "test":
            subject = S.test_title.format(model=self.handle.topology.model.served_name)
        elif tab == "reasons":
            subject = self.finding_list.findings.title
        elif tab == "ports":
            subject = self._ports_node or S.ports_all
        else:
            subject = self.selection.rank or self.selection.node
        if tab == "log" and self.log_view.rank:
            note = self.log_view.status()
        else:
            note = self._range((self.finding_list if tab == "reasons" else self.text).range_shown)
            if tab == "ports" and self.ports_filter:
                note = f"{S.filter_is.format(text=self.ports_filter)}  {note}".rstrip()
        title = chrome.detail_title(subject, tab, note if tab != "test" else "")
        self._rule("detail-title", title, "detail")

    def _paint_operations(self, now: float) -> None:
        shown = [operation for operation in self.snapshot.operations if _is_current(operation, now)]
        roomy = self.size.height >= 34
        lines = []
        for operation in shown[-3:]:
            lines += operation_lines(
                operation, self.look, self.size.width, now, 5 if roomy and len(shown) == 1 else 1
            )
        if (status := _current_preflight(self.snapshot, now)) is not None:
            lines.append(preflight_line(status, self.look, now))
        lines += [lease_line(lease, self.look, now) for lease in self.snapshot.leases[:3]]
        bar = self.bar("operations")
        bar.styles.height = len(lines)
        bar.show(*lines)

    def say(
        self, message: str, severity: Severity = "info", *, lasting: bool = False, operation: str = ""
    ) -> None:
        """Say something in the line above the footer for a while, `lasting` until `unsay`.

        What is said about an operation goes when that has ended.
        """
        until = inf if lasting else self.clock.monotonic() + _NOTICE_SECONDS
        self._notice = _Notice(message, severity, until, operation)
        self._paint_notice(self.size.width)

    def unsay(self, message: str, instead: str = "") -> None:
        """Take back what is no longer true, or say what came of it; other words that were said since stay."""
        if self._notice is not None and self._notice.message == message:
            self._notice = None
            if instead:
                self.say(instead, "good")
            self._paint_notice(self.size.width)

    def _paint_notice(self, width: int) -> None:
        bar = self.bar("notice")
        line = bar.line()
        notice = self._notice
        if notice is not None and (notice.until < self.clock.monotonic() or self._is_past(notice.operation)):
            notice = self._notice = None
        rule = self.look.glyphs.rule
        if notice is not None:
            line.add(rule * 2, self.look.styles.rule).add(
                f" {notice.message} ", self.look.severity(notice.severity)
            )
        bar.show(line.add(rule * max(0, width - line.length), self.look.styles.rule))

    def _is_past(self, operation: str) -> bool:
        return any(one.id == operation and one.state != "running" for one in self.snapshot.operations)

    def set_look(self, look: Look) -> None:
        """Change theme or signs everywhere."""
        self.look = look
        for view in self.query(LineView).results(LineView):
            view.set_look(look)
        self.test.set_look(look)
        self.paint_all()


def _is_current(operation: OperationStatus, now: float) -> bool:
    return operation.state == "running" or (operation.ended is not None and now - operation.ended < _ENDED_SECONDS)


def _current_preflight(snapshot: Snapshot, now: float) -> PreflightStatus | None:
    """Return how a preflight is, while it runs and a while after."""
    status = snapshot.preflight
    if status is None or (status.state != "running" and now - (status.ended or now) > _ENDED_SECONDS):
        return None
    return status
