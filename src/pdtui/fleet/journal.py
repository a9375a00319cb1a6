"""The journal: who did what, when, from where, and with what result. JSON lines; secrets never.

One copy is kept by the console, in the XDG state directory; the nodes that an action touches keep another
beside the ranks' records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pdtui.clock import Clock

TAIL = 1 << 20
"""Bytes from the end of the journal that are read for the durations of earlier starts."""


def default_dir(cluster: str) -> Path:
    """Return `$XDG_STATE_HOME/pdtui/<cluster>`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pdtui" / cluster


def origin() -> str:
    """Return where the operator sits: the address that SSH names, or `local`."""
    words = os.environ.get("SSH_CLIENT", "").split()
    return words[0] if words else "local"


class Journal:
    """Appends entries to a cluster's journal."""

    def __init__(self, directory: Path, *, clock: Clock, by: str) -> None:
        self._path = directory / "journal.jsonl"
        self._clock = clock
        self._by = by
        self.origin = origin()
        """Where the operator sits."""
        self.error = ""
        """Why the last entry could not be written, or empty."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def write(self, event: str, **what: object) -> Mapping[str, object]:
        """Append an entry and return it, for the nodes' copies. A full disk does not stop an operation."""
        entry: dict[str, object] = {
            "at": round(self._clock.wall(), 3),
            "who": self._by,
            "from": self.origin,
            "event": event,
            **{key: value for key, value in what.items() if value not in ("", (), None)},
        }
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
            self.error = ""
        except OSError as error:
            self.error = f"{self._path}: {error.strerror}"
        return entry

    def last_starts(self) -> Mapping[str, float]:
        """Return how long each rank's last start took, in seconds, as far as the journal knows."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().splitlines()
        except OSError:
            return {}
        found: dict[str, float] = {}
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # The first line may be cut.
            if isinstance(entry, dict) and entry.get("event") == "ready":
                rank, seconds = entry.get("rank"), entry.get("seconds")
                if isinstance(rank, str) and isinstance(seconds, int | float):
                    found[rank] = float(seconds)
        return found
