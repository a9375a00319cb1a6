"""The grid of nodes and NPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.rank_order import natural
from pdtui.console.staleness import is_stale, shown_verdict
from pdtui.console.strings import S
from pdtui.console.timing import duration
from pdtui.console.widgets.line_view import RowView
from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus
from pdtui.readings.verdict import Verdict
from pdtui.topology.model import Role

Mode = Literal["verdict", "hbm", "util", "temp", "rank"]
MODES: tuple[Mode, ...] = ("verdict", "hbm", "util", "temp", "rank")
_REVERSE = Style(reverse=True)
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


class NpuGrid(RowView):
    """One row a node, one cell an NPU; the cursor is on an NPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "column(-1)", show=False),
        Binding("right", "column(1)", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The operator moved the cursor to an NPU."""

        node: str
        npu: int | None

    def __init__(self, look: Look, npus_per_node: int, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(look, id=id)
        self._statuses: tuple[NodeStatus, ...] = ()
        self._now = 0.0
        self._rows: dict[str, tuple[tuple[object, ...], Strip]] = {}
        self.npus_per_node = npus_per_node
        self.column = 0
        self.mode: Mode = "verdict"

    @property
    def row_count(self) -> int:
        """Nodes."""
        return len(self._statuses)

    @property
    def page_rows(self) -> int:
        """Rows below the line of column titles."""
        return max(1, self.size.height - 1)

    def show(self, nodes: Sequence[NodeStatus], now: float) -> None:
        """Show the newest values; `now` is wall-clock time."""
        name = self.node
        self._statuses = tuple(nodes)
        self._now = now
        if name:
            self.cursor = next((i for i, node in enumerate(self._statuses) if node.name == name), self.cursor)
        self.clamp()
        self.paint()

    @property
    def node(self) -> str:
        """Name of the node under the cursor."""
        return self._statuses[self.cursor].name if self._statuses else ""

    @property
    def npu(self) -> int | None:
        """Id of the NPU under the cursor."""
        return self.column if self.npus_per_node else None

    def select(self, node: str, npu: int | None) -> None:
        """Put the cursor on an NPU without telling anybody."""
        for index, status in enumerate(self._statuses):
            if status.name == node:
                self.cursor = index
                if npu is not None and self.npus_per_node:
                    self.column = max(0, min(npu, self.npus_per_node - 1))
                self.clamp()
                self.paint()

    def next_mode(self) -> None:
        """Show the next kind of value in the cells."""
        self.mode = MODES[(MODES.index(self.mode) + 1) % len(MODES)]
        self.paint()

    def moved(self) -> None:
        """Tell the screen."""
        if self._statuses:
            self.post_message(self.Moved(self.node, self.npu))

    def action_column(self, by: int) -> None:
        """Move to another NPU; at the edge to the neighbouring node's."""
        self.column = max(0, min(self.column + by, self.npus_per_node - 1))
        self.go_to(self.cursor)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse points."""
        columns = self._columns(self.size.width)
        if event.y == 0 or self.top + event.y - 1 >= self.row_count:
            return
        x = event.x - columns.name - columns.role
        if 0 <= x < columns.cells:
            block = 8 * columns.cell + 1
            self.column = min(x // block * 8 + min(x % block // columns.cell, 7), self.npus_per_node - 1)
        self.go_to(self.top + event.y - 1)

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

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the titles and the visible rows."""
        columns = self._columns(width)
        visible = range(self.top, min(self.row_count, self.top + height - 1))
        return [self._titles(columns).strip(width)] + [self._row(index, columns, width) for index in visible]

    def _titles(self, columns: _Columns) -> Line:
        dim = self.look.styles.dim
        line = self.line().pad_to(columns.name + columns.role)
        for npu in range(columns.npus):
            if npu and npu % 8 == 0:
                line.add(" ")
            if columns.cell == 3:
                line.column(f"{npu:>2} ", 3, dim)
            else:
                line.add(str(npu % 10), dim)
        if columns.npus:
            line.column(S.column_hbm, 7 if columns.wide else 6, dim, "right")
            title = S.column_temp if columns.wide else S.column_temp_short
            line.column(title, 8 if columns.wide else 4, dim, "right")
        return line.column(S.column_polled, 8, dim, "right")

    def _row(self, index: int, columns: _Columns, width: int) -> Strip:
        node = self._statuses[index]
        here = index == self.cursor
        age = duration(self._now - node.observed_at) if node.observed_at is not None else "-"
        key = (
            node,
            age,
            is_stale(node.observed_at, self._now),
            self._retry_text(node),
            self.column if here else -1,
            here and self.has_focus,
            self.mode,
            columns,
            width,
            self.look,
        )
        known = self._rows.get(node.name)
        if known is not None and known[0] == key:
            return known[1]
        strip = self._draw_row(node, columns, width, here, age)
        self._rows[node.name] = (key, strip)
        return strip

    def _draw_row(self, node: NodeStatus, columns: _Columns, width: int, here: bool, age: str) -> Strip:
        styles, glyphs = self.look.styles, self.look.glyphs
        stale = node.state is not NodeState.CONNECTED or is_stale(node.observed_at, self._now)
        line = self.line()
        line.add(f"{glyphs.cursor} " if here else "  ", styles.key)
        line.column(node.name, columns.name - 2, styles.text if not stale else styles.stale)
        line.column(self._roles(node, columns.wide), columns.role, styles.dim)
        by_id = {npu.id: npu for npu in node.npus}
        for npu in range(columns.npus):
            if npu and npu % 8 == 0:
                line.add(" ")
            status = by_id.get(npu)
            verdict = shown_verdict(node, status, self._now) if status is not None else Verdict.UNKNOWN
            self._cell(line, status, verdict, columns.cell, here and npu == self.column, stale)
        if columns.npus:
            self._node_values(line, node, columns.wide, stale)
        line.column(age, 8, styles.warning if stale else styles.dim, "right")
        line.add("   ")
        self._tail(line, node, width)
        return line.strip(width, styles.cursor_idle if here and not self.has_focus else None)

    def _roles(self, node: NodeStatus, wide: bool) -> str:
        if wide:
            return "+".join(role.value for role in node.roles) if len(node.roles) == 1 else "mixed"
        short = {Role.PREFILL: S.role_short_prefill, Role.DECODE: S.role_short_decode}
        return "".join(short[role] for role in node.roles)

    def _cell(
        self, line: Line, npu: NpuStatus | None, verdict: Verdict, width: int, cursor: bool, stale: bool
    ) -> None:
        styles = self.look.styles
        style = styles.stale if stale and verdict is Verdict.UNKNOWN else self.look.verdict(verdict)
        text = self._cell_text(npu, verdict)
        if width == 1:
            line.add(text[:1], styles.cursor + style + _REVERSE if cursor else style)
            return
        if not cursor:
            # In one style, so that equal cells beside each other are one run on the line to the terminal.
            line.add(f" {text} " if len(text) == 1 else f" {text[-2:]}", style)
            return
        if len(text) == 1:
            bracket = styles.title_focused if self.has_focus else styles.key
            line.add("[", bracket).add(text, style).add("]", bracket)
        else:
            # Two figures leave no room for a closing bracket.
            line.add(" ", style).add(text[-2:], styles.cursor + style + _REVERSE)

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

    def _tail(self, line: Line, node: NodeStatus, width: int) -> None:
        """What is at the end of a row: trouble with the node, else its ranks."""
        styles = self.look.styles
        retry = self._retry_text(node)
        if retry:
            error = node.error.removeprefix(f"{node.host}: ")
            if node.state is NodeState.FAILED and error:
                line.add(error, self.look.node(node.state))
            else:
                line.add(retry, self.look.node(node.state)).add(f"  {error}" if error else "", styles.dim)
        elif node.error:
            line.add(node.error, styles.failed)
        elif node.tool_error or node.conditions:
            line.add(node.tool_error or node.conditions[0].message, styles.warning)
        else:
            line.add(_ranks_of(node), styles.dim)

    def _retry_text(self, node: NodeStatus) -> str:
        if node.state is NodeState.CONNECTED:
            return ""
        if node.state is NodeState.FAILED or not node.attempt:
            return S.node_states[node.state]
        if node.next_try is not None and node.next_try > self._now:
            return S.retry_in.format(n=node.attempt, t=duration(node.next_try - self._now))
        return S.retry.format(state=S.node_states[node.state], n=node.attempt)


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
