"""What `npu-smi info -t usages`, `common`, `memory`, `temp`, `power`, `ecc` and `proc-mem` measure.

A value that the tool does not print, or prints as NA, is None. Formats: recorded answers of A1, A2, A3, A5 and
300I Duo servers and the tool's published source (hicann/driver).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

from pdtui.readings.answer import Answer, Reading, is_whole, reading, stdout_lines
from pdtui.readings.npu_smi_blocks import Block, Card, OfChip, pair_of, read_blocks, whole_number

T = TypeVar("T", bound=OfChip)


@dataclass(frozen=True, slots=True)
class Usage:
    """How busy a chip is (`-t usages`)."""

    chip: int | None
    ddr_capacity_mb: int | None = None
    ddr_percent: int | None = None
    hugepages: int | None = None
    hugepages_percent: int | None = None
    hbm_capacity_mb: int | None = None
    hbm_percent: int | None = None
    aicore_percent: int | None = None
    aivector_percent: int | None = None
    aicpu_percent: int | None = None
    ctrlcpu_percent: int | None = None
    ddr_bandwidth_percent: int | None = None
    hbm_bandwidth_percent: int | None = None
    npu_percent: int | None = None
    aicube_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Common:
    """The chip at a glance (`-t common`)."""

    chip: int | None
    memory_percent: int | None = None
    hbm_percent: int | None = None
    aicore_percent: int | None = None
    aicore_mhz: int | None = None
    """Its full clock."""
    aicore_current_mhz: int | None = None
    """Its clock now; lower when it idles or throttles."""
    aicore_count: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The memories of a chip (`-t memory`)."""

    chip: int | None
    ddr_total_mb: int | None = None
    ddr_capacity_mb: int | None = None
    ddr_mhz: int | None = None
    hbm_capacity_mb: int | None = None
    hbm_mhz: int | None = None
    hbm_temperature_c: float | None = None
    hbm_manufacturer: str = ""


@dataclass(frozen=True, slots=True)
class Temperature:
    """How warm a chip is, and the sensors of the board (`-t temp`)."""

    chip: int | None
    celsius: float | None = None
    sensors: tuple[tuple[str, float], ...] = ()
    """Other sensors by name, in degrees Celsius."""


@dataclass(frozen=True, slots=True)
class Power:
    """What a chip or its card draws (`-t power`)."""

    chip: int | None
    watts: float | None = None
    rated_w: float | None = None


@dataclass(frozen=True, slots=True)
class BitErrors:
    """What error correction has counted in one memory since the device started; `total` over its life."""

    single: int | None = None
    double: int | None = None
    single_total: int | None = None
    double_total: int | None = None
    single_isolated_pages: int | None = None
    double_isolated_pages: int | None = None
    single_next_isolated_pages: int | None = None
    """Pages that the next start isolates."""
    double_next_isolated_pages: int | None = None


@dataclass(frozen=True, slots=True)
class Ecc:
    """Bit errors of a chip's memories (`-t ecc`); None: it has no such memory."""

    chip: int | None
    hbm: BitErrors | None = None
    ddr: BitErrors | None = None


@dataclass(frozen=True, slots=True)
class ChipProcess:
    """A process on a chip; the name is empty when the pid lives in another container."""

    pid: int
    name: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class ChipProcesses:
    """The processes of a chip (`-t proc-mem`)."""

    chip: int | None
    processes: tuple[ChipProcess, ...]


def _says_nothing(value: OfChip) -> bool:
    """Return whether all but the chip's id is missing."""
    return all(getattr(value, field.name) in (None, "", ()) for field in fields(value) if field.name != "chip")


def _read(answer: Answer, make: Callable[[Block], T | None]) -> Reading[Card[T]]:
    """Read the blocks of an answer; one about which nothing is said makes it unreadable."""
    blocks = read_blocks(answer)
    if blocks is None:
        return reading(answer, None)
    chips = [make(block) for block in blocks.chips]
    found = tuple(chip for chip in chips if chip is not None and not _says_nothing(chip))
    mcu = make(blocks.mcu) if blocks.mcu else None
    card = Card(blocks.npu, found, mcu) if len(found) == len(chips) else None
    return reading(answer, card)


def read_usages(answer: Answer) -> Reading[Card[Usage]]:
    """Read `-t usages`."""

    def make(block: Block) -> Usage:
        number = block.integer
        return Usage(
            chip=block.chip,
            ddr_capacity_mb=number("DDR Capacity(MB)"),
            ddr_percent=number("DDR Usage Rate(%)"),
            hugepages=number("DDR Hugepages Total(page)"),
            hugepages_percent=number("DDR Hugepages Usage Rate(%)"),
            hbm_capacity_mb=number("HBM Capacity(MB)"),
            hbm_percent=number("HBM Usage Rate(%)"),
            aicore_percent=number("Aicore Usage Rate(%)"),
            aivector_percent=number("Aivector Usage Rate(%)"),
            aicpu_percent=number("Aicpu Usage Rate(%)"),
            ctrlcpu_percent=number("Ctrlcpu Usage Rate(%)"),
            ddr_bandwidth_percent=number("DDR Bandwidth Usage Rate(%)"),
            hbm_bandwidth_percent=number("HBM Bandwidth Usage Rate(%)"),
            npu_percent=number("NPU Utilization(%)"),
            aicube_percent=number("Aicube Usage Rate(%)"),
        )

    return _read(answer, make)


def read_common(answer: Answer) -> Reading[Card[Common]]:
    """Read `-t common`; on inference cards the microcontroller reports the power."""

    def make(block: Block) -> Common:
        return Common(
            chip=block.chip,
            memory_percent=block.integer("Memory Usage Rate(%)"),
            hbm_percent=block.integer("HBM Usage Rate(%)"),
            aicore_percent=block.integer("Aicore Usage Rate(%)"),
            aicore_mhz=block.integer("Aicore Freq(MHZ)"),
            aicore_current_mhz=block.integer("Aicore curFreq(MHZ)"),
            aicore_count=block.integer("Aicore Count"),
            temperature_c=block.number("Temperature(C)"),
            power_w=block.number(*_WATTS),
        )

    return _read(answer, make)


def read_memory(answer: Answer) -> Reading[Card[Memory]]:
    """Read `-t memory`."""

    def make(block: Block) -> Memory:
        return Memory(
            chip=block.chip,
            ddr_total_mb=block.integer("Total DDR Capacity(MB)"),
            ddr_capacity_mb=block.integer("DDR Capacity(MB)"),
            ddr_mhz=block.integer("DDR Clock Speed(MHz)"),
            hbm_capacity_mb=block.integer("HBM Capacity(MB)"),
            hbm_mhz=block.integer("HBM Clock Speed(MHz)"),
            hbm_temperature_c=block.number("HBM Temperature(C)"),
            hbm_manufacturer=block.text("HBM Manufacturer ID"),
        )

    return _read(answer, make)


_CHIP_SENSOR = ("NPU Temperature (C)", "Temperature (C)")
_SENSOR = re.compile(r"(.*\S)\s*\(C\)$")
_WATTS = ("NPU Real-time Power(W)", "Power Dissipation(W)")


def read_temp(answer: Answer) -> Reading[Card[Temperature]]:
    """Read `-t temp`; the board's sensors belong to the microcontroller."""

    def make(block: Block) -> Temperature:
        sensors = [match for key in block.values if key not in _CHIP_SENSOR and (match := _SENSOR.match(key))]
        others = [(match[1], value) for match in sensors if (value := block.number(match[0])) is not None]
        return Temperature(block.chip, block.number(*_CHIP_SENSOR), tuple(others))

    return _read(answer, make)


def read_power(answer: Answer) -> Reading[Card[Power]]:
    """Read `-t power`."""
    return _read(
        answer, lambda block: Power(block.chip, block.number(*_WATTS), block.number("Rated Power Dissipation(W)"))
    )


def _bit_errors(block: Block, memory: str) -> BitErrors | None:
    def count(bits: str, what: str) -> int | None:
        return block.integer(f"{memory} {bits} Bit {what}")

    errors = BitErrors(
        count("Single", "Error Count"),
        count("Double", "Error Count"),
        count("Single", "Aggregate Total Err Cnt"),
        count("Double", "Aggregate Total Err Cnt"),
        count("Single", "Isolated Pages Count"),
        count("Double", "Isolated Pages Count"),
        count("Single", "Next-Isolated Pages Count"),
        count("Double", "Next-Isolated Pages Count"),
    )
    return None if errors == BitErrors() else errors


def read_ecc(answer: Answer) -> Reading[Card[Ecc]]:
    """Read `-t ecc`."""
    return _read(answer, lambda block: Ecc(block.chip, _bit_errors(block, "HBM"), _bit_errors(block, "DDR")))


_PROCESS = re.compile(r"\s*Process id:(\d{1,9})\s+Process name:(.*?)\s*Process memory\(MB\):(\d{1,9})$")
_NO_PROCESS = "No process in device."
_NO_NAME = "Get pid name failed."


def read_proc_mem(answer: Answer) -> Reading[Card[ChipProcesses]]:
    """Read `-t proc-mem`; every line must be known, or a process would be missed."""
    return reading(answer, _processes(stdout_lines(answer)) if is_whole(answer) else None)


def _processes(lines: list[str]) -> Card[ChipProcesses] | None:
    npu: int | None = None
    counted, seen, current = False, False, list[ChipProcess]()
    chips: list[ChipProcesses] = []
    for line in lines:
        if match := _PROCESS.match(line):
            seen = True
            current.append(ChipProcess(int(match[1]), match[2], int(match[3])))
            continue
        if line.strip() in (_NO_PROCESS, _NO_NAME):
            seen = seen or line.strip() == _NO_PROCESS
            continue
        key, value = pair_of(line) or ("", "")
        number = whole_number(value)
        if number is None or number < 0:
            return None
        if key == "Chip ID" and seen and number not in {one.chip for one in chips}:
            chips.append(ChipProcesses(number, tuple(current)))
            seen, current = False, []
        elif key == "NPU ID" and npu is None and not chips and not seen:
            npu = number
        elif key == "Chip Count" and not counted and not chips and not seen:
            counted = True
        else:
            return None
    if seen and not chips:  # Asked for one chip, or a server that names none.
        chips.append(ChipProcesses(None, tuple(current)))
    elif seen:
        return None
    return Card(npu, tuple(chips)) if chips else None
