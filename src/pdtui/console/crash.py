"""What happens when the console itself fails: a file for the report, one line for the operator."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

from pdtui.console.clipboard import state_dir
from pdtui.console.strings import S
from pdtui.text import clean, clean_line


def write_report(error: BaseException) -> str:
    """Write a traceback without the values of variables (they may hold secrets) and return the line to print."""
    text = clean("".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()))
    name = clean_line(f"{type(error).__name__}: {error}")[:200]
    path = _write(text)
    return S.crashed.format(error=name, path=path if path is not None else "-")


def _write(text: str) -> Path | None:
    folder = state_dir()
    path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError:
        return None
    return path
