"""Time as something that is handed in, so that tests decide how it passes."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Clock(Protocol):
    """The four things that pdtui asks of time. All values are seconds."""

    def wall(self) -> float:
        """Return the time of day as seconds since the epoch: for showing and recording only."""
        ...

    def monotonic(self) -> float:
        """Return a time that never goes back: for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context that raises `TimeoutError` when its body takes longer; None never does."""
        ...


class SystemClock:
    """The machine's clock on the running asyncio loop."""

    def wall(self) -> float:
        """Return the time of day as seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return a time that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return `asyncio.timeout(seconds)`."""
        return asyncio.timeout(seconds)
