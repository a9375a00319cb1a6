"""Watches the topology file on disk: says when it is another one than was loaded, and whether that would load."""

from __future__ import annotations

import asyncio
import hashlib

from pdtui.clock import Clock
from pdtui.fleet.store import Store
from pdtui.topology.load import first_error
from pdtui.topology.model import Topology

INTERVAL = 2.0
"""Seconds between two looks."""


class FileWatch:
    """The file of one fleet; it is announced, never loaded."""

    def __init__(self, topology: Topology, store: Store, *, clock: Clock) -> None:
        self._topology = topology
        self._store = store
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """Its time and size when it was read last."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL)
            try:
                found = self._topology.path.stat()
                seen = (found.st_mtime_ns, found.st_size)
                if seen != self._seen:
                    self._seen = seen
                    await self._read()
            except OSError:
                self._seen = None  # Editors replace files; a file that is gone for good changes nothing here.

    async def _read(self) -> None:
        path = self._topology.path
        data = path.read_bytes()
        changed = hashlib.sha256(data).hexdigest() != self._topology.digest
        self._store.set_file_changed(changed)
        # In a thread: to check a long file takes longer than everything else may wait.
        self._store.set_file_broken(await asyncio.to_thread(first_error, data, path) if changed else "")
