"""Lines to stdout from a thread: a reader that has stopped, or a frozen terminal, must not stop who writes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

KEPT = 5000
"""Lines that wait; of more, the oldest are dropped."""

LEAVE = 2.0
"""Seconds that what waits has at the end."""


class LineWriter:
    """Writes lines in order; never waits for whoever reads them."""

    def __init__(self, failed: Callable[[OSError], None], *, descriptor: int = 1) -> None:
        """Begin; `failed` is called from the thread when nothing can be written: a closed pipe, a full disk."""
        self._descriptor = descriptor
        self._failed = failed
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._ended = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pdtui-lines", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Write a line soon."""
        with self._news:
            if len(self._lines) >= KEPT:
                self._lines.popleft()
                self._dropped += 1
            self._lines.append(line)
            self._news.notify()

    def close(self) -> int:
        """End when all is written, or time is up; returns how many lines were never written."""
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join(LEAVE)
        return self._dropped + len(self._lines)

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._lines and not self._ended:
                    self._news.wait()
                if not self._lines:
                    return
                line = self._lines.popleft()
            try:
                self._put(f"{line}\n".encode("utf-8", "replace"))
            except OSError as error:
                self._failed(error)
                return

    def _put(self, data: bytes) -> None:
        # Past sys.stdout: its lock, held by a thread that never comes back, would keep the program from ending.
        while data:
            data = data[os.write(self._descriptor, data) :]
