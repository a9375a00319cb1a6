"""When to ask a tool again: intervals, a breaker for what hangs, and streams that are closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pdtui.readings.commands import Query

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is asked, in seconds; a call of the tools takes 0.4 to 1 s on a real server."""

    table: float = 10.0
    network: float = 15.0
    slow: float = 600.0
    timeout: float = 10.0
    """For one call, on the node."""
    jitter: float = 0.1
    """Part of an interval by which nodes differ, so that they are not all asked at once."""
    parallel: int = 6
    """Devices of a node that are asked at the same time."""
    busy_tries: int = 3
    """Further tries before a busy tool is reported."""

    def interval(self, query: Query) -> float:
        """Return how long an answer to a query is good for."""
        if query is Query.TABLE:
            return self.table
        return self.network if query in (Query.LINK, Query.NET_HEALTH, Query.VNIC) else self.slow


@dataclass(slots=True)
class Breaker:
    """Stops asking where a tool hangs, or processes blocked in the driver would pile up on the node."""

    threshold: int = 2
    first: float = 20.0
    longest: float = 600.0
    timeouts: int = 0
    """In a row."""
    retry_at: float = 0.0
    since: float = 0.0
    """Wall clock of the first of these time-outs."""

    @property
    def suspect(self) -> bool:
        """Whether the last call timed out: then one call at a time is enough."""
        return self.timeouts > 0

    @property
    def hanging(self) -> bool:
        """Whether calls have timed out repeatedly."""
        return self.timeouts >= self.threshold

    def answered(self) -> None:
        """Note that a call has ended by itself."""
        self.timeouts = 0
        self.retry_at = 0.0

    def timed_out(self, now: float, wall: float) -> None:
        """Note a time-out at monotonic time `now`; from the threshold on each next call waits twice as long."""
        if not self.timeouts:
            self.since = wall
        self.timeouts += 1
        if self.hanging:
            self.retry_at = now + min(self.longest, self.first * 2.0 ** min(self.timeouts - self.threshold, 16))


@dataclass(slots=True)
class Target:
    """What is asked one call at a time: a device, or (device None) the node's npu-smi."""

    device: int | None
    due: dict[Query, float]
    """Monotonic time at which each query is to be asked again, most telling query first."""
    breaker: Breaker = field(default_factory=Breaker)
    busy: dict[Query, int] = field(default_factory=dict)
    """Busy answers in a row."""
    asking: bool = False

    def pick(self, now: float) -> tuple[Query, ...]:
        """Return what to ask now; of a suspect only the first query, and not before its time."""
        if self.asking or now < self.breaker.retry_at:
            return ()
        due = tuple(query for query, at in self.due.items() if at <= now)
        return due[:1] if self.breaker.suspect else due

    def next_at(self) -> float:
        """Return when there is something to ask again."""
        return max(min(self.due.values()), self.breaker.retry_at)


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a stream of an agent's answers when its reader leaves early, so that the node stops too."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
