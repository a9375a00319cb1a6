"""Processes of this machine, found by what they carry in their command line or environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process that lives."""

    pid: int
    """As this machine counts, whatever namespace the process is in."""
    command: str
    environment: str
    """`NAME=value` by line, as it was when the program began."""


def living() -> Iterator[Process]:
    """Yield every process but this one; those that have ended and wait for their parent do not count."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            environment = (folder / "environ").read_bytes().replace(b"\0", b"\n")
        except OSError:
            continue
        yield Process(int(folder.name), command.decode("utf-8", "replace"), environment.decode("utf-8", "replace"))


def carrying(*words: str) -> list[Process]:
    """Return the living processes that carry every one of `words`, wherever."""
    return [p for p in living() if all(word in p.command or word in p.environment for word in words)]
