"""Files of a simulated node that faults change in place: they may be mounted in a container."""

from __future__ import annotations

import os
from pathlib import Path

GARBAGE = b"\xff\xfe\x1b[2J\x00Vers\x01ion\x00=\n==[/red]=99999999999999999999999999\n"
ASIDE = ".aside"


def put(path: Path, data: bytes) -> None:
    """Have a file hold this, whatever was done to it."""
    aside = path.with_name(path.name + ASIDE)
    if aside.exists():
        path.unlink(missing_ok=True)
        aside.rename(path)
    path.write_bytes(data)


def take_away(path: Path) -> None:
    """Have a file not be there."""
    aside = path.with_name(path.name + ASIDE)
    if aside.exists():
        path.unlink(missing_ok=True)
    elif path.exists():
        path.rename(aside)


def never_answers(path: Path) -> None:
    """Have whoever opens a file wait for ever, as on a network disk that is gone."""
    take_away(path)
    os.mkfifo(path)
