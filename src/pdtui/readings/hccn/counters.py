"""What a device counts: `-link_stat -stat -hw_stats -bandwidth`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import UpDown, one, read_lines, up_down


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One change of a link, in the device's own clock, which may be years off."""

    at: str
    """As printed: `Sun Oct  5 10:13:51 2025`."""
    status: UpDown
    ago: float
    """Seconds before the device gave the answer."""


@dataclass(frozen=True, slots=True)
class LinkStat:
    """How often a link changed (`-link_stat -g`); newest record first, ten at most."""

    up_count: int
    down_count: int | None
    """None on older builds, which do not say."""
    records: tuple[LinkRecord, ...]
    device_time: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters since the device started (`-stat -g`, `-hw_stats -g`)."""

    counters: Mapping[str, int]
    elided: bool = False
    """Somebody left lines out and put `...` in their place."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What went through the port while the tool watched (`-bandwidth -g`), in MB/s."""

    tx_mb_s: float
    rx_mb_s: float


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(\w{3} \w{3} [ \d]?\d \d\d:\d\d:\d\d \d{4})"
_DEVICE = re.compile(r"\[(?:devid|device) (\d{1,9})\](.*)$")
_NOW = re.compile(r"current time\s*: " + _TIME + r"\s*$")
_COUNT = re.compile(r"link (up|down) count\s*:\s*(\d{1,18})\s*$")
_RECORDS = re.compile(r"link change records\s*:\s*(?:NA)?\s*$")
_RECORD = re.compile(r"\s+" + _TIME + r"\s+LINK (UP|DOWN)\s*$")
_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9_]*): ?(\d{1,20})\s*$")
_HW_PAIR = re.compile(r"\[devid (\d{1,9})\] ([A-Za-z][A-Za-z0-9_]*): (\d{1,20})\s*$")
_TX = re.compile(r"Bandwidth TX:\s*(\d{1,12}(?:\.\d{1,6})?) MB/sec\s*$")
_RX = re.compile(r"Bandwidth RX:\s*(\d{1,12}(?:\.\d{1,6})?) MB/sec\s*$")


def device_seconds(text: str) -> float | None:
    """Return a time that a device printed as seconds of its clock; None when it is none."""
    words = text.split()
    try:
        month = _MONTHS.index(words[1]) + 1
        hour, minute, second = (int(part) for part in words[3].split(":"))
        when = datetime(int(words[4]), month, int(words[2]), hour, minute, second)
    except (IndexError, ValueError):
        return None
    return (when - datetime(1970, 1, 1)).total_seconds()


class _LinkStatLines:
    """Takes the lines of one device; a line that fits nowhere makes the whole unreadable."""

    def __init__(self) -> None:
        self.broken = False
        self.devices: set[str] = set()
        self.time = ""
        self.counts: dict[str, int] = {}
        self.listed = False
        self.records: list[tuple[str, UpDown]] = []

    def take(self, line: str) -> None:
        """Take one line."""
        device = _DEVICE.match(line)
        rest = device[2] if device else ""
        if device:
            self.devices.add(device[1])
        if (now := _NOW.match(rest)) and not self.time:
            self.time = now[1]
        elif (count := _COUNT.match(rest)) and count[1] not in self.counts:
            self.counts[count[1]] = int(count[2])
        elif _RECORDS.match(rest) and not self.listed:
            self.listed = True
        elif self.listed and (record := _RECORD.match(rest)) and (status := up_down(record[2])):
            self.records.append((record[1], status))
        else:
            self.broken = True

    def value(self) -> LinkStat | None:
        """Return what the lines say together."""
        now = device_seconds(self.time)
        if self.broken or len(self.devices) != 1 or now is None or "up" not in self.counts or not self.listed:
            return None
        records = []
        for at, status in self.records:
            then = device_seconds(at)
            if then is None:
                return None
            records.append(LinkRecord(at, status, now - then))
        return LinkStat(self.counts["up"], self.counts.get("down"), tuple(records), self.time)


def read_link_stat(answer: Answer) -> Reading[LinkStat]:
    """Read `-link_stat -g`."""

    def parse(lines: list[str]) -> LinkStat | None:
        reader = _LinkStatLines()
        for line in lines:
            reader.take(line)
        return reader.value()

    return read_lines(answer, parse)


def read_stat(answer: Answer) -> Reading[Statistics]:
    """Read `-stat -g`: a title, then one counter a line; only growth between two answers means anything."""

    def parse(lines: list[str]) -> Statistics | None:
        if not lines or lines[0] != "packet statistics:":
            return None
        counters: dict[str, int] = {}
        elided = False
        for line in lines[1:]:
            match = _PAIR.match(line)
            if line.strip() == "...":
                elided = True
            elif match is None or match[1] in counters:
                return None
            else:
                counters[match[1]] = int(match[2])
        return Statistics(counters, elided) if counters else None

    return read_lines(answer, parse)


def read_hw_stats(answer: Answer) -> Reading[Statistics]:
    """Read `-hw_stats -g`: what the RDMA unit has allocated."""

    def parse(lines: list[str]) -> Statistics | None:
        matches = [_HW_PAIR.match(line) for line in lines]
        found = [match for match in matches if match]
        counters = {match[2]: int(match[3]) for match in found}
        one_device = len({match[1] for match in found}) == 1
        return Statistics(counters) if one_device and len(counters) == len(lines) else None

    return read_lines(answer, parse)


def read_bandwidth(answer: Answer) -> Reading[Bandwidth]:
    """Read `-bandwidth -g`."""

    def parse(lines: list[str]) -> Bandwidth | None:
        tx, rx = one(_TX, lines), one(_RX, lines)
        return Bandwidth(float(tx[1]), float(rx[1])) if tx and rx else None

    return read_lines(answer, parse)
