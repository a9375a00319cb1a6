"""What the screen of preflight shows: a matrix of checks by nodes, and in words what is wrong. Its keys are in
`preflight`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen

from pdtui.clock import Clock
from pdtui.console import chrome, preflight_words
from pdtui.console.actions import PreflightView, Situation
from pdtui.console.chrome import Title
from pdtui.console.conduct import Severity
from pdtui.console.findings import Findings
from pdtui.console.look import Look
from pdtui.console.preflight_run import CLUSTER, Run, Table
from pdtui.console.preflight_runs import PreflightRuns
from pdtui.console.rows import BLANK, Row
from pdtui.console.selection import Selection
from pdtui.console.strings import S
from pdtui.console.widgets.finding_list import FindingList
from pdtui.console.widgets.line_view import Bar
from pdtui.console.widgets.prompt import Prompt
from pdtui.console.widgets.result_matrix import ResultMatrix
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.preflight.outcome import BAD, Outcome, Result
from pdtui.fleet.snapshot import Snapshot

Half = Literal["matrix", "found"]
PING = "ping"
"""The check whose results pings are."""
_BESIDE = 60
"""Cells that what is wrong needs beside the matrix; with less it stands below."""
_NOTICE_SECONDS = 8.0


class PaintedPreflight(Screen[None]):
    """Shows the runs that the main screen keeps; leaving it ends nothing."""

    class MoreToShow(Message):
        """Something has happened in a run."""

    AUTO_FOCUS: ClassVar[str | None] = "#found"

    def __init__(
        self,
        handle: FleetHandle,
        runs: PreflightRuns,
        look: Look,
        clock: Clock,
        *,
        snapshot: Callable[[], Snapshot],
        marked: Sequence[str],
        node: str,
        read_only: bool,
        keys: Mapping[str, str],
        interval: float,
    ) -> None:
        """`marked` are the nodes of marked ranks, `node` the one under the cursor: where a run may be asked."""
        super().__init__()
        self.handle, self.runs, self.look, self.clock = handle, runs, look, clock
        self.read_only, self.keys = read_only, keys
        self._snapshot = snapshot
        self._interval = interval
        all_nodes = tuple(handle.topology.nodes)
        places = [all_nodes, *([tuple(marked)] if marked else []), *([(node,)] if node else [])]
        self.places = list(dict.fromkeys(places))
        self.place_chosen = 1 if marked and len(self.places) > 1 else 0
        self.half: Half = "found"
        self.cell: tuple[str, str] | None = None
        """Check and column that are opened; None: what is wrong everywhere."""
        self.filter = ""
        self._before = ""
        self.only_new = False
        self._notice: tuple[str, Severity, float] | None = None
        self._seen: tuple[object, ...] = ()
        self._made_of: tuple[object, ...] = ()
        self._made = Findings()
        self._table_of: tuple[object, ...] = ()
        self._table = Table((), (), {})

    def compose(self) -> ComposeResult:
        """Header, matrix, findings, prompt, notices, footer."""
        look = self.look
        yield Bar(look, id="preflight-header")
        with Vertical(id="preflight-body"):
            with Vertical(id="matrix-half"):
                yield Bar(look, id="matrix-title")
                yield ResultMatrix(look, id="matrix")
            with Vertical(id="found-half"):
                yield Bar(look, id="found-title")
                yield FindingList(look, id="found")
        yield Bar(look, id="preflight-waiting")
        yield Prompt(look, id="prompt")
        yield Bar(look, id="preflight-notice")
        yield Bar(look, id="preflight-footer")

    def on_mount(self) -> None:
        """Show what is known, then follow."""
        self.matrix = self.query_one("#matrix", ResultMatrix)
        self.found = self.query_one("#found", FindingList)
        self.lay_out()
        self.paint_all()
        self.set_interval(max(0.25, self._interval), self._follow)
        self.set_interval(1.0, self.paint_all)

    def on_resize(self, event: events.Resize) -> None:
        """Arrange the halves for the new size."""
        self.lay_out()
        self.call_after_refresh(self.paint_all)

    def more_to_show(self) -> None:
        """Take note that a run has said more; with an interval of zero show it at once (tests)."""
        if not self._interval:
            self.post_message(self.MoreToShow())

    @on(MoreToShow)
    def _follow(self) -> None:
        run = self.runs.run
        seen = (run, run.revision if run is not None else 0, self._snapshot().acknowledgements, self.runs.error)
        if seen != self._seen:
            self._seen = seen
            self.paint_all()

    # -- what is shown ------------------------------------------------------------------------------------

    @property
    def run(self) -> Run | None:
        """The newest run."""
        return self.runs.run

    @property
    def place(self) -> tuple[str, ...]:
        """The nodes that the next run asks."""
        return self.places[self.place_chosen]

    @property
    def where(self) -> str:
        """Those in words."""
        names, total = self.place, len(self.handle.topology.nodes)
        if len(names) == total:
            return S.preflight_all.format(n=total) if total > 1 else S.preflight_one
        return " ".join(names) if len(names) <= 2 else S.preflight_marked.format(n=len(names))

    def _matches(self, result: Result) -> bool:
        text = f"{result.check} {result.subject} {result.outcome} {preflight_words.words_of(result)}".casefold()
        return _matches(self.filter, text)

    def checks(self, run: Run) -> tuple[str, ...]:
        """Return the checks that the filter leaves: by name, or because of what is said."""
        if not self.filter:
            return run.all_checks
        said = {result.check for result in run.results if self._matches(result)}
        return tuple(check for check in run.all_checks if check in said or _matches(self.filter, check))

    def situation(self) -> Situation:
        """Return what the availability of actions depends on."""
        finding = self.found.current
        return Situation(
            self._snapshot(),
            Selection(),
            self.read_only,
            typing="prompt" if self.typing else "",
            npus=self.handle.topology.has_npus,
            finding=finding.key if finding is not None else "",
            finding_known=finding is not None and finding.known is not None,
            preflight=self._view(),
        )

    def _view(self) -> PreflightView:
        run = self.run
        checks = self.checks(run) if run is not None else ()
        narrowed = len(checks) if self.filter and run is not None and len(checks) < len(run.all_checks) else 0
        return PreflightView(
            where=self.where,
            running=self.runs.running,
            known=run is not None and bool(run.results),
            compares=run is not None and run.compares,
            only_new=self.only_new,
            check=self.check,
            narrowed=narrowed,
            not_good=len(self.not_good()),
        )

    @property
    def check(self) -> str:
        """The check under the cursor."""
        if self.half == "matrix":
            return self.matrix.spot[0]
        finding = self.found.current
        return finding.about if finding is not None else ""

    def not_good(self) -> tuple[str, ...]:
        """Return the checks of which something is not known to be good."""
        run = self.run
        if run is None or run.running:
            return ()
        wanted = (*BAD, Outcome.NOT_RUN)
        return tuple(dict.fromkeys(result.check for result in run.results if result.outcome in wanted))

    @property
    def typing(self) -> bool:
        """Whether letters go into the prompt."""
        return self.query_one("#prompt").has_class("-open")

    def paint_all(self) -> None:
        """Show everything again; only lines that changed are sent to the terminal."""
        if not self.is_attached:
            return
        now, width, run = self.clock.wall(), self.size.width, self.run
        where = S.preflight_where.format(where=self.where)
        line = preflight_words.header(run, where, self.handle.topology, self.look, width, now)
        self.bar("preflight-header").show(line)
        self._paint_matrix(run)
        self._paint_found(run, now)
        waiting = self.bar("preflight-waiting")
        waiting.display = run is not None and run.running
        if run is not None:
            waiting.show(preflight_words.waiting_line(run, self.look, now))
        self._paint_notice(width)
        self.bar("preflight-footer").show(chrome.footer_line(self.situation(), self.look, width, self.keys))

    def _paint_matrix(self, run: Run | None) -> None:
        table, pending = Table((), (), {}), frozenset[str]()
        if run is not None:
            of = (run, run.revision, self.filter)
            if of != self._table_of:
                self._table_of, self._table = of, run.table(run.all_nodes, self.checks(run))
            table = self._table
            if run.running:
                pending = frozenset({*run.nodes, CLUSTER} - run.answered)
        self.matrix.show(table, pending)
        notes = [S.filter_is.format(text=self.filter)] if self.filter else []
        first, last, total = self.matrix.columns_shown
        notes += [S.columns_shown.format(first=first, last=last, total=total)] if last - first + 1 < total else []
        first, last, total = self.matrix.range_shown
        notes += [S.checks_shown.format(first=first, last=last, total=total)] if last - first + 1 < total else []
        self._rule("matrix-title", Title(S.preflight_matrix, note="  ".join(notes)), "matrix")

    def _paint_found(self, run: Run | None, now: float) -> None:
        found = self._findings(run)
        self.found.show(found, now)
        first, last, total = self.found.range_shown
        note = S.more_above_below.format(first=first, last=last, total=total) if last - first + 1 < total else ""
        if len(found.items) > 1:
            note = f"{S.finding_of.format(n=self.found.chosen + 1, total=len(found.items))}  {note}".rstrip()
        self._rule("found-title", Title(found.title, note=note), "found")

    def _findings(self, run: Run | None) -> Findings:
        """Return what is said below the title; made again only when it can be another."""
        if run is None:
            return Findings((), self._empty_rows(), S.preflight)
        of = (run, run.revision, self.cell, self.filter, self.only_new, self._snapshot().acknowledgements)
        if of != self._made_of:
            self._made_of, self._made = of, self._make_findings(run)
        return self._made

    def _make_findings(self, run: Run) -> Findings:
        if self.cell is not None:
            check, column = self.cell
            title = f"{column}  {check}" if column != CLUSTER else check
            found = preflight_words.cell_findings(run.at(check, column), run, self._snapshot(), title)
            if check != PING:
                return found
            topology = self.handle.topology
            report = run.report(topology.name, topology.digest, self.clock.wall())
            return Findings(found.items, (*found.below, *preflight_words.ping_rows(report)), title)
        made = preflight_words.troubles(run, self._snapshot(), self._matches, only_new=self.only_new)
        return Findings(made.items, made.below, S.preflight_found_new if self.only_new else S.preflight_found)

    def _empty_rows(self) -> tuple[Row, ...]:
        rows = [BLANK]
        rows += [Row(self.runs.error, "failed"), BLANK] if self.runs.error else []
        rows += [Row(S.preflight_none), BLANK, Row(S.preflight_what.format(where=self.where), "dim"), BLANK]
        return (*rows, Row(S.preflight_keys.format(where=self.where), "key_label"))

    def bar(self, name: str) -> Bar:
        """Return one of the lines around the halves."""
        return self.query_one(f"#{name}", Bar)

    def _rule(self, name: str, title: Title, half: Half) -> None:
        look, focused = self.look, self.half == half
        self.bar(name).show_for(lambda width: (chrome.rule(title, look, width, focused=focused),))

    def say(self, message: str, severity: Severity = "info") -> None:
        """Say something in the line above the footer for a while."""
        self._notice = (message, severity, self.clock.monotonic() + _NOTICE_SECONDS)
        self._paint_notice(self.size.width)

    def _paint_notice(self, width: int) -> None:
        bar, rule = self.bar("preflight-notice"), self.look.glyphs.rule
        line = bar.line()
        if self._notice is not None and self._notice[2] < self.clock.monotonic():
            self._notice = None
        if self._notice is not None:
            style = self.look.severity(self._notice[1])
            line.add(rule * 2, self.look.styles.rule).add(f" {self._notice[0]} ", style)
        bar.show(line.add(rule * max(0, width - line.length), self.look.styles.rule))

    def lay_out(self) -> None:
        """Put the matrix beside what is wrong where both have room, else above; the half in use gets more."""
        width, height = self.size.width, self.size.height - 4
        run = self.run
        nodes = len(run.all_nodes) if run is not None and run.all_nodes else len(self.handle.topology.nodes)
        wanted = max(self.matrix.wanted_width, 30 + 3 * nodes)
        beside = width - wanted >= _BESIDE and height >= 20
        self.query_one("#preflight-body").styles.layout = "horizontal" if beside else "vertical"
        matrix, found = self.query_one("#matrix-half"), self.query_one("#found-half")
        matrix.styles.width = wanted if beside else "100%"
        if beside:
            matrix.styles.height = found.styles.height = "100%"
            return
        rows = max(6, (self.matrix.row_count or 38) + 2)
        share = height * 2 // 3 if self.half == "matrix" else height * 2 // 5
        matrix.styles.height = max(5, min(rows, share))
        found.styles.height = "1fr"


def _matches(wanted: str, text: str) -> bool:
    """Return whether a text has all words, and none that is written as `!word`."""
    for word in wanted.casefold().split():
        if word.startswith("!"):
            if word[1:] and word[1:] in text:
                return False
        elif word not in text:
            return False
    return True
