"""What a view may ask of the fleet: implemented by the engine thread, and in memory by console tests.

All methods may be called from any thread; the coroutines run on the caller's loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pdtui.fleet.intents import Acknowledge, Intent, Preview, Unacknowledge
from pdtui.fleet.preflight.events import PreflightEvent
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import Snapshot
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan


@dataclass(frozen=True, slots=True)
class LogLine:
    """One cleaned line of a rank's log."""

    seq: int
    """Counts up without gaps while the rank is followed."""
    at: float
    """Wall clock (ours) when the node read it."""
    text: str
    severity: str = ""
    """`error`, `warning` or empty, judged from the text."""


@dataclass(frozen=True, slots=True)
class LogView:
    """Where a followed log stands; lines are asked for by sequence number."""

    rank: str
    first_seq: int
    """Oldest line still held."""
    next_seq: int
    """One past the newest."""
    dropped: int
    """Lines that were never held: the log was longer than what was fetched, or a gap."""
    error: str = ""
    """Why nothing comes: no log yet, node unreachable."""
    partial: str = ""
    """A line that has not ended yet, as it stands: a progress bar. It is not counted and changes until it ends."""


class FleetHandle(Protocol):
    """The live cluster as a view sees it."""

    @property
    def topology(self) -> Topology:
        """The loaded file."""
        ...

    @property
    def plan(self) -> Plan:
        """What should run."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether every intent is refused."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The newest picture; never blocks."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` (from the engine's thread) when `snapshot` changed; one call outstanding at most.

        The next call comes only after `snapshot` was read. Returns a function that ends it.
        """
        ...

    async def preview(self, intent: Intent) -> Preview:
        """Say what an intent would do. Raises `ActionRefused`."""
        ...

    async def submit(self, intent: Intent) -> str:
        """Begin; returns the operation's id. Raises `ActionRefused`. Progress is in the snapshot."""
        ...

    async def acknowledge(self, intent: Acknowledge | Unacknowledge) -> Mapping[str, str]:
        """Acknowledge a trouble, or take that back; the snapshot has it at once.

        Returns the nodes that lack it yet (they get it when they are back), and why. Raises `ActionRefused`.
        """
        ...

    async def cancel(self, operation: str) -> None:
        """Ask a running operation to stop where it is."""
        ...

    def log(self, rank: str) -> LogView:
        """Follow a rank's log (from the first call on) and say where it stands; never blocks."""
        ...

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        """Return held lines from sequence number `first`; never blocks."""
        ...

    def unfollow(self, rank: str) -> None:
        """Stop following a rank's log."""
        ...

    async def ask(self, request: Ask, progress: Callable[[AskProgress], None]) -> AskProgress:
        """Send a completion through the embedded proxy; `progress` is called on the caller's loop.

        Cancelling the call cancels both legs.
        """
        ...

    def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
        """Look over nodes and yield what is found, on the caller's loop; leaving early ends it.

        Raises `UsageError` for a target or check that is none, `ActionRefused` while another one runs.
        """
        ...

    @property
    def last_preflight(self) -> PreflightReport | None:
        """What the last preflight said, whole or as far as it came; None: there was none. Never blocks."""
        ...

    async def poll_now(self, nodes: Sequence[str] = ()) -> None:
        """Read the health of these nodes (all if none) now."""
        ...
