"""The grid of nodes and NPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.rank_order import natural
from pdtui.console.staleness import is_stale, shown_verdict
from pdtui.console.strings import S
from pdtui.console.widgets.node_grid import NodeGrid, Spot
from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus, RankStatus, Snapshot
from pdtui.readings.verdict import Verdict
from pdtui.topology.model import Role

_WIDE = 96
"""From this width on cells are three wide with a blank, and all columns are shown."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where things are in a row, for one width."""

    name: int
    role: int
    cell: int
    npus: int
    wide: bool

    @property
    def cells(self) -> int:
        """Cells that all NPUs take, with the gap after each eighth."""
        return self.npus * self.cell + max(0, (self.npus - 1) // 8)


class NpuGrid(NodeGrid):
    """One row a node, one cell an NPU; the cursor is on an NPU."""

    TITLE = S.npus
    MODES = ("verdict", "hbm", "util", "temp", "rank")

    def __init__(self, look: Look, npus_per_node: int, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._statuses: tuple[NodeStatus, ...] = ()
        self.npus_per_node = npus_per_node

    @property
    def row_count(self) -> int:
        """Nodes."""
        return len(self._statuses)

    def show(self, snapshot: Snapshot, marks: Sequence[str], now: float) -> None:
        """Show the newest values; marks of ranks are not shown here."""
        name = self.spot.node
        self._statuses = snapshot.nodes
        self.now = now
        if name:
            self.cursor = next((i for i, node in enumerate(self._statuses) if node.name == name), self.cursor)
        self.clamp()
        self.paint()

    @property
    def spot(self) -> Spot:
        """The NPU under the cursor, and the rank that the plan puts there."""
        if not self._statuses:
            return Spot()
        node = self._statuses[self.cursor]
        npu = next((one for one in node.npus if one.id == self.column), None)
        return Spot(node.name, self.column, npu.rank if npu is not None else "")

    def select_node(self, name: str, npu: int | None = None) -> None:
        """Put the cursor on an NPU without telling anybody."""
        for index, status in enumerate(self._statuses):
            if status.name == name:
                self.cursor = index
                if npu is not None:
                    self.column = max(0, min(npu, self.npus_per_node - 1))
                self.clamp()
                self.paint()

    def select_rank(self, rank: RankStatus) -> Spot:
        """Put the cursor on the first NPU of a rank, unless it is on one already."""
        spot = self.spot
        npu = spot.npu if spot.node == rank.node and spot.npu in rank.devices else None
        if npu is None and rank.devices:
            npu = rank.devices[0]
        self.select_node(rank.node, npu)
        return Spot(rank.node, npu, rank.id)

    def counts(self, now: float) -> Sequence[str]:
        """Return how many NPUs are not well."""
        found = Counter(shown_verdict(node, npu, now) for node in self._statuses for npu in node.npus)
        wrong = (Verdict.FAILED, Verdict.DEGRADED, Verdict.UNKNOWN)
        return [f"{self.look.glyphs.verdict(verdict)} {found[verdict]}" for verdict in wrong if found[verdict]]

    def go_sideways(self, by: int) -> None:
        """Move to another NPU of the node."""
        self.column = max(0, min(self.column + by, self.npus_per_node - 1))

    def column_at(self, row: int, x: int) -> int:
        """Return the NPU at a place."""
        columns = self._columns(self.size.width)
        x -= columns.name + columns.role
        if not 0 <= x < columns.cells:
            return self.column
        block = 8 * columns.cell + 1
        return min(x // block * 8 + min(x % block // columns.cell, 7), self.npus_per_node - 1)

    def _columns(self, width: int) -> _Columns:
        wide = width >= _WIDE
        name = max([len(node.name) for node in self._statuses] + [4])
        cell = 3 if wide or self.mode != "verdict" else 1
        return _Columns(
            name=min(name, 20 if wide else 12) + 3,
            role=8 if wide else 3,
            cell=cell,
            npus=self.npus_per_node,
            wide=wide,
        )

    def titles(self, width: int) -> Line:
        """Return the numbers of the NPUs and the names of the other columns."""
        columns = self._columns(width)
        dim = self.look.styles.dim
        line = self.line().pad_to(columns.name + columns.role)
        for npu in range(columns.npus):
            if npu and npu % 8 == 0:
                line.add(" ")
            if columns.cell == 3:
                line.column(f"{npu:>2} ", 3, dim)
            else:
                line.add(str(npu % 10), dim)
        line.column(S.column_hbm, 7 if columns.wide else 6, dim, "right")
        title = S.column_temp if columns.wide else S.column_temp_short
        line.column(title, 8 if columns.wide else 4, dim, "right")
        return line.column(S.column_polled, 8, dim, "right")

    def row(self, index: int, width: int) -> Strip:
        """Return a node's row."""
        node = self._statuses[index]
        columns = self._columns(width)
        here = index == self.cursor
        key = (
            node,
            self.age_text(node.observed_at),
            is_stale(node.observed_at, self.now),
            self.retry_text(node),
            self.column if here else -1,
            here and self.has_focus,
            self.mode,
            columns,
            width,
            self.look,
        )
        known = self.cached(node.name, key)
        if known is not None:
            return known
        return self.kept(node.name, key, self._draw_row(node, columns, here), width, here=here)

    def _draw_row(self, node: NodeStatus, columns: _Columns, here: bool) -> Line:
        styles = self.look.styles
        stale = node.state is not NodeState.CONNECTED or is_stale(node.observed_at, self.now)
        line = self.line()
        self.draw_name(line, node.name, columns.name, here=here, stale=stale)
        line.column(self._roles(node, columns.wide), columns.role, styles.dim)
        by_id = {npu.id: npu for npu in node.npus}
        for npu in range(columns.npus):
            if npu and npu % 8 == 0:
                line.add(" ")
            status = by_id.get(npu)
            verdict = shown_verdict(node, status, self.now) if status is not None else Verdict.UNKNOWN
            style = styles.stale if stale and verdict is Verdict.UNKNOWN else self.look.verdict(verdict)
            text = self._cell_text(status, verdict)
            self.draw_cell(line, text, style, columns.cell, cursor=here and npu == self.column)
        self._node_values(line, node, columns.wide, stale)
        self.draw_age(line, node.observed_at, 8, stale=stale)
        line.add("   ")
        if not self.draw_trouble(line, node):
            line.add(_ranks_of(node), styles.dim)
        return line

    def _roles(self, node: NodeStatus, wide: bool) -> str:
        if wide:
            return "+".join(role.value for role in node.roles) if len(node.roles) == 1 else "mixed"
        short = {Role.PREFILL: S.role_short_prefill, Role.DECODE: S.role_short_decode}
        return "".join(short[role] for role in node.roles)

    def _cell_text(self, npu: NpuStatus | None, verdict: Verdict) -> str:
        if npu is None or self.mode == "verdict":
            return self.look.glyphs.verdict(verdict)
        value: float | None = None
        if self.mode == "hbm" and npu.hbm_total_mb and npu.hbm_used_mb is not None:
            value = 100 * npu.hbm_used_mb / npu.hbm_total_mb
        elif self.mode == "util":
            value = npu.utilization
        elif self.mode == "temp":
            value = npu.temperature_c
        elif self.mode == "rank":
            return f"{npu.rank.rpartition('/')[2] or '-':>2}"
        return f"{min(value, 99):2.0f}" if value is not None else f"{self.look.glyphs.unknown:>2}"

    def _node_values(self, line: Line, node: NodeStatus, wide: bool, stale: bool) -> None:
        styles = self.look.styles
        style = styles.stale if stale else styles.text
        used = [npu.hbm_used_mb for npu in node.npus if npu.hbm_used_mb is not None]
        total = [npu.hbm_total_mb for npu in node.npus if npu.hbm_total_mb is not None]
        hbm = f"{100 * sum(used) / sum(total):.0f} %" if used and sum(total) else "-"
        temperatures = [npu.temperature_c for npu in node.npus if npu.temperature_c is not None]
        line.column(hbm, 7 if wide else 6, style, "right")
        line.column(f"{max(temperatures):.0f}" if temperatures else "-", 8 if wide else 4, style, "right")


def _ranks_of(node: NodeStatus) -> str:
    """Return the ranks that the plan puts on a node: `p1/0 p1/1`, `decode/0-15`."""
    groups: dict[str, list[int]] = {}
    for rank in sorted({npu.rank for npu in node.npus if npu.rank}, key=natural):
        group, _, number = rank.rpartition("/")
        if number.isdigit():
            groups.setdefault(group, []).append(int(number))
    parts = []
    for group, numbers in groups.items():
        if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
            parts.append(f"{group}/{numbers[0]}-{numbers[-1]}")
        else:
            parts += [f"{group}/{number}" for number in numbers]
    return " ".join(parts)
