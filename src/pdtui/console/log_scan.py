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

    def __init__(
        self, wanted: Callable[[LogLine], bool], passed_over: Callable[[LogLine], bool] | None = None
    ) -> None:
        """`passed_over`: wanted lines that are kept apart, because the view does not show them."""
        self._wanted = wanted
        self._passed_over = passed_over
        self.next = 0
        """One past the last line that was looked at."""
        self.found: list[int] = []
        """Ascending."""
        self.hidden: list[int] = []
        """Wanted, but passed over; ascending."""

    def advance(self, fetch: Fetch, first: int, end: int) -> bool:
        """Look at the next lines of [first, end); False while some are left."""
        for numbers in (self.found, self.hidden):
            if numbers and numbers[0] < first:
                del numbers[: bisect_left(numbers, first)]
        self.next = max(self.next, first)
        count = min(end - self.next, SLICE)
        if count > 0:
            for line in fetch(self.next, count):
                if self._wanted(line):
                    apart = self._passed_over is not None and self._passed_over(line)
                    (self.hidden if apart else self.found).append(line.seq)
            self.next += count
        return self.next >= end

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


def around(found: Sequence[int], context: int, lines: Sequence[int]) -> list[int]:
    """Return the found numbers and up to `context` neighbours of each among `lines`, ascending, each once."""
    if not context:
        return list(found)
    shown: list[int] = []
    reached = 0
    for seq in found:
        place = bisect_left(lines, seq)
        start = max(place - context, reached)
        stop = min(place + context + 1, len(lines))
        if start < stop:
            shown.extend(lines[start:stop])
            reached = stop
    return shown
