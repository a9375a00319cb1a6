"""Watches the topology file on disk: says when it is another one than was loaded, and whether that would load."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from pdtui.clock import Clock
from pdtui.fleet.snapshot import FileState
from pdtui.fleet.store import Store
from pdtui.topology.load import first_error
from pdtui.topology.model import Topology

INTERVAL = 2.0
"""Seconds between two looks."""

MISSED = 2
"""Looks in a row that must not find the file before it counts as removed: editors replace files."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found on disk."""

    state: FileState
    error: str = ""
    stamp: tuple[int, int] | None = None
    """Its time and size; None: it could not be read."""


class FileWatch:
    """The file of one fleet; it is announced, never loaded."""

    def __init__(self, topology: Topology, store: Store, *, clock: Clock) -> None:
        self._topology = topology
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        stamp: tuple[int, int] | None = None
        missed = 0
        while True:
            await self._clock.sleep(INTERVAL)
            # In a thread: a file system may hang, and to check a long file takes longer than all else may wait.
            found = await asyncio.to_thread(self._look, stamp)
            missed = missed + 1 if found is not None and found.state == "removed" else 0
            if found is None:
                continue
            stamp = found.stamp
            if found.state != "removed" or missed >= MISSED:
                self._store.set_file(found.state, found.error)

    def _look(self, stamp: tuple[int, int] | None) -> _Look | None:
        """Read the file unless it has this stamp; None when there is nothing new to say."""
        path = self._topology.path
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen == stamp:
                return None
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return _Look("removed")
        except OSError:
            return None  # Not to be read just now: that is no change.
        if hashlib.sha256(data).hexdigest() == self._topology.digest:
            return _Look("loaded", stamp=seen)
        error = first_error(data, path)
        return _Look("broken" if error else "changed", error, seen)
