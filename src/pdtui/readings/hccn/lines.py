"""What the readers of hccn_tool share: lines of an answer, matched once or not at all."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Literal, TypeVar

from pdtui.readings.answer import Answer, Reading, reading, stdout_lines

T = TypeVar("T")

UpDown = Literal["UP", "DOWN"]


def read_lines(answer: Answer, parse: Callable[[list[str]], T | None]) -> Reading[T]:
    """Return the reading of what `parse` makes of the lines of stdout; an answer that was cut has none."""
    return reading(answer, None if answer.truncated else parse(stdout_lines(answer)))


def one(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str] | None:
    """Return the only match over the lines; two are the answers of two devices, which is no reading."""
    matches = [match for line in lines if (match := pattern.match(line))]
    return matches[0] if len(matches) == 1 else None


def up_down(word: str) -> UpDown | None:
    """Return the state of a link, None for any other word."""
    return "UP" if word == "UP" else "DOWN" if word == "DOWN" else None


def is_address(text: str) -> bool:
    """Return whether `text` is a whole IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_netmask(text: str) -> bool:
    """Return whether `text` is a whole IPv4 netmask: ones, then zeros."""
    try:
        bits = int(ipaddress.IPv4Address(text))
    except ValueError:
        return False
    inverse = bits ^ 0xFFFFFFFF
    return inverse & (inverse + 1) == 0


def key_values(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str] | None:
    """Return the pairs of lines that all match `pattern` (key, value); None for another line or a key twice."""
    found: dict[str, str] = {}
    for line in lines:
        match = pattern.match(line)
        if match is None or match[1] in found:
            return None
        found[match[1]] = match[2]
    return found
