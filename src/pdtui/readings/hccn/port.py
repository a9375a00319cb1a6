"""Small answers about a device's port: fec, speed, duplex, mac, mtu, status; route and ARP tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import is_address, one, read_lines


@dataclass(frozen=True, slots=True)
class Fec:
    """Forward error correction, which must equal the switch's (`-fec -g`)."""

    mode: str
    """`rs`, `no`, `auto`, ..."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What the port was negotiated to (`-speed -g`)."""

    mb_s: int | None
    """Megabits a second; None when the tool does not know, which is normal with the link down."""


@dataclass(frozen=True, slots=True)
class Duplex:
    """`Full`, `Half` or `Unknown!` (`-duplex -g`)."""

    word: str


@dataclass(frozen=True, slots=True)
class Mac:
    """The port's hardware address (`-mac -g`)."""

    address: str


@dataclass(frozen=True, slots=True)
class Mtu:
    """The port's MTU, equal at both ends (`-mtu -g`)."""

    octets: int


@dataclass(frozen=True, slots=True)
class HccpProcess:
    """Whether the process on the device that serves its network is there (`-process -g`)."""

    exists: bool


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """What became of hccn.conf at boot (`-cfg status`; A5 `-cfg_recovery`): NONE START FAIL SUCCESS FAULT."""

    word: str


@dataclass(frozen=True, slots=True)
class Netdev:
    """The port as its own ethtool tells (`-status -g`)."""

    interface: str
    speed_mb_s: int | None
    link_detected: bool | None
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """One route of a device."""

    destination: str
    gateway: str
    """Empty when there is none."""
    netmask: str
    flags: str
    interface: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One ARP entry of a device."""

    address: str
    mac: str
    """Empty when nobody answered."""
    interface: str


_FEC = re.compile(r"fec mode: (\S.*?) FEC mode\s*$")
_SPEED = re.compile(r"Speed: (?:(\d{1,9}) Mb/s|Unknown!)\s*$")
_DUPLEX = re.compile(r"Duplex: (Full|Half|Unknown!)\s*$")
_MAC = re.compile(r"mac addr: ([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5})\s*$")
_MTU = re.compile(r"mtu: ?(\d{1,9})\s*$")
_PROCESS = re.compile(r"device hccp process: (exist|not exist)\s*$")
_CONFIG = re.compile(r"config status: ?(NONE|START|FAIL|SUCCESS|FAULT)\s*$")
_NETDEV = re.compile(r"Netdev status:Settings for (\S+):\s*$")
_FIELD = re.compile(r"\s+(\S[^:]*?):\s*(.*?)\s*$")
_NETDEV_SPEED = re.compile(r"(\d{1,9}) ?Mb/s$")
_ARP = re.compile(r"\S+ \(([^)]+)\) at (\S+)(?: \[\w+\])?.* on (\S+)\s*$")


def read_fec(answer: Answer) -> Reading[Fec]:
    """Read `-fec -g`."""

    def parse(lines: list[str]) -> Fec | None:
        match = one(_FEC, lines)
        return Fec(match[1]) if match else None

    return read_lines(answer, parse)


def read_speed(answer: Answer) -> Reading[Speed]:
    """Read `-speed -g`."""

    def parse(lines: list[str]) -> Speed | None:
        match = one(_SPEED, lines)
        return Speed(int(match[1]) if match[1] else None) if match else None

    return read_lines(answer, parse)


def read_duplex(answer: Answer) -> Reading[Duplex]:
    """Read `-duplex -g`."""

    def parse(lines: list[str]) -> Duplex | None:
        match = one(_DUPLEX, lines)
        return Duplex(match[1]) if match else None

    return read_lines(answer, parse)


def read_mac(answer: Answer) -> Reading[Mac]:
    """Read `-mac -g`."""

    def parse(lines: list[str]) -> Mac | None:
        match = one(_MAC, lines)
        return Mac(match[1].lower()) if match else None

    return read_lines(answer, parse)


def read_mtu(answer: Answer) -> Reading[Mtu]:
    """Read `-mtu -g`."""

    def parse(lines: list[str]) -> Mtu | None:
        match = one(_MTU, lines)
        return Mtu(int(match[1])) if match else None

    return read_lines(answer, parse)


def read_process(answer: Answer) -> Reading[HccpProcess]:
    """Read `-process -g`."""

    def parse(lines: list[str]) -> HccpProcess | None:
        match = one(_PROCESS, lines)
        return HccpProcess(match[1] == "exist") if match else None

    return read_lines(answer, parse)


def read_config_status(answer: Answer) -> Reading[ConfigStatus]:
    """Read `-cfg status` and `-g -cfg_recovery`."""

    def parse(lines: list[str]) -> ConfigStatus | None:
        match = one(_CONFIG, lines)
        return ConfigStatus(match[1]) if match else None

    return read_lines(answer, parse)


def read_netdev(answer: Answer) -> Reading[Netdev]:
    """Read `-status -g`; lines without a colon go on with the field before."""

    def parse(lines: list[str]) -> Netdev | None:
        title = one(_NETDEV, lines)
        if title is None:
            return None
        fields: dict[str, str] = {}
        last = ""
        for line in lines:
            if match := _FIELD.match(line):
                last = match[1]
                if last in fields:
                    return None
                fields[last] = match[2]
            elif last and line[:1].isspace() and line.strip() != "...":
                fields[last] = f"{fields[last]} {line.strip()}"
        speed = _NETDEV_SPEED.match(fields.get("Speed", ""))
        detected = {"yes": True, "no": False}.get(fields.get("Link detected", ""))
        return Netdev(title[1], int(speed[1]) if speed else None, detected, fields) if fields else None

    return read_lines(answer, parse)


def _route(line: str) -> Route | None:
    words = line.split()
    if len(words) != 8:
        return None
    gateway = "" if words[1] in ("*", "-", "0.0.0.0") else words[1]  # noqa: S104 - a word of the tool
    return Route(words[0], gateway, words[2], words[3], words[7])


def read_route(answer: Answer) -> Reading[tuple[Route, ...]]:
    """Read `-route -g`: a table with the heading of `route -n`."""

    def parse(lines: list[str]) -> tuple[Route, ...] | None:
        start = next((i for i, line in enumerate(lines) if line.startswith("Destination")), None)
        if start is None:
            return None
        rows = [_route(line) for line in lines[start + 1 :]]
        found = tuple(row for row in rows if row)
        return found if found and len(found) == len(rows) else None

    return read_lines(answer, parse)


def read_arp(answer: Answer) -> Reading[tuple[Neighbour, ...]]:
    """Read `-arp -g`: lines of `arp -a`."""

    def parse(lines: list[str]) -> tuple[Neighbour, ...] | None:
        matches = [match for line in lines if (match := _ARP.match(line))]
        if not matches or not all(is_address(match[1]) for match in matches):
            return None
        return tuple(Neighbour(m[1], m[2].lower() if ":" in m[2] else "", m[3]) for m in matches)

    return read_lines(answer, parse)
