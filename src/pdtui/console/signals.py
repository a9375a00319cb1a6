"""SIGTERM and SIGHUP end the console as `q` does: the terminal is restored, the engine closes its connections."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals(end: Callable[[int], None]) -> Iterator[None]:
    """Call `end` with the exit status (128 and the number) when a signal comes; what was ignored stays ignored.

    `end` runs between two instructions of the main thread and must only wake its loop.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        end(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)
