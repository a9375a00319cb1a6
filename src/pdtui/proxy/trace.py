"""What happened to each request: which P, which D, when each leg began and ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["running", "ok", "refused", "failed", "client_gone"]
"""`refused`: a 4xx, or no rank to serve it. `failed`: a rank or the proxy broke it."""


@dataclass(slots=True)
class Attempt:
    """One prefill and what came of it; moments are monotonic seconds, None when they never came."""

    id: str
    """The X-Request-Id that both legs carried."""
    prefill: str = ""
    decode: str = ""
    prefill_sent: float | None = None
    prefill_done: float | None = None
    decode_sent: float | None = None
    first_token: float | None = None
    ended: float | None = None
    error: str = ""


@dataclass(slots=True)
class Trace:
    """One request from the moment its head was read; `started` and moments are monotonic seconds."""

    id: str
    path: str
    started: float
    wall: float
    """Time of day of `started`."""
    attempts: list[Attempt] = field(default_factory=list)
    first_token: float | None = None
    """When the client got its first token."""
    ended: float | None = None
    outcome: Outcome = "running"
    status: int = 0
    error: str = ""
    tokens: int = 0
    """Generated tokens: the engine's count when it gave one, else the events that carried any."""
    recomputes: int = 0
    changed: Callable[[], None] = lambda: None
    """Called when a leg begins or ends, for whoever watches this request."""

    def _span(self, first: float | None, last: float | None) -> float | None:
        return None if first is None or last is None else max(0.0, last - first)

    @property
    def last(self) -> Attempt:
        """The attempt that counts."""
        return self.attempts[-1] if self.attempts else Attempt(self.id)

    @property
    def queue_s(self) -> float | None:
        """From the request to the first prefill that was sent."""
        return self._span(
            self.started, next((a.prefill_sent for a in self.attempts if a.prefill_sent is not None), None)
        )

    @property
    def prefill_s(self) -> float | None:
        """From P's request to its answer."""
        return self._span(self.last.prefill_sent, self.last.prefill_done)

    @property
    def transfer_s(self) -> float | None:
        """From P's answer to D's first token: the pull, D's queue, and one step."""
        return self._span(self.last.prefill_done, self.last.first_token)

    @property
    def ttft_s(self) -> float | None:
        """From the request to the first token."""
        return self._span(self.started, self.first_token)

    @property
    def total_s(self) -> float | None:
        """From the request to the end of its answer."""
        return self._span(self.started, self.ended)


class TraceLog:
    """The running requests and the last `keep` finished ones, by id."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._running: dict[str, Trace] = {}
        self._finished: OrderedDict[str, Trace] = OrderedDict()
        self._watchers: dict[str, Callable[[], None]] = {}

    def begin(self, trace: Trace) -> None:
        """Add a request that has just come in."""
        self._running[trace.id] = trace
        trace.changed = self._watchers.get(trace.id, trace.changed)

    @contextmanager
    def watched(self, request_id: str, changed: Callable[[], None]) -> Iterator[None]:
        """Call `changed` on every step of a request that is about to come in."""
        self._watchers[request_id] = changed
        try:
            yield
        finally:
            del self._watchers[request_id]
            trace = self._running.get(request_id)
            if trace is not None:
                trace.changed = lambda: None

    def end(self, trace: Trace) -> None:
        """Move a request to the finished ones."""
        self._running.pop(trace.id, None)
        self._finished.pop(trace.id, None)
        self._finished[trace.id] = trace
        while len(self._finished) > self._keep:
            self._finished.popitem(last=False)

    @property
    def running(self) -> int:
        """How many requests are in flight."""
        return len(self._running)

    def is_running(self, request_id: str) -> bool:
        """Whether a request with this id is in flight."""
        return request_id in self._running

    def get(self, request_id: str) -> Trace | None:
        """Return a request that runs or is still remembered."""
        return self._running.get(request_id) or self._finished.get(request_id)

    def __iter__(self) -> Iterator[Trace]:
        """Iterate over finished requests, oldest first, then the running ones."""
        yield from self._finished.values()
        yield from self._running.values()
