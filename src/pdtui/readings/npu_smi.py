"""The table of `npu-smi info`: chips and the processes on them, as recorded on many servers.

Frames are 93 to 116 columns wide and rules mean nothing, so rows are split at `|` and read by their order:
card row, chip row, card row, ... until the process section.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pdtui.readings.answer import Answer, Reading, is_whole, reading, stdout_lines


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
    """Header, process section and end are there and every row was read: a device that is not listed is gone."""

    def of(self, device: int) -> Chip | None:
        """Return the chip of a device id."""
        return next((chip for chip in self.chips if chip.device == device), None)


_VERSION = re.compile(r"npu-smi (\S+)\s+Version:\s*(\S+)$")
_PAIR = r"(\S+?)\s*/\s*(\S+)"
_CARD_CELL = re.compile(rf"(\S+)\s+(\S+)\s+{_PAIR}$")
"""Power, temperature, huge pages used and there."""
_CHIP_CELL = re.compile(rf"(\S+)\s+{_PAIR}(?:\s+{_PAIR})?$")
"""Utilization, then DDR and, where the server has it, HBM."""
_ID = re.compile(r"\d{1,9}$")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?$")
_IDLE = re.compile(r"No running processes found in NPU")
_RULE = re.compile(r"\+[-=+]*\+$")


def _integer(text: str) -> int | None:
    return int(text) if _ID.match(text) else None


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.match(text) else None


def _pair(used: str | None, there: str | None) -> tuple[int, int] | None:
    """Return both numbers; NA and `-` are no numbers."""
    pair = _integer(used or ""), _integer(there or "")
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


class _Reader:
    """Reads the lines of one table in order."""

    def __init__(self) -> None:
        self.titles: list[tuple[str, str]] = []
        self.header = False
        self.hbm = True
        self.card: tuple[list[str], str] | None = None
        self.columns = 0
        """Of the process section; 0 before it."""
        self.idle = False
        """Some NPU is said to have no processes."""
        self.broken = False
        self.ended = False
        """The last line was a rule."""
        self.chips: list[Chip] = []
        self.raw_processes: list[list[str]] = []

    def line(self, line: str) -> None:
        """Take one line of the answer."""
        self.ended = bool(_RULE.match(line))
        if line.startswith("|") and line.endswith("|"):
            self._row([cell.strip() for cell in line[1:-1].split("|")], line)
        elif line.startswith(("|", "+")):
            # What stands between two rules belongs together, so the next rows are read aright after a loss.
            self.broken = self.broken or self.card is not None or not self.ended
            self.card = None
        elif self.titles or self.chips:
            self.broken = True

    def _row(self, cells: list[str], line: str) -> None:
        if len(cells) == 1:
            if match := _VERSION.match(cells[0]):
                self.titles.append((match[1], match[2]))
            elif _IDLE.match(cells[0]):
                self.columns = self.columns or 4
                self.idle = True
        elif cells[1] == "Process id":
            self.columns = len(cells)
            self.broken = self.broken or self.columns not in (4, 5)
        elif self.columns:
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
            self._chip(card, cells, f"{card_line}\n{line}")

    def _chip(self, card: list[str], chip: list[str], rows: str) -> None:
        ids = _ids(card, chip)
        state, use = _CARD_CELL.match(card[-1]), _CHIP_CELL.match(chip[-1])
        if ids is None or state is None or use is None:
            self.broken = True
            return
        npu, chip_id, device, name = ids
        first, second = _pair(use[2], use[3]), _pair(use[4], use[5])
        hbm = self.hbm and use[4] is not None
        self.chips.append(
            Chip(
                device=device,
                npu=npu,
                chip=chip_id,
                name=name,
                health=card[-2],
                bus=chip[-2],
                power_w=_number(state[1]),
                temperature_c=_number(state[2]),
                utilization=_integer(use[1]),
                memory_mb=first,
                hbm_mb=second if hbm else None,
                hugepages=_pair(state[3], state[4]),
                rows=rows,
            )
        )

    def processes(self) -> tuple[Process, ...]:
        """Return the process rows; one that cannot be read, or of a chip that is not listed, breaks the table."""
        devices = {(chip.npu, chip.chip): chip.device for chip in self.chips}
        found = []
        for cells in self.raw_processes:
            if self.columns not in (4, 5) or len(cells) < self.columns:
                self.broken = True
                continue
            last = 4 - self.columns  # -1 where a column follows the memory; a name may hold the separator.
            ids = [_integer(word) for word in cells[0].split()]
            npu, chip = (ids[0] if ids else None), (ids[1] if len(ids) > 1 else 0)
            device = devices.get((npu, chip)) if npu is not None and chip is not None else None
            pid, memory = _integer(cells[1]), _integer(cells[last - 1])
            if device is None or pid is None or memory is None:
                self.broken = True
                continue
            inside = _integer(cells[-1]) if last else None
            found.append(Process(device, pid, "|".join(cells[2 : last - 1]), memory, inside))
        return tuple(found)


def _ids(card: list[str], chip: list[str]) -> tuple[int, int, int, str] | None:
    """Return NPU ID, chip, device and name of two rows that belong together."""
    if len(card) == 4 and len(chip) == 4:  # A5: no chip ids.
        npu, name, chip_id = _integer(card[0]), card[1], 0
        device = npu if not chip[0] and not chip[1] else None
    elif len(card) == 3 and len(chip) == 3:
        words, ids = card[0].split(None, 1), [_integer(word) for word in chip[0].split()]
        npu, name = (_integer(words[0]) if words else None), (words[1] if len(words) > 1 else "")
        if not 1 <= len(ids) <= 2 or ids[0] is None:
            return None
        chip_id, device = ids[0], ids[-1] if len(ids) > 1 else npu
    else:
        return None
    return None if npu is None or device is None else (npu, chip_id, device, name)


def read_table(answer: Answer) -> Reading[Table]:
    """Read `npu-smi info`. Two tables in one answer are no reading."""
    reader = _Reader()
    for line in stdout_lines(answer):
        reader.line(line)
    if not reader.chips or len(reader.titles) > 1:
        return reading(answer, None)
    processes = reader.processes()
    unique = len({chip.device for chip in reader.chips}) == len(reader.chips)
    if not unique:
        return reading(answer, None)
    listed = reader.idle or bool(processes)
    whole = reader.header and listed and reader.ended and not reader.broken and is_whole(answer)
    versions = reader.titles[0] if reader.titles else ("", "")
    return reading(answer, Table(*versions, tuple(reader.chips), processes, whole))
