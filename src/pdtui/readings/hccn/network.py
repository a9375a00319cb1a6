"""Link, addresses and the device's own probe: `-link -net_health -netdetect -gateway -ip -vnic`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import UpDown, is_address, is_netmask, one, read_lines, up_down


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
    """Dotted; the length of the prefix for IPv6."""
    more: tuple[tuple[str, str], ...] = ()
    """Addresses and netmasks of further ports of the same device."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The default gateway (`-gateway -g`)."""

    address: str
    interface: str


@dataclass(frozen=True, slots=True)
class NetDetect:
    """What the net health probe pings (`-netdetect -g`); empty when unset."""

    address: str


_LINK = re.compile(r"link status ?: (\S.*?)\s*$")
_HEALTH = re.compile(r"net health status: (\S.*?)\s*$")
_VNIC_STATUS = re.compile(r"vnic link status: (\S+)\s*$")
_VNIC_ADDRESS = re.compile(r"vnic ipaddr:\s*(\S*)\s*$")
_VNIC_NETMASK = re.compile(r"vnic netmask:\s*(\S*)\s*$")
_ADDRESS = re.compile(r"(?:ipaddr|ipv6_address):\s*(\S+)\s*$")
_NETMASK = re.compile(r"(?:netmask|prefix_length):\s*(\S+)\s*$")
_GATEWAY = re.compile(r"default gateway:([^,\s]+), Iface:(\S+)\s*$")
_DETECT = re.compile(r"netdetect addr(?:ess)?:\s*(\S*)\s*$")
_PREFIX = re.compile(r"\d{1,3}$")


def read_link(answer: Answer) -> Reading[Link]:
    """Read `-link -g`."""

    def parse(lines: list[str]) -> Link | None:
        match = one(_LINK, lines)
        status = up_down(match[1]) if match else None
        return Link(status) if status else None

    return read_lines(answer, parse)


def read_net_health(answer: Answer) -> Reading[NetHealth]:
    """Read `-net_health -g`; the word may be one that nobody knows."""

    def parse(lines: list[str]) -> NetHealth | None:
        match = one(_HEALTH, lines)
        return NetHealth(match[1]) if match else None

    return read_lines(answer, parse)


def read_vnic(answer: Answer) -> Reading[Vnic]:
    """Read `-vnic -g`; anything but its three lines is unreadable."""

    def parse(lines: list[str]) -> Vnic | None:
        status, address, netmask = (one(p, lines) for p in (_VNIC_STATUS, _VNIC_ADDRESS, _VNIC_NETMASK))
        if len(lines) != 3 or status is None or address is None or netmask is None:
            return None
        word = up_down(status[1])
        whole = (not address[1] or is_address(address[1])) and (not netmask[1] or is_netmask(netmask[1]))
        return Vnic(word, address[1], netmask[1]) if word and whole else None

    return read_lines(answer, parse)


def read_ip(answer: Answer) -> Reading[Address]:
    """Read `-ip -g` and `-ip -inet6 -g`: addresses, each followed by its netmask; no address comes twice."""

    def parse(lines: list[str]) -> Address | None:
        addresses = [match[1] for line in lines if (match := _ADDRESS.match(line))]
        netmasks = [match[1] for line in lines if (match := _NETMASK.match(line))]
        whole = all(map(is_address, addresses)) and all(is_netmask(n) or _PREFIX.match(n) for n in netmasks)
        if not addresses or len(addresses) != len(netmasks) or len(set(addresses)) != len(addresses) or not whole:
            return None
        first, *more = zip(addresses, netmasks, strict=True)
        return Address(*first, tuple(more))

    return read_lines(answer, parse)


def read_gateway(answer: Answer) -> Reading[Gateway]:
    """Read `-gateway -g`."""

    def parse(lines: list[str]) -> Gateway | None:
        match = one(_GATEWAY, lines)
        return Gateway(match[1], match[2]) if match and is_address(match[1]) else None

    return read_lines(answer, parse)


def read_netdetect(answer: Answer) -> Reading[NetDetect]:
    """Read `-netdetect -g`; 0.0.0.0 and nothing both mean unset."""

    def parse(lines: list[str]) -> NetDetect | None:
        match = one(_DETECT, lines)
        if match is None or (match[1] and not is_address(match[1])):
            return None
        return NetDetect("" if match[1] == "0.0.0.0" else match[1])  # noqa: S104 - a word of the tool

    return read_lines(answer, parse)
