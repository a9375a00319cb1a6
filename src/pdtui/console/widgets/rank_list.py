"""The list of ranks: the wrong ones first, cursor and marks kept by rank, not by row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.message import Message
from textual.strip import Strip

from pdtui.console.actions import bindings
from pdtui.console.figures import alarm_words, figures
from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.rank_order import RankFilter, device_list, order, state_word
from pdtui.console.strings import S
from pdtui.console.timing import clock_time, elapsed
from pdtui.console.widgets.line_view import RowView
from pdtui.fleet.snapshot import WRONG_STATES, RankState, RankStatus

_WORTH_IT = 14
"""Cells below which a diagnosis is only an ellipsis."""
_METRICS = 24
"""Cells of the first figures of a ready rank, with the margin."""
_ALWAYS = 3
"""How many figures these are."""
_ROOMY = 6
"""How many figures must have room before units are written in full."""


class RankList(RowView):
    """One row a rank."""

    BINDINGS = bindings("ranks")

    class Moved(Message):
        """The operator moved the cursor to a rank, `rank`."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._ranks: Sequence[RankStatus] = ()
        self._lone: frozenset[str] = frozenset()
        """Those whose group is lost."""
        self._now = 0.0
        self._strips: dict[str, tuple[tuple[object, ...], Strip]] = {}
        self.rows: list[RankStatus] = []
        """What the filter lets through, in order."""
        self.filter = RankFilter()
        self.marks: dict[str, None] = {}
        """Marked ids in the order of marking."""
        self._anchor = ""

    @property
    def row_count(self) -> int:
        """Ranks that are listed."""
        return len(self.rows)

    @property
    def rank(self) -> str:
        """Id of the rank under the cursor."""
        return self.rows[self.cursor].id if self.rows else ""

    @property
    def total(self) -> int:
        """All ranks, also those that the filter hides."""
        return len(self._ranks)

    def show(self, ranks: Sequence[RankStatus], now: float, lone: frozenset[str] = frozenset()) -> None:
        """Show the newest values; the cursor stays on its rank. `lone`: ranks whose group is lost."""
        if ranks is not self._ranks or lone != self._lone:
            self._ranks, self._lone = ranks, lone
            known = {rank.id for rank in ranks}
            self.marks = {rank: None for rank in self.marks if rank in known}
            self._arrange()
        self._now = now
        self.paint()

    def _arrange(self) -> None:
        here, first_time = self.rank, not self.rows
        self.rows = [rank for rank in order(self._ranks, self._lone) if self.filter.matches(rank)]
        if not first_time:
            self.cursor = next((i for i, rank in enumerate(self.rows) if rank.id == here), self.cursor)
        self.clamp()

    def set_filter(self, rank_filter: RankFilter) -> None:
        """List only what matches."""
        self.filter = rank_filter
        self._arrange()
        self.paint()
        self.moved()

    def select(self, rank: str) -> bool:
        """Put the cursor on a rank without telling anybody; False when it is not listed."""
        for index, row in enumerate(self.rows):
            if row.id == rank:
                self.cursor = index
                self.clamp()
                self.paint()
                return True
        return False

    def toggle(self, rank: str) -> None:
        """Mark a rank, or take its mark off."""
        if not rank:
            return
        if rank in self.marks:
            del self.marks[rank]
        else:
            self.marks[rank] = None
        self._anchor = rank

    def toggle_mark(self) -> None:
        """Mark the rank under the cursor, or take its mark off; then the next row."""
        if self.rank:
            self.toggle(self.rank)
            self.go_to(self.cursor + 1)

    def mark_range(self) -> None:
        """Mark all from the last mark to the cursor."""
        if not self.rows:
            return
        anchor = next((i for i, row in enumerate(self.rows) if row.id == self._anchor), self.cursor)
        low, high = sorted((anchor, self.cursor))
        self.marks.update(dict.fromkeys(row.id for row in self.rows[low : high + 1]))
        self.paint()
        self.moved()

    def clear_marks(self) -> None:
        """Take all marks off."""
        self.marks = {}
        self.paint()
        self.moved()

    def moved(self) -> None:
        """Tell the screen."""
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse points."""
        if self.top + event.y < self.row_count:
            self.go_to(self.top + event.y)

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the visible rows, or why there are none."""
        if not self.rows:
            text = S.no_ranks_match.format(text=self.filter.text) if self._ranks else S.no_ranks
            return [Strip.blank(width), self.line().add(f"  {text}", self.look.styles.dim).strip(width)]
        widths = self._widths()
        rows = range(self.top, min(self.row_count, self.top + height))
        strips = [self._row(index, widths, width) for index in rows]
        if len(strips) + 2 <= height and self.nothing_runs:
            hint = S.nothing_runs.format(n=len(self._ranks))
            strips += [Strip.blank(width), self.line().add(f"  {hint}", self.look.styles.key_label).strip(width)]
        return strips

    @property
    def nothing_runs(self) -> bool:
        """Whether no rank has been started, as far as is known."""
        return bool(self._ranks) and all(rank.state is RankState.STOPPED for rank in self._ranks)

    @property
    def hints_below(self) -> bool:
        """Whether there is room below the rows to say what starts them."""
        return self.row_count + 2 <= self.size.height

    def _widths(self) -> tuple[int, int, int, int]:
        """Widths of id, node, devices and state: those of the longest, so that columns never jump."""
        ids = max(cell_len(rank.id) for rank in self._ranks)
        nodes = max(cell_len(rank.node) for rank in self._ranks)
        devices = max(len(device_list(rank.devices)) for rank in self._ranks)
        states = max(cell_len(text) for text in (*S.rank_states.values(), S.no_group))
        return min(ids, 20), min(nodes, 14), min(devices, 7), states

    @property
    def wanted_width(self) -> int:
        """Return the cells that a row with metrics needs; what happened to a rank takes what there is."""
        if not self._ranks:
            return _METRICS
        return 4 + sum(width + 1 for width in self._widths()) + 8 + _METRICS

    def _row(self, index: int, widths: tuple[int, int, int, int], width: int) -> Strip:
        rank = self.rows[index]
        here, marked = index == self.cursor, rank.id in self.marks
        since = elapsed(self._now, rank.since)
        lone = rank.id in self._lone
        key = (rank, since, lone, here, here and self.has_focus, marked, widths, width, self.look)
        known = self._strips.get(rank.id)
        if known is not None and known[0] == key:
            return known[1]
        styles = self.look.styles
        line = self._draw_row(rank, widths, here, marked, since, width)
        over = (styles.cursor if self.has_focus else styles.cursor_idle) if here else None
        strip = line.strip(width, over)
        self._strips[rank.id] = (key, strip)
        return strip

    def _draw_row(
        self, rank: RankStatus, widths: tuple[int, int, int, int], here: bool, marked: bool, since: str, width: int
    ) -> Line:
        styles, glyphs = self.look.styles, self.look.glyphs
        lone = rank.id in self._lone
        quiet = rank.state in (RankState.READY, RankState.STOPPED, RankState.UNKNOWN)
        sign, sign_style = self.look.rank_sign(rank, lone=lone)
        style = sign_style if lone else styles.text if quiet else self.look.rank(rank.state)
        line = self.line()
        line.add(glyphs.cursor if here else " ", styles.key)
        line.add(glyphs.mark if marked else " ", styles.mark)
        line.add(f"{sign} ", sign_style)
        line.column(rank.id, widths[0] + 1, styles.mark if marked else styles.text)
        line.column(rank.node, widths[1] + 1, styles.dim)
        line.column(device_list(rank.devices), widths[2] + 1, styles.dim)
        line.column(state_word(rank, lone=lone), widths[3] + 1, style)
        line.column(since, 6, styles.dim, "right").add("  ")
        self._detail(line, rank, width)
        return line

    def _detail(self, line: Line, rank: RankStatus, width: int) -> None:
        """What it does, or what happened to it."""
        styles = self.look.styles
        for flag in rank.flags:
            line.add(f"{S.flag_outdated if flag == 'outdated' else S.flag_not_in_file}  ", styles.warning)
        if rank.alarms and rank.state not in WRONG_STATES:
            line.add(f"{alarm_words(rank)}  ", self.look.rank_sign(rank)[1])
        if rank.state is RankState.FAILED:
            if rank.exit_status is not None:
                text = S.exit_status if rank.exit_status >= 0 else S.signal
                line.column(text.format(n=abs(rank.exit_status)), 9, styles.failed)
            line.add(f" {clock_time(rank.ended or rank.since or None)} ", styles.dim)
            if rank.diagnosis is not None and width - line.length > _WORTH_IT:
                line.add(f" {rank.diagnosis.summary}", styles.text)
        elif rank.state in (RankState.STARTING, RankState.STOPPING):
            line.add(rank.stage, styles.starting)
        elif rank.state is RankState.LOST:
            if rank.last_state is not None:
                line.add(S.last_state.format(state=S.rank_states[rank.last_state]), styles.unknown)
        elif rank.state is RankState.UNMANAGED and (rank.stage or rank.health != "200"):
            words = rank.stage or S.unmanaged_health.format(health=rank.health or "?")
            line.add(words, styles.starting if rank.stage else styles.warning)
        elif rank.metrics is not None:
            self._metrics(line, rank, width)
        elif rank.diagnosis is not None:
            line.add(rank.diagnosis.summary, styles.warning)

    def _metrics(self, line: Line, rank: RankStatus, width: int) -> None:
        styles = self.look.styles
        shown = figures(rank, roomy=True)
        if line.length + sum(figure.width for figure in shown[:_ROOMY]) > width:
            shown = figures(rank, roomy=False)
        for number, figure in enumerate(shown):
            room = width - line.length
            if (number >= _ALWAYS or rank.alarms) and len(figure.text) > room:
                break
            # The blanks behind the last one need no room.
            cells = max(min(figure.width, room), len(figure.text))
            line.column(figure.text, cells, styles.dim if figure.dim else styles.text)
        if rank.state in (RankState.UNHEALTHY, RankState.STALLED) and rank.diagnosis is not None:
            line.add(f"  {rank.diagnosis.summary}", styles.warning)
