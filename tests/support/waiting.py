"""Wait for a condition of real processes, up to a generous bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    probe: Callable[[], T | Awaitable[T]], *, within: float = 60.0, every: float = 0.05, what: str = ""
) -> T:
    """Return the first true value of `probe`; fails when there is none `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        result = probe()
        value = await result if isinstance(result, Awaitable) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or probe}; last value {value!r}")
        await asyncio.sleep(every)
