"""Commands that have ended on a node, as readers take them."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from pdtui.readings.answer import Answer
from pdtui.remote.messages.commands import Completed

NO_ANSWER = "no answer"
"""Begins the last line of what stands for an answer that did not come in time."""


def answer_of(completed: Completed, now: float, limit: float | None = None) -> Answer:
    """Return the answer of a command that came in at wall time `now`, with the age of a shared one.

    `limit`: seconds that it had; with it a time-out is said in words.
    """
    error = completed.error
    if completed.timed_out and limit is not None and not error:
        error = f"{NO_ANSWER} from {PurePosixPath(completed.argv[0]).name} within {limit:g} s"
    return Answer(
        shlex.join(completed.argv),
        completed.stdout,
        completed.stderr,
        completed.status,
        timed_out=completed.timed_out,
        truncated=completed.truncated,
        error=error,
        at=now - completed.age,
    )
