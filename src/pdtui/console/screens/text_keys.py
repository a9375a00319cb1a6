"""What keys do with what is written: filter and search prompts, marks, the log, copies."""

from __future__ import annotations

from textual import on
from textual.widgets import Input

from pdtui.console import clipboard
from pdtui.console.rank_order import RankFilter
from pdtui.console.screens.main import ClusterView
from pdtui.console.strings import S
from pdtui.errors import UsageError


class TextKeys(ClusterView):
    """The deeds of the prompt line, of the list's marks and of the log."""

    _prompt_for: str = ""
    _before: str = ""

    # -- marks, filter, search ----------------------------------------------------------------------------

    def do_mark(self) -> None:
        """Mark the rank; in the list go on to the next."""
        if self.selection.area == "grid":
            self.ranks.toggle(self.selection.rank)
            self.paint_all()
        else:
            self.ranks.toggle_mark()

    def do_mark_range(self) -> None:
        """Mark up to here."""
        self.ranks.mark_range()
        self.paint_all()

    def do_filter(self) -> None:
        """Ask for a filter of the list of ranks, or of the port map that is read."""
        if self.on_ports:
            self._ask_for("ports_filter", "/", self.ports_filter)
        else:
            self._ask_for("filter", "/", self.ranks.filter.text)

    @property
    def on_ports(self) -> bool:
        """Whether the port map is read."""
        return self.selection.area == "detail" and self.selection.tab == "ports"

    def filter_ports(self, text: str) -> None:
        """Show the ports that show these words."""
        self.ports_filter = text.strip()
        self.paint_text()
        self.paint_detail_title()

    def do_log_search(self) -> None:
        """Ask what to search the log for."""
        self._ask_for("log_search", "/", self.log_view.finder.search_text)

    def do_log_filter(self) -> None:
        """Ask which lines of the log to show."""
        self._ask_for("log_filter", "&", self.log_view.finder.only_text)

    def _ask_for(self, what: str, label: str, text: str) -> None:
        self._prompt_for, self._before = what, text
        self.open_prompt(label, text)

    @on(Input.Changed, "#prompt-text")
    def _prompt_changed(self, event: Input.Changed) -> None:
        """Filter while typing; a log is searched when all is typed."""
        if self._prompt_for == "filter":
            self._filter(event.value, quiet=True)
        elif self._prompt_for == "ports_filter":
            self.filter_ports(event.value)

    def _filter(self, text: str, *, quiet: bool) -> None:
        try:
            self.ranks.set_filter(RankFilter.parse(text, npus=self.has_npus))
        except UsageError as error:
            if not quiet:
                self.say(error.message, "warning")

    @on(Input.Submitted, "#prompt-text")
    def _prompt_done(self, event: Input.Submitted) -> None:
        what, self._prompt_for = self._prompt_for, ""
        self.close_prompt()
        if what == "filter":
            self._filter(event.value, quiet=False)
        elif what == "ports_filter":
            self.filter_ports(event.value)
        elif what == "log_search":
            self.log_view.search(event.value)
            if event.value:
                self._jump(1)
        elif what == "log_filter":
            self.log_view.filter(event.value)
        self.paint_chrome()

    def do_prompt_keep(self) -> None:
        """Take what is typed."""
        prompt = self.query_one("#prompt-text", Input)
        prompt.post_message(Input.Submitted(prompt, prompt.value))

    def do_prompt_drop(self) -> None:
        """Put back what was before."""
        what, self._prompt_for = self._prompt_for, ""
        self.close_prompt()
        if what == "filter":
            self._filter(self._before, quiet=True)
        elif what == "ports_filter":
            self.filter_ports(self._before)

    # -- log ----------------------------------------------------------------------------------------------

    def do_log_next(self) -> None:
        """Go to the next match or error."""
        self._jump(1)

    def do_log_previous(self) -> None:
        """Go to the previous match or error."""
        self._jump(-1)

    def _jump(self, direction: int) -> None:
        if not self.log_view.jump(direction):
            finder = self.log_view.finder
            text = S.log_no_match.format(text=finder.search_text) if finder.search_text else S.log_no_error
            if finder.search_text and finder.hidden_matches:
                text += f"; {S.log_hidden_have.format(n=finder.hidden_matches)}"
            self.say(text, "warning" if finder.search_text else "info")

    def do_log_follow(self) -> None:
        """Follow, or stay."""
        self.log_view.toggle_follow()

    def do_log_context(self) -> None:
        """Show more lines around what the filter finds."""
        self.log_view.next_context()

    def do_log_checks(self) -> None:
        """Leave health checks out of the log, or show them."""
        self.log_view.toggle_quiet()
        self.paint_chrome()

    def do_log_wrap(self) -> None:
        """Wrap or cut."""
        self.log_view.toggle_wrap()

    def do_log_times(self) -> None:
        """Show times or not."""
        self.log_view.toggle_times()

    def do_log_copy(self) -> None:
        """Send the log to the terminal's clipboard."""
        self._copy(self.log_view.visible_text())

    def do_text_copy(self) -> None:
        """Send what the pane shows to the terminal's clipboard."""
        self._copy((self.finding_list if self.selection.tab == "reasons" else self.text).plain_text)

    def _copy(self, full: str) -> None:
        text, whole = clipboard.tail_that_fits(full)
        if not text:
            self.say(S.nothing_to_copy, "warning")
            return
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self.say((S.copied if whole else S.copied_cut).format(n=lines), "good" if whole else "warning")

    def do_log_save(self) -> None:
        """Write the log to a file."""
        text = self.log_view.visible_text()
        if not text:
            self.say(S.nothing_to_save, "warning")
            return
        name = f"{self.snapshot.cluster}-{self.log_view.rank}"
        try:
            path = clipboard.save_text(text, name, self.clock.wall())
        except OSError as error:
            self.say(
                S.not_saved.format(path=error.filename or clipboard.state_dir(), error=error.strerror), "error"
            )
        else:
            self.say(S.saved.format(n=text.count("\n") + 1, path=path), "good")
