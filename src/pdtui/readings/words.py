"""What a failed query means, in an operator's words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from pdtui.readings.answer import SAID_ASIDE, Failure, Reading

T = TypeVar("T")

_WORDS: Mapping[Failure, str] = {
    Failure.TIMEOUT: "no answer in time",
    Failure.ENVIRONMENT: "the tool or one of its libraries is not there",
    Failure.DRIVER: "the driver does not answer",
    Failure.BUSY: "the tool is busy with another caller",
    Failure.UNSUPPORTED: "not supported here",
    Failure.NOT_CONFIGURED: "not configured",
    Failure.PERMISSION: "no permission",
    Failure.NO_DEVICE: "no such device",
    Failure.MISSING: "the file is not there",
    Failure.ERROR: "the tool failed",
    Failure.EMPTY: "an empty answer",
    Failure.UNREADABLE: "an answer that cannot be read",
}

REMEDIES: Mapping[Failure, str] = {
    Failure.TIMEOUT: "the driver or this chip may be wedged: look for processes in state D and at dmesg",
    Failure.ENVIRONMENT: "install the driver, or mount it: tools in /usr/local/Ascend/driver/tools and "
    "/usr/local/sbin, libraries in /usr/local/Ascend/driver/lib64",
    Failure.DRIVER: "run as root or in the group HwHiAiUser, on the host; after a driver upgrade reboot; "
    "a device may be held by another container",
    Failure.BUSY: "another monitor asks too; it is tried again",
    Failure.PERMISSION: "log in as root, or set ssh.sudo in the topology file",
    Failure.NO_DEVICE: "npu-smi info -m lists the ids of this server; a chip may have dropped off the bus",
    Failure.UNSUPPORTED: "not every generation, build or container has this query: ask on the host, or do without",
    Failure.NOT_CONFIGURED: "nothing to do unless this NPU is meant to have it: /etc/hccn.conf of a node that "
    "works shows how it is set",
    Failure.MISSING: "look whether the file is at another place, or not mounted into the container",
    Failure.ERROR: "run the command by hand, as root on the host",
    Failure.UNREADABLE: "look at the text: it may be cut, of another command, or of a build that is not known yet",
    Failure.EMPTY: "ask again by hand; an empty answer is neither good nor bad",
}

_CODE = re.compile(r"ret is -(8\d{3})\b")
_CODES: Mapping[str, str] = {
    "8005": "no permission, or the driver is not loaded",
    "8012": "the device is not ready",
    "8015": "the device is being reset",
    "8017": "the device's firmware is being upgraded",
    "8020": "the device is held by another container or VM",
}
"""What DCMI's codes mean."""

_SOON = "wait a minute and ask again; it stays so when the chip does not come up: dmesg, then a reboot"
_REMEDIES_OF_CODES: Mapping[str, str] = {
    "8012": _SOON,
    "8015": _SOON,
    "8017": "wait for the upgrade to end, then reboot",
    "8020": "find the container or VM that has it (docker ps, on the host) and stop it, or give it other NPUs",
}

_LIBRARY = re.compile(r"error while loading shared libraries: (\S+?):")
_NO_CONTAINER = re.compile(r"No such container|container \S+ is not running")


def failure_words(reading: Reading[T]) -> str:
    """Return why a reading has no value: `the tool is busy with another caller`."""
    if reading.failure is None:
        return ""
    words = _WORDS[reading.failure]
    if reading.failure is Failure.DRIVER and (code := _CODE.search(reading.raw)):
        return f"{_CODES.get(code[1], words)} (-{code[1]})"
    if library := _library(reading):
        return f"{words} ({library})"
    lines = (line.strip() for line in reading.raw.split("\n") if not line.startswith(SAID_ASIDE))
    first = next(filter(None, lines), "")
    told = reading.failure in (Failure.ERROR, Failure.ENVIRONMENT, Failure.UNREADABLE) and first
    return f"{words} ({first[:120]})" if told else words


def _library(reading: Reading[T]) -> str:
    """Return the library that the loader did not find."""
    match = _LIBRARY.search(reading.raw) if reading.failure is Failure.ENVIRONMENT else None
    return match[1] if match else ""


def remedy_of(reading: Reading[T]) -> str:
    """Return what to do about a reading without a value; empty when it has one."""
    if reading.failure is None:
        return ""
    if reading.failure is Failure.DRIVER and (code := _CODE.search(reading.raw)) is not None:
        return _REMEDIES_OF_CODES.get(code[1], REMEDIES[Failure.DRIVER])
    if _library(reading):
        return (
            "the driver's libraries are not found: mount or install /usr/local/Ascend/driver/lib64 (with its "
            "folders common and driver), and have LD_LIBRARY_PATH name them"
        )
    if reading.failure is Failure.ENVIRONMENT and _NO_CONTAINER.search(reading.raw):
        return "start the container, or correct runtime.container in the topology file"
    return REMEDIES.get(reading.failure, "")
