"""Forms that only A5 servers have (`hccn_tool -g -QUERY -i ID [-u UDIE -p PORT]`), read without a verdict.

Source of the formats: the vendor's documentation of the tool; no captures of real servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import key_values, one, read_lines


@dataclass(frozen=True, slots=True)
class Grid:
    """One table (`-speed -fec`): rows by the words of the heading."""

    rows: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grids:
    """The tables of one answer, in order (`-dev_info`)."""

    tables: tuple[Grid, ...]


@dataclass(frozen=True, slots=True)
class PortLinkStat:
    """How often a port changed (`-link_stat`), newest record first."""

    up_count: int
    down_count: int
    records: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class UbConnect:
    """Whether the ports of a device are connected (`-ub_connect`)."""

    status: str
    ports: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Fields:
    """Keys and values as printed (`-version -port_info`); a key of a section has its title before it."""

    fields: Mapping[str, str]


_UP = re.compile(r"link up count :\s*(\d{1,18})\s*$")
_DOWN = re.compile(r"link down count :\s*(\d{1,18})\s*$")
_UB_STATUS = re.compile(r"link status : (\S.*?)\s*$")
_UB_PORT = re.compile(r"port (\d{1,9}) : (\S.*?)\s*$")
_VERSION = re.compile(r"(Network \w+ Version):\s*(\S+)\s*$")
_FIELD = re.compile(r"\s*(\S[^:]*?)\s*:\s*(.*?)\s*$")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _grids(lines: list[str]) -> tuple[Grid, ...] | None:
    """Return the tables of the lines that belong to tables; None when a row does not fit its heading.

    A table is a rule, a heading, a rule, rows and a rule; the next one begins with a rule of its own.
    """
    found: list[list[dict[str, str]]] = []
    heading: list[str] = []
    rules = 0
    for line in lines:
        if line.startswith("+"):
            rules = 1 if rules == 3 else rules + 1
            heading = heading if rules > 1 else []
        elif line.startswith("|") and rules == 1 and not heading:
            heading = _cells(line)
            found.append([])
        elif line.startswith("|") and rules == 2 and len(_cells(line)) == len(heading):
            found[-1].append(dict(zip(heading, _cells(line), strict=True)))
        elif line.startswith("|"):
            return None
    whole = rules == 3 and all(found)
    return tuple(Grid(tuple(rows)) for rows in found) if whole else None


def read_grids(answer: Answer) -> Reading[Grids]:
    """Read an answer that is one or more tables."""

    def parse(lines: list[str]) -> Grids | None:
        tables = _grids(lines)
        return Grids(tables) if tables else None

    return read_lines(answer, parse)


def read_grid(answer: Answer) -> Reading[Grid]:
    """Read an answer that is one table."""

    def parse(lines: list[str]) -> Grid | None:
        tables = _grids(lines)
        return tables[0] if tables and len(tables) == 1 else None

    return read_lines(answer, parse)


def read_port_link_stat(answer: Answer) -> Reading[PortLinkStat]:
    """Read `-link_stat`: two counts and a table."""

    def parse(lines: list[str]) -> PortLinkStat | None:
        up, down, tables = one(_UP, lines), one(_DOWN, lines), _grids(lines)
        if up is None or down is None or not tables or len(tables) != 1:
            return None
        return PortLinkStat(int(up[1]), int(down[1]), tables[0].rows)

    return read_lines(answer, parse)


def read_ub_connect(answer: Answer) -> Reading[UbConnect]:
    """Read `-ub_connect`."""

    def parse(lines: list[str]) -> UbConnect | None:
        status = one(_UB_STATUS, lines)
        ports = [match for line in lines if (match := _UB_PORT.match(line))]
        states = {int(match[1]): match[2] for match in ports}
        whole = status is not None and len(states) == len(ports) == len(lines) - 1
        return UbConnect(status[1], states) if status and whole else None

    return read_lines(answer, parse)


def read_version(answer: Answer) -> Reading[Fields]:
    """Read `-version`: driver and firmware of the network."""

    def parse(lines: list[str]) -> Fields | None:
        fields = key_values(lines, _VERSION)
        whole = fields is not None and {"Network Driver Version", "Network Firmware Version"} <= fields.keys()
        return Fields(fields) if fields and whole else None

    return read_lines(answer, parse)


def read_port_info(answer: Answer) -> Reading[Fields]:
    """Read `-port_info`: sections of keys and values."""

    def parse(lines: list[str]) -> Fields | None:
        fields: dict[str, str] = {}
        section = ""
        for line in lines:
            match = _FIELD.match(line)
            if match is None or not match[2]:
                section = line.strip().strip("[]=-: ")
                continue
            key = f"{section}.{match[1]}" if section else match[1]
            if key in fields:
                return None
            fields[key] = match[2]
        known = any(key.rpartition(".")[2].startswith("port_") for key in fields)
        return Fields(fields) if known else None

    return read_lines(answer, parse)
