"""What is looked for in a log: errors, a search, a filter with lines around what it finds."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

from pdtui.console.log_scan import Fetch, Scan, around, pattern
from pdtui.console.strings import S
from pdtui.fleet.handle import LogLine

CONTEXTS = (0, 2, 5, 20)
"""Lines around a match that the filter can show."""


_RUN_BEGINS = "--- run "
"""How the log book separates the runs of a rank."""
_HEALTH_CHECK = re.compile(r'"GET /(?:health|metrics)/?(?:\?\S*)? HTTP/[\d.]+" (?:2\d\d|307)')


def is_health_check(line: LogLine) -> bool:
    """Return whether a line is the access log of a readiness or metrics poll that was answered well."""
    return '"GET /' in line.text and _HEALTH_CHECK.search(line.text) is not None


def first_in_run(lines: Sequence[LogLine], text: str) -> int:
    """Return the number of the first line of the newest run that has `text`, -1 without any."""
    found = -1
    for line in reversed(lines):
        if text in line.text:
            found = line.seq
        elif line.text.startswith(_RUN_BEGINS):
            break
    return found


def _any(line: LogLine) -> bool:
    return True


def _is_error(line: LogLine) -> bool:
    return line.severity == "error"


class LogFinder:
    """Keeps what was asked for over ranks, and what was found for one."""

    def __init__(self) -> None:
        self.search_text = ""
        self.only_text = ""
        self.context = 0
        self.quiet = True
        """Leave out health checks: an idle rank's log is nothing else."""
        self.pattern: re.Pattern[str] | None = None
        """What to highlight."""
        self.current = -1
        """Sequence number of the line that `n` went to."""
        self.reset()

    def reset(self) -> None:
        """Forget what was found: another rank is shown."""
        self.current = -1
        self._errors = Scan(_is_error)
        self._lines = Scan(_any, self._passed_over)
        self._visible: Sequence[int] = range(0)
        """All that is not left out; the filter takes from these."""
        self._search: Scan | None = None
        self._only: Scan | None = None
        self.search(self.search_text)
        self.filter(self.only_text)

    @property
    def _passed_over(self) -> Callable[[LogLine], bool] | None:
        return is_health_check if self.quiet else None

    def toggle_quiet(self) -> None:
        """Leave health checks out, or show them; what was found is looked for again."""
        self.quiet = not self.quiet
        current = self.current
        self.reset()
        self.current = current

    @property
    def hidden(self) -> int:
        """How many held health checks are left out."""
        return len(self._lines.hidden)

    @property
    def hidden_matches(self) -> int:
        """How many of those have what is searched for, or without a search what is filtered for."""
        scan = self._search or self._only
        return len(scan.hidden) if scan is not None else 0

    @property
    def filtered(self) -> bool:
        """Whether only some lines are shown."""
        return self._only is not None

    def search(self, text: str) -> None:
        """Look for a pattern; empty ends the search."""
        self.search_text = text
        self.current = -1
        self.pattern = wanted = pattern(text) if text else None
        self._search = self._scan_for(wanted)

    def filter(self, text: str) -> None:
        """Let only lines with a pattern through; empty lets all."""
        self.only_text = text
        self._only = self._scan_for(pattern(text) if text else None)

    def _scan_for(self, wanted: re.Pattern[str] | None) -> Scan | None:
        if wanted is None:
            return None
        return Scan(lambda line: wanted.search(line.text) is not None, self._passed_over)

    def next_context(self) -> None:
        """Show more, then no, lines around those that the filter finds."""
        self.context = CONTEXTS[(CONTEXTS.index(self.context) + 1) % len(CONTEXTS)]

    def advance(self, fetch: Fetch, first: int, end: int) -> None:
        """Look at a slice of what was not looked at yet."""
        for scan in (self._lines, self._errors, self._search, self._only):
            if scan is not None:
                scan.advance(fetch, first, end)

    def shown(self, first: int, end: int) -> Sequence[int]:
        """Return the numbers of the lines to show, ascending; those not looked at yet are among them."""
        if self._lines.hidden:
            self._visible = [*self._lines.found, *range(max(first, self._lines.next), end)]
        else:
            self._visible = range(first, end)
        return around(self._only.found, self.context, self._visible) if self._only is not None else self._visible

    def left_out(self, before: int, seq: int) -> int:
        """Return how many lines between two shown ones the filter leaves out."""
        return bisect_left(self._visible, seq) - bisect_left(self._visible, before) - 1

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
        """Return what the title says about filter, search and what is left out."""
        parts = []
        if self._only is not None:
            parts.append(S.log_only.format(text=self.only_text, context=self.context))
        place = self._target.place(self.current) if self.current >= 0 else 0
        if self._search is not None:
            found = S.log_matches.format(n=len(self._search.found))
            parts.append(f"/{self.search_text}  {f'{place}/' if place else ''}{found}")
        elif place:
            parts.append(f"{failed_sign} {place}/{len(self._errors.found)}")
        if self.hidden:
            parts.append(S.log_hidden.format(n=self.hidden))
        return parts
