"""/etc/hccn.conf: what the NPUs' ports are set to at boot, `key_N=value` for physical id N.

The tool shows what runs, this file what will run after a reboot, and Mooncake takes the addresses from here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading, reading
from pdtui.readings.files import no_file
from pdtui.text import decode


@dataclass(frozen=True, slots=True)
class ConfProblem:
    """Something that is wrong in the file."""

    line: int
    device: int | None
    """The NPU whose setting it is; None for a line that is none."""
    summary: str
    serious: bool = True
    """The NPU cannot be reached as the file says; otherwise it is worth a word."""


PATH = "/etc/hccn.conf"


@dataclass(frozen=True, slots=True)
class HccnConf:
    """The settings of each NPU; keys that are not known are kept as they are."""

    devices: Mapping[int, Mapping[str, str]]
    lines: Mapping[str, int]
    """Where a setting stands, by its name in the file: `address_3`."""
    problems: tuple[ConfProblem, ...]

    def value(self, device: int, key: str) -> str:
        """Return a setting of an NPU, empty when the file does not set it."""
        return self.devices.get(device, {}).get(key, "")

    def plans_address(self, device: int) -> bool:
        """Return whether an NPU is to get a RoCE address at boot: one of its own, by IPv6, or by DHCP."""
        by_dhcp = (self.value(device, key) for key in ("udhcpc_enable", "udhcpc_ipv6_enable"))
        return any(self.value(device, key) for key in ("address", "IPv6address", "bond_address")) or any(
            value not in ("", "0") for value in by_dhcp
        )

    def line(self, device: int, key: str) -> int:
        """Return the line of a setting, 0 when the file does not set it."""
        return self.lines.get(f"{key}_{device}", 0)


_SETTING = re.compile(r"([A-Za-z0-9_]+?)_(\d{1,6})\s*=\s*(.*?)\s*$")
_OTHER = re.compile(r"[A-Za-z][A-Za-z0-9_./:-]*\s*=")
"""A key that belongs to no NPU, or one of a kind that is not known: left alone."""


def _address(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _network(address: str, netmask: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(f"{address}/{netmask}", strict=False)
    except ValueError:
        return None


def _problems_of(device: int, settings: Mapping[str, str], lines: Mapping[str, int]) -> list[ConfProblem]:
    """Return what is wrong with the addresses of one NPU."""
    found = []

    def wrong(key: str, summary: str) -> None:
        found.append(ConfProblem(lines[f"{key}_{device}"], device, summary, key != "netdetect"))

    for key in ("address", "gateway", "netdetect"):
        if settings.get(key) and _address(settings[key]) is None:
            wrong(key, f"{key}_{device}={settings[key]} is no IPv4 address")
    address, netmask = settings.get("address", ""), settings.get("netmask", "")
    if _address(address) is None:
        if "address" in settings and not address:
            wrong("address", f"address_{device} is empty")
        return found
    network = _network(address, netmask)
    if not netmask:
        wrong("address", f"address_{device} has no netmask_{device}")
    elif network is None:
        wrong("netmask", f"netmask_{device}={netmask} is no netmask")
    for key in ("gateway", "netdetect"):
        other = _address(settings.get(key, ""))
        if network is not None and other is not None and other not in network and int(other):
            wrong(key, f"{key}_{device}={other} is outside the subnet of address_{device} ({network})")
    return found


def _twice(devices: Mapping[int, Mapping[str, str]], lines: Mapping[str, int]) -> list[ConfProblem]:
    """Return the addresses that two NPUs have."""
    owner: dict[str, int] = {}
    found = []
    for device, settings in sorted(devices.items()):
        address = settings.get("address", "")
        if address and address in owner:
            summary = f"address_{device}={address} is the address of NPU {owner[address]} too"
            found.append(ConfProblem(lines[f"address_{device}"], device, summary))
        elif address:
            owner[address] = device
    return found


def parse_hccn_conf(text: str) -> HccnConf:
    """Return the settings of a file's text, with what is wrong in it."""
    devices: dict[int, dict[str, str]] = {}
    lines: dict[str, int] = {}
    problems: list[ConfProblem] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _SETTING.match(line)
        if match is None:
            if not _OTHER.match(line):
                words = f"no setting of the form key_N=value: {line[:60]}"
                problems.append(ConfProblem(number, None, words, serious=False))
            continue
        key, device, value = match[1], int(match[2]), match[3]
        name = f"{key}_{device}"
        if name in lines:
            summary = f"{name} stands also in line {lines[name]}; which one counts is not defined"
            problems.append(ConfProblem(number, device, summary))
        devices.setdefault(device, {})[key] = value
        lines[name] = number
    for device, settings in devices.items():
        problems.extend(_problems_of(device, settings, lines))
    problems.extend(_twice(devices, lines))
    order = tuple(sorted(problems, key=lambda problem: problem.line))
    return HccnConf(devices, lines, order)


def read_hccn_conf(answer: Answer) -> Reading[HccnConf]:
    """Read `cat /etc/hccn.conf`; a file in which no line is a setting of an NPU is unreadable."""
    if (missing := no_file(answer)) is not None:
        return missing
    conf = None if answer.truncated else parse_hccn_conf(decode(answer.stdout))
    return reading(answer, conf if conf is not None and conf.devices else None)
