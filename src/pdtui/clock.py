"""Time as something that is handed in, so that tests decide how it passes."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import TracebackType
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
        """Return a context like `asyncio.timeout`, which also holds in what a cancelled task does at its end."""
        return _Timeout(seconds)


class _Timeout:
    """A time limit. Before 3.11.4 `asyncio.timeout` raises `CancelledError` in a task that is being cancelled
    (gh-102780), and so cuts off its cleaning up: Debian 12 has 3.11.2."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled_before = 0
        self._over = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a time limit is for a task")
        self._cancelled_before = self._task.cancelling()
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._expire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is not None and self._over:
            alone = task.uncancel() <= self._cancelled_before
            if alone and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise TimeoutError from error

    def _expire(self) -> None:
        self._over = True
        if self._task is not None:
            self._task.cancel()
