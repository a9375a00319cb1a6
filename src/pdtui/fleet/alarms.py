"""Alarms of ranks that answer and yet do not work as they should: read from two or more of their /metrics.

They begin and end by themselves. Nothing is told from a single reading; a console that starts anew shows the same
after a few of them, but for KV that was given up before: nobody says when.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pdtui.fleet.snapshot import Alarm, AlarmId
from pdtui.readings.vllm_metrics import MetricsReading, Rates
from pdtui.topology.model import Role
from pdtui.topology.plan import RankPlan

TAIL = 8
"""Tokens of a prompt that a decode rank may compute although it pulled the rest: the last one (versions that count
it, Mamba models) or as many as the drafter looks ahead."""
WINDOW = 60.0
"""Seconds over which an alarm says how many prompt tokens a decode rank computed."""
PULLED_AGAIN = 30.0
"""Seconds after the last prompt that was computed when prompts that were all pulled end the alarm."""
IDLE = 180.0
"""Seconds without any prompt that end the alarm; the next one of that kind begins it again."""

HELD = 0.5
"""Share of a prefill rank's KV cache. With nothing running only finished prompts hold blocks, and if all is well
each is fetched within a second: half the cache is far more than that, or than the last batch, which engines that
sleep keep until they work again; and the other half still serves."""
RELEASED = 0.25
"""The alarm ends below this share, so that it does not come and go around `HELD`."""
HELD_FOR = 15.0
"""Seconds of both before it is told: several readings, and half of the 30 s after which NIXL gives blocks up, so
that it is told before they are gone; Mooncake keeps them for 480 s. Half of the lease where the file has less."""
WORKS_AGAIN = 15.0
"""Seconds of running requests that end the alarm: leases that end let a full rank prefill for a moment."""

EXPIRED_FOR = 300.0
"""Seconds for which KV that was given up is told."""

_ENDED: dict[AlarmId, str] = {
    "computes-prompts": "no longer computes prompts itself",
    "kv-held": "no longer holds prompts that nobody fetches",
    "kv-expired": f"has given up no KV for {EXPIRED_FOR / 60:.0f} minutes",
}


def ended_words(alarm: Alarm) -> str:
    """Return what to say when an alarm has ended."""
    return _ENDED[alarm.id]


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of a rank, as far as alarms need it."""

    reading: MetricsReading
    since: Rates | None
    wall: float
    own_tokens: float | None
    """Prompt tokens that it computed itself since the reading before, those of its warm-up left out."""
    settled: bool
    """No warm-up is under way."""


class RankAlarms:
    """The alarms of one rank."""

    def __init__(self, rank: RankPlan, lease: float | None = None) -> None:
        """`lease`: for how many seconds it keeps finished prompts."""
        decodes = rank.role is Role.DECODE
        held_for = HELD_FOR if lease is None else min(HELD_FOR, lease / 2)
        self._parts = (_ComputesPrompts(rank.api_port),) if decodes else (_KvHeld(held_for), _KvExpired())

    def take(self, moment: Moment) -> tuple[Alarm, ...]:
        """Take one more reading; returns the alarms now, worst first."""
        found = [alarm for part in self._parts if (alarm := part.take(moment)) is not None]
        return tuple(sorted(found, key=lambda alarm: alarm.severity != "error"))


class _ComputesPrompts:
    """A decode rank that computes prompts, in two readings with prompts in a row: one request is no pattern."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._since: float | None = None
        self._suspect = False
        """The last reading with prompts had such."""
        self._known = False
        """It has been told, and nothing has shown since that it is over: one more such prompt tells it again."""
        self._suspected_at = 0.0
        self._prompts_at = 0.0
        self._window: deque[tuple[float, float, float]] = deque()
        self._watched_from = 0.0
        """When the tokens began to be counted."""

    def take(self, moment: Moment) -> Alarm | None:
        at, since, own = moment.reading.at, moment.since, moment.own_tokens
        if not moment.settled and not self._window:
            self._watched_from = at
        if moment.settled and since is not None and since.prompt_tokens and own is not None and _judged(moment):
            self._prompts_at = at
            self._window.append((at, own, since.prompt_tokens))
            self._judge(at, moment.wall, own > TAIL * max(1.0, since.requests or 0.0))
        elif self._since is not None and at - self._prompts_at >= IDLE:
            self._since = None
        while self._window and at - self._window[0][0] >= WINDOW:
            self._window.popleft()
        return None if self._since is None else self._alarm(self._since, at - self._watched_from)

    def _judge(self, at: float, wall: float, computed: bool) -> None:
        if computed:
            in_a_row = self._known or at - self._suspected_at < IDLE  # Two tests on one day are no pattern either.
            if self._suspect and in_a_row and self._since is None:
                self._since, self._known = wall, True
            self._suspected_at = at
        elif at - self._suspected_at >= PULLED_AGAIN:
            self._since, self._known = None, False
        self._suspect = computed

    def _alarm(self, since: float, watched: float) -> Alarm:
        own, prompts = sum(entry[1] for entry in self._window), sum(entry[2] for entry in self._window)
        last = "minute" if watched >= WINDOW else f"{watched:.0f} s"
        how_many = f": {own:.0f} of {prompts:.0f} prompt tokens in the last {last}" if own else ""
        return Alarm(
            "computes-prompts",
            "error",
            f"computes prompts itself{how_many}",
            "its requests come without KV of a prefill rank: send clients to the proxy, not to port "
            f"{self._port}; if they go there, look for failed KV transfers in its log",
            since,
        )


def _judged(moment: Moment) -> bool:
    """Return whether the tokens that a rank computed are those of new prompts.

    Versions without the tokens' sources count a request that comes back after a preemption once more.
    """
    by_source = moment.reading.transferred_tokens is not None
    return by_source or not (moment.since and moment.since.preempted)


class _KvHeld:
    """A prefill rank whose KV cache is full of finished prompts: nothing runs, and nobody fetches them."""

    def __init__(self, held_for: float) -> None:
        self._held_for = held_for
        self._begun: tuple[float, float] | None = None
        """When it was first seen so, monotonic and wall clock."""
        self._told = False
        self._runs_since: float | None = None
        self._read_at = 0.0

    def take(self, moment: Moment) -> Alarm | None:
        reading, at = moment.reading, moment.reading.at
        if reading.kv_usage is None or reading.running is None:
            return None
        if not self._told and at - self._read_at >= WINDOW:
            self._begun = None  # Nobody knows what ran while there were no readings.
        self._read_at = at
        self._runs_since = (at if self._runs_since is None else self._runs_since) if reading.running else None
        if self._is_over(reading.kv_usage, at):
            self._begun, self._told = None, False
        elif self._begun is None and not reading.running and reading.kv_usage >= HELD:
            self._begun = (at, moment.wall)
        if self._begun is not None and at - self._begun[0] >= self._held_for:
            self._told = True
        return self._alarm(reading.kv_usage, reading.waiting or 0) if self._told else None

    def _is_over(self, usage: float, at: float) -> bool:
        if not self._told:
            return usage < HELD or self._runs_since is not None
        return usage < RELEASED or (self._runs_since is not None and at - self._runs_since >= WORKS_AGAIN)

    def _alarm(self, usage: float, waiting: int) -> Alarm:
        requests = f"{waiting} requests wait" if waiting != 1 else "1 request waits"
        return Alarm(
            "kv-held",
            "error" if waiting else "warning",
            f"holds finished prompts that nobody fetches: KV cache {usage * 100:.0f} % full, nothing runs"
            + (f", {requests}" if waiting else ""),
            "see whether the decode ranks run, have room, and reach its KV port; blocks that nobody fetches are "
            "given up when their lease ends",
            self._begun[1] if self._begun is not None else 0.0,
        )


class _KvExpired:
    """A prefill rank that gave up KV before a decode rank had fetched it."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, float, float]] = deque()
        self._since = 0.0

    def take(self, moment: Moment) -> Alarm | None:
        at, since = moment.reading.at, moment.since
        expired = (since.expired_leases or 0.0) if since is not None else 0.0
        late = (since.late_pulls or 0.0) if since is not None else 0.0
        while self._window and at - self._window[0][0] >= EXPIRED_FOR:
            self._window.popleft()
        if expired or late:
            self._since = self._since if self._window else moment.wall
            self._window.append((at, expired, late))
        if not self._window:
            return None
        return self._alarm(
            round(sum(entry[1] for entry in self._window)), round(sum(entry[2] for entry in self._window))
        )

    def _alarm(self, expired: int, late: int) -> Alarm:
        minutes = f"{EXPIRED_FOR / 60:.0f} minutes"
        of_requests = f"the KV of {expired} request{'' if expired == 1 else 's'}"
        parts = [f"gave up {of_requests} that no decode rank fetched in time"] if expired else []
        if late:
            parts.append(f"had KV fetched {_times(late)} after giving it up, so that answers may be wrong text")
        return Alarm(
            "kv-expired",
            "error" if late else "warning",
            f"{'; '.join(parts)} (last {minutes})",
            "a few: clients that left before decode began; more: see whether decode ranks are slow or gone; "
            "kv_lease_duration in kv.extra makes the lease longer",
            self._since,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
