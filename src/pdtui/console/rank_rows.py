"""Where the ranks of each node stand in the grid of nodes and ranks, for a width; no widgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len

from pdtui.fleet.targets import in_short
from pdtui.topology.model import Role

NAME, AGE = 4, 8
"""Least cells of a node's name, and those of the age of its values."""
RUN, KV = 6, 7
"""Cells of a node's figures."""
_NAME_MOST = 20
_TROUBLE = 24
"""Cells that a row should have left to say what is wrong with its node."""
_LABEL_MOST = 24
_BETWEEN = 3
"""Blanks between two groups."""

Place = tuple[str, str, str, Role]
"""Node, group and id of a rank, and its role."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks of one group beside each other."""

    role: Role
    label: str
    """`decode/0-15`."""
    ranks: tuple[str, ...]


@dataclass(frozen=True)
class GridRow:
    """One line of a node."""

    node: str
    first: bool
    """Not the continuation of the line before."""
    parts: tuple[Part, ...] = ()

    @cached_property
    def ranks(self) -> tuple[str, ...]:
        """All ranks of the line from left to right."""
        return tuple(rank for part in self.parts for rank in part.ranks)


@dataclass(frozen=True)
class Arrangement:
    """All lines, and where things are in them."""

    rows: tuple[GridRow, ...]
    name: int
    """Cells of the nodes' names with the cursor."""
    cell: int
    figures: bool
    """Whether a node's own figures are shown."""
    labels: tuple[int, ...] = ()
    """Cells of the label of the nth part of every line."""
    columns: tuple[int, ...] = ()
    """Cells of the ranks of the nth part of every line; empty: as many as it has."""
    end: int = 0
    """Where the ranks of all lines have ended."""

    def places(self, row: GridRow) -> Iterator[tuple[Part, int, int]]:
        """Return a line's parts, each with where it begins and where its ranks begin."""
        x = self.name
        for number, part in enumerate(row.parts):
            label = self.labels[min(number, len(self.labels) - 1)]
            yield part, x, x + label
            x += (
                label + (self.columns[number] if self.columns else cells_of(len(part.ranks), self.cell)) + _BETWEEN
            )

    def rank_at(self, row: GridRow, x: int) -> int | None:
        """Return which rank of a line is drawn at a place."""
        before = 0
        for part, _, begin in self.places(row):
            for number in range(len(part.ranks)):
                start = begin + cells_of(number, self.cell) + (1 if number and number % 8 == 0 else 0)
                if start <= x < start + self.cell:
                    return before + number
            before += len(part.ranks)
        return None


def cells_of(ranks: int, cell: int) -> int:
    """Return the cells that ranks beside each other take, with the gap after each eighth."""
    return ranks * cell + max(0, (ranks - 1) // 8)


ROLE = 2
"""Cells of the sign of a role before a label."""


def _label_width(part: Part) -> int:
    """Return the cells of a label with the sign of the role before it and a blank behind."""
    return ROLE + cell_len(part.label) + 1


def arrange(nodes: Sequence[str], ranks: Sequence[Place], width: int, sizes: Sequence[int]) -> Arrangement:
    """Return the lines for a width: one a node if its ranks fit in one of `sizes`, else several.

    `sizes` are the possible cells of a rank, the best first.
    """
    parts = {node: _parts(node, ranks) for node in nodes}
    name = min(max([cell_len(node) for node in nodes] + [NAME]), _NAME_MOST) + 3
    most = max((len(of) for of in parts.values()), default=0)
    nth = [[of[number] for of in parts.values() if len(of) > number] for number in range(most)]
    labels = tuple(min(max(_label_width(part) for part in column), _LABEL_MOST) for column in nth)
    # Words about a node's trouble matter more than figures; both are given up before ranks share a line with none.
    wanted = [(size, figures, _TROUBLE) for size in sizes for figures in (True, False)]
    for size, figures, rest in (*wanted, (sizes[-1], False, 0)):
        columns = tuple(max(cells_of(len(part.ranks), size) for part in column) for column in nth)
        end = name + sum(labels) + sum(columns) + _BETWEEN * max(0, most - 1)
        if end + (RUN + KV if figures else 0) + AGE + rest <= width:
            rows = tuple(GridRow(node, True, of) for node, of in parts.items())
            return Arrangement(rows, name, size, figures, labels, columns, end)
    size, end = sizes[-1], max(width - AGE, name)
    label = min(max(labels, default=0), max((end - name) // 2, 0))
    return Arrangement(
        tuple(row for node, of in parts.items() for row in _broken(node, of, size, label, end - name)),
        name,
        size,
        figures=False,
        labels=(label,),
        end=end,
    )


def _parts(node: str, ranks: Sequence[Place]) -> tuple[Part, ...]:
    groups: dict[tuple[str, Role], list[str]] = {}
    for where, group, rank, role in ranks:
        if where == node:
            groups.setdefault((group, role), []).append(rank)
    return tuple(Part(role, in_short(ids), tuple(ids)) for (_, role), ids in groups.items())


def _broken(node: str, parts: Sequence[Part], cell: int, label: int, room: int) -> Iterator[GridRow]:
    """Break a node's ranks into lines: a group stays together where it fits on a line of its own."""
    line: list[Part] = []
    used, first = 0, True
    for part in parts:
        for piece in _pieces(part, cell, room - label):
            needed = label + cells_of(len(piece.ranks), cell)
            if line and used + _BETWEEN + needed > room:
                yield GridRow(node, first, tuple(line))
                line, used, first = [], 0, False
            used += needed + (_BETWEEN if line else 0)
            line.append(piece)
    yield GridRow(node, first, tuple(line))


def _pieces(part: Part, cell: int, room: int) -> Iterator[Part]:
    most = len(part.ranks)
    while most > 1 and cells_of(most, cell) > room:
        most -= 1
    if 8 < most < len(part.ranks):
        most -= most % 8
    for start in range(0, len(part.ranks), most):
        ids = part.ranks[start : start + most]
        yield part if len(ids) == len(part.ranks) else Part(part.role, in_short(ids), ids)
