"""What a failed query means, in an operator's words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from pdtui.readings.answer import Failure, Reading

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
    Failure.EMPTY: "ask again by hand; an empty answer is neither good nor bad",
}

_OCCUPIED = re.compile(r"ret is -8020")
_INITIALIZE = re.compile(r"ret is -8005")


def failure_words(reading: Reading[T]) -> str:
    """Return why a reading has no value: `the tool is busy with another caller`."""
    if reading.failure is None:
        return ""
    if reading.failure is Failure.DRIVER and _OCCUPIED.search(reading.raw):
        return "the device is held by another container or VM (-8020)"
    if reading.failure is Failure.DRIVER and _INITIALIZE.search(reading.raw):
        return "no permission, or the driver is not loaded (-8005)"
    words = _WORDS[reading.failure]
    first = next((line.strip() for line in reading.raw.split("\n") if line.strip()), "")
    told = reading.failure in (Failure.ERROR, Failure.ENVIRONMENT, Failure.UNREADABLE) and first
    return f"{words} ({first[:120]})" if told else words
