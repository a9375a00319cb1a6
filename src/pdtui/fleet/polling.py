"""When to ask a tool again: intervals by cost, a breaker for what hangs, and streams that are closed.

A call of the tools takes about half a second on a real server, and devices answer one caller at a time. So that
is asked often which says first that something broke (npu-smi's table, the port of the plane that decides), what
only sharpens that every few minutes, settings every half hour; a node has less than one tool running on average.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pdtui.readings.commands import Query
from pdtui.topology.model import Platform

T = TypeVar("T")

_ROCE = (
    Query.LINK_STAT,
    Query.NETDETECT,
    Query.STAT,
    Query.HCCS,
    Query.OPTICAL,
    Query.TLS,
    Query.LLDP,
)

MONITORED: Mapping[Platform, tuple[Query, ...]] = {
    "a2": (Query.LINK, Query.NET_HEALTH, Query.IP, *_ROCE, Query.ECC),
    "a3": (Query.VNIC, Query.LINK, Query.NET_HEALTH, Query.IP, *_ROCE, Query.SPOD, Query.ECC),
    "a5": (),
    "cpu": (),
}
"""What is asked of each device, most telling first; of A5 the table alone is judged."""

TELLING = frozenset((Query.TABLE, Query.VNIC, Query.LINK, Query.NET_HEALTH, Query.IP))
"""What makes a verdict: asked first where a node comes back, and when somebody asks for all of it now."""

_OF_ROCE = frozenset(
    (Query.LINK, Query.NET_HEALTH, Query.NETDETECT, Query.LINK_STAT, Query.STAT, Query.OPTICAL, Query.LLDP)
)

SHARPENS: Mapping[str, tuple[Query, ...]] = {
    "link-down": (Query.LINK_STAT, Query.OPTICAL),
    "net-health": (Query.LINK_STAT, Query.NETDETECT),
    "net-health-init": (Query.NETDETECT,),
    "vnic-down": (Query.HCCS,),
    "flapping": (Query.OPTICAL, Query.STAT),
    "errors-growing": (Query.OPTICAL, Query.LINK_STAT),
    "address-unlike-conf": (Query.IP,),
    "tls-mixed": (Query.TLS,),
    "lldp-shared-port": (Query.LLDP,),
    "spod": (Query.SPOD,),
}
"""By id of a reason: what is asked at once when it comes up, since it narrows it down or may just be old."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is asked, in seconds; a call of the tools takes 0.4 to 1 s on a real server."""

    table: float = 15.0
    network: float = 30.0
    """The ports: RoCE link and vnic."""
    probe: float = 60.0
    """The device's own probe of the network, which fails after a link anyway."""
    counters: float = 180.0
    lanes: float = 300.0
    modules: float = 600.0
    """Optical modules and bit errors."""
    slow: float = 1800.0
    """Settings: addresses, detect address, TLS, LLDP, super pod, hccn.conf; all of RoCE where it is not in use."""
    timeout: float = 10.0
    """For one call, on the node."""
    jitter: float = 0.15
    """Part of an interval by which nodes differ, so that they are not all asked at once."""
    early: float = 1.0
    """Seconds by which a query is asked before its time, together with another of the same device."""
    shared: float = 0.7
    """Part of an interval for which a reading of another console will do; less than what the two above leave."""
    parallel: int = 6
    """Devices of a node that are asked at the same time."""
    busy_tries: int = 3
    """Further tries before a busy tool is reported."""

    def interval(self, query: Query, *, roce: bool = True) -> float:
        """Return how long an answer to a query is good for; `roce`: the node's RoCE plane is in use."""
        if query is Query.TABLE:
            return self.table
        if not roce and query in _OF_ROCE:
            return self.slow
        return {
            Query.VNIC: self.network,
            Query.LINK: self.network,
            Query.NET_HEALTH: self.probe,
            Query.LINK_STAT: self.counters,
            Query.STAT: self.counters,
            Query.HCCS: self.lanes,
            Query.OPTICAL: self.modules,
            Query.ECC: self.modules,
        }.get(query, self.slow)

    def first(self, query: Query, chance: random.Random) -> float:
        """Return how many seconds after a node came back a query is due: at once, or when those have answers."""
        if query in TELLING:
            return 0.0
        return min(60.0, self.interval(query) / 10) * chance.uniform(0.5, 1.0)


def calls_per_minute(
    pace: Pace, platform: Platform, devices: int, *, roce: bool = True, consoles: int = 1
) -> dict[Query, float]:
    """Return how often a node's tools are called in steady state, by query.

    Consoles share their readings, and whose turn comes first asks for all: with N of them that turn comes after
    the shortest of N intervals, each `jitter` longer or shorter by chance.
    """
    first = 1.0 - pace.jitter * (consoles - 1) / (consoles + 1)
    found = {Query.TABLE: 60.0 / (pace.table * first)} if platform != "cpu" else {}
    for query in MONITORED[platform]:
        found[query] = devices * 60.0 / (pace.interval(query, roce=roce) * first)
    return found


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
    early: float = 0.0
    """Seconds by which a query may be asked before its time when the device is asked anyway."""
    breaker: Breaker = field(default_factory=Breaker)
    busy: dict[Query, int] = field(default_factory=dict)
    """Busy answers in a row."""
    anew: set[Query] = field(default_factory=set)
    """What must be asked of the tool: a shared reading will not do."""
    asking: bool = False
    hung: str = ""
    """The tool that timed out last."""

    def pick(self, now: float) -> tuple[Query, ...]:
        """Return what to ask now; of a suspect only the first query, and not before its time."""
        if self.asking or now < self.breaker.retry_at or now < min(self.due.values()):
            return ()
        due = tuple(query for query, at in self.due.items() if at <= now)
        if self.breaker.suspect:
            return due[:1]
        return tuple(query for query, at in self.due.items() if at - self.early <= now)

    def next_at(self) -> float:
        """Return when there is something to ask again."""
        return max(min(self.due.values()), self.breaker.retry_at)

    def ask(self, query: Query, at: float) -> None:
        """Ask one query at a time, or before, of the tool itself."""
        if query in self.due:
            self.due[query] = min(self.due[query], at)
            self.anew.add(query)


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a stream of an agent's answers when its reader leaves early, so that the node stops too."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
