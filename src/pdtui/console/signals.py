"""SIGTERM, SIGHUP and the loss of the terminal end the console as `q` does: the terminal is restored, the engine
closes its connections."""

from __future__ import annotations

import os
import select
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


@contextmanager
def hung_up_with_terminal() -> Iterator[None]:
    """Send this process SIGHUP (SIGTERM where that is ignored) when its terminal is gone.

    The kernel tells only the session that the terminal controls; a console that was started apart from it would
    wait for ever to write its next frame, and read its end without pause. Costs nothing while it waits.
    """
    outputs = [number for number in (1, 2) if os.isatty(number)]
    try:
        terminal = sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
    except (OSError, ValueError):
        terminal = -1
    if terminal < 0:
        yield
        return
    woken, wake = os.pipe()
    thread = threading.Thread(
        target=_watch_terminal, args=(terminal, woken, outputs), name="pdtui-terminal", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        os.close(wake)
        thread.join()
        os.close(woken)


def _watch_terminal(terminal: int, woken: int, outputs: list[int]) -> None:
    poller = select.poll()
    poller.register(terminal, 0)  # Nothing is asked for: hang-ups are always told.
    poller.register(woken, select.POLLIN)
    told = dict(poller.poll())
    if woken not in told and told.get(terminal, 0) & (select.POLLHUP | select.POLLERR):
        silence(outputs)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM if ignored else signal.SIGHUP)


def silence(terminals: list[int]) -> None:
    """Write to nowhere what went to a terminal that is gone: its errors must not keep the end from its work."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nowhere, number)
    os.close(nowhere)


def _terminal_modes() -> list[Any] | None:
    with suppress(termios.error, OSError, ValueError):
        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    return None


def _restore(modes: list[Any] | None) -> None:
    if modes is not None and sys.__stdin__ is not None:
        with suppress(termios.error, OSError, ValueError):
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, modes)
