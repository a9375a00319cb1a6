"""Follows ranks' logs and keeps the newest lines of each, to be read from any thread.

What readers see is one immutable state a rank, replaced as a whole; only the engine's loop makes new ones.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.handle import LogLine, LogView
from pdtui.fleet.polling import closing
from pdtui.fleet.snapshot import RankState, RankStatus
from pdtui.readings.lines import LineSplitter
from pdtui.readings.vllm_log import is_of, severity, stamp_of
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import LogChunk
from pdtui.text import clean_line

LIMIT = 20_000
"""Lines that are kept of a rank."""

TAIL = 256 * 1024
"""Bytes of an existing log that are fetched first."""

_CHUNK = 512
"""Lines that are kept together."""

_IDLE = 1.0
"""Seconds without news after which it is asked whether the rank has another log now."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where a rank's log is."""

    node: str
    path: str
    """Empty when there is none, as far as is known."""
    run: int = 0
    clock_offset: float = 0.0
    """Seconds that the node's clock is ahead of ours."""
    note: str = ""
    """What must be known about it, or why there is none."""
    pids: frozenset[int] = frozenset()
    """With others writing there too: the rank's processes."""
    dp_rank: int | None = None

    def mine(self, line: str) -> bool:
        """Return whether a line may be the rank's: in a shared log those are left out that are surely others'."""
        return not self.pids or is_of(line, self.pids, self.dp_rank) is not False


def log_source(status: RankStatus, clock_offset: float) -> LogSource:
    """Return where a rank's log is."""
    number = status.id.partition("/")[2]
    return LogSource(
        status.node,
        status.log,
        status.run,
        clock_offset,
        note=status.log_note or ("" if status.state is RankState.STOPPED else "no log yet"),
        pids=frozenset(status.log_pids),
        dp_rank=int(number) if number.isdigit() else None,
    )


@dataclass(frozen=True, slots=True)
class _Chunk:
    first: int
    texts: tuple[str, ...]
    times: tuple[float, ...]

    @property
    def next(self) -> int:
        return self.first + len(self.texts)


@dataclass(frozen=True, slots=True)
class _Held:
    """All that a reader may see of one rank."""

    chunks: tuple[_Chunk, ...] = ()
    first: int = 0
    next: int = 0
    dropped: int = 0
    partial: str = ""
    error: str = ""


@dataclass(slots=True)
class _Ring:
    """The newest lines of one rank."""

    limit: int
    held: _Held = field(default_factory=_Held)

    def append(self, texts: Sequence[str], at: float, partial: str = "") -> None:
        """Add lines; the oldest chunk goes when the limit is reached without it."""
        held = self.held
        chunks = list(held.chunks)
        start = 0
        if texts and chunks and len(chunks[-1].texts) < _CHUNK:
            last = chunks.pop()
            start = _CHUNK - len(last.texts)
            more = tuple(texts[:start])
            chunks.append(_Chunk(last.first, last.texts + more, last.times + (at,) * len(more)))
        for begin in range(start, len(texts), _CHUNK):
            piece = tuple(texts[begin : begin + _CHUNK])
            chunks.append(_Chunk(held.next + begin, piece, (at,) * len(piece)))
        end = held.next + len(texts)
        surplus = 0
        while surplus < len(chunks) - 1 and end - chunks[surplus].next >= self.limit:
            surplus += 1
        kept = tuple(chunks[surplus:])
        self.held = replace(
            held, chunks=kept, first=kept[0].first if kept else 0, next=end, partial=partial, error=""
        )

    def drop(self, count: int) -> None:
        """Note lines that were never held."""
        self.held = replace(self.held, dropped=self.held.dropped + count)

    def problem(self, error: str) -> None:
        """Say why nothing comes, or (empty) that all is well again."""
        if error != self.held.error:
            self.held = replace(self.held, error=error)


class LogBook:
    """The followed logs of one fleet. `log`, `log_lines` and `unfollow` may be called from any thread."""

    def __init__(
        self,
        links: Mapping[str, NodeLink],
        source: Callable[[str], LogSource | None],
        *,
        clock: Clock,
        limit: int = LIMIT,
        tail: int = TAIL,
    ) -> None:
        """`source` says where a rank's log is now; it is asked again and again, on the engine's loop."""
        self._links = links
        self._source = source
        self._clock = clock
        self._limit = limit
        self._tail = tail
        self._rings: dict[str, _Ring] = {}
        self._lock = threading.Lock()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def log(self, rank: str) -> LogView:
        """Follow a rank's log (from the first call on) and say where it stands."""
        ring = self._rings.get(rank)
        if ring is None:
            with self._lock:
                ring = self._rings.setdefault(rank, _Ring(self._limit))
            self._notify()
        held = ring.held
        return LogView(rank, held.first, held.next, held.dropped, held.error, held.partial)

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        """Return held lines from sequence number `first`; fewer when they are not there."""
        ring = self._rings.get(rank)
        return _read(ring.held, first, count) if ring is not None else ()

    def unfollow(self, rank: str) -> None:
        """Stop following a rank's log and forget its lines."""
        with self._lock:
            self._rings.pop(rank, None)
        self._notify()

    async def run(self) -> None:
        """Follow what is asked for until cancelled."""
        self._loop = asyncio.get_running_loop()
        tasks: dict[str, tuple[_Ring, asyncio.Task[None]]] = {}
        try:
            while True:
                self._wake.clear()
                wanted = dict(self._rings)
                for rank, (ring, task) in list(tasks.items()):
                    if wanted.get(rank) is not ring:
                        task.cancel()
                        del tasks[rank]
                for rank, ring in wanted.items():
                    if rank not in tasks:
                        where = functools.partial(self._source, rank)
                        follower = _Follower(ring, self._links, where, clock=self._clock, tail=self._tail)
                        task = asyncio.create_task(follower.run(), name=f"log of {rank}")
                        task.add_done_callback(lambda _: self._wake.set())
                        tasks[rank] = (ring, task)
                await self._wake.wait()
                for _, task in tasks.values():
                    if task.done() and not task.cancelled():
                        task.result()
        finally:
            self._loop = None
            for _, task in tasks.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in tasks.values()), return_exceptions=True)

    def _notify(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop was closed in between: nobody follows any more.
                loop.call_soon_threadsafe(self._wake.set)


class _Follower:
    """Follows one rank over reconnects and new runs."""

    def __init__(
        self,
        ring: _Ring,
        links: Mapping[str, NodeLink],
        where: Callable[[], LogSource | None],
        *,
        clock: Clock,
        tail: int,
    ) -> None:
        self._ring = ring
        self._links = links
        self._where = where
        self._clock = clock
        self._tail = tail
        self._splitter = LineSplitter()
        self._source: LogSource | None = None
        self._offset: int | None = None
        """Where to go on in the present log; None: near its end."""
        self._skip = False
        """What comes first began before what was fetched."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            source = self._where()
            agent = self._agent(source) if source is not None else None
            if source is not None and source.path:
                self._turn_to(source)
            if source is not None and agent is None:
                self._ring.problem(self._unreachable(source))
            elif source is None or agent is None or not source.path:
                note = source.note if source is not None else ""
                self._ring.problem(note or "no log yet: the rank has not been started")
            else:
                await self._follow(agent, source)
            await self._clock.sleep(_IDLE / 2)

    def _agent(self, source: LogSource) -> NodeAgent | None:
        link = self._links.get(source.node)
        return link.rank_agent if link is not None else None

    def _unreachable(self, source: LogSource) -> str:
        """Return why nothing comes from a node without an agent."""
        link = self._links.get(source.node)
        error = link.status.error if link is not None else None
        why = f": {clean_line(error.message)}" if error is not None else ""
        lost = "" if link is not None and link.host_agent is not None else " is not connected"
        then = "the log goes on when it is back" if source.path else "whether there is a log is not known"
        return f"{source.node}{lost}{why}; {then}"

    def _turn_to(self, source: LogSource) -> None:
        """Begin with another log, visibly, when the rank has one."""
        old = self._source
        if old is not None and (old.node, old.path) != (source.node, source.path):
            now = self._clock.wall()
            run = f"run {source.run}" if source.run else "started by hand"
            self._ring.append([*self._splitter.flush(), f"--- {run} on {source.node} ---"], now)
            self._offset, self._skip = None, False
        if source.note and (old is None or old.note != source.note):
            self._ring.append([f"--- {source.note} ---"], self._clock.wall())
        self._source = source

    async def _follow(self, agent: NodeAgent, source: LogSource) -> None:
        """Read until the connection ends or the rank has another log."""
        stream = agent.follow(source.path, offset=self._offset, tail=self._tail)
        try:
            async with closing(stream):
                await self._pump(stream, source)
        except AgentLost:
            self._ring.problem(self._unreachable(source))
        except AgentError as error:
            self._ring.problem(error.message)

    async def _pump(self, stream: AsyncIterator[LogChunk], source: LogSource) -> None:
        while True:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                while not coming.done():
                    with suppress(TimeoutError):
                        async with self._clock.timeout(_IDLE):
                            await asyncio.shield(coming)
                    if not coming.done():
                        self._ring.problem("")
                        if self._moved(source):
                            return
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
            chunk = coming.result()
            if chunk is None:
                return
            self._take(chunk, source)

    def _moved(self, source: LogSource) -> bool:
        now = self._where()
        return now is not None and bool(now.path) and (now.node, now.path) != (source.node, source.path)

    def _take(self, chunk: LogChunk, source: LogSource) -> None:
        at = chunk.at - source.clock_offset if chunk.at else self._clock.wall()
        started = self._offset is None
        if started and chunk.offset > 0:
            self._skip = True
        lines = []
        if not started and chunk.offset != self._offset:
            lines += self._splitter.flush()
            self._skip = True
        missing = chunk.offset - (self._offset or 0)
        now = self._where() or source
        fresh = self._splitter.feed(chunk.data)
        if self._skip and fresh:
            fresh, self._skip = fresh[1:], False
        fresh = [line for line in fresh if now.mine(line)]
        if missing > 0:
            mean = max(1, len(chunk.data) // max(1, len(fresh)))
            self._ring.drop(max(1, missing // mean))
            lines.append(f"--- {_bytes(missing)} before this {'are not shown' if started else 'are gone'} ---")
        self._offset = chunk.next_offset
        partial = self._splitter.partial
        self._ring.append(lines + fresh, at, partial if now.mine(partial) else "")


def _read(held: _Held, first: int, count: int) -> tuple[LogLine, ...]:
    first, end = max(first, held.first), min(first + count, held.next)
    lines: list[LogLine] = []
    index = max(0, bisect_right(held.chunks, first, key=lambda chunk: chunk.first) - 1)
    for chunk in held.chunks[index:]:
        if chunk.first >= end:
            break
        for place in range(max(0, first - chunk.first), min(len(chunk.texts), end - chunk.first)):
            text = chunk.texts[place]
            lines.append(LogLine(chunk.first + place, chunk.times[place], text, severity(text)))
    return tuple(lines)


def _bytes(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


class LogReader(Protocol):
    """The part of a fleet that merged logs are read from."""

    def log(self, rank: str) -> LogView:
        """Follow a rank's log and say where it stands."""
        ...

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        """Return held lines."""
        ...


class Merger:
    """Puts lines of several ranks on one clock: the times that the servers print, else when a line was read.

    A line without a time stays behind the one before it, so a traceback keeps together.
    """

    def __init__(self, offsets: Mapping[str, float] | None = None) -> None:
        """`offsets`: by rank, the seconds that its node's clock is ahead of ours."""
        self._offsets = offsets or {}
        self._last: dict[str, float] = {}

    def merge(self, held: Mapping[str, Sequence[LogLine]]) -> list[tuple[str, LogLine]]:
        """Return the lines of all ranks in order."""
        shift = self._shift(held)
        keyed: list[tuple[float, str, LogLine]] = []
        for rank, lines in held.items():
            first = next((at for line in lines if (at := self._stamp(rank, line)) is not None), None)
            for line in lines:
                at = self._stamp(rank, line)
                if at is None:
                    at = self._last.get(rank, line.at + shift if first is None else first)
                at = max(at, self._last.get(rank, at))
                self._last[rank] = at
                keyed.append((at, rank, line))
        keyed.sort(key=lambda item: item[0])
        return [(rank, line) for _, rank, line in keyed]

    def _stamp(self, rank: str, line: LogLine) -> float | None:
        at = stamp_of(line.text, line.at)
        return None if at is None else at - self._offsets.get(rank, 0.0)

    def _shift(self, held: Mapping[str, Sequence[LogLine]]) -> float:
        """Return the servers' time zone in seconds, judged from the newest line that carries a time."""
        for lines in held.values():
            for line in reversed(lines):
                at = stamp_of(line.text, line.at)
                if at is not None:
                    return round((at - line.at) / 900) * 900.0
        return 0.0


async def follow_merged(
    reader: LogReader,
    ranks: Sequence[str],
    *,
    clock: Clock,
    last: int | None = None,
    offsets: Mapping[str, float] | None = None,
    pause: float = 0.3,
) -> AsyncIterator[list[tuple[str, LogLine]]]:
    """Yield what comes from several logs, in order, every `pause` seconds; never ends by itself.

    `last`: how many of the lines that are there at first to begin with, of each rank.
    """
    merger = Merger(offsets)
    begun: dict[str, int] = {}
    while True:
        news: dict[str, Sequence[LogLine]] = {}
        for rank in ranks:
            view = reader.log(rank)
            if view.next_seq == 0:
                continue
            start = view.first_seq if last is None else max(view.first_seq, view.next_seq - last)
            first = begun.setdefault(rank, start)
            news[rank] = reader.log_lines(rank, first, view.next_seq - first)
            begun[rank] = view.next_seq
        yield merger.merge(news)
        await clock.sleep(pause)


async def read_tail(
    agent: NodeAgent, path: str, *, clock: Clock, tail: int = 65536, first: float = 3.0, idle: float = 0.3
) -> list[LogLine]:
    """Return the last lines of a file as it stands. Raises `AgentLost` and `AgentError`.

    A follow has no end, so it is taken to be there when nothing came for `first` seconds, or for `idle` seconds
    after something came.
    """
    splitter, lines, skip, size = LineSplitter(), [], False, 0
    async with closing(agent.follow(path, tail=tail)) as stream:
        with suppress(TimeoutError):
            while size < 2 * tail:
                async with clock.timeout(idle if size else first):
                    chunk = await anext(stream, None)
                if chunk is None:
                    break
                skip = skip or (size == 0 and chunk.offset > 0)
                size += max(1, len(chunk.data))
                lines += [(chunk.at, text) for text in splitter.feed(chunk.data)]
    lines += [(lines[-1][0] if lines else clock.wall(), text) for text in splitter.flush()]
    return [LogLine(seq, at, text, severity(text)) for seq, (at, text) in enumerate(lines[1:] if skip else lines)]
