"""Preflights of this console: one at a time, and what the last one said until the next begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pdtui.clock import Clock
from pdtui.console.preflight_run import Run
from pdtui.console.strings import S
from pdtui.errors import PdtuiError
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import ALIVE_STATES, Snapshot


class PreflightRuns:
    """Outlives the screen that shows it, so that a run goes on while the operator looks elsewhere."""

    def __init__(self, handle: FleetHandle, clock: Clock, changed: Callable[[], None]) -> None:
        """Prepare; `changed` is called whenever there is more to show."""
        self._handle = handle
        self._clock = clock
        self._changed = changed
        self.run: Run | None = None
        self.error = ""
        """Why the last one could not begin."""

    @property
    def running(self) -> bool:
        """Whether one runs."""
        return self.run is not None and self.run.running

    async def go(self, request: PreflightRequest) -> None:
        """Run one to its end; cancelling this cancels it on the nodes."""
        before = self.run
        run = self.run = Run(request, self._handle.plan, before, self._clock.wall())
        self.error = ""
        self._changed()
        try:
            async for event in self._handle.preflight(request):
                run.take(event)
                self._changed()
            run.end("failed", self._clock.wall(), S.preflight_broke_off)
        except PdtuiError as error:
            self.error = str(error).replace("\n", "  ")
            run.end("failed", self._clock.wall(), self.error)
            if not run.nodes:
                self.run = before
        except asyncio.CancelledError:
            run.end("cancelled", self._clock.wall())
            raise
        finally:
            self._changed()


def ranks_that_run(snapshot: Snapshot) -> int:
    """Return how many ranks run, as far as is known."""
    return sum(rank.state in ALIVE_STATES for rank in snapshot.ranks)
