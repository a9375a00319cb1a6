"""Reads start-up milestones from the logs of starting ranks, holding no lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.polling import closing
from pdtui.readings.lines import LineSplitter
from pdtui.readings.signatures import match_line
from pdtui.readings.vllm_log import StageReader, is_of
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.ranks import RankRecord
from pdtui.topology.plan import RankPlan

_RETRY = 1.0

_HANGS = frozenset({"zmq-port-in-use"})
"""Signatures of lines after which a start-up goes no further though the server lives on: the thread that was to
listen has ended, and the others wait for it."""

Pids = Callable[[], frozenset[int]]


class _Tail:
    """One run of one rank."""

    def __init__(self, run: int, path: str, started: float, pids: Pids | None) -> None:
        self.run = run
        self.path = path
        self.reader = StageReader(started)
        self.caught_up = False
        """What its log held when it was opened has been read."""
        self.broken = False
        """A line says that it will not come up."""
        self.task: asyncio.Task[None] | None = None
        self._pids = pids
        self._splitter = LineSplitter()
        self._offset = 0

    async def follow(self, link: NodeLink, clock: Clock) -> None:
        """Read from the beginning until the server is up, over reconnects."""
        while not self.reader.ready:
            agent = link.rank_agent
            if agent is not None:
                try:
                    await self._read(agent)
                except AgentLost:
                    pass  # It goes on with the next connection.
                except AgentError:
                    self.caught_up = True  # There is nothing to be read of it, at least not now.
            if not self.reader.ready:
                await clock.sleep(_RETRY)

    async def _read(self, agent: NodeAgent) -> None:
        stream = agent.follow(self.path, offset=self._offset, mark=not self.caught_up)
        async with closing(stream):
            async for chunk in stream:
                for line in (*self._splitter.feed(chunk.data), self._splitter.partial):
                    if self._pids is None or is_of(line, self._pids(), None):
                        self.reader.feed(line)
                        known = match_line(line)
                        self.broken |= known is not None and known[0].id in _HANGS
                self._offset = chunk.next_offset
                self.caught_up |= not chunk.data
                if self.reader.ready:
                    return


class StageTails:
    """Watches ranks while they start; implements `fleet.ranks.Stages`."""

    def __init__(self, links: Mapping[str, NodeLink], *, clock: Clock) -> None:
        self._links = links
        self._clock = clock
        self._tails: dict[str, _Tail] = {}

    def watch(self, rank: RankPlan, record: RankRecord, pids: Pids | None = None) -> None:
        """Read the log of this run from now on; called again it does nothing.

        `pids`: the only processes whose lines count, in a log that is not the rank's own.
        """
        tail = self._tails.get(rank.id)
        link = self._links.get(rank.node)
        if (
            link is None
            or not record.log
            or (tail is not None and (tail.run, tail.path) == (record.run, record.log))
        ):
            return
        self.forget(rank.id)
        tail = _Tail(record.run, record.log, record.started, pids)
        tail.task = asyncio.create_task(tail.follow(link, self._clock))
        self._tails[rank.id] = tail

    def stage(self, rank: str) -> str:
        """Return the last milestone in words, or empty."""
        tail = self._tails.get(rank)
        return tail.reader.stage if tail is not None else ""

    def since(self, rank: str) -> float | None:
        """Return when that milestone was reached, on the node's clock."""
        tail = self._tails.get(rank)
        return tail.reader.since if tail is not None else None

    def was_ready(self, rank: str) -> bool:
        """Return whether the log says that start-up was completed."""
        tail = self._tails.get(rank)
        return tail is not None and tail.reader.ready

    def caught_up(self, rank: str) -> bool:
        """Return whether what the log held at first has been read, so that the stage is today's."""
        tail = self._tails.get(rank)
        return tail is not None and (tail.caught_up or tail.reader.ready)

    def is_broken(self, rank: str) -> bool:
        """Return whether the log says that start-up will not be completed, although the server lives on."""
        tail = self._tails.get(rank)
        return tail is not None and tail.broken and not tail.reader.ready

    def forget(self, rank: str) -> None:
        """Stop reading."""
        tail = self._tails.pop(rank, None)
        if tail is not None and tail.task is not None:
            tail.task.cancel()

    async def close(self) -> None:
        """Stop reading everything."""
        tasks = [tail.task for tail in self._tails.values() if tail.task is not None]
        for rank in list(self._tails):
            self.forget(rank)
        await asyncio.gather(*tasks, return_exceptions=True)
