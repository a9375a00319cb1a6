"""The fleet in a thread of its own, with its own loop.

A terminal that stops reading blocks the console's loop for as long as it lasts; connections, supervision and
the embedded proxy must not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pdtui.clock import Clock
from pdtui.errors import PdtuiError
from pdtui.fleet.executor import DaemonExecutor
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.handle import LogLine, LogView
from pdtui.fleet.intents import Acknowledge, Intent, Preview, Unacknowledge
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.events import PreflightEvent
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import OperationStatus, Snapshot
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan

T = TypeVar("T")

JOIN_TIMEOUT = 20.0
"""Seconds that the thread has to end; connections that hang are left to the system then."""


class EngineThread:
    """Runs a `Fleet` and implements `FleetHandle` for callers on any thread. A context manager."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        *,
        clock: Clock,
        read_only: bool,
        by: str,
        journal_dir: Path | None = None,
        fleet: Callable[[], Fleet] | None = None,
    ) -> None:
        """Prepare; `fleet` makes another one than `Fleet(topology, ...)` on the engine's loop (tests)."""
        self._topology = topology
        self._plan = plan
        self._make = fleet or (
            lambda: Fleet(topology, plan, clock=clock, read_only=read_only, by=by, journal_dir=journal_dir)
        )
        self._read_only = read_only or topology.safety.read_only
        self._fleet: Fleet | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._root: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._up = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="pdtui-engine", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread; returns when the fleet watches. Raises what the fleet raised."""
        self._thread.start()
        self._up.wait()
        if self._fleet is None:
            self._thread.join()
            raise self._error or RuntimeError("the engine did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop and wait for the thread; ranks stay as they are."""
        self.close()

    def close(self) -> None:
        """Stop and wait for the thread. May be called twice."""
        loop, root = self._loop, self._root
        if loop is not None and root is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # It may close in between.
                loop.call_soon_threadsafe(root.cancel)
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT)

    def _main(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        except (PdtuiError, OSError) as error:
            self._error = error
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(DaemonExecutor())
        self._root = asyncio.current_task()
        async with self._make() as fleet:
            self._fleet = fleet
            self._up.set()
            await asyncio.Event().wait()

    @property
    def _running(self) -> Fleet:
        if self._fleet is None:
            raise RuntimeError("the engine is not started")
        return self._fleet

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop; cancelling the caller cancels it."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise asyncio.CancelledError
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def begin(self, work: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
        """Run something beside the views, on the engine's loop; it ends with the engine at the latest."""
        fleet, tasks = self._running, self._tasks

        def start() -> None:
            task = asyncio.ensure_future(work(fleet))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self._call(start)

    def _call(self, function: Callable[[], object]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    @property
    def topology(self) -> Topology:
        """The loaded file."""
        return self._topology

    @property
    def plan(self) -> Plan:
        """What should run."""
        return self._plan

    @property
    def read_only(self) -> bool:
        """Whether every intent is refused."""
        return self._read_only

    @property
    def snapshot(self) -> Snapshot:
        """The newest picture; never blocks."""
        return self._running.snapshot

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` from the engine's thread when `snapshot` changed; one call outstanding at most."""
        return self._running.subscribe(wake)

    async def preview(self, intent: Intent) -> Preview:
        """Say what an intent would do. Raises `ActionRefused`."""
        return await self._there(self._running.preview(intent))

    async def submit(self, intent: Intent) -> str:
        """Begin; returns the operation's id. Raises `ActionRefused`."""
        return await self._there(self._running.submit(intent))

    async def acknowledge(self, intent: Acknowledge | Unacknowledge) -> Mapping[str, str]:
        """Acknowledge a trouble, or take that back. Raises `ActionRefused`."""
        return await self._there(self._running.acknowledge(intent))

    async def cancel(self, operation: str) -> None:
        """Ask a running operation to stop where it is."""
        await self._there(self._running.cancel(operation))

    async def wait(self, operation: str) -> OperationStatus:
        """Return an operation's status when it has ended."""
        return await self._there(self._running.wait(operation))

    def log(self, rank: str) -> LogView:
        """Follow a rank's log and say where it stands; never blocks."""
        return self._running.log(rank)

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        """Return held lines from sequence number `first`; never blocks."""
        return self._running.log_lines(rank, first, count)

    def unfollow(self, rank: str) -> None:
        """Stop following a rank's log."""
        self._call(lambda: self._running.unfollow(rank))

    async def ask(self, request: Ask, progress: Callable[[AskProgress], None]) -> AskProgress:
        """Send a completion through the embedded proxy; `progress` is called on the caller's loop."""
        here = asyncio.get_running_loop()

        def hand_over(step: AskProgress) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(progress, step)

        return await self._there(self._running.ask(request, hand_over))

    async def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
        """Look over nodes and yield what is found, on the caller's loop; leaving early ends it."""
        here = asyncio.get_running_loop()
        events: asyncio.Queue[PreflightEvent | None] = asyncio.Queue()

        def hand_over(event: PreflightEvent | None) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(events.put_nowait, event)

        async def work() -> None:
            try:
                async with closing(self._running.preflight(request)) as found:
                    async for event in found:
                        hand_over(event)
            finally:
                hand_over(None)

        task = asyncio.ensure_future(self._there(work()))
        try:
            while (event := await events.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def last_preflight(self) -> PreflightReport | None:
        """What the last preflight said, whole or as far as it came; never blocks."""
        return self._running.last_preflight

    async def poll_now(self, nodes: Sequence[str] = ()) -> None:
        """Read the health of these nodes (all if none) now."""
        await self._there(self._running.poll_now(nodes))
