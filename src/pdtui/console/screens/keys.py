"""What keys do on the one screen; those of texts are in `text_keys`."""

from __future__ import annotations

from collections.abc import Container, Coroutine, Sequence
from typing import Any, ClassVar, Protocol

from textual import on, work
from textual.app import SuspendNotSupported
from textual.binding import BindingType

from pdtui.console import suspend
from pdtui.console.actions import bindings, container_nodes, failed_ranks, startable
from pdtui.console.conduct import Conductor
from pdtui.console.describe import cause_line
from pdtui.console.findings import Finding
from pdtui.console.preflight_runs import PreflightRuns
from pdtui.console.progress import operation_words
from pdtui.console.rank_order import RankFilter
from pdtui.console.screens.acknowledge import Acknowledger, AcknowledgeScreen
from pdtui.console.screens.deeds import do_action
from pdtui.console.screens.dialog import Choice, ConfirmScreen, QuitScreen
from pdtui.console.screens.help import HelpScreen
from pdtui.console.screens.main import AREAS
from pdtui.console.screens.preflight import PreflightScreen
from pdtui.console.screens.text_keys import TextKeys
from pdtui.console.selection import TABS, Tab
from pdtui.console.strings import S
from pdtui.console.widgets.test_pane import TestPane
from pdtui.errors import PdtuiError
from pdtui.fleet.intents import Acknowledge, ChangeContainers, Intent, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import OperationStatus


class Themed(Protocol):
    """The part of the app that changes themes."""

    def theme_names(self) -> list[str]:
        """Return the usable themes."""
        ...

    def use_theme(self, name: str) -> None:
        """Change the theme. Raises `ThemeError`."""
        ...


class MainScreen(TextKeys):
    """The cluster, and the keys of the action registry."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("screen")

    themed: Themed

    def on_mount(self) -> None:
        """Make what carries out intents (the base class mounts its part by itself)."""
        self.conductor = Conductor(self.handle, confirm=self._confirm, voice=self)
        self._preflight_screen: PreflightScreen | None = None
        self.preflights = PreflightRuns(self.handle, self.clock, self._preflight_changed)

    # -- dispatch -----------------------------------------------------------------------------------------

    def action_do(self, name: str) -> None:
        """Do an action of the registry, or say why not."""
        self.run_action_id(name)

    def run_action_id(self, action: str) -> None:
        """Do an action of the registry, or say why not."""
        do_action(self, action)

    def _background(self, work_to_do: Coroutine[Any, Any, None], group: str) -> None:
        self.run_worker(work_to_do, group=group)

    # -- deeds --------------------------------------------------------------------------------------------

    def _carry_out(self, intent: Intent) -> None:
        async def carry_out() -> None:
            if await self.conductor.carry_out(intent):
                self.log_view.action_to_end()

        self._background(carry_out(), "intent")

    async def _confirm(self, choices: list[Choice]) -> Intent | None:
        return await self.app.push_screen_wait(
            ConfirmScreen(self.look, self.snapshot.cluster, choices, now=self.clock.wall)
        )

    def do_start(self) -> None:
        """Start what is stopped."""
        self._carry_out(StartRanks(startable(self.situation())))

    def do_stop(self) -> None:
        """Stop the marked ranks or the one under the cursor."""
        self._carry_out(StopRanks(self.selection.targets))

    def do_restart(self) -> None:
        """Restart the marked ranks or the one under the cursor."""
        self._carry_out(RestartRanks(self.selection.targets))

    def do_restart_failed(self) -> None:
        """Restart all that failed."""
        self._carry_out(RestartRanks(failed_ranks(self.situation())))

    def do_container_up(self) -> None:
        """Make and start the container of the marked ranks' nodes, or of the one under the cursor."""
        self._carry_out(ChangeContainers("container up", container_nodes(self.situation())))

    def do_container_down(self) -> None:
        """Stop and remove it."""
        self._carry_out(ChangeContainers("container down", container_nodes(self.situation())))

    def do_container_recreate(self) -> None:
        """Make it anew."""
        self._carry_out(ChangeContainers("container recreate", container_nodes(self.situation())))

    def do_cancel_operation(self) -> None:
        """Cancel the newest running operation."""
        newest = self._operations_running()[-1]
        self._background(self.conductor.cancel(newest.id, _name_of(newest)), "cancel")

    def do_preflight(self) -> None:
        """Open the screen of preflight: over all nodes, or those of the marked ranks."""
        node = self.selection.node if self.selection.area == "grid" else ""
        marked = dict.fromkeys(rank.node for rank in self.snapshot.ranks if rank.id in self.selection.marks)
        self._preflight_screen = PreflightScreen(
            self.handle,
            self.preflights,
            self.look,
            self.clock,
            snapshot=lambda: self.snapshot,
            marked=tuple(marked),
            node=node or self.selection.node,
            read_only=self.read_only,
            keys=self.keys,
            interval=self.paint_interval,
        )
        self._preflight_screen.asked = self._preflight_asked
        self.app.push_screen(self._preflight_screen)

    def _preflight_asked(self, request: PreflightRequest | None) -> None:
        self.workers.cancel_group(self, "preflight")
        if request is not None:
            self._background(self.preflights.go(request), "preflight")

    def _preflight_changed(self) -> None:
        if self._preflight_screen is not None and self._preflight_screen.is_attached:
            self._preflight_screen.more_to_show()
        elif not self.preflights.running:
            self.paint_chrome()

    @work(group="acknowledge", exclusive=True)
    async def do_acknowledge(self) -> None:
        """Say that the finding is known, or that it is to be told again."""
        finding = self.finding()
        if finding is not None:
            self.finding_list.stay()
            await Acknowledger(self.handle, self._ask_acknowledge, self.say).turn(finding)

    async def _ask_acknowledge(self, finding: Finding) -> Acknowledge | None:
        return await self.app.push_screen_wait(AcknowledgeScreen(self.look, finding, self.clock.wall()))

    def do_poll(self) -> None:
        """Read the health of the node under the grid's cursor, elsewhere of all."""
        node = self.selection.node if self.selection.area == "grid" else ""
        self._background(self.conductor.poll(node), "poll")

    def do_edit(self) -> None:
        """Open the topology file in the editor; a changed file is announced, not loaded."""
        self._hand_over(suspend.editor_argv(self.handle.topology.path))

    def do_shell(self) -> None:
        """Open a shell on the node of the selection."""
        node = self.handle.topology.nodes.get(self.selection.node)
        if node is not None:
            greeting = S.shell_greeting.format(node=node.name)
            self._hand_over(suspend.shell_argv(node), greeting, fine=range(suspend.SSH_FAILED))

    def _hand_over(self, argv: Sequence[str], greeting: str = "", fine: Container[int] = (0,)) -> None:
        """Give the terminal away; `fine` are the statuses that need no word."""
        try:
            with self.app.suspend():
                status = suspend.run_foreground(argv, greeting)
        except SuspendNotSupported:
            self.say(S.no_suspend, "warning")
        except OSError as error:
            self.say(S.command_failed.format(command=argv[0], error=error.strerror or error), "error")
        else:
            if status not in fine:
                self.say(S.command_status.format(command=argv[0], n=status), "warning")
        self.refresh(layout=True)

    # -- looking ------------------------------------------------------------------------------------------

    def do_go(self) -> None:
        """Go to what the headline is about; when there already, open the detail; a finding takes the screen."""
        wrong = self.snapshot.headline
        if wrong is not None and self.headline_leads():
            self.go_to_subject(wrong.subject)
        elif self.selection.area == "detail" and self.selection.tab == "reasons":
            self.do_zoom()
        elif self.selection.area == "grid" and (self.has_npus or not self.selection.rank):
            self.open_tab("reasons", focus=True)
        else:
            self.open_tab(self.selection.tab, focus=True)

    def go_to_subject(self, subject: str) -> None:
        """Put the cursor on a rank (and show why it is as it is), a node or an NPU."""
        if self.snapshot.rank(subject) is not None:
            if not self.ranks.select(subject):
                self.ranks.set_filter(RankFilter())
                self.ranks.select(subject)
            self.select_rank(subject)
            self.enter_area("ranks")
            self._show_cause(subject)
            return
        name, _, npu = subject.partition("/")
        if self.snapshot.node(name) is not None:
            self.grid.select_node(name, int(npu) if npu.isdigit() else None)
            self.select_spot(self.grid.spot)
            self.enter_area("grid")
            self.open_tab("reasons")

    def _show_cause(self, rank: str) -> None:
        """Show the line of a rank's log that explains it, or the figures, where the detail is on the screen."""
        line = cause_line(self.snapshot, rank)
        status = self.snapshot.rank(rank)
        if "detail" in self.areas_shown:
            self.open_tab("metrics" if status is not None and status.alarms and not line else "log")
        if line:
            self.log_view.seek(rank, line)

    def show_filter(self, text: str) -> None:
        """Filter the list of ranks."""
        self.ranks.set_filter(RankFilter.parse(text, npus=self.has_npus))
        self.enter_area("ranks")

    def do_logs(self) -> None:
        """Show the log."""
        self.open_tab("log", focus=True)

    def do_describe(self) -> None:
        """Show everything about the selection."""
        self.open_tab("describe")

    def do_metrics(self) -> None:
        """Show the metrics."""
        self.open_tab("metrics")

    def do_reasons(self) -> None:
        """Show why things are as they are, with what was asked and answered."""
        self.open_tab("reasons")

    def do_progress(self) -> None:
        """Show what is under way, and who has arrived where."""
        self.open_tab("progress")

    def do_events(self) -> None:
        """Show what happened."""
        self.open_tab("events")

    def do_ports(self) -> None:
        """Show who binds which port on the node under the cursor; when shown already, on all, and back."""
        self.all_ports = self.selection.tab == "ports" and not self.all_ports
        self.open_tab("ports")

    def do_test(self) -> None:
        """Show the prompt of test completions."""
        self.open_tab("test", focus=True)

    def do_next_tab(self) -> None:
        """Show the next tab."""
        self.open_tab(self._tab(1))

    def do_previous_tab(self) -> None:
        """Show the previous tab."""
        self.open_tab(self._tab(-1))

    def _tab(self, by: int) -> Tab:
        return TABS[(TABS.index(self.selection.tab) + by) % len(TABS)]

    def do_mode(self) -> None:
        """Show another value in the grid."""
        self.grid.next_mode()
        self.paint_chrome()

    def do_zoom(self) -> None:
        """Give the detail pane the whole screen, or take it back."""
        self.toggle_class("-zoom")
        self.enter_area("detail")

    def do_next_area(self) -> None:
        """Go to the next area."""
        self.enter_area(AREAS[(AREAS.index(self.selection.area) + 1) % len(AREAS)])

    def do_previous_area(self) -> None:
        """Go to the previous area."""
        self.enter_area(AREAS[(AREAS.index(self.selection.area) - 1) % len(AREAS)])

    def do_back(self) -> None:
        """Take back the last thing that narrows the view."""
        if self.has_class("-zoom"):
            self.set_class(False, "-zoom")
            self._lay_out()
        elif self.selection.area == "detail" and self.selection.tab == "log" and self.log_view.finder.search_text:
            self.log_view.search("")
        elif self.selection.area == "detail" and self.selection.tab == "log" and self.log_view.finder.only_text:
            self.log_view.filter("")
        elif self.on_ports and self.ports_filter:
            self.filter_ports("")
        elif self.selection.area != "ranks":
            self.enter_area("ranks")
        elif self.ranks.marks:
            self.ranks.clear_marks()
        elif self.ranks.filter.text:
            self.ranks.set_filter(RankFilter())
        self.paint_chrome()

    def do_test_send(self) -> None:
        """Send the prompt."""
        self.test.send()

    def do_test_leave(self) -> None:
        """Cancel the completion; without one, leave the pane."""
        self.test.leave()

    @on(TestPane.Left)
    def _left_test(self) -> None:
        self.close_test()
        self.enter_area("ranks")

    @on(TestPane.Changed)
    def _test_changed(self) -> None:
        self.paint_chrome()

    # -- console ------------------------------------------------------------------------------------------

    def theme_names(self) -> list[str]:
        """Return the usable themes."""
        return self.themed.theme_names()

    def use_theme(self, name: str) -> None:
        """Change the theme; a bad one is said, and the last good one stays."""
        try:
            self.themed.use_theme(name)
        except PdtuiError as error:
            self.say(S.unknown_theme.format(error=error.message), "error")

    def do_bell(self) -> None:
        """Let the bell ring, or not."""
        self.bell.on = not self.bell.on
        self.say(S.bell_is_on if self.bell.on else S.bell_is_off)

    def do_theme(self) -> None:
        """Take the next theme."""
        names = self.theme_names()
        current = self.app.theme
        self.use_theme(names[(names.index(current) + 1) % len(names)] if current in names else names[0])

    def do_palette(self) -> None:
        """Open the palette."""
        self.app.action_command_palette()

    def do_help(self) -> None:
        """Show all keys."""
        self.app.push_screen(HelpScreen(self.look, self.situation(), self.keys))

    def do_quit(self) -> None:
        """Leave; asks while an operation runs."""
        running = self._operations_running()
        if running:
            self._ask_to_quit(_name_of(running[-1]))
        else:
            self.app.exit(0)

    def _operations_running(self) -> list[OperationStatus]:
        return [one for one in self.snapshot.operations if one.state == "running"]

    @work(group="quit", exclusive=True)
    async def _ask_to_quit(self, what: str) -> None:
        if await self.app.push_screen_wait(QuitScreen(self.look, what, lambda: bool(self._operations_running()))):
            self.app.exit(0)

    def do_interrupt(self) -> None:
        """Say that it does nothing."""
        self.say(S.interrupt_harmless, "info")


def _name_of(operation: OperationStatus) -> str:
    return operation_words(operation)
