"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager


class ManualClock:
    """Implements `pdtui.clock.Clock`; `advance` wakes sleepers and expires time-outs in order."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self._now = 0.0
        self._wall = wall
        self._waiters: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def wall(self) -> float:
        return self._wall + self._now

    def monotonic(self) -> float:
        return self._now

    def _at(self, when: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        self._waiters.append((when, self._count, future))
        return future

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._at(self._now + seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return self._timeout(seconds)

    @asynccontextmanager
    async def _timeout(self, seconds: float | None) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as scope:
            if seconds is None:
                yield
                return
            loop = asyncio.get_running_loop()
            future = self._at(self._now + seconds)
            future.add_done_callback(lambda f: None if f.cancelled() else scope.reschedule(loop.time()))
            try:
                yield
            finally:
                future.cancel()

    async def advance(self, seconds: float) -> None:
        """Move time forward, letting everything that becomes due run at its own moment."""
        end = self._now + seconds
        while True:
            self._waiters = [w for w in self._waiters if not w[2].done()]
            due = [w for w in self._waiters if w[0] <= end]
            if not due:
                break
            when, _, future = min(due, key=lambda w: w[:2])
            self._now = max(self._now, when)
            future.set_result(None)
            await settle()
        self._now = end
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(rounds):
        await asyncio.sleep(0)
