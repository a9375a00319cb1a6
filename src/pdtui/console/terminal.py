"""Whether there is a terminal that the console can use. Imports neither textual nor rich."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from contextlib import suppress

from pdtui.errors import UsageError


def require_terminal(status_command: str) -> None:
    """Raise `UsageError` unless stdin and stdout are a terminal that can place its cursor.

    `status_command` is what to run instead.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"the console needs a terminal; without one use: {status_command}")
    if os.environ.get("TERM", "") == "dumb":
        raise UsageError(
            f"TERM=dumb cannot place its cursor; set TERM to what the terminal is (xterm-256color), or use: "
            f"{status_command}"
        )


def prepare_textual(*, slow: bool) -> None:
    """Set what Textual reads from the environment when it is imported; the user's own values stay."""
    os.environ.setdefault("TEXTUAL_FPS", "4" if slow else "15")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    if slow:
        # A key's escape sequence that arrives in two packets must not be taken for the escape key.
        os.environ.setdefault("ESCDELAY", "300")


_PLACE = re.compile(rb"\x1b\[\d+;(\d+)R")
_ANSWERS_WITHIN = 1.0
"""Seconds that a terminal has to say where its cursor is; over a slow link it takes two trips."""


def cells(text: str) -> int | None:
    """Write a text, ask the terminal how far its cursor went, and erase it; None when it does not say.

    Blocks for a second at most. What is typed meanwhile is lost.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    descriptor = sys.stdin.fileno()
    with suppress(termios.error, OSError, UnicodeEncodeError):
        modes = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor)
            sys.stdout.write(f"\r{text}\x1b[6n")
            sys.stdout.flush()
            column = _column(descriptor)
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
        finally:
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, modes)
        return None if column is None else column - 1
    return None


def _column(descriptor: int) -> int | None:
    """Read until the terminal has said where its cursor is."""
    heard, until = b"", time.monotonic() + _ANSWERS_WITHIN
    while (left := until - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        heard += os.read(descriptor, 64)
        if (found := _PLACE.search(heard)) is not None:
            return int(found[1])
    return None
