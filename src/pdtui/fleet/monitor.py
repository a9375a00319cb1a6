"""Asks one node for the health of its NPUs, again and again, and says what has changed."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.polling import Pace, Target, closing
from pdtui.fleet.snapshot import NpuStatus
from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Failure
from pdtui.readings.commands import QUERIES, Query, argv_of
from pdtui.readings.judge import Ages, NodeSight, NpuReadings, Observed, judge, node_sight
from pdtui.readings.npu_smi import Table, read_table
from pdtui.readings.words import REMEDIES, failure_words
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import Command, Completed
from pdtui.topology.model import Platform, Topology
from pdtui.topology.plan import Plan

Publish = Callable[[str, tuple[NpuStatus, ...], float, str], None]
"""Node, its NPUs, when the last reading came in (wall clock), and why readings are missing."""

_ASKED = (Query.VNIC, Query.LINK, Query.NET_HEALTH, Query.IP, Query.NETDETECT)
"""What is asked of each device, most telling first; a platform asks what it has of these."""

_KEEP = 20.0
"""Seconds for which an NPU whose values did not change keeps its object, though it was read again."""

_GAP = 0.1
"""Shortest time in seconds between two pictures: answers come in bursts."""

_PAUSE = 1.0
"""Shortest time in seconds between two turns of one device, whatever was answered."""

_MOST = 64
"""Devices of a node; a table that lists more is not believed."""

_TICK = 2.0
"""Longest pause in seconds: values age and connections come back without anybody saying so."""


@dataclass(slots=True)
class _Device:
    """What is known of one NPU."""

    readings: NpuReadings
    status: NpuStatus


class NpuMonitor:
    """Polls one node; `publish` is called on the running loop whenever there is something new.

    Each device is asked by its own task, one call at a time, so a device that hangs delays no other. Readings
    are stamped with our clock when they come in.
    """

    def __init__(
        self,
        link: NodeLink,
        node: str,
        topology: Topology,
        plan: Plan,
        *,
        clock: Clock,
        publish: Publish,
        pace: Pace | None = None,
        ages: Ages | None = None,
    ) -> None:
        self._link = link
        self._node = node
        self._platform: Platform = topology.platform
        self._inventory = range(topology.npus_per_node)
        self._clock = clock
        self._publish_to = publish
        self._pace = pace or Pace()
        self._ages = ages or Ages(table=3.5 * self._pace.table, network=4 * self._pace.network)
        self._ranks = {device: rank.id for rank in plan.on_node(node) for device in rank.devices}
        self._random = random.Random(node)  # noqa: S311 - spreads load, keeps no secret
        self._table: Observed[Table] = Observed()
        self._devices: dict[int, _Device] = {}
        self._targets: dict[int | None, Target] = {}
        self._slots = asyncio.Semaphore(self._pace.parallel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._agent: NodeAgent | None = None
        self._observed_at: float | None = None
        self._published: tuple[tuple[NpuStatus, ...], float | None, str] = ((), None, "")
        self._running = False
        self._dirty = False
        self._refreshed = -_TICK
        if Query.TABLE in QUERIES[self._platform]:
            self._targets[None] = Target(None, {Query.TABLE: 0.0})
            for device in self._inventory:
                self._add(device)

    @property
    def addresses(self) -> Mapping[str, int]:
        """RoCE and vnic addresses of this node's NPUs, as far as they are known."""
        found: dict[str, int] = {}
        for device, known in self._devices.items():
            for good in (known.readings.ip.good, known.readings.vnic.good):
                if good is not None and good.value is not None and good.value.address:
                    found[good.value.address] = device
        return found

    async def run(self) -> None:
        """Poll until cancelled; returns at once on a platform without NPUs."""
        if not self._targets:
            return
        self._running = True
        try:
            while True:
                self._begin()
                self._refresh_when_due()
                await self._pause(self._idle_for())
        finally:
            self._running = False
            await self._cancel(self._tasks)

    async def poll_now(self, *, hanging: bool = True) -> None:
        """Ask everything now and return when it is answered; without a connection there is nothing to wait for.

        Without `hanging` what has just timed out is left alone: it would cost the same time again.
        """
        if not self._targets:
            return
        for target in self._targets.values():
            if target.breaker.suspect and not hanging:
                continue
            target.due = dict.fromkeys(target.due, 0.0)
            target.breaker.retry_at = 0.0
        self._begin(fresh=True)
        tasks = set(self._tasks)
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            if not self._running:
                await self._cancel(tasks)
        self._refresh()

    def _idle_for(self) -> float:
        """Return the seconds until something is to be asked or told."""
        if self._dirty:
            return _GAP
        if self._link.host_agent is None:
            return _GAP * 5
        next_at = min((target.next_at() for target in self._targets.values() if not target.asking), default=_TICK)
        return min(_TICK, max(_GAP / 2, next_at - self._clock.monotonic()))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    @staticmethod
    async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, device: int) -> None:
        rank = self._ranks.get(device, "")
        verdict = judge(device, self._platform, Observed(), NpuReadings(), NodeSight(), now=0.0)
        status = NpuStatus(device, verdict.verdict, verdict.reasons, rank=rank)
        self._devices[device] = _Device(NpuReadings(), status)
        queries = [query for query in _ASKED if query in QUERIES[self._platform]]
        self._targets[device] = Target(device, dict.fromkeys(queries, 0.0))

    def _begin(self, *, fresh: bool = False) -> None:
        """Start a task for each target that has something due and is not being asked."""
        agent = self._link.host_agent
        if agent is not self._agent:
            self._agent = agent
            for target in self._targets.values():
                target.due = dict.fromkeys(target.due, 0.0)
        if agent is None:
            return
        for target in self._targets.values():
            queries = target.pick(self._clock.monotonic())
            if queries:
                target.asking = True
                task = asyncio.create_task(self._ask(agent, target, queries, fresh=fresh))
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _ask(self, agent: NodeAgent, target: Target, queries: Sequence[Query], *, fresh: bool) -> None:
        try:
            if target.device is None or target.breaker.suspect:
                await self._call(agent, target, queries, fresh=fresh)
            else:
                async with self._slots:
                    await self._call(agent, target, queries, fresh=fresh)
        except (AgentLost, TimeoutError):
            pass  # Nothing was said about the NPU; what is known of it grows old.
        finally:
            again = self._clock.monotonic() + _PAUSE
            target.due = {query: max(at, again) for query, at in target.due.items()}
            target.asking = False

    async def _call(self, agent: NodeAgent, target: Target, queries: Sequence[Query], *, fresh: bool) -> None:
        """Ask one target its queries in turn; a time-out ends the turn.

        The agent keeps the time of each call; the outer limit is for an agent that has gone silent.
        """
        commands = [self._command(query, target.device, fresh=fresh) for query in queries]
        started = self._clock.monotonic()
        async with (
            self._clock.timeout(sum(command.timeout for command in commands) + 15.0),
            closing(agent.batch(commands, parallel=1)) as answers,
        ):
            try:
                async for command, completed in answers:
                    self._take(target, Query(command.key), _answer(completed, self._clock.wall()), started)
                    if target.breaker.suspect:
                        break
            except AgentError as error:
                for command in commands:
                    words = Answer(
                        shlex.join(command.argv), stderr=error.message.encode(), status=1, at=self._clock.wall()
                    )
                    self._take(target, Query(command.key), words, started)

    def _command(self, query: Query, device: int | None, *, fresh: bool) -> Command:
        shared = 0.0 if fresh else self._pace.interval(query) / 4
        argv = argv_of(query, self._platform, device)
        return Command(argv, timeout=self._pace.timeout, key=query, device=device, max_age=shared)

    def _take(self, target: Target, query: Query, answer: Answer, started: float) -> None:
        """Read one answer, decide when to ask again, and tell."""
        interval = self._pace.interval(query) * (1 + self._random.uniform(-1, 1) * self._pace.jitter)
        target.due[query] = started + interval
        if target.device is None:
            table = read_table(answer)
            failure = table.failure
            if told := not self._try_again(target, query, failure):
                self._table = self._table.then(table)
                self._grow()
        else:
            known = self._devices[target.device]
            readings, failure = _with(known.readings, query, answer)
            if told := not self._try_again(target, query, failure):
                known.readings = readings
        if failure is Failure.TIMEOUT:
            target.breaker.timed_out(self._clock.monotonic(), self._clock.wall())
        elif target.breaker.suspect:
            target.breaker.answered()
            target.due = {q: at if q is query else 0.0 for q, at in target.due.items()}
        if told:
            self._observed_at = answer.at
            self._dirty = True
            self._refresh_when_due()

    def _try_again(self, target: Target, query: Query, failure: Failure | None) -> bool:
        """Return whether a busy tool is tried again, with growing pauses, before anything is said about it."""
        if failure is not Failure.BUSY:
            target.busy[query] = 0
            return False
        tries = target.busy.get(query, 0)
        if tries >= self._pace.busy_tries:
            target.busy[query] = 0
            return False
        target.busy[query] = tries + 1
        target.due[query] = self._clock.monotonic() + 2.0**tries
        return True

    def _grow(self) -> None:
        """Add devices that the table lists and the platform's inventory does not."""
        table = self._table.good.value if self._table.good else None
        for chip in table.chips if table else ():
            if chip.device not in self._devices and len(self._devices) < _MOST:
                self._add(chip.device)

    def _refresh_when_due(self) -> None:
        """Make a new picture after an answer, and now and then because values age."""
        passed = self._clock.monotonic() - self._refreshed
        if passed >= (_GAP if self._dirty else _TICK):
            self._refresh()

    def _refresh(self) -> None:
        """Judge every NPU again and publish when something is new."""
        self._dirty, self._refreshed = False, self._clock.monotonic()
        now = self._clock.wall()
        for device, known in self._devices.items():
            breaker = self._targets[device].breaker
            hanging = f"hccn_tool hangs on this NPU since {_clock_time(breaker.since)}" if breaker.hanging else ""
            if hanging != known.readings.hanging:
                known.readings = replace(known.readings, hanging=hanging)
        sight = node_sight({device: known.readings for device, known in self._devices.items()})
        statuses = tuple(self._status(device, sight, now) for device in sorted(self._devices))
        error = self._tool_error()
        old, observed_at, old_error = self._published
        same = len(old) == len(statuses) and all(a is b for a, b in zip(old, statuses, strict=True))
        if self._observed_at is None or (same and observed_at == self._observed_at and error == old_error):
            return
        self._published = (statuses, self._observed_at, error)
        self._publish_to(self._node, statuses, self._observed_at, error)

    def _status(self, device: int, sight: NodeSight, now: float) -> NpuStatus:
        known = self._devices[device]
        readings = known.readings
        result = judge(device, self._platform, self._table, readings, sight, now=now, ages=self._ages)
        table = self._table.good.value if self._table.good else None
        chip = table.of(device) if table else None
        link, health, vnic = (
            observed.good.value if observed.good else None
            for observed in (readings.link, readings.net_health, readings.vnic)
        )
        status = NpuStatus(
            id=device,
            verdict=result.verdict,
            reasons=result.reasons,
            link=link.status if isinstance(link, hccn.Link) else None,
            net_health=health.word if isinstance(health, hccn.NetHealth) else None,
            vnic=vnic.status if isinstance(vnic, hccn.Vnic) else None,
            health=chip.health if chip else None,
            hbm_used_mb=chip.hbm_mb[0] if chip and chip.hbm_mb else None,
            hbm_total_mb=chip.hbm_mb[1] if chip and chip.hbm_mb else None,
            temperature_c=chip.temperature_c if chip else None,
            utilization=chip.utilization if chip else None,
            power_w=chip.power_w if chip else None,
            observed_at=result.oldest,
            rank=self._ranks.get(device, ""),
            processes=tuple((p.pid, p.name, p.memory_mb) for p in table.processes if p.device == device)
            if table
            else (),
        )
        if not _as_before(known.status, status):
            known.status = status
        return known.status

    def _tool_error(self) -> str:
        """Return why readings are missing on the whole node, with what to do, or nothing."""
        breaker = self._targets[None].breaker
        if breaker.hanging:
            return f"npu-smi hangs since {_clock_time(breaker.since)}; {REMEDIES[Failure.TIMEOUT]}"
        table = self._table.latest
        if table is not None and table.failure is not None and table.failure is not Failure.BUSY:
            return _sentence("npu-smi", failure_words(table), table.failure)
        failed = [
            latest
            for known in self._devices.values()
            for observed in (known.readings.link, known.readings.vnic)
            if (latest := observed.latest) is not None
            and latest.failure in (Failure.ENVIRONMENT, Failure.PERMISSION, Failure.DRIVER)
        ]
        if failed and len(failed) * 2 >= len(self._devices) and failed[0].failure is not None:
            return _sentence("hccn_tool", failure_words(failed[0]), failed[0].failure)
        return ""


def _sentence(tool: str, words: str, failure: Failure) -> str:
    remedy = REMEDIES.get(failure, "")
    return f"{tool}: {words}; {remedy}" if remedy else f"{tool}: {words}"


def _clock_time(wall: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall))


def _answer(completed: Completed, at: float) -> Answer:
    return Answer(
        shlex.join(completed.argv),
        completed.stdout,
        completed.stderr,
        completed.status,
        timed_out=completed.timed_out,
        truncated=completed.truncated,
        error=completed.error,
        at=at,
    )


def _with(old: NpuReadings, query: Query, answer: Answer) -> tuple[NpuReadings, Failure | None]:
    """Return a device's readings with one more answer, and why that answer is none."""
    match query:
        case Query.LINK:
            link = hccn.read_link(answer)
            return replace(old, link=old.link.then(link)), link.failure
        case Query.NET_HEALTH:
            health = hccn.read_net_health(answer)
            return replace(old, net_health=old.net_health.then(health)), health.failure
        case Query.VNIC:
            vnic = hccn.read_vnic(answer)
            return replace(old, vnic=old.vnic.then(vnic)), vnic.failure
        case Query.IP:
            address = hccn.read_ip(answer)
            return replace(old, ip=old.ip.then(address)), address.failure
        case Query.NETDETECT:
            detect = hccn.read_netdetect(answer)
            return replace(old, netdetect=old.netdetect.then(detect)), detect.failure
        case _:
            raise ValueError(f"{query} is not monitored")


def _as_before(old: NpuStatus, new: NpuStatus) -> bool:
    """Return whether an NPU may keep its object: equal but for times, and those not much newer."""
    if (new.observed_at or 0.0) - (old.observed_at or 0.0) > _KEEP or len(old.reasons) != len(new.reasons):
        return False
    reasons = tuple(
        replace(mine, observed_at=theirs.observed_at)
        for mine, theirs in zip(new.reasons, old.reasons, strict=True)
    )
    return old == replace(new, observed_at=old.observed_at, reasons=reasons)
