"""Pings from NPU to NPU: `-ping` over RoCE, `-hccs_ping` over the HCCS plane.

A ping that lost packets ends with a status other than 0 and yet says all: the statistics decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from pdtui.readings.answer import RAW_LIMIT, Answer, Failure, Reading, failure_of, reading, stdout_lines

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping over RoCE; the first packet waits for ARP and is slow, which means nothing."""

    device: int | None
    """The NPU that pinged; None when the first line is not there."""
    address: str
    sent: int
    received: int
    times_ms: tuple[float, ...]
    problems: tuple[str, ...]
    """What the tool says of packets that were lost, each once: `time out`, `Destination Host Unreachable`."""


@dataclass(frozen=True, slots=True)
class HccsPing:
    """A ping over the HCCS plane; times in microseconds."""

    device: int | None
    address: str
    sent: int
    received: int
    times_us: tuple[float, ...]
    planes: tuple[int, ...]
    """Result of the check of the L1 plane of each packet; 0 is good."""
    problems: tuple[str, ...]
    max_us: float | None
    min_us: float | None
    average_us: float | None


_HEADER = re.compile(r"device (\d{1,9}) PING (\S+)\s*$")
_TOTAL = re.compile(
    r"(\d{1,9}) packets transmitted, (\d{1,9}) received, (\d{1,3}(?:\.\d{1,6})?)% packets? loss\s*$"
)
_RECEIVED = re.compile(r"recv seq[=:]\d{1,9},time[=:](\d{1,9}(?:\.\d{1,9})?)ms\s*$")
_LOST = re.compile(r"recv time out seq=\S+\s*$")
_HCCS_RECEIVED = re.compile(
    r"recv seq \d{1,9}, time = (\d{1,12}(?:\.\d{1,6})?)us, L1 plane check result = 0x([0-9a-fA-F]{1,8})\s*$"
)
_HCCS_PACKET = re.compile(r"This pkt (.+?)!\s*$")
_HCCS_TIME = re.compile(r"(max|min|average|TP95) time (\d{1,12}(?:\.\d{1,6})?)us\s*$")


def _totals(lines: list[str]) -> tuple[int, int] | None:
    """Return what was sent and received; None without the line, with two, or when it contradicts itself."""
    totals = [match for line in lines if (match := _TOTAL.match(line))]
    if len(totals) != 1:
        return None
    sent, received, loss = int(totals[0][1]), int(totals[0][2]), float(totals[0][3])
    if not sent or received > sent or abs(100 * (sent - received) / sent - loss) > 0.51:
        return None
    return sent, received


def _header(lines: list[str]) -> tuple[int | None, str] | None:
    """Return who pinged whom; None when two did."""
    headers = [match for line in lines if (match := _HEADER.match(line))]
    if len(headers) > 1:
        return None
    return (int(headers[0][1]), headers[0][2]) if headers else (None, "")


def _problem(line: str) -> str:
    if _LOST.match(line):
        return "time out"
    return next((words for words in ("Destination Host Unreachable", "Message too long") if words in line), "")


def _block(answer: Answer, value: T | None) -> Reading[T]:
    """Return a block that is whole as a value whatever the status, unless the tool was stopped."""
    stopped = failure_of(answer) is Failure.TIMEOUT or answer.status is None or answer.truncated
    if value is None or stopped:
        return reading(answer, None)
    return Reading(answer.command, answer.at, answer.text[:RAW_LIMIT], value)


def read_ping(answer: Answer) -> Reading[Ping]:
    """Read `-ping -g address X`, also when the status is not 0; and A5's `-ub_ping`."""
    lines = stdout_lines(answer)
    totals, header = _totals(lines), _header(lines)
    times = tuple(float(match[1]) for line in lines if (match := _RECEIVED.match(line)))
    problems = tuple(dict.fromkeys(filter(None, map(_problem, lines))))
    if totals is None or header is None or len(times) != totals[1]:
        return _block(answer, None)
    return _block(answer, Ping(*header, *totals, times, problems))


def read_hccs_ping(answer: Answer) -> Reading[HccsPing]:
    """Read `-hccs_ping -g address X`.

    Its last line claims success also when every packet was lost; a status other than 0 is no answer at all.
    """
    lines = stdout_lines(answer)
    totals, header = _totals(lines), _header(lines)
    packets = [match for line in lines if (match := _HCCS_RECEIVED.match(line))]
    words = [match[1] for line in lines if (match := _HCCS_PACKET.match(line))]
    if totals is None or header is None or answer.truncated or len(packets) < totals[1]:
        return reading(answer, None)
    spread = {match[1]: float(match[2]) for line in lines if (match := _HCCS_TIME.match(line))}
    value = HccsPing(
        *header,
        *totals,
        times_us=tuple(float(match[1]) for match in packets),
        planes=tuple(int(match[2], 16) for match in packets),
        problems=tuple(dict.fromkeys(word for word in words if word != "ping success")),
        max_us=spread.get("max"),
        min_us=spread.get("min"),
        average_us=spread.get("average"),
    )
    return reading(answer, value)
