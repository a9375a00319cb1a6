"""What a vendor tool answered, and whether it is an answer at all.

hccn_tool's exit status is the low byte of a code from five families, and both tools print some of their
errors on stdout, so the text decides before the status does (the tools' published
source, hicann/driver).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from textwrap import dedent
from typing import Generic, TypeVar

from pdtui.text import decode

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

RAW_LIMIT = 8192
"""Characters of an answer that are kept as evidence."""


class Failure(StrEnum):
    """Why there is no usable answer."""

    TIMEOUT = "timeout"
    ENVIRONMENT = "environment"
    """The tool or one of its libraries is missing where it was called."""
    DRIVER = "driver"
    """The driver does not answer, or another container holds the device."""
    BUSY = "busy"
    UNSUPPORTED = "unsupported"
    NOT_CONFIGURED = "not_configured"
    PERMISSION = "permission"
    NO_DEVICE = "no_device"
    MISSING = "missing"
    """A file is not there."""
    ERROR = "error"
    EMPTY = "empty"
    UNREADABLE = "unreadable"


ABSENT = (Failure.NOT_CONFIGURED, Failure.UNSUPPORTED)
"""The tool says that what was asked for is not there, which is an answer of its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One command that has ended, as the node saw it."""

    command: str
    """What was asked, as a shell line."""
    stdout: bytes = b""
    stderr: bytes = b""
    status: int | None = 0
    """Exit status; -N when signal N ended it; None when it could not be started."""
    timed_out: bool = False
    truncated: bool = False
    error: str = ""
    """Why it could not be started."""
    at: float = 0.0
    """Wall clock (ours) when it was true."""

    @property
    def text(self) -> str:
        """Both streams as clean text, stdout first."""
        parts = (decode(self.stdout).rstrip(), decode(self.stderr).rstrip(), self.error)
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Reading(Generic[T_co]):
    """A value, or why there is none: exactly one of `value` and `failure` is set."""

    command: str
    at: float
    raw: str
    """The cleaned answer, cut to `RAW_LIMIT`."""
    value: T_co | None = None
    failure: Failure | None = None


_NOISE = re.compile(
    r"^(?:\[WARNING\].*|DrvMngGetConsoleLogLevel failed.*"  # Said before or after any answer.
    r"|[|+].*"  # Rows of a table.
    r"|[ \t].*"  # What a device, a switch or npu-smi says, set in.
    r"|[^:\n]*\s:(?:\s.*)?"  # A padded key and its value.
    r"|Process id:.*)$",
    re.MULTILINE,
)
"""Lines that are no complaint of the tool: values among them hold names and words that others chose."""

_PREFIX = r"(?:npu-smi|hccn_tool)\S*: "

_CLASSES: tuple[tuple[Failure, re.Pattern[str]], ...] = tuple(
    (failure, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for failure, pattern in (
        (
            Failure.ENVIRONMENT,
            r"error while loading shared libraries|command not found|executable file not found|未找到命令"
            rf"|{_PREFIX}(?:not found|No such file or directory|没有那个文件或目录)"
            r"|^Error response from daemon|No such container|container \S+ is not running",
        ),
        (
            Failure.DRIVER,
            r"dcmi mod\w+ initial|npu get board type failed|Get device health status failed"
            r"|Failed to (?:get card number|query card total info)",
        ),
        (
            Failure.BUSY,
            r"tool is busy|I2c is busy|Get lock failed|initializing, please try again|device is occupied",
        ),
        (Failure.UNSUPPORTED, r"not support|cannot be executed on|Get invalid major cmd|Error parameter of -t"),
        (
            Failure.NOT_CONFIGURED,
            r"no (?:ip|gateway) was preset|No certificate found|Optical module is not present",
        ),
        (
            Failure.PERMISSION,
            r"permission denied|cmd run permission|conf(?: file)? can't access"
            r"|a password is required|not in the sudoers|权限不够|拒绝访问",
        ),
        (
            Failure.NO_DEVICE,
            r"(?<!hccp process: )not exist|invalid device id|Invalid (?:card|chip) id|There is no NPU card",
        ),
        (Failure.TIMEOUT, r"cmd line execute timeout"),
    )
)

_CODE = re.compile(r"ret is -(8\d{3})\b")
_CODES: Mapping[str, Failure] = {
    "8002": Failure.PERMISSION,
    "8006": Failure.TIMEOUT,
    "8007": Failure.NO_DEVICE,
    "8008": Failure.NO_DEVICE,
    "8013": Failure.UNSUPPORTED,
    "8255": Failure.UNSUPPORTED,
}
"""DCMI codes that say more than that the driver does not answer."""


def failure_of(answer: Answer) -> Failure | None:
    """Return why an answer is unusable, or None when it is worth reading.

    The order matters: a time-out, the driver's code, the shell's and loader's words, the driver's, then the
    tools' own, then a status other than 0, then silence.
    """
    if answer.timed_out or answer.status in (124, 137):
        return Failure.TIMEOUT
    if answer.status is None and answer.error.endswith("in use by another console"):
        return Failure.BUSY
    if answer.status is None:
        return Failure.PERMISSION if "permission" in answer.error.lower() else Failure.ENVIRONMENT
    text = _NOISE.sub("", dedent(answer.text))  # Text that somebody has pasted may be set in as a whole.
    if (code := _CODE.search(text)) is not None:
        return _CODES.get(code[1], Failure.DRIVER)
    for failure, pattern in _CLASSES:
        if pattern.search(text):
            return failure
    if answer.status in (126, 127):
        return Failure.ENVIRONMENT
    if answer.status != 0:
        return Failure.ERROR
    return None if answer.text.strip() else Failure.EMPTY


def reading(answer: Answer, value: T | None) -> Reading[T]:
    """Return the reading of an answer that was read as `value`; None means that it could not be read."""
    raw = answer.text[:RAW_LIMIT]
    failure = failure_of(answer)
    if failure is None and value is None:
        failure = Failure.UNREADABLE
    return Reading(answer.command, answer.at, raw, None if failure else value, failure)


SAID_ASIDE = ("[WARNING]", "DrvMngGetConsoleLogLevel failed")
"""How lines begin that the tools write before or after an answer, which mean nothing for it."""


def stdout_lines(answer: Answer) -> list[str]:
    """Return the lines of stdout without trailing blanks, empty lines and what the tools say beside the answer."""
    lines = (line.rstrip() for line in decode(answer.stdout).split("\n"))
    return [line for line in lines if line and not line.startswith(SAID_ASIDE)]


def is_whole(answer: Answer) -> bool:
    """Return whether stdout was not capped and ends with a whole line: what is cut in a number is no value."""
    return not answer.truncated and answer.stdout.endswith(b"\n")
