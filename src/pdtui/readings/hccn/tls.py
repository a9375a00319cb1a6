"""The TLS switch and the certificates behind it (`-tls -g`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pdtui.readings.answer import RAW_LIMIT, Answer, Failure, Reading, failure_of, reading, stdout_lines
from pdtui.text import decode


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate or revocation list of a device."""

    name: str
    """As the tool calls it: `pub cert`, `ca1 cert`, `ca2 cert`, `crl`."""
    subject: str
    issuer: str
    start: str
    end: str
    """As printed: `Wed Jun 18 03:10:27 2053 GMT`."""
    expiration: int
    """0 normal, 1 near expiration, 2 expired."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS switch, which must be equal over all NPUs of a job (`-tls -g`)."""

    enabled: bool
    preconfigured: bool | None
    """None on older builds, which do not say."""
    alarm_days: int
    expiration: int | None
    """The worst of the certificates: 0 normal, 1 near expiration, 2 expired; None when none was shown."""
    certificates: tuple[Certificate, ...] = ()
    device: int = -1
    """What the tool calls the device."""


_SWITCH = re.compile(
    r"dev_id:(\d{1,9}), tls switch\[([01])\]\([^)]*\)(?:, tls preconfigured\[([01])\]\([^)]*\))?"
    r", tls alarm time threshold\[(\d{1,9})\]days\s*$"
)
_TITLE = re.compile(r"dev_id:(\d{1,9}), \[([^\]]+)\] info:\s*$")
_FIELD = re.compile(r"\s+(subject|issuer|start_time|end_time)\[(.*)\]\s*$")
_EXPIRATION = re.compile(r"\s*tls expiration status\[([012])\]")


def _certificates(lines: list[str], late: Iterator[int]) -> tuple[Certificate, ...] | None:
    """Return the certificates; None when one is not whole.

    The status of an expired one is not on stdout but on stderr: `late` has those, in order.
    """
    found: list[tuple[str, dict[str, str]]] = []
    for line in lines:
        if title := _TITLE.match(line):
            found.append((title[2], {}))
        elif found and (field := _FIELD.match(line)):
            found[-1][1][field[1]] = field[2]
        elif found and (printed := _EXPIRATION.match(line)):
            found[-1][1]["status"] = printed[1]
    whole = []
    for name, fields in found:
        status = int(fields["status"]) if "status" in fields else next(late, None)
        if status is None or not {"subject", "issuer", "start_time", "end_time"} <= fields.keys():
            return None
        times = fields["start_time"], fields["end_time"]
        whole.append(Certificate(name, fields["subject"], fields["issuer"], *times, status))
    return tuple(whole)


def read_tls(answer: Answer) -> Reading[Tls]:
    """Read `-tls -g`.

    The switch counts also when the tool then complains that there are no certificates (status 14); without
    the line of the switch that complaint says nothing about the switch.
    """
    lines = stdout_lines(answer)
    switches = [match for line in lines if (match := _SWITCH.match(line))]
    errors = [int(status) for status in _EXPIRATION.findall(decode(answer.stderr))]
    certificates = _certificates(lines, iter(errors))
    titles = {match[1] for line in lines if (match := _TITLE.match(line))}
    if len(switches) != 1 or certificates is None or titles - {switches[0][1]} or answer.truncated:
        return reading(answer, None)
    device, enabled, preconfigured, days = switches[0].groups()
    worst = max((*errors, *(certificate.expiration for certificate in certificates)), default=None)
    preset = None if preconfigured is None else preconfigured == "1"
    value = Tls(enabled == "1", preset, int(days), worst, certificates, int(device))
    if failure_of(answer) is Failure.NOT_CONFIGURED:
        return Reading(answer.command, answer.at, answer.text[:RAW_LIMIT], value)
    return reading(answer, value)
