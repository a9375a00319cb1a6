"""Time limits of the machine's clock."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pdtui.clock import SystemClock

CLOCK = SystemClock()


async def test_a_body_that_takes_longer_is_ended_and_one_that_does_not_is_not() -> None:
    with pytest.raises(TimeoutError):
        async with CLOCK.timeout(0.001):
            await asyncio.sleep(60)
    for seconds in (60.0, None):
        async with CLOCK.timeout(seconds):
            await asyncio.sleep(0)
    with pytest.raises(ValueError, match="own"):
        async with CLOCK.timeout(60):
            raise ValueError("own")
    await asyncio.sleep(0)


async def test_a_limit_holds_in_what_a_cancelled_task_does_at_its_end() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with suppress(TimeoutError):
                async with CLOCK.timeout(0.001):
                    await asyncio.sleep(60)
            done.append("cleaned up")

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["cleaned up"]


async def test_a_task_that_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        async with CLOCK.timeout(60):
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
