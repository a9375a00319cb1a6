"""The optical module of a device's port (`-optical -g`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import read_lines


@dataclass(frozen=True, slots=True)
class Range:
    """What a module says is usual for one of its values."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether a value is inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Optical:
    """The module; a value that it does not give (`NA`, `not supported`, `get failed`) is None."""

    present: bool | None
    """Overrides everything else: what an absent module reads means nothing."""
    temperature_c: float | None
    vcc_mv: float | None
    tx_power_mw: tuple[float | None, ...]
    """By lane, as are all tuples here."""
    rx_power_mw: tuple[float | None, ...]
    tx_bias_ma: tuple[float | None, ...]
    temperature_range: Range | None
    vcc_range: Range | None
    tx_power_range: Range | None
    rx_power_range: Range | None
    tx_los: int | None
    """Loss of signal, a bit a lane; 0 is good."""
    rx_los: int | None
    tx_lol: int | None
    """Loss of lock, a bit a lane; 0 is good."""
    rx_lol: int | None
    vendor: str
    part: str
    serial: str
    fields: Mapping[str, str]
    """Everything as printed."""
    elided: bool = False
    """Somebody left lines out and put `...` in their place."""


_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9 /]*?)\s*: ?(.*?)\s*$")
_NUMBER = re.compile(r"(-?\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]+)$")
_FLAG = re.compile(r"0x([0-9a-fA-F]{1,8})$")
_WORDLESS = ("NA", "not supported", "get failed", "", "-")


def _number(fields: Mapping[str, str], key: str, unit: str) -> float | None:
    match = _NUMBER.match(fields.get(key, ""))
    return float(match[1]) if match and match[2] == unit else None


def _lanes(fields: Mapping[str, str], key: str, unit: str) -> tuple[float | None, ...]:
    """Return a value of each lane: `Tx Power0` to `Tx Power3`, or `Tx Power` of a module with one lane."""
    keys = [key] if key in fields else [f"{key}{lane}" for lane in range(16) if f"{key}{lane}" in fields]
    return tuple(_number(fields, name, unit) for name in keys)


def _range(fields: Mapping[str, str], key: str, unit: str) -> Range | None:
    low, high = _number(fields, f"{key} Low Thres", unit), _number(fields, f"{key} High Thres", unit)
    return Range(low, high) if low is not None and high is not None and low < high else None


def _flag(fields: Mapping[str, str], key: str) -> int | None:
    match = _FLAG.match(fields.get(key, ""))
    return int(match[1], 16) if match else None


_UNITS: Mapping[str, str] = {
    "temperature": "C",
    "Vcc": "mV",
    "Tx Power": "mW",
    "Rx Power": "mW",
    "Tx Bias": "mA",
    "Temp": "C",
    "TxPower": "mW",
    "RxPower": "mW",
}
_MEASURED = re.compile(r"(temperature|Vcc|[TR]x Power|Tx Bias|Temp|[TR]xPower)(?:\d{1,2}| (?:High|Low) Thres)?$")


def _readable(key: str, value: str) -> bool:
    """Return whether a value that should be a measurement or a flag is one, or says that there is none."""
    if value in _WORDLESS:
        return True
    if measured := _MEASURED.match(key):
        number = _NUMBER.match(value)
        return number is not None and number[2] == _UNITS[measured[1]]
    return not key.endswith((" Los Flag", " LoL Flag")) or bool(_FLAG.match(value))


def _optical(fields: Mapping[str, str], *, elided: bool) -> Optical | None:
    present = {"present": True, "not present": False}.get(fields.get("present", ""))
    if present is None and fields.get("present") not in (None, *_WORDLESS):
        return None
    return Optical(
        present=present,
        temperature_c=_number(fields, "temperature", "C"),
        vcc_mv=_number(fields, "Vcc", "mV"),
        tx_power_mw=_lanes(fields, "Tx Power", "mW"),
        rx_power_mw=_lanes(fields, "Rx Power", "mW"),
        tx_bias_ma=_lanes(fields, "Tx Bias", "mA"),
        temperature_range=_range(fields, "Temp", "C"),
        vcc_range=_range(fields, "Vcc", "mV"),
        tx_power_range=_range(fields, "TxPower", "mW"),
        rx_power_range=_range(fields, "RxPower", "mW"),
        tx_los=_flag(fields, "Tx Los Flag"),
        rx_los=_flag(fields, "Rx Los Flag"),
        tx_lol=_flag(fields, "Tx LoL Flag"),
        rx_lol=_flag(fields, "Rx LoL Flag"),
        vendor=fields.get("vendor name", ""),
        part=fields.get("vendor part number", fields.get("part number", "")),
        serial=fields.get("vendor serial number", fields.get("serial number", "")),
        fields=fields,
        elided=elided,
    )


def read_optical(answer: Answer) -> Reading[Optical]:
    """Read `-optical -g`: a title, then one value a line; a measurement in another unit is unreadable."""

    def parse(lines: list[str]) -> Optical | None:
        if not lines or lines[0] != "optical info:":
            return None
        fields: dict[str, str] = {}
        elided = False
        for line in lines[1:]:
            match = _PAIR.match(line)
            if line.strip() == "...":
                elided = True
            elif match is None or match[1] in fields or not _readable(match[1], match[2]):
                return None
            else:
                fields[match[1]] = match[2]
        return _optical(fields, elided=elided) if "present" in fields else None

    return read_lines(answer, parse)
