"""The switch port that a device hears (`-lldp -g`), from the text of the device's own LLDP agent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn.lines import one, read_lines


@dataclass(frozen=True, slots=True)
class Lldp:
    """The neighbour of a device's port."""

    interface: str
    """The switch's port: `400GE1/1/5:1`."""
    system: str
    """The switch's name, empty when it sends none."""
    management: str
    """The switch's management address, empty when it sends none."""
    chassis: str = ""
    """The switch's chassis id, empty when it was not shown or left out by hand."""


_PORT = re.compile(r"\s+Ifname: (\S+)\s*$")
_MANAGEMENT = re.compile(r"\s+IPv[46]: (\S+)\s*$")
_TITLE = re.compile(r"\S.* TLV\s*$")
_ID = re.compile(r"\s+(?:\w[\w ]*: )?(\S.*?)\s*$")


def _below(title: str, lines: list[str]) -> list[str]:
    """Return the indented lines that follow a title."""
    start = next((i for i, line in enumerate(lines) if line.startswith(title)), len(lines))
    found = []
    for line in lines[start + 1 :]:
        if not line[:1].isspace():
            break
        found.append(line)
    return found


def read_lldp(answer: Answer) -> Reading[Lldp]:
    """Read `-lldp -g`, or the one line that a grep for Ifname leaves of it.

    A block that ends with its Ifname was cut, and the name perhaps with it.
    """

    def parse(lines: list[str]) -> Lldp | None:
        port = one(_PORT, lines)
        block = any(_TITLE.match(line) for line in lines)
        if port is None or (block and _PORT.match(lines[-1])):
            return None
        if sum(line.startswith("End of LLDPDU TLV") for line in lines) > 1:
            return None
        system = next(iter(_below("System Name TLV", lines)), "").strip()
        addresses = filter(None, map(_MANAGEMENT.match, _below("Management Address TLV", lines)))
        management = next((match[1] for match in addresses), "")
        ids = filter(None, map(_ID.match, _below("Chassis ID TLV", lines)))
        chassis = next((match[1] for match in ids), "").strip(".")
        return Lldp(port[1], system, management, chassis)

    return read_lines(answer, parse)
