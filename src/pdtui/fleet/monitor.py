"""Asks one node for the health of its NPUs, again and again, and says what has changed."""

from __future__ import annotations

import asyncio
import random
import shlex
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.answers import answer_of
from pdtui.fleet.npus import NpuBook, clock_time
from pdtui.fleet.polling import MONITORED, SHARPENS, TELLING, Pace, Target, closing
from pdtui.fleet.snapshot import NpuStatus
from pdtui.readings.answer import ABSENT, Answer, Failure
from pdtui.readings.commands import QUERIES, Query, argv_of
from pdtui.readings.judge import Ages
from pdtui.readings.words import REMEDIES
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import Command, Completed
from pdtui.topology.model import Platform, Topology
from pdtui.topology.plan import Plan

Publish = Callable[[str, tuple[NpuStatus, ...], float, str], None]
"""Node, its NPUs, when the last reading came in (wall clock), and why readings are missing."""

_GAP = 0.1
"""Shortest time in seconds between two pictures: answers come in bursts."""

_PAUSE = 1.0
"""Shortest time in seconds between two turns of one device, whatever was answered."""

_SET = 10.0
"""Seconds by which the time of day must jump here for all to be asked again: it was set, or this machine slept."""

_TICK = 2.0
"""Longest pause in seconds: values age and connections come back without anybody saying so."""

_ANEW = 0.001
"""Age in seconds of a shared reading that will do when the tool is to be asked anew: none has it, but with it the
agent asks under its lock also what is asked for the whole node."""

CONF = "/etc/hccn.conf"


class NpuMonitor:
    """Polls one node; `publish` is called on the running loop whenever there is something new.

    Each device is asked by its own task, one call at a time, so a device that hangs delays no other. Readings
    are stamped with our clock when they come in; what another console has just asked is taken over with its age.
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
        chance: str = "",
    ) -> None:
        """`chance`: what the jitter is drawn from beside the node's name, so that consoles differ."""
        self._link = link
        self._node = node
        self._platform: Platform = topology.platform
        self._clock = clock
        self._publish_to = publish
        self._pace = pace or Pace()
        self._random = random.Random(node + chance)  # noqa: S311 - spreads load, keeps no secret
        ranks = {device: rank.id for rank in plan.on_node(node) for device in rank.devices}
        self._book = NpuBook(self._platform, ranks, ages or _ages(self._pace))
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
        self._conf_due = 0.0
        self._set_apart = self._apart()
        self._hung: set[int] = set()
        if Query.TABLE in QUERIES[self._platform]:
            self._targets[None] = self._target(None, (Query.TABLE,))
            for device in range(topology.npus_per_node):
                self._add(device)

    @property
    def addresses(self) -> Mapping[str, int]:
        """RoCE and vnic addresses of this node's NPUs, as far as they are known."""
        return self._book.addresses

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
        """Ask what makes a verdict now and return when it is answered; without a connection nothing is waited for.

        What only sharpens it is asked again where it gave a reason that stands.

        Without `hanging` what has just timed out is left alone: it would cost the same time again.
        """
        if not self._targets:
            return
        reasons = [reason for npu in self._published[0] for reason in npu.reasons]
        disputed = {reason.command for reason in reasons}
        if any(CONF in reason.summary for reason in reasons):
            self._conf_due = 0.0
        for target in self._targets.values():
            if target.breaker.suspect and not hanging:
                continue
            for query in target.due:
                if query in TELLING or self._command_line(query, target.device) in disputed:
                    target.ask(query, 0.0)
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

    def _target(self, device: int | None, queries: Sequence[Query]) -> Target:
        return Target(device, dict.fromkeys(queries, 0.0), self._pace.early)

    def _command_line(self, query: Query, device: int | None) -> str:
        return shlex.join(argv_of(query, self._platform, device))

    def _interval(self, query: Query) -> float:
        roce = self._book.sight.roce.deployed is not False
        return self._pace.interval(query, roce=roce)

    def _add(self, device: int) -> None:
        self._book.add(device)
        if queries := MONITORED[self._platform]:
            self._targets[device] = self._target(device, queries)

    def _begin(self, *, fresh: bool = False) -> None:
        """Start a task for each target that has something due and is not being asked."""
        agent, now = self._link.host_agent, self._clock.monotonic()
        was_set = abs(self._apart() - self._set_apart) > _SET  # What is known seems older, or newer, than it is.
        if agent is not self._agent or was_set:
            self._agent, self._set_apart = agent, self._apart()
            self._conf_due = now + _PAUSE
            for target in self._targets.values():
                target.due = {query: now + self._pace.first(query, self._random) for query in target.due}
        if agent is None:
            return
        for target in self._targets.values():
            queries = target.pick(now)
            if fresh:
                queries = tuple(query for query in queries if query in target.anew)
            if queries:
                target.asking = True
                self._start(self._ask(agent, target, queries))
        if now >= self._conf_due and MONITORED[self._platform]:
            self._conf_due = now + self._pace.slow
            self._start(self._read_conf(agent))

    def _apart(self) -> float:
        """Return what the time of day is ahead of the clock that nobody sets."""
        return self._clock.wall() - self._clock.monotonic()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _read_conf(self, agent: NodeAgent) -> None:
        """Read the settings that NPUs get at boot."""
        try:
            async with self._clock.timeout(self._pace.timeout):
                data = await agent.read_file(CONF)
        except (AgentLost, TimeoutError):
            self._conf_due = self._clock.monotonic() + self._pace.modules
            return
        except AgentError as error:
            answer = Answer(
                f"cat {CONF}", stderr=f"cat: {error.message}".encode(), status=1, at=self._clock.wall()
            )
        else:
            answer = Answer(f"cat {CONF}", data, at=self._clock.wall())
        self._book.take_conf(answer)
        self._dirty = True

    async def _ask(self, agent: NodeAgent, target: Target, queries: Sequence[Query]) -> None:
        try:
            if target.device is None or target.breaker.suspect:
                await self._call(agent, target, queries)
            else:
                async with self._slots:
                    await self._call(agent, target, queries)
        except (AgentLost, TimeoutError):
            pass  # Nothing was said about the NPU; what is known of it grows old.
        finally:
            again = self._clock.monotonic() + _PAUSE
            target.due = {query: max(at, again) for query, at in target.due.items()}
            target.asking = False

    async def _call(self, agent: NodeAgent, target: Target, queries: Sequence[Query]) -> None:
        """Ask one target its queries in turn; a time-out ends the turn.

        The agent keeps the time of each call; the outer limit is for an agent that has gone silent.
        """
        commands = [self._command(query, target) for query in queries]
        started = self._clock.monotonic()
        stretch = 1 + self._random.uniform(-1, 1) * self._pace.jitter
        async with (
            self._clock.timeout(sum(command.timeout for command in commands) + 15.0),
            closing(agent.batch(commands, parallel=1)) as answers,
        ):
            try:
                async for command, completed in answers:
                    self._take(target, Query(command.key), completed, started, stretch)
                    if target.breaker.suspect:
                        break
            except AgentError as error:
                for command in commands:
                    failed = Completed(command.argv, 1, b"", error.message.encode())
                    self._take(target, Query(command.key), failed, started, stretch)

    def _command(self, query: Query, target: Target) -> Command:
        """Return what is sent; where it will do, what another console has just been told is taken instead."""
        anew = query in target.anew or target.busy.get(query, 0) > 0
        max_age = _ANEW if anew else self._interval(query) * self._pace.shared
        argv = argv_of(query, self._platform, target.device)
        return Command(argv, timeout=self._pace.timeout, key=query, device=target.device, max_age=max_age)

    def _take(self, target: Target, query: Query, completed: Completed, started: float, stretch: float) -> None:
        """Read one answer, decide when to ask again, and tell."""
        answer = answer_of(completed, self._clock.wall())
        reading = self._book.read(query, answer)
        failure, now = reading.failure, self._clock.monotonic()
        interval = self._interval(query)
        if failure is not None and failure not in ABSENT:
            interval = min(interval, self._pace.lanes)
        target.due[query] = (now - completed.age if completed.age else started) + interval * stretch
        target.anew.discard(query)
        again = self._try_again(target, query, failure)
        if not again:
            for device in self._book.take(target.device, query, reading):
                self._add(device)
        if failure is Failure.TIMEOUT:
            target.breaker.timed_out(now, self._clock.wall())
            target.hung = completed.argv[0]
        elif target.breaker.suspect:
            target.breaker.answered()
            target.due = {q: at if q is query or q not in TELLING else 0.0 for q, at in target.due.items()}
        if not again:
            self._observed_at = max(self._observed_at or 0.0, answer.at)
            self._dirty = True
            self._refresh_when_due()

    def _try_again(self, target: Target, query: Query, failure: Failure | None) -> bool:
        """Return whether a tool is tried again before anything is said about it.

        One that is busy, with growing pauses; one that was too late once while its last value is fresh: a node
        that loads a model has no time for tools, and its NPUs are not unknown for that.
        """
        if failure is Failure.TIMEOUT and not target.breaker.suspect and self._book.answered(target.device, query):
            target.ask(query, self._clock.monotonic())
            return True
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

    def _refresh_when_due(self) -> None:
        """Make a new picture after an answer, and now and then because values age."""
        passed = self._clock.monotonic() - self._refreshed
        if passed >= (_GAP if self._dirty else _TICK):
            self._refresh()

    def _refresh(self) -> None:
        """Judge again what may have changed, and publish when something is new."""
        self._dirty, self._refreshed = False, self._clock.monotonic()
        for device, target in self._targets.items():
            if device is not None and (target.breaker.hanging or device in self._hung):
                self._book.hang(device, _hanging(target), self._next_try(target))
                (self._hung.add if target.breaker.hanging else self._hung.discard)(device)
        statuses = self._book.picture(self._clock.wall())
        breaker = self._targets[None].breaker
        error = self._book.tool_error()
        if breaker.hanging:
            error = f"npu-smi hangs since {clock_time(breaker.since)}; {REMEDIES[Failure.TIMEOUT]}"
        old, observed_at, old_error = self._published
        same = len(old) == len(statuses) and all(a is b for a, b in zip(old, statuses, strict=True))
        if self._observed_at is None or (same and observed_at == self._observed_at and error == old_error):
            return
        self._sharpen(old, statuses)
        self._published = (statuses, self._observed_at, error)
        self._publish_to(self._node, statuses, self._observed_at, error)

    def _next_try(self, target: Target) -> float | None:
        """Return when a device on which a tool hangs is asked again, on our wall clock."""
        if not target.breaker.hanging:
            return None
        return self._clock.wall() + max(0.0, target.breaker.retry_at - self._clock.monotonic())

    def _sharpen(self, old: Sequence[NpuStatus], new: Sequence[NpuStatus]) -> None:
        """Ask at once what narrows down a reason that has come up."""
        before = {npu.id: npu for npu in old}
        for npu in new:
            known = before.get(npu.id)
            if known is npu or npu.id not in self._targets:
                continue
            ids = {reason.id for reason in known.reasons} if known is not None else set()
            for reason in npu.reasons:
                for query in SHARPENS.get(reason.id, ()) if reason.id not in ids else ():
                    self._targets[npu.id].ask(query, self._clock.monotonic() + _PAUSE)


def _hanging(target: Target) -> str:
    """Return why a device is not asked for now, or nothing."""
    if not target.breaker.hanging:
        return ""
    return f"{target.hung} hangs on this NPU since {clock_time(target.breaker.since)}"


def _ages(pace: Pace) -> Ages:
    """Return how old values may be when three polls in a row may fail."""
    return Ages(3.5 * pace.table, 3.5 * pace.network, 3.5 * pace.probe, 3.5 * pace.slow)
