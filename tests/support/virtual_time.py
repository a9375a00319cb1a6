"""An event loop in which nothing takes time: when all tasks wait, its clock moves on to what is due next."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")

WALL = 1_800_000_000.0


class NothingLeft(AssertionError):
    """Every task waits for something that nobody will do."""


class _Selector(selectors.SelectSelector):
    """Waits for nothing; tells how long it would have."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass in no time."""
        if timeout is None:
            raise NothingLeft("every task waits, and no timer runs")
        if timeout > 0:
            self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that does no input or output of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Return the time that has passed for those on this loop, in seconds."""
        return self.now

    def run_in_executor(self, executor: object, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Do the work of a thread at once: time would pass beside it, more or less of it each time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # As a thread hands it over.
            done.set_exception(error)
        return done


class VirtualClock:
    """Implements `pdtui.clock.Clock` on a `VirtualLoop`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jumped = 0.0
        """Seconds by which the wall clock was set."""

    def wall(self) -> float:
        """Return a time of day that begins in 2027."""
        return WALL + self._loop.now + self.jumped

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        """Wait, in the loop's time."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return `asyncio.timeout`."""
        return asyncio.timeout(seconds)


def run_virtual(work: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run to the end, let what is left of it end, and close the loop."""
    try:
        return loop.run_until_complete(work)
    finally:
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=60.0))
        loop.close()


P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Let a test be one whose time passes by itself."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            run_virtual(test(*args, **kwargs), loop)
        finally:
            asyncio.set_event_loop(None)

    return run


def virtual_clock() -> VirtualClock:
    """Return the clock of a test in virtual time."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError("not in virtual time: decorate the test")
    return VirtualClock(loop)
