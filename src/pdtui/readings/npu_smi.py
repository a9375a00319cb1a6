"""The table of `npu-smi info`: chips and the processes on them, as recorded on many servers.

Frames are 93 to 116 columns wide and rules mean nothing, so rows are split at `|` and read by their order:
card row, chip row, card row, ... until the process section.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pdtui.readings.answer import Answer, Reading, reading, stdout_lines


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip: a card row and its chip row."""

    device: int
    """What everything else calls the NPU: the id beside the chip (Phy-ID on A3), else the NPU ID."""
    npu: int
    chip: int
    name: str
    health: str
    bus: str
    power_w: float | None
    temperature_c: float | None
    utilization: int | None
    """AI core, per cent; 0 while profiling runs."""
    memory_mb: tuple[int, int] | None
    """DDR used and there."""
    hbm_mb: tuple[int, int] | None
    hugepages: tuple[int, int] | None
    rows: str = field(compare=False)
    """The two rows as printed."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process as the table lists it; at most eight a chip."""

    device: int
    pid: int
    name: str
    memory_mb: int
    pid_in_container: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """The whole answer."""

    tool_version: str
    driver_version: str
    chips: tuple[Chip, ...]
    processes: tuple[Process, ...]
    complete: bool
    """Header and process section are there and every row was read: a device that is not listed is gone."""

    def of(self, device: int) -> Chip | None:
        """Return the chip of a device id."""
        return next((chip for chip in self.chips if chip.device == device), None)


_VERSION = re.compile(r"npu-smi (\S+)\s+Version:\s*(\S+)")
_PAIR = re.compile(r"(\d{1,12})\s*/\s*(\d{1,12})")
_ID = re.compile(r"\d{1,9}$")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?$")
_IDLE = re.compile(r"No running processes found in NPU")


def _integer(text: str) -> int | None:
    return int(text) if _ID.match(text) else None


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.match(text) else None


def _pair(match: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(match[1]), int(match[2])) if match else None


class _Reader:
    """Reads the rows of one table in order."""

    def __init__(self) -> None:
        self.versions = ("", "")
        self.header = False
        self.hbm = True
        self.card: tuple[list[str], str] | None = None
        self.processes_seen = False
        self.broken = False
        self.chips: list[Chip] = []
        self.raw_processes: list[list[str]] = []

    def row(self, line: str) -> None:
        """Take one line that starts with `|`."""
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if match := _VERSION.search(line):
            self.versions = (match[1], match[2])
        elif _IDLE.search(line) or any(cell == "Process id" for cell in cells):
            self.processes_seen = True
        elif self.processes_seen:
            self.raw_processes.append(cells)
        elif "Health" in cells and "Power" in cells[-1]:
            self.header = True
        elif "Bus-Id" in cells:
            self.hbm = "HBM-Usage" in cells[-1]
        elif self.card is None:
            self.card = (cells, line)
        else:
            card, card_line = self.card
            self.card = None
            self._chip(card, cells, f"{card_line.rstrip()}\n{line.rstrip()}")

    def _chip(self, card: list[str], chip: list[str], rows: str) -> None:
        if len(card) == 4 and len(chip) == 4:
            npu, name = _integer(card[0]), card[1]
            chip_id, device = 0, npu
        elif len(card) == 3 and len(chip) == 3:
            first, ids = card[0].split(None, 1), [_integer(word) for word in chip[0].split()]
            npu, name = (_integer(first[0]) if first else None), (first[1].strip() if len(first) > 1 else "")
            chip_id = ids[0] if ids and ids[0] is not None else -1
            device = ids[1] if len(ids) > 1 else npu
        else:
            npu, name, chip_id, device = None, "", -1, None
        if npu is None or device is None or chip_id < 0:
            self.broken = True
            return
        words, use = card[-1].split(), chip[-1].split()
        pairs = list(_PAIR.finditer(chip[-1]))
        hbm = self.hbm and len(pairs) > 1
        memory = pairs[:-1] if hbm else pairs
        self.chips.append(
            Chip(
                device=device,
                npu=npu,
                chip=chip_id,
                name=name,
                health=card[-2],
                bus=chip[-2],
                power_w=_number(words[0]) if words else None,
                temperature_c=_number(words[1]) if len(words) > 1 else None,
                utilization=_integer(use[0]) if use else None,
                memory_mb=_pair(memory[0] if memory else None),
                hbm_mb=_pair(pairs[-1] if hbm else None),
                hugepages=_pair(_PAIR.search(card[-1])),
                rows=rows,
            )
        )

    def processes(self) -> tuple[Process, ...]:
        """Return the process rows whose chip is known."""
        devices = {(chip.npu, chip.chip): chip.device for chip in self.chips}
        found = []
        for cells in self.raw_processes:
            ids = [_integer(word) for word in cells[0].split()]
            if len(cells) < 4 or not ids or ids[0] is None:
                continue
            chip = ids[1] if len(ids) > 1 and ids[1] is not None else 0
            device, pid = devices.get((ids[0], chip)), _integer(cells[1])
            if device is not None and pid is not None:
                inside = _integer(cells[4]) if len(cells) > 4 else None
                found.append(Process(device, pid, cells[2], _integer(cells[3]) or 0, inside))
        return tuple(found)


def read_table(answer: Answer) -> Reading[Table]:
    """Read `npu-smi info`."""
    reader = _Reader()
    for line in stdout_lines(answer):
        if line.startswith("|"):
            reader.row(line)
    if not reader.chips:
        return reading(answer, None)
    unique = len({chip.device for chip in reader.chips}) == len(reader.chips)
    whole = reader.header and reader.processes_seen and reader.card is None and not reader.broken and unique
    table = Table(*reader.versions, tuple(reader.chips), reader.processes(), whole and not answer.truncated)
    return reading(answer, table)
