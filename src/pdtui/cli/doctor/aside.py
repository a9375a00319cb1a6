"""Looks that may hang or break, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds that each section about this machine has: a file system may hang."""


class Aside(Generic[T]):
    """A look in a thread of its own, which may hang or break without harm to the others."""

    def __init__(self, look: Callable[[], T]) -> None:
        self.error = f"no answer within {PATIENCE:.0f} s: does a file system hang?"
        self._found: T | None = None
        self._until = time.monotonic() + PATIENCE
        self._thread = threading.Thread(target=partial(self._run, look), daemon=True)
        self._thread.start()

    def _run(self, look: Callable[[], T]) -> None:
        try:
            self._found = look()
        except Exception as error:  # What is to find out what is broken must not break with it.
            self.error = f"this could not be looked at: {type(error).__name__}: {error}"

    def result(self) -> T | None:
        """Return what was found, `PATIENCE` after the beginning at the latest; None: `error` says why not."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        return self._found
