"""Whether there is a terminal that the console can use. Imports neither textual nor rich."""

from __future__ import annotations

import os
import sys

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
