"""Finds out why a rank of the live cluster failed: from the logs of its group, and from who holds a port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, RemoteError
from pdtui.fleet.diagnosis import (
    UNSURE,
    WINDOW,
    Atlas,
    Clue,
    RankExit,
    clues_of,
    is_explained,
    judge,
    logout_of,
    trouble_of,
)
from pdtui.fleet.handle import LogLine
from pdtui.fleet.holders import holder_words, on_port
from pdtui.fleet.last_work import last_work
from pdtui.fleet.logs import read_tail
from pdtui.fleet.lost import lost_to, seen_since, stopped_mate
from pdtui.fleet.snapshot import Diagnosis, NodeStatus, RankState, RankStatus
from pdtui.fleet.strangers import MATCH, ports_of
from pdtui.remote.interface import NodeLink
from pdtui.topology.plan import Plan

_WRONG = (RankState.FAILED, RankState.UNHEALTHY, RankState.STALLED)
_ENDED = (RankState.STOPPED, RankState.LOST)
_PATIENCE = 3
_PAUSE = 2.0
_TAIL = 128 * 1024
"""Bytes of a log's end in which a cause is looked for."""
_LOOK = 5.0
"""Seconds that a node has to say who holds a port."""
_PORT_TAKEN = frozenset({"api-port-in-use", "zmq-port-in-use"})
_AT_ONCE = 8
"""Logs that are fetched at once over all nodes."""


class Diagnostician:
    """Finds out why a rank of the live cluster failed; an instance is a `fleet.ranks.Diagnose`.

    The log of an ended rank is fetched once, whichever ranks of its group ask.
    """

    def __init__(
        self,
        links: Mapping[str, NodeLink],
        plan: Plan,
        *,
        clock: Clock,
        ranks: Callable[[], Mapping[str, RankStatus]],
        nodes: Callable[[], Mapping[str, NodeStatus]] = dict,
        npus: Callable[[], Mapping[str, tuple[str, int]]] = dict,
        together: bool = False,
        cluster: str = "",
    ) -> None:
        """`ranks` and `nodes`: as they are now; `npus`: addresses of NPUs.

        `together`: a group dies with any of its ranks (MoE).
        """
        self._together = together
        self._cluster = cluster
        self._links = links
        self._plan = plan
        self._clock = clock
        self._ranks = ranks
        self._nodes = nodes
        self._npus = npus
        self._tails: dict[str, tuple[int, float | None, Sequence[LogLine]]] = {}
        self._read: dict[str, tuple[Sequence[LogLine], Sequence[Clue]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, rank_id: str) -> Diagnosis | None:
        """Return why a rank failed. Raises `AgentLost` and `AgentError` when its own log cannot be read.

        Its group may fail a moment later than it, so a mere consequence is looked at again.
        """
        diagnosis = None
        for attempt in range(_PATIENCE):
            diagnosis, certain = await self._look(rank_id)
            if certain or attempt == _PATIENCE - 1:
                break
            await self._clock.sleep(_PAUSE)
        known = self._tails.get(rank_id)
        if diagnosis is None or known is None:
            return diagnosis
        return replace(diagnosis, last_work=last_work(known[2]))

    async def _look(self, rank_id: str) -> tuple[Diagnosis | None, bool]:
        ranks = self._ranks()
        rank = ranks.get(rank_id)
        if rank is None or not rank.log:
            return None, True
        mates = [other for other in ranks.values() if other.group == rank.group]  # Now: they change while we read.
        group = [other for other in mates if other.state in _WRONG and other.log and other.id != rank_id]
        own, *others = await asyncio.gather(
            self._tail(rank), *(self._tail(other) for other in group), return_exceptions=True
        )
        if isinstance(own, BaseException):
            raise own
        tails = {rank_id: own}
        for other, lines in zip(group, others, strict=True):
            if isinstance(lines, AgentLost | AgentError):
                continue
            if isinstance(lines, BaseException):
                raise lines
            tails[other.id] = lines
        nodes = self._nodes()
        exits = {
            other.id: RankExit(
                other.exit_status,
                other.ended,
                alive=other.state is not RankState.FAILED,
                gone_with=other.gone_with,
                logout=logout_of(nodes.get(other.node)),
            )
            for other in (rank, *group)
        }
        offsets = {other.id: nodes[other.node].clock_offset for other in (rank, *group) if other.node in nodes}
        troubles = ((other.id, trouble_of(other, nodes[other.node])) for other in mates if other.node in nodes)
        sick = {name: trouble for name, trouble in troubles if trouble is not None}
        clues = await self._clues(tails, offsets)
        asked_for = stopped_mate(rank, mates, self._clock.wall(), window=WINDOW) if self._together else None
        if asked_for is not None and not is_explained(clues.get(rank_id, ()), asked_for.stopped_at or 0.0):
            return lost_to(asked_for, rank), True
        found = judge(clues, tails, exits, sick).get(rank_id)
        if found is not None and not found.first_cause:
            found = await self._with_holder(rank, found, clues.get(rank_id, ()))
        alone = len(mates) == 1
        # A mate that was not asked yet, or that dies of the same, may hold the cause of an error like any other.
        settled = all(other.state in _WRONG or other.state in _ENDED for other in mates)
        plain = found is not None and bool(found.line and not found.signature) and settled
        sure = found is not None and bool(found.remedy) and found.signature not in UNSURE
        said = found is not None and bool(found.first_cause or sure or plain)
        asked = seen_since(mates, (rank.ended or 0.0) if self._together else 0.0)
        certain = alone or found is None or (said and asked)
        return found, certain

    async def _with_holder(self, rank: RankStatus, found: Diagnosis, clues: Iterable[Clue]) -> Diagnosis:
        """Say who holds the port that a rank could not have, if that is still to be seen."""
        plan, agent = self._plan.by_id.get(rank.id), self._links[rank.node].rank_agent
        if found.signature not in _PORT_TAKEN or plan is None or agent is None:
            return found
        said = next((clue.port for clue in clues if clue.signature == found.signature), None)
        port = said or (plan.api_port if found.signature == "api-port-in-use" else None)
        use = dict(ports_of(plan, self._plan)).get(port or 0)
        if port is None or use is None:
            return found
        try:
            async with self._clock.timeout(_LOOK):
                listeners, processes = await asyncio.gather(agent.ports(), agent.processes(match=MATCH))
        except (RemoteError, TimeoutError):
            return found
        own = f"{self._cluster}:{rank.id}"
        held = next((one for one in on_port(listeners, plan, port) if one.rank != own), None)
        if held is None:
            return replace(found, summary=f"its {use} port {port} was taken; nobody holds it any more")
        who = holder_words(held, self._cluster, processes=processes)
        return replace(found, summary=f"its {use} port {port} is held by {who}")

    async def _clues(
        self, tails: Mapping[str, Sequence[LogLine]], offsets: Mapping[str, float]
    ) -> Mapping[str, Sequence[Clue]]:
        """Read the tails; each once, with a breath between them: a large group's are many megabytes."""
        atlas = Atlas(self._plan, self._npus())
        found: dict[str, Sequence[Clue]] = {}
        for rank, lines in tails.items():
            known = self._read.get(rank)
            if known is None or known[0] is not lines:
                known = (lines, clues_of(rank, lines, atlas, offsets.get(rank, 0.0)))
                self._read[rank] = known
                await asyncio.sleep(0)
            found[rank] = known[1]
        return found

    async def _tail(self, rank: RankStatus) -> Sequence[LogLine]:
        async with self._locks.setdefault(rank.id, asyncio.Lock()):
            known = self._tails.get(rank.id)
            if known is not None and rank.ended is not None and known[:2] == (rank.run, rank.ended):
                return known[2]
            link = self._links.get(rank.node)
            agent = link.rank_agent if link is not None else None
            if agent is None:
                raise AgentLost(f"{rank.node} is not connected")
            async with self._slots:
                lines = await read_tail(agent, rank.log, clock=self._clock, tail=_TAIL)
            self._tails[rank.id] = (rank.run, rank.ended, lines)
            return lines
