"""The grid of nodes and ranks: what a cluster without NPUs has in the place of the grid of NPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from pdtui.console.actions import bindings
from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.rank_order import without_group
from pdtui.console.rank_rows import AGE, KV, ROLE, RUN, Arrangement, GridRow, arrange
from pdtui.console.staleness import is_stale
from pdtui.console.strings import S
from pdtui.console.widgets.node_grid import NodeGrid, Spot
from pdtui.fleet.snapshot import NodeState, NodeStatus, RankState, RankStatus, Snapshot
from pdtui.topology.model import Role

_FIGURE = 4
"""Cells of a rank when they hold numbers up to three digits."""
_LEAST_WORDS = 12
"""Cells below which words about a node's trouble say nothing: the line below the grid has them."""


class RankGrid(NodeGrid):
    """One row a node, one cell a rank; more rows where a node has more ranks than fit. The cursor is on a rank."""

    BINDINGS = bindings("ranks")
    TITLE = S.grid_of_ranks
    MODES = ("state", "run", "wait", "kv", "rank")

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._statuses: dict[str, NodeStatus] = {}
        self._ranks: dict[str, RankStatus] = {}
        self._marks: frozenset[str] = frozenset()
        self._lone: frozenset[str] = frozenset()
        """Ranks whose group is lost."""
        self._on: dict[str, list[RankStatus]] = {}
        """Ranks by node."""
        self._arrangement = Arrangement((), 0, 1, figures=False)
        self._made: tuple[tuple[object, ...], Arrangement] = ((), self._arrangement)
        """The last arrangement, and what it was made for."""
        self._here = Spot()
        """Where the cursor was put last: it stays there when rows come or go."""

    @property
    def row_count(self) -> int:
        """Lines."""
        return len(self._arrangement.rows)

    def rows_for(self, width: int) -> int:
        """Return how many lines there are in a width."""
        return len(self._arranged(width).rows)

    def show(self, snapshot: Snapshot, marks: Sequence[str], now: float) -> None:
        """Show the newest values."""
        self._statuses = {node.name: node for node in snapshot.nodes}
        self._ranks = {rank.id: rank for rank in snapshot.ranks}
        self._on = {name: [] for name in self._statuses}
        for rank in snapshot.ranks:
            self._on.setdefault(rank.node, []).append(rank)
        self._marks = frozenset(marks)
        self._lone = without_group(snapshot)
        self.now = now
        self.clamp()
        self.paint()

    def clamp(self) -> None:
        """Arrange for the size, and keep the cursor on its rank and in view."""
        arrangement = self._arranged(self.size.width)
        if arrangement is not self._arrangement:
            self._arrangement = arrangement
            self._find(self._here)
        super().clamp()
        row = self._row
        if row is not None:
            self.column = max(0, min(self.column, len(row.ranks) - 1))
            self._here = self.spot

    def _arranged(self, width: int) -> Arrangement:
        sizes = (3, 1) if self.mode == "state" else (3,) if self.mode == "kv" else (_FIGURE,)
        places = tuple((rank.node, rank.group, rank.id, rank.role) for rank in self._ranks.values())
        key = (tuple(self._statuses), places, width, sizes)
        if key != self._made[0]:
            self._made = (key, arrange(tuple(self._statuses), places, width, sizes))
        return self._made[1]

    def _find(self, spot: Spot) -> bool:
        """Put the cursor on a rank, else on its node; False when neither is there."""
        for index, row in enumerate(self._arrangement.rows):
            if spot.rank in row.ranks:
                self.cursor, self.column = index, row.ranks.index(spot.rank)
                return True
        for index, row in enumerate(self._arrangement.rows):
            if row.node == spot.node:
                self.cursor = index
                return True
        return False

    @property
    def _row(self) -> GridRow | None:
        rows = self._arrangement.rows
        return rows[self.cursor] if self.cursor < len(rows) else None

    @property
    def spot(self) -> Spot:
        """The rank under the cursor."""
        row = self._row
        if row is None:
            return Spot()
        return Spot(row.node, None, row.ranks[min(self.column, len(row.ranks) - 1)] if row.ranks else "")

    def select_node(self, name: str, npu: int | None = None) -> None:
        """Put the cursor on a node's first rank without telling anybody, unless it is on one of its."""
        if self.spot.node != name and self._find(Spot(name)):
            self.column = 0
            self.clamp()
            self.paint()

    def select_rank(self, rank: RankStatus) -> Spot:
        """Put the cursor on a rank without telling anybody."""
        spot = Spot(rank.node, None, rank.id)
        if self._find(spot):
            self.clamp()
            self.paint()
        return spot

    def counts(self, now: float) -> Sequence[str]:
        """Return how many ranks are not well."""
        glyphs = self.look.glyphs
        found = Counter(self._sign(rank)[0] for rank in self._ranks.values())
        wrong = (glyphs.failed, glyphs.degraded, glyphs.unknown)
        return [f"{sign} {found[sign]}" for sign in wrong if found[sign]]

    def go_sideways(self, by: int) -> None:
        """Move to another rank of the node, also where its ranks go on in another line."""
        rows, row = self._arrangement.rows, self._row
        if row is None:
            return
        column = self.column + by
        if column < 0 and not row.first:
            self.cursor -= 1
            self.column = len(rows[self.cursor].ranks) - 1
        elif column >= len(row.ranks) and self.cursor + 1 < len(rows) and not rows[self.cursor + 1].first:
            self.cursor += 1
            self.column = 0
        else:
            self.column = max(0, min(column, len(row.ranks) - 1))

    def column_at(self, row: int, x: int) -> int:
        """Return the rank at a place; beside the ranks that of the cursor."""
        found = self._arrangement.rank_at(self._arrangement.rows[row], x)
        return self.column if found is None else found

    def titles(self, width: int) -> Line:
        """Return the names of the columns behind the ranks."""
        dim = self.look.styles.dim
        line = self.line().pad_to(self._arrangement.end)
        if self._arrangement.figures:
            line.column(S.column_run, RUN, dim, "right").column(S.column_kv, KV, dim, "right")
        return line.column(S.column_polled, AGE, dim, "right")

    def row(self, index: int, width: int) -> Strip:
        """Return a line."""
        row = self._arrangement.rows[index]
        node = self._statuses[row.node]
        ranks = tuple(self._ranks[rank] for rank in row.ranks)
        observed_at = self._observed_at(row.node) if row.first else None
        here = index == self.cursor
        key = (
            row,
            node,
            ranks,
            self.age_text(observed_at),
            is_stale(observed_at, self.now),
            self.retry_text(node),
            self._marks.intersection(row.ranks),
            self._lone.intersection(row.ranks),
            self.column if here else -1,
            here and self.has_focus,
            self.mode,
            self._arrangement.end,
            self._arrangement.cell,
            width,
            self.look,
        )
        of = (row.node, row.ranks)
        known = self.cached(of, key)
        if known is not None:
            return known
        return self.kept(of, key, self._draw_row(row, node, observed_at, here, width), width, here=here)

    def _draw_row(self, row: GridRow, node: NodeStatus, observed_at: float | None, here: bool, width: int) -> Line:
        styles, arrangement = self.look.styles, self._arrangement
        stale = node.state is not NodeState.CONNECTED or (bool(row.ranks) and is_stale(observed_at, self.now))
        line = self.line()
        self.draw_name(line, row.node if row.first else "", arrangement.name, here=here, stale=stale)
        number = 0
        for part, begin, cells in arrangement.places(row):
            line.pad_to(begin)
            letter = S.role_short_prefill if part.role is Role.PREFILL else S.role_short_decode
            group, slash, numbers = part.label.rpartition("/")
            # A long name is cut, never the numbers behind it.
            room = min(cell_len(group), cells - begin - ROLE - 1 - cell_len(slash + numbers))
            line.add(f"{letter} ", styles.title).column(group, room, styles.dim)
            line.add(slash + numbers, styles.dim).pad_to(cells)
            for place, rank_id in enumerate(part.ranks):
                if place and place % 8 == 0:
                    line.add(" ")
                self._rank_cell(line, rank_id, cursor=here and number == self.column)
                number += 1
        line.pad_to(arrangement.end)
        if not row.first:
            return line
        if arrangement.figures:
            self._node_figures(line, row.node)
        if row.ranks:
            self.draw_age(line, observed_at, AGE, stale=stale)
        else:
            line.column("", AGE)
        if line.length + _LEAST_WORDS < width:
            self.draw_trouble(line.add("   "), node)
        return line

    def _rank_cell(self, line: Line, rank_id: str, *, cursor: bool) -> None:
        rank = self._ranks[rank_id]
        text, style = self._cell_text(rank), self._sign(rank)[1]
        if rank.state is RankState.READY and not rank.alarms and rank_id not in self._lone:
            style = self.look.styles.healthy
        self.draw_cell(line, text, style, self._arrangement.cell, cursor=cursor, marked=rank_id in self._marks)

    def _sign(self, rank: RankStatus) -> tuple[str, Style]:
        return self.look.rank_sign(rank, lone=rank.id in self._lone)

    def _cell_text(self, rank: RankStatus) -> str:
        """Return what a cell shows; the sign of a rank's state also where it has no figures."""
        sign, metrics = self._sign(rank)[0], rank.metrics
        if self.mode == "state":
            return sign
        figures = self._arrangement.cell - 1
        value: float | None = None
        if self.mode == "rank":
            return f"{rank.id.rpartition('/')[2]:>{figures}}"
        if metrics is not None and self.mode == "kv":
            value = metrics.kv_usage * 100 if metrics.kv_usage is not None else None
        elif metrics is not None:
            value = metrics.running if self.mode == "run" else metrics.waiting
        most = 10**figures - 1
        return f"{min(value, most):{figures}.0f}" if value is not None else f"{sign:>{figures}}"

    def _observed_at(self, node: str) -> float | None:
        """Return when the oldest was said of what the states of a node's ranks rest on."""
        seen = [rank.observed_at for rank in self._on[node]]
        return min((at for at in seen if at is not None), default=None)

    def _node_figures(self, line: Line, node: str) -> None:
        style = self.look.styles.text
        metrics = [rank.metrics for rank in self._on[node] if rank.metrics is not None]
        running = [one.running for one in metrics if one.running is not None]
        kv = [one.kv_usage for one in metrics if one.kv_usage is not None]
        line.column(str(sum(running)) if running else "-", RUN, style, "right")
        line.column(f"{max(kv) * 100:.0f} %" if kv else "-", KV, style, "right")
