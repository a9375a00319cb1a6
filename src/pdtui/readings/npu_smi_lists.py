"""What npu-smi lists of a server: cards (`info -l`), ids (`info -m`) and how chips are joined (`info -t topo`).

Formats: recorded answers of A1, A2, A3 and 300I servers, the vendor's examples for A5 and 310.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading, is_whole, reading, stdout_lines
from pdtui.readings.npu_smi_blocks import pair_of, whole_number


@dataclass(frozen=True, slots=True)
class ListedCard:
    """One card; product and serial number are printed for PCIe cards only, the chips not on A5."""

    npu: int
    chip_count: int | None
    product: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True)
class CardList:
    """The cards of a server (`-l`)."""

    total: int
    """Cards that the tool counts."""
    cards: tuple[ListedCard, ...]

    @property
    def complete(self) -> bool:
        """Whether as many are listed as are counted."""
        return len(self.cards) == self.total


def read_list(answer: Answer) -> Reading[CardList]:
    """Read `info -l`."""
    total: int | None = None
    cards: list[dict[str, str]] = []
    for line in stdout_lines(answer) if is_whole(answer) else ():
        key, value = pair_of(line) or ("", "")
        if key in ("Total Count", "Card Count"):
            if total is not None or cards or (total := whole_number(value)) is None:
                return reading(answer, None)
        elif key == "NPU ID":
            cards.append({key: value})
        elif cards and key in cards[-1]:
            return reading(answer, None)
        elif cards:
            cards[-1][key] = value
    listed = [_listed(card) for card in cards]
    found = tuple(card for card in listed if card is not None)
    ids = {card.npu for card in found}
    if total is None or total < 0 or len(found) < len(listed) or len(ids) < len(found) or len(found) > total:
        return reading(answer, None)
    return reading(answer, CardList(total, found))


def _listed(card: dict[str, str]) -> ListedCard | None:
    npu, chips = whole_number(card["NPU ID"]), card.get("Chip Count")
    count = whole_number(chips) if chips is not None else None
    if npu is None or npu < 0 or (chips is not None and count is None):
        return None
    return ListedCard(npu, count, card.get("Product Name", ""), card.get("Serial Number", ""))


@dataclass(frozen=True, slots=True)
class ChipIds:
    """The ids of one chip, or of a card's microcontroller, which has neither logic nor physical id."""

    npu: int
    chip: int
    logic: int | None
    physical: int | None
    """The id that hccn_tool and device lists mean; on A1 and A2 it is the logic id."""
    name: str
    slot: int | None = None

    @property
    def is_mcu(self) -> bool:
        """Whether this is the microcontroller."""
        return self.name.lower() == "mcu"


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """How a server's ids belong together (`-m`)."""

    rows: tuple[ChipIds, ...]

    @property
    def devices(self) -> dict[int, tuple[int, int]]:
        """NPU ID and chip by physical id."""
        return {row.physical: (row.npu, row.chip) for row in self.rows if row.physical is not None}


_GAP = re.compile(r"\s{2,}|\t")
_MAP_COLUMNS = {"NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name", "Slot ID"}


def read_map(answer: Answer) -> Reading[DeviceMap]:
    """Read `info -m`; a row that cannot be read makes it unreadable, as its chip would be missing."""
    if not is_whole(answer):
        return reading(answer, None)
    lines = [_GAP.split(line.strip()) for line in stdout_lines(answer)]
    header = lines[0] if lines else []
    if not {"NPU ID", "Chip ID", "Chip Name"} <= set(header) or not set(header) <= _MAP_COLUMNS:
        return reading(answer, None)
    found = [_ids(dict(zip(header, cells, strict=False))) for cells in lines[1:] if len(cells) == len(header)]
    rows = tuple(row for row in found if row is not None)
    devices = [row.physical for row in rows if row.physical is not None]
    whole = len(rows) == len(lines) - 1 and len(set(devices)) == len(devices) and devices
    return reading(answer, DeviceMap(rows) if whole else None)


def _ids(row: dict[str, str]) -> ChipIds | None:
    npu, chip = whole_number(row["NPU ID"]), whole_number(row["Chip ID"])
    logic, slot = whole_number(row.get("Chip Logic ID", "")), whole_number(row.get("Slot ID", ""))
    physical = whole_number(row["Chip Phy-ID"]) if "Chip Phy-ID" in row else logic
    if npu is None or chip is None or min(npu, chip) < 0:
        return None
    ids = ChipIds(npu, chip, logic, physical, row["Chip Name"], slot)
    return ids if ids.is_mcu or physical is not None else None


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """How one chip reaches each other."""

    name: str
    links: tuple[str, ...]
    """X itself, HCCS, HCCS_SW, SIO, SYS, PHB, PIX, PXB, UB or NA, in the order of the matrix's names."""
    affinity: str = ""
    """Processor cores near the chip; empty where the tool does not print them."""


@dataclass(frozen=True, slots=True)
class Topology:
    """How the chips of a server are joined (`-t topo`)."""

    names: tuple[str, ...]
    rows: tuple[TopologyRow, ...]

    @property
    def complete(self) -> bool:
        """Whether each chip has its row."""
        return len(self.rows) == len(self.names)

    def between(self, first: str, second: str) -> str:
        """Return how two chips reach each other, empty when that is not listed."""
        row = next((row for row in self.rows if row.name == first), None)
        return row.links[self.names.index(second)] if row is not None and second in self.names else ""


_CHIP_NAME = re.compile(r"(?:NPU|Phy-ID)\d{1,6}$")
_LINK = re.compile(r"[A-Z_]{1,12}$")


def read_topo(answer: Answer) -> Reading[Topology]:
    """Read `info -t topo`; its rows stand in the order of its columns."""
    lines = [line.split() for line in stdout_lines(answer)] if is_whole(answer) else []
    header = lines[0] if lines else []
    names = tuple(word for word in header if _CHIP_NAME.match(word))
    if not names or header[len(names) :] not in ([], ["CPU", "Affinity"]) or len(set(names)) < len(names):
        return reading(answer, None)
    width = len(names) + 1 + (len(header) > len(names))
    rows = [line for line in lines[1:] if _CHIP_NAME.match(line[0])]
    good = all(
        name == row[0] and len(row) == width and all(map(_LINK.match, row[1 : len(names) + 1]))
        for name, row in zip(names, rows, strict=False)
    )
    if not rows or not good or len(rows) > len(names):
        return reading(answer, None)
    found = (TopologyRow(row[0], tuple(row[1 : len(names) + 1]), "".join(row[len(names) + 1 :])) for row in rows)
    return reading(answer, Topology(names, tuple(found)))
