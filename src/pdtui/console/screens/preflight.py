"""The screen of preflight, and what its keys do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Button, Input

from pdtui.console import clipboard
from pdtui.console.actions import bindings
from pdtui.console.findings import Finding
from pdtui.console.look import Look
from pdtui.console.preflight_runs import ranks_that_run
from pdtui.console.rows import BLANK, Row
from pdtui.console.screens.acknowledge import Acknowledger, AcknowledgeScreen
from pdtui.console.screens.deeds import do_action
from pdtui.console.screens.dialog import Dialog
from pdtui.console.screens.help import HelpScreen
from pdtui.console.screens.preflight_painted import PING, Half, PaintedPreflight
from pdtui.console.strings import S, ranks_of
from pdtui.console.widgets.finding_list import FindingList
from pdtui.console.widgets.line_view import Bar, RowView
from pdtui.console.widgets.result_matrix import ResultMatrix
from pdtui.fleet.intents import Acknowledge
from pdtui.fleet.preflight.markdown import markdown_of
from pdtui.fleet.preflight.request import Pings, PreflightRequest


class PingScreen(Dialog[bool]):
    """Says what traffic pings make, and asks."""

    def __init__(self, look: Look, where: str, ranks: int) -> None:
        super().__init__(look, S.pings_title)
        self._where, self._ranks = where, ranks

    def rows(self) -> Sequence[Row]:
        """What goes over the wire, and who shares it."""
        busy = S.pings_busy.format(ranks=ranks_of(self._ranks)) if self._ranks else S.pings_idle
        return [
            BLANK,
            Row(S.pings_what.format(where=self._where)),
            BLANK,
            Row(busy, "warning" if self._ranks else "text"),
            BLANK,
        ]

    def buttons(self) -> ComposeResult:
        """Do nothing, or ping."""
        yield from super().buttons()
        yield self.button(S.pings_do, "do")

    @on(Button.Pressed, "#do")
    def accept(self) -> None:
        """Ping."""
        self.dismiss(True)


class PreflightScreen(PaintedPreflight):
    """The keys of the scope `preflight`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("preflight")

    asked: Callable[[PreflightRequest | None], None]
    """Makes a run, or ends the one that runs: they belong to the main screen."""

    def action_do(self, name: str) -> None:
        """Do an action of the registry, or say why not."""
        do_action(self, name)

    # -- runs ---------------------------------------------------------------------------------------------

    def _ask(self, only: Sequence[str] = (), pings: Pings = "auto") -> None:
        everywhere = len(self.place) == len(self.handle.topology.nodes)
        targets = () if everywhere else tuple(f"@{node}" for node in self.place)
        self.cell = None
        self.asked(PreflightRequest(targets, tuple(only), pings))

    def do_preflight_run(self) -> None:
        """Run everything, or the checks that the filter leaves."""
        run = self.run
        shown = self.checks(run) if run is not None and self.filter else ()
        self._ask(shown if run is not None and len(shown) < len(run.all_checks) else ())

    def do_preflight_again(self) -> None:
        """Run the check under the cursor again."""
        self._ask((self.check,))

    def do_preflight_bad(self) -> None:
        """Run again what is not good."""
        self._ask(self.not_good())

    @work(group="pings", exclusive=True)
    async def do_preflight_pings(self) -> None:
        """Ping the NPUs, also those that are in use, if the operator agrees."""
        ranks = ranks_that_run(self.situation().snapshot)
        if await self.app.push_screen_wait(PingScreen(self.look, self.where, ranks)):
            self._ask((PING,), "force")

    def do_preflight_cancel(self) -> None:
        """End the run that runs."""
        self.asked(None)
        self.say(S.preflight_cancelled)

    def do_preflight_where(self) -> None:
        """Change which nodes the next run asks."""
        self.place_chosen = (self.place_chosen + 1) % len(self.places)
        if len(self.places) == 1:
            self.say(S.preflight_one_place, "warning")
        self.paint_all()

    @work(group="acknowledge", exclusive=True)
    async def do_preflight_acknowledge(self) -> None:
        """Say that the result is known, or that it is to be told again."""
        finding = self.found.current
        if finding is not None and finding.key:
            self.found.stay()
            await Acknowledger(self.handle, self._ask_acknowledge, self.say).turn(finding)

    async def _ask_acknowledge(self, finding: Finding) -> Acknowledge | None:
        return await self.app.push_screen_wait(AcknowledgeScreen(self.look, finding, self.clock.wall()))

    # -- looking ------------------------------------------------------------------------------------------

    def _enter(self, half: Half) -> None:
        self.half = half
        self.set_class(False, "-zoom")
        (self.matrix if half == "matrix" else self.found).focus()
        self.lay_out()
        self.paint_all()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Keep the half with a focus that the mouse moved."""
        half: Half | None = None
        if event.widget is self.matrix:
            half = "matrix"
        elif event.widget is self.found:
            half = "found"
        if half is not None and half != self.half:
            self.half = half
            self.lay_out()
            self.paint_all()

    def do_preflight_area(self) -> None:
        """Go to the other half."""
        self._enter("matrix" if self.half == "found" else "found")

    def do_preflight_open(self) -> None:
        """Show what is said in a cell; in the list give one finding the whole screen."""
        if self.half == "matrix" and self.matrix.spot[0]:
            self.cell = self.matrix.spot
            self._enter("found")
        elif self.half == "found":
            self.do_preflight_zoom()

    def do_preflight_zoom(self) -> None:
        """Give what is wrong the whole screen, or take it back."""
        zoomed = not self.has_class("-zoom")
        self._enter("found")
        self.set_class(zoomed, "-zoom")

    @on(ResultMatrix.Moved)
    def _matrix_moved(self) -> None:
        """An opened cell follows the cursor."""
        if self.cell is not None:
            self.cell = self.matrix.spot
        self.paint_all()

    @on(RowView.Resized)
    @on(FindingList.Moved)
    def _finding_moved(self) -> None:
        self.paint_all()

    def do_preflight_new(self) -> None:
        """Show only what is worse than in the run before, or everything."""
        self.only_new = not self.only_new
        self.cell = None
        self.paint_all()

    def do_preflight_back(self) -> None:
        """Take back the last thing that narrows the view; without any leave."""
        if self.has_class("-zoom"):
            self.set_class(False, "-zoom")
        elif self.cell is not None:
            self.cell = None
        elif self.only_new:
            self.only_new = False
        elif self.filter:
            self.filter = ""
        else:
            self.do_preflight_leave()
            return
        self.paint_all()

    def do_preflight_leave(self) -> None:
        """Go back to the cluster; a run goes on."""
        self.dismiss(None)

    def do_preflight_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpScreen(self.look, self.situation(), self.keys))

    # -- the filter ---------------------------------------------------------------------------------------

    def do_preflight_filter(self) -> None:
        """Ask which checks and results to show."""
        self._before = self.filter
        label = self.query_one("#prompt-label", Bar)
        line = label.line().add(" / ", self.look.styles.key)
        label.styles.width = line.length
        self.query_one("#prompt").set_class(True, "-open")
        label.show(line)
        field = self.query_one("#prompt-text", Input)
        field.value = self.filter
        field.cursor_position = len(field.value)
        field.focus()
        self.paint_all()

    @on(Input.Changed, "#prompt-text")
    def _typed(self, event: Input.Changed) -> None:
        if self.typing:
            self.filter = event.value
            self.cell = None
            self.paint_all()

    @on(Input.Submitted, "#prompt-text")
    def do_prompt_keep(self) -> None:
        """Take what is typed."""
        self.query_one("#prompt").set_class(False, "-open")
        self._enter(self.half)

    def do_prompt_drop(self) -> None:
        """Put back what was before."""
        self.filter = self._before
        self.do_prompt_keep()

    # -- texts --------------------------------------------------------------------------------------------

    def do_text_copy(self) -> None:
        """Send the finding that is read to the terminal's clipboard."""
        text, whole = clipboard.tail_that_fits(self.found.plain_text)
        if not text:
            self.say(S.nothing_to_copy, "warning")
            return
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self.say((S.copied if whole else S.copied_cut).format(n=lines), "good" if whole else "warning")

    def do_preflight_save(self) -> None:
        """Write the report to two files, for people and for programs."""
        run = self.run
        if run is None:
            return
        now, topology = self.clock.wall(), self.handle.topology
        report = run.report(topology.name, topology.digest, now)
        texts = {"md": markdown_of(report), "json": json.dumps(report.as_json(), indent=2, ensure_ascii=False)}
        name = f"{topology.name}-preflight"
        try:
            path = clipboard.save_texts(texts, name, now)
        except OSError as error:
            place = error.filename or clipboard.state_dir()
            self.say(S.not_saved.format(path=place, error=error.strerror), "error")
        else:
            self.say(S.preflight_saved.format(path=path), "good")
