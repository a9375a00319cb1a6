"""The chip itself: is it there, is it well, is it hot, is its memory sound."""

from __future__ import annotations

from pdtui.readings.assess import finding
from pdtui.readings.assess.chip import assess_card, assess_chip, place_of_chip
from pdtui.readings.judge.case import Case
from pdtui.readings.judge.history import NpuReadings, Observed
from pdtui.readings.npu_smi import Chip, Table

HOT_C = 85.0
"""Above this for two readings in a row a chip throttles (field guides' figure)."""

_DAY = 86400.0

SINGLE_BITS = 1000
"""Corrected errors a day that are no chance any more (field guides' figure)."""


def judge_chip(case: Case, table: Observed[Table]) -> None:
    """Judge a chip by npu-smi's table."""
    value = case.current("npu-smi", table, case.ages.table)
    reading = table.good
    if value is None or reading is None:
        return
    chip = value.of(case.device)
    if chip is not None:
        case.add(assess_chip(chip, case.platform), reading)
        _judge_heat(case, chip, table)
    elif value.complete:
        case.find("npu-missing", "not in npu-smi's table", reading)
    else:
        case.find("npu-unseen", "npu-smi's table is cut, this NPU is not in what came", reading)


def _judge_heat(case: Case, chip: Chip, table: Observed[Table]) -> None:
    before = table.before.value.of(chip.device) if table.before and table.before.value else None
    degrees, earlier = chip.temperature_c, before.temperature_c if before else None
    if degrees is not None and earlier is not None and min(degrees, earlier) > HOT_C:
        words = f"{degrees:.0f} °C, above {HOT_C:.0f} °C"
        case.add(finding("hot", words, place_of_chip(chip), raw=chip.rows), table.good)


def judge_memory(case: Case, readings: NpuReadings) -> None:
    """Judge a chip by its bit errors: what could not be corrected, and what grew within a day."""
    card = case.known(readings.ecc)
    if card is None:
        return
    case.add(assess_card(card, case.platform, case.place), readings.ecc.good)
    grown = case.grown(readings.ecc, _DAY)
    told = {
        name: amount for name, amount in grown.items() if name.endswith("isolated pages") or amount > SINGLE_BITS
    }
    if told:
        words = ", ".join(f"{name} +{amount}" for name, amount in told.items())
        case.find("ecc-growing", f"{words} within a day", readings.ecc.good)
