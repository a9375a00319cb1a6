"""What is looked for in a log: errors, a search, a filter with lines around what it finds."""

from __future__ import annotations

import re

from pdtui.console.log_scan import Fetch, Scan, around, pattern
from pdtui.console.strings import S
from pdtui.fleet.handle import LogLine

CONTEXTS = (0, 2, 5, 20)
"""Lines around a match that the filter can show."""


def _is_error(line: LogLine) -> bool:
    return line.severity == "error"


class LogFinder:
    """Keeps what was asked for over ranks, and what was found for one."""

    def __init__(self) -> None:
        self.search_text = ""
        self.only_text = ""
        self.context = 0
        self.pattern: re.Pattern[str] | None = None
        """What to highlight."""
        self.current = -1
        """Sequence number of the line that `n` went to."""
        self.reset()

    def reset(self) -> None:
        """Forget what was found: another rank is shown."""
        self.current = -1
        self._errors = Scan(_is_error)
        self._search: Scan | None = None
        self._only: Scan | None = None
        self.search(self.search_text)
        self.filter(self.only_text)

    @property
    def filtered(self) -> bool:
        """Whether only some lines are shown."""
        return self._only is not None

    def search(self, text: str) -> None:
        """Look for a pattern; empty ends the search."""
        self.search_text = text
        self.current = -1
        self.pattern = wanted = pattern(text) if text else None
        self._search = Scan(lambda line: wanted.search(line.text) is not None) if wanted else None

    def filter(self, text: str) -> None:
        """Let only lines with a pattern through; empty lets all."""
        self.only_text = text
        wanted = pattern(text) if text else None
        self._only = Scan(lambda line: wanted.search(line.text) is not None) if wanted else None

    def next_context(self) -> None:
        """Show more, then no, lines around those that the filter finds."""
        self.context = CONTEXTS[(CONTEXTS.index(self.context) + 1) % len(CONTEXTS)]

    def advance(self, fetch: Fetch, first: int, end: int) -> None:
        """Look at a slice of what was not looked at yet."""
        for scan in (self._errors, self._search, self._only):
            if scan is not None:
                scan.advance(fetch, first, end)

    def shown(self, first: int, end: int) -> list[int] | None:
        """Return the numbers of the lines to show; None for all."""
        return around(self._only.found, self.context, first, end) if self._only is not None else None

    def next(self, direction: int, start: int) -> int | None:
        """Go to the next match (or error, without a search) from the last one or `start`; None without any."""
        scan = self._target
        if self.current >= 0:
            start = self.current
        seq = scan.after(start) if direction > 0 else scan.before(start)
        if seq is not None:
            self.current = seq
        return seq

    @property
    def _target(self) -> Scan:
        return self._search if self._search is not None else self._errors

    def status(self, failed_sign: str) -> list[str]:
        """Return what the title says about filter and search."""
        parts = []
        if self._only is not None:
            parts.append(S.log_only.format(text=self.only_text, context=self.context))
        place = self._target.place(self.current) if self.current >= 0 else 0
        if self._search is not None:
            found = S.log_matches.format(n=len(self._search.found))
            parts.append(f"/{self.search_text}  {f'{place}/' if place else ''}{found}")
        elif place:
            parts.append(f"{failed_sign} {place}/{len(self._errors.found)}")
        return parts
