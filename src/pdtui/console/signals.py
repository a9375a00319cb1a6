"""SIGTERM and SIGHUP end the console as `q` does: the terminal is restored, the engine closes its connections."""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0
"""Seconds that an orderly end may take."""


@contextmanager
def ended_by_signals(end: Callable[[int], None], *, grace: float = GRACE) -> Iterator[None]:
    """Call `end` with the exit status (128 and the number) when a signal comes; what was ignored stays ignored.

    `end` runs between two instructions of the main thread and must only wake its loop. A loop that waits for a
    terminal that is gone or frozen does not wake: then the process ends after `grace` seconds all the same.
    """
    modes = _terminal_modes()
    over = threading.Event()

    def insist(status: int) -> None:
        if not over.wait(grace):
            _restore(modes)
            os._exit(status)

    def handle(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=insist, args=(128 + number,), daemon=True).start()
        end(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handle)
    try:
        yield
    finally:
        over.set()
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)


def _terminal_modes() -> list[Any] | None:
    with suppress(termios.error, OSError, ValueError):
        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    return None


def _restore(modes: list[Any] | None) -> None:
    if modes is not None and sys.__stdin__ is not None:
        with suppress(termios.error, OSError, ValueError):
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, modes)
