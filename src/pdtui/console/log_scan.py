"""Which held lines of a log satisfy a condition, found once and kept up to date in slices."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from pdtui.fleet.handle import LogLine

Fetch = Callable[[int, int], Sequence[LogLine]]
"""First sequence number and count -> lines."""

SLICE = 5_000
"""Lines that one call looks at: a few milliseconds."""


def pattern(text: str) -> re.Pattern[str]:
    """Return what was typed as a regular expression, literally when it is none; capitals make case matter."""
    flags = 0 if any(char.isupper() for char in text) else re.IGNORECASE
    try:
        return re.compile(text, flags)
    except re.error:
        return re.compile(re.escape(text), flags)


class Scan:
    """Sequence numbers of the lines that a condition holds for."""

    def __init__(self, wanted: Callable[[LogLine], bool]) -> None:
        self._wanted = wanted
        self._next = 0
        self.found: list[int] = []
        """Ascending."""

    def advance(self, fetch: Fetch, first: int, end: int) -> bool:
        """Look at the next lines of [first, end); False while some are left."""
        if self.found and self.found[0] < first:
            del self.found[: bisect_left(self.found, first)]
        self._next = max(self._next, first)
        count = min(end - self._next, SLICE)
        if count > 0:
            lines = fetch(self._next, count)
            self.found += [line.seq for line in lines if self._wanted(line)]
            self._next += count
        return self._next >= end

    def after(self, seq: int) -> int | None:
        """Return the first found number above `seq`, else the very first, None without any."""
        if not self.found:
            return None
        index = bisect_left(self.found, seq + 1)
        return self.found[index % len(self.found)]

    def before(self, seq: int) -> int | None:
        """Return the last found number below `seq`, else the very last, None without any."""
        if not self.found:
            return None
        return self.found[bisect_left(self.found, seq) - 1]

    def place(self, seq: int) -> int:
        """Return the place of a found number from 1, 0 when it is not found."""
        index = bisect_left(self.found, seq)
        return index + 1 if index < len(self.found) and self.found[index] == seq else 0


def around(found: Sequence[int], context: int, first: int, end: int) -> list[int]:
    """Return the found numbers and up to `context` neighbours of each, ascending, each once."""
    if not context:
        return list(found)
    shown: list[int] = []
    reached = first
    for seq in found:
        start = max(seq - context, reached)
        stop = min(seq + context + 1, end)
        if start < stop:
            shown.extend(range(start, stop))
            reached = stop
    return shown
