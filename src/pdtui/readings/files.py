"""Files of a node as answers: the text on stdout, as `cat` prints it, or why there is none."""

from __future__ import annotations

import re
from typing import Any

from pdtui.readings.answer import RAW_LIMIT, Answer, Failure, Reading

_MISSING = re.compile(r"No such file or directory|Is a directory|Not a directory")


def no_file(answer: Answer) -> Reading[Any] | None:
    """Return the reading of a file that is not there; None when it is, or when something else went wrong."""
    if answer.status == 0 or answer.timed_out or not _MISSING.search(answer.text):
        return None
    return Reading(answer.command, answer.at, answer.text[:RAW_LIMIT], failure=Failure.MISSING)
