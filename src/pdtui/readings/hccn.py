"""Answers of `hccn_tool` for one device: pure functions from an answer to a reading.

Formats: recorded output of A1, A2 and A3 servers and the published source of hccn_tool (hicann/driver);
the A5 answers of the same queries have the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pdtui.readings.answer import Answer, Reading, reading, stdout_lines

T = TypeVar("T")

UpDown = Literal["UP", "DOWN"]


@dataclass(frozen=True, slots=True)
class Link:
    """The RoCE port (`-link -g`)."""

    status: UpDown


@dataclass(frozen=True, slots=True)
class NetHealth:
    """The device's own probe of its detect address (`-net_health -g`)."""

    word: str


@dataclass(frozen=True, slots=True)
class Vnic:
    """The port of the HCCS plane (`-vnic -g`)."""

    status: UpDown
    address: str
    netmask: str


@dataclass(frozen=True, slots=True)
class Address:
    """The RoCE address (`-ip -g`)."""

    address: str
    netmask: str


@dataclass(frozen=True, slots=True)
class Gateway:
    """The default gateway (`-gateway -g`)."""

    address: str
    interface: str


@dataclass(frozen=True, slots=True)
class NetDetect:
    """What the net health probe pings (`-netdetect -g`); empty when unset."""

    address: str


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS switch, which must be equal over all NPUs of a job (`-tls -g`)."""

    enabled: bool
    preconfigured: bool | None
    expiration: int
    """Worst certificate: 0 normal, 1 near expiration, 2 expired."""


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One change of a link, in the device's own clock."""

    at: str
    status: UpDown


@dataclass(frozen=True, slots=True)
class LinkStat:
    """How often a link changed (`-link_stat -g`); newest record first."""

    up_count: int
    down_count: int | None
    records: tuple[LinkRecord, ...]
    device_time: str


@dataclass(frozen=True, slots=True)
class Lldp:
    """The switch port that a device hears (`-lldp -g`)."""

    interface: str
    system: str
    management: str


def _one(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str] | None:
    """Return the only match over the lines; two are the answers of two devices, which is no reading."""
    matches = [match for line in lines if (match := pattern.match(line))]
    return matches[0] if len(matches) == 1 else None


def _up_down(word: str) -> UpDown | None:
    return "UP" if word == "UP" else "DOWN" if word == "DOWN" else None


def _read(answer: Answer, parse: Callable[[list[str]], T | None]) -> Reading[T]:
    return reading(answer, parse(stdout_lines(answer)))


_LINK = re.compile(r"(?!v)link status ?: (\S.*?)\s*$")
_HEALTH = re.compile(r"net health status: (\S.*?)\s*$")
_VNIC_STATUS = re.compile(r"vnic link status: (\S+)\s*$")
_VNIC_ADDRESS = re.compile(r"vnic ipaddr:\s*(\S*)\s*$")
_VNIC_NETMASK = re.compile(r"vnic netmask:\s*(\S*)\s*$")
_ADDRESS = re.compile(r"ipaddr:\s*(\S+)")
_NETMASK = re.compile(r"netmask:\s*(\S+)")
_GATEWAY = re.compile(r"default gateway:([^,\s]+), Iface:(\S+)\s*$")
_DETECT = re.compile(r"netdetect addr(?:ess)?:\s*(\S*)\s*$")
_TLS = re.compile(
    r"dev_id:(\d+), tls switch\[(\d)\]\([^)]*\)(?:, tls preconfigured\[(\d)\]\([^)]*\))?"
    r", tls alarm time threshold\[(\d+)\]days"
)
_EXPIRATION = re.compile(r"tls expiration status\[([012])\]")
_TIME = r"(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})"
_STAT_NOW = re.compile(r"\[(?:devid|device) \d+\]current time\s*: " + _TIME)
_STAT_COUNT = re.compile(r"\[(?:devid|device) \d+\]link (up|down) count\s*: (\d{1,18})\s*$")
_STAT_RECORD = re.compile(r"\[(?:devid|device) \d+\]\s+" + _TIME + r"\s+LINK (UP|DOWN)\s*$")
_LLDP_PORT = re.compile(r"\s+Ifname: (\S+)\s*$")
_LLDP_MANAGEMENT = re.compile(r"\s+IPv4: (\S+)\s*$")


def read_link(answer: Answer) -> Reading[Link]:
    """Read `-link -g`."""

    def parse(lines: list[str]) -> Link | None:
        match = _one(_LINK, lines)
        status = _up_down(match[1]) if match else None
        return Link(status) if status else None

    return _read(answer, parse)


def read_net_health(answer: Answer) -> Reading[NetHealth]:
    """Read `-net_health -g`."""

    def parse(lines: list[str]) -> NetHealth | None:
        match = _one(_HEALTH, lines)
        return NetHealth(match[1]) if match else None

    return _read(answer, parse)


def read_vnic(answer: Answer) -> Reading[Vnic]:
    """Read `-vnic -g`; anything but its three lines is unreadable."""

    def parse(lines: list[str]) -> Vnic | None:
        matches = [_one(p, lines) for p in (_VNIC_STATUS, _VNIC_ADDRESS, _VNIC_NETMASK)]
        status, address, netmask = matches
        if len(lines) != 3 or status is None or address is None or netmask is None:
            return None
        word = _up_down(status[1])
        return Vnic(word, address[1], netmask[1]) if word else None

    return _read(answer, parse)


def read_ip(answer: Answer) -> Reading[Address]:
    """Read `-ip -g`; the first address of a device with several ports."""

    def parse(lines: list[str]) -> Address | None:
        address = next((m for line in lines if (m := _ADDRESS.match(line))), None)
        netmask = next((m for line in lines if (m := _NETMASK.match(line))), None)
        return Address(address[1], netmask[1] if netmask else "") if address else None

    return _read(answer, parse)


def read_gateway(answer: Answer) -> Reading[Gateway]:
    """Read `-gateway -g`."""

    def parse(lines: list[str]) -> Gateway | None:
        match = _one(_GATEWAY, lines)
        return Gateway(match[1], match[2]) if match else None

    return _read(answer, parse)


def read_netdetect(answer: Answer) -> Reading[NetDetect]:
    """Read `-netdetect -g`; 0.0.0.0 and nothing both mean unset."""

    def parse(lines: list[str]) -> NetDetect | None:
        match = _one(_DETECT, lines)
        if match is None:
            return None
        return NetDetect("" if match[1] == "0.0.0.0" else match[1])  # noqa: S104 - a word of the tool

    return _read(answer, parse)


def read_tls(answer: Answer) -> Reading[Tls]:
    """Read `-tls -g`; an expired certificate is reported on stderr."""

    def parse(lines: list[str]) -> Tls | None:
        match = _one(_TLS, lines)
        if match is None:
            return None
        worst = max((int(status) for status in _EXPIRATION.findall(answer.text)), default=0)
        return Tls(match[2] == "1", None if match[3] is None else match[3] == "1", worst)

    return _read(answer, parse)


def read_link_stat(answer: Answer) -> Reading[LinkStat]:
    """Read `-link_stat -g`."""

    def parse(lines: list[str]) -> LinkStat | None:
        counts: dict[str, int] = {}
        for match in filter(None, map(_STAT_COUNT.match, lines)):
            counts[match[1]] = int(match[2])
        if "up" not in counts:
            return None
        now = next((m[1] for line in lines if (m := _STAT_NOW.match(line))), "")
        found = [(m[1], _up_down(m[2])) for line in lines if (m := _STAT_RECORD.match(line))]
        records = tuple(LinkRecord(at, status) for at, status in found if status)
        return LinkStat(counts["up"], counts.get("down"), records, now)

    return _read(answer, parse)


def read_lldp(answer: Answer) -> Reading[Lldp]:
    """Read `-lldp -g`; an answer without an interface name means that no neighbour was heard yet."""

    def parse(lines: list[str]) -> Lldp | None:
        port = _one(_LLDP_PORT, lines)
        if port is None:
            return None
        title = next((i for i, line in enumerate(lines) if line.startswith("System Name TLV")), len(lines))
        system = lines[title + 1].strip() if title + 1 < len(lines) else ""
        management = next((m[1] for line in lines if (m := _LLDP_MANAGEMENT.match(line))), "")
        return Lldp(port[1], system, management)

    return _read(answer, parse)
