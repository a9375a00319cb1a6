"""Asks ejected ranks whether they are back."""

from __future__ import annotations

import asyncio
import contextlib

from pdtui.clock import Clock
from pdtui.proxy.errors import UpstreamError
from pdtui.proxy.pool import Pool
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.upstream import Upstream


class Prober:
    """One task: when an ejected rank's wait is over, GET /health; 200 brings it back, else the wait doubles."""

    def __init__(self, pool: Pool, upstream: Upstream, settings: ProxySettings, clock: Clock) -> None:
        self._pool = pool
        self._upstream = upstream
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()
        pool.on_eject = self._wake.set

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            due = [rank for when, rank in self._pool.probes() if when <= self._clock.monotonic()]
            if due:
                # One hanging rank delays no other.
                async with asyncio.TaskGroup() as group:
                    for rank in due:
                        group.create_task(self._probe(rank))
                continue
            self._wake.clear()
            waiting = self._pool.probes()
            delay = waiting[0][0] - self._clock.monotonic() if waiting else None
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(delay):
                    await self._wake.wait()

    async def _probe(self, rank: str) -> None:
        within = self._settings.probe_s
        try:
            async with self._upstream.exchange(
                rank, "GET", "/health", headers={}, body=b"", within=within
            ) as answer:
                if answer.status == 200:
                    self._pool.succeeded(rank)
                else:
                    self._pool.probe_failed(rank, f"{rank} answered {answer.status} to /health")
        except UpstreamError as error:
            self._pool.probe_failed(rank, error.message)
