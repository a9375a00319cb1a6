"""One kind of answer: how it is asked, what reads it, and where the answer of the next device begins."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading

Reader = Callable[[Answer], Reading[object]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A query of a vendor tool, or a file, and its reader."""

    name: str
    """Stable, as programs get it: `net_health`, `spod-info`, `hccn-conf`."""
    command: str
    """How it is asked, with N for the device: `hccn_tool -i N -link -g`."""
    title: str
    """What it is about, in a few words."""
    read: Reader
    begins: re.Pattern[str] | None = None
    """The first line of an answer: text in which it comes again holds the answers of several devices.

    None where answers cannot be told apart.
    """
    bare: re.Pattern[str] | None = None
    """The first line in text that a grep has thinned so that `begins` comes nowhere."""
    ends_with_words: bool = False
    """The tool's words of failure may follow a whole answer and belong to it."""
    device: re.Pattern[str] | None = None
    """Finds the device's id (first group) in a line of the answer."""

    def first_line(self, lines: list[str]) -> re.Pattern[str] | None:
        """Return what the first line of each answer in these lines looks like."""
        if self.bare is not None and self.begins is not None and not any(map(self.begins.match, lines)):
            return self.bare
        return self.begins
