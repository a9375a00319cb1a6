"""Makes the rows of a table happen and looks what is shown of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import asyncssh

from pdtui.errors import PdtuiError
from tests.faults.bench import EVERY, Bench
from tests.faults.table import Outcome, Row, told

BROKEN = (AssertionError, OSError, PdtuiError, asyncssh.Error, subprocess.SubprocessError)
"""What a row raises that cannot be made."""


def order(rows: Sequence[Row]) -> list[Row]:
    """Return rows as they are to be asked for: what goes on beside the others last."""
    return sorted(rows, key=lambda row: (row.late, bool(row.aside)))


class Watch:
    """Notes when everything of a row is shown, from the moment it happens."""

    def __init__(self, on: Bench, row: Row) -> None:
        self.outcome = Outcome(row)
        self.over = False
        """There is nothing to look for."""
        self._bench = on
        self._since = on.clock.wall()
        self._began = time.monotonic()
        self._looked: tuple[int, int] | None = None

    def look(self) -> bool:
        """Look once, when there is something new; returns whether the row is over."""
        row, outcome = self.outcome.row, self.outcome
        seconds = time.monotonic() - self._began
        newest = (self._bench.snapshot.revision, len(self._bench.said))
        if newest == self._looked:
            return seconds > row.within
        self._looked = newest
        document = self._bench.document(self._since)
        outcome.missing = "; ".join(filter(None, (shown.missing(document) for shown in row.shows)))
        if not outcome.missing:
            outcome.seconds = seconds
            outcome.told = [f"{s.subject}: {t}" for s in row.shows for t in told(document, s.subject)]
        return not outcome.missing or seconds > row.within


class Aside:
    """Rows that go on at the same time, beside whatever else happens."""

    def __init__(self, on: Bench, rows: Sequence[Row]) -> None:
        self._over = threading.Event()
        self._watches: dict[str, Watch] = {}
        self._thread = threading.Thread(target=self._watch, name="aside")
        self._bench, self._rows = on, rows
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Make all of them happen."""
        self._bench.aside |= frozenset[str]().union(*(row.aside for row in self._rows))
        with contextlib.ExitStack() as stack:
            for row in self._rows:
                self._watches[row.id] = watch = Watch(self._bench, row)
                try:
                    stack.enter_context(row.event(self._bench))
                except BROKEN as error:  # The other rows go on.
                    watch.outcome.missing = f"it could not be made: {error!r}"
                    watch.over = True
            self._stack = stack.pop_all()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put all of them right."""
        self._over.set()
        self._thread.join()
        try:
            self._stack.close()
        finally:
            self._bench.aside -= frozenset[str]().union(*(row.aside for row in self._rows))

    def _watch(self) -> None:
        waiting = [watch for watch in self._watches.values() if not watch.over]
        while waiting and not self._over.wait(0.25):
            waiting = [watch for watch in waiting if not watch.look()]

    def outcome(self, row: Row) -> Outcome:
        """Wait for what becomes of a row."""
        self._thread.join(row.within + 10.0)
        return self._watches[row.id].outcome


class Table:
    """Makes rows happen and keeps what became of them."""

    def __init__(self, on: Bench, rows: Sequence[Row]) -> None:
        self.bench = on
        self.rows = {row.id: row for row in order(rows)}
        """In the order in which they are to be asked for: what goes on beside the others comes last."""
        self._stack = contextlib.ExitStack()
        self._aside = self._begin(late=False)
        self._late: Aside | None = None

    def _begin(self, *, late: bool) -> Aside:
        rows = [row for row in self.rows.values() if row.aside and row.late is late]
        return self._stack.enter_context(Aside(self.bench, rows))

    def close(self) -> None:
        """Put right what goes on beside the others."""
        self._stack.close()

    def outcome(self, row: Row) -> Outcome:
        """Make a row happen, and return what became of it."""
        if row.late:
            if self._late is None:
                self.bench.mend()
                self._late = self._begin(late=True)
            return self._late.outcome(row)
        return self._aside.outcome(row) if row.aside else self._alone(row)

    def _alone(self, row: Row) -> Outcome:
        on = self.bench
        on.mend()
        on.said.clear()
        watch = Watch(on, row)
        with row.event(on):
            while not watch.look():
                time.sleep(EVERY)
            if row.in_status and not watch.outcome.missing:
                watch.outcome.missing = self._not_in_status(row)
        return watch.outcome

    def _not_in_status(self, row: Row) -> str:
        """Return what a new console does not show."""
        planned = {name for rank in self.bench.engine.plan.ranks for name in (rank.id, rank.node)}
        known = all(shown.subject in (*planned, "serving", "headline") for shown in row.shows)
        file = self.bench.short if known else self.bench.file
        done = self.bench.process("status", str(file), "--json")
        if done.returncode != 1:
            return f"pdtui status: exit status {done.returncode}: {done.stderr}"
        document = {"events": [], "operations": [], **json.loads(done.stdout)}
        shows = [shown for shown in row.shows if shown.subject not in ("headline", "event", "operation")]
        return "; ".join(f"pdtui status: {said}" for shown in shows if (said := shown.missing(document)))
