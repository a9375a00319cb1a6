"""Calls the operator when something got worse: the terminal's bell, and a notification (OSC 9) that says what.

Only the console's own loop writes it, after a newer picture of the cluster was shown: while the terminal does not
read, nothing is written and nothing is missed, as the next picture is compared with the last one that was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pdtui.clock import Clock
from pdtui.console.strings import S
from pdtui.fleet.transitions import Transition
from pdtui.text import clean_line

GAP = 15.0
"""Seconds between two calls; what comes in between is one call."""

QUIET_AT_FIRST = 10.0
"""Seconds after the console was opened in which nothing calls: whoever opened it is looking."""

_LONGEST = 200
"""Characters of a notification; terminals cut or drop longer ones."""


class Bell:
    """Collects what calls an operator, and rings."""

    def __init__(
        self, write: Callable[[str], None], clock: Clock, cluster: str, environ: Mapping[str, str]
    ) -> None:
        """Prepare; `write` sends to the terminal, `environ` says whether tmux or screen stands in between."""
        self._write = write
        self._clock = clock
        self._cluster = cluster
        self._environ = environ
        self._waiting: list[Transition] = []
        self._deaf_until = clock.monotonic() + QUIET_AT_FIRST
        self._not_before = self._deaf_until
        self.on = True

    def take(self, changes: Sequence[Transition]) -> None:
        """Take what has changed; what is known, and what got better, calls nobody."""
        if self._clock.monotonic() >= self._deaf_until:
            self._waiting += [change for change in changes if change.calls]
        self.ring()

    def ring(self) -> None:
        """Call, if there is something to say and the last call was not just now."""
        now = self._clock.monotonic()
        if not self._waiting or now < self._not_before:
            return
        waiting, self._waiting = self._waiting, []
        self._not_before = now + GAP
        if self.on:
            self._write("\a" + notification(self._words(waiting), self._environ))

    def _words(self, changes: Sequence[Transition]) -> str:
        first = changes[0]
        words = f"{first.subject} {first.summary}" if first.kind != "service" else first.summary
        more = S.bell_more.format(n=len(changes) - 1) if len(changes) > 1 else ""
        return f"pdtui {self._cluster}: {words}{more}"


def notification(text: str, environ: Mapping[str, str]) -> str:
    """Return the sequence that makes a terminal notify; tmux (allow-passthrough) and screen hand it on."""
    sequence = f"\x1b]9;{clean_line(text)[:_LONGEST]}\a"
    if environ.get("TMUX"):
        doubled = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    return f"\x1bP{sequence}\x1b\\" if environ.get("TERM", "").startswith("screen") else sequence
