"""Runs a preflight: all nodes at once, then what goes between them, and judges as the answers come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.answers import NO_ANSWER
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.check import Check, NodeView, Survey, barrier
from pdtui.fleet.preflight.events import AcrossProgress, Began, Ended, NodeEnded, NodeProgress, PreflightEvent
from pdtui.fleet.preflight.facts import NodeFacts
from pdtui.fleet.preflight.gathering import Gathering, all_of
from pdtui.fleet.preflight.grouping import node_of
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.pinging import Pinged, judge_ping
from pdtui.fleet.preflight.probes import Everywhere, Probe, probe_of
from pdtui.fleet.preflight.report import PingCell, PreflightReport, hidden, shown_line
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import QUERIES, Query
from pdtui.remote.interface import NodeLink
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan


class Preflight:
    """One run over some nodes. `async for event in Preflight(...).run()`; leaving early ends what is out."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        links: Mapping[str, NodeLink],
        checks: Sequence[Check],
        *,
        clock: Clock,
        by: str,
        request: PreflightRequest | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Prepare to ask the nodes of these links whatever the checks need."""
        self._topology = topology
        self._plan = plan
        self._clock = clock
        self._by = by
        self._request = request or PreflightRequest()
        self._limits = limits or Limits()
        self._skipped = {one.id: words for one in checks if (words := _inapplicable(one, topology))}
        self._declined = [one.id for one in checks if one.id == "ping" and self._request.pings == "off"]
        self._checks = [one for one in checks if one.id not in self._skipped and one.id not in self._declined]
        self._all = tuple(checks)
        needs = list(dict.fromkeys(need for one in self._checks for need in one.needs))
        self._across = [found for need in needs if (found := probe_of(need)) is not None and found.across]
        needs += [need for one in self._across for need in one.needs if need not in needs]
        self._events: asyncio.Queue[PreflightEvent | None] = asyncio.Queue()
        self._gatherings = {
            name: Gathering(link, topology, plan, clock, self._limits, needs, partial(self._progress, name))
            for name, link in links.items()
        }
        self._results: list[Result] = []
        self._began = clock.wall()

    async def run(self) -> AsyncIterator[PreflightEvent]:
        """Yield what happens; the last event carries the report."""
        self._began = self._clock.wall()
        yield Began(tuple(self._gatherings), tuple(one.id for one in self._all), self._began)
        work = asyncio.create_task(self._work(), name="preflight")
        work.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        yield Ended(self.report)

    @property
    def report(self) -> PreflightReport:
        """What is known by now."""
        order = {one.id: index for index, one in enumerate(self._all)}
        places = {name: index for index, name in enumerate(self._gatherings)}

        def place(result: Result) -> tuple[int, int]:
            return order[result.check], places.get(node_of(result.subject), -1)

        return PreflightReport(
            cluster=self._topology.name,
            digest=self._topology.digest,
            by=self._by,
            began=self._began,
            ended=self._clock.wall(),
            nodes=tuple(self._gatherings),
            checks=tuple(one.id for one in self._all),
            results=tuple(sorted(self._results, key=place)),
            pings=self._pings(),
            targets=self._request.targets,
            only=self._request.only,
        )

    def _pings(self) -> tuple[PingCell, ...]:
        """Return the matrix of pings, as far as it was gathered."""
        made = [
            reading.value
            for gathering in self._gatherings.values()
            for reading in gathering.readings.values()
            if isinstance(reading.value, Pinged)
        ]
        cells = []
        for one in sorted(made, key=lambda one: (one.pair.source, one.pair.target)):
            finding = judge_ping(one)
            ends = str(one.pair.source), str(one.pair.target)
            cells.append(PingCell(*ends, one.plane, finding.outcome, shown_line(finding.summary), one.again))
        return tuple(cells)

    async def _work(self) -> None:
        for one in self._all:
            if because := self._skipped.get(one.id):
                self._results.append(Result(one.id, "cluster", Outcome.NA, "", because=because))
            elif one.id in self._declined:
                words = "nobody is to be pinged (--pings off)"
                self._results.append(Result(one.id, "cluster", Outcome.NOT_RUN, "", because=words, by_choice=True))
        await all_of([self._node(gathering) for gathering in self._gatherings.values()])
        for probe in self._across:
            await self._ask_across(probe)
        facts = {name: gathering.facts for name, gathering in self._gatherings.items()}
        for one in self._checks:
            if one.scope == "cluster":
                self._results += self._judge_cluster(one, facts)
            elif self._is_late(one):
                for found in facts.values():
                    self._results += self._judge_node(one, found)

    async def _node(self, gathering: Gathering) -> None:
        await gathering.gather()
        facts = gathering.facts
        results: list[Result] = []
        for one in self._checks:
            if one.scope == "node" and not self._is_late(one):
                results += self._judge_node(one, facts)
        self._results += results
        self._events.put_nowait(NodeEnded(gathering.name, tuple(results)))

    def _is_late(self, one: Check) -> bool:
        """Whether a check needs what goes between nodes."""
        return any(found.id in one.needs for found in self._across)

    def _judge_node(self, one: Check, facts: NodeFacts) -> Sequence[Result]:
        if because := barrier(one, facts):
            return [hidden(Result(one.id, facts.node, Outcome.NOT_RUN, "", because=because))]
        node = self._topology.nodes[facts.node]
        view = NodeView(one, self._topology, self._plan, node, facts, self._clock.wall())
        return [hidden(result) for result in one.body(view)] or [_nothing(one, facts.node)]

    def _judge_cluster(self, one: Check, facts: Mapping[str, NodeFacts]) -> Sequence[Result]:
        apart = [
            Result(one.id, name, Outcome.NOT_RUN, "", because=because)
            for name, found in facts.items()
            if (because := barrier(one, found))
        ]
        survey = Survey(one, self._topology, self._plan, facts, self._clock.wall())
        said = [hidden(result) for result in one.body(survey)] if len(apart) < len(facts) else []
        return [*said, *map(hidden, apart)] or [_nothing(one, "cluster")]

    async def _ask_across(self, probe: Probe) -> None:
        """Run one cluster probe over the nodes that are reached."""
        everywhere = self._everywhere(probe)
        if probe.across is None or not everywhere.host:
            return
        try:
            async with self._clock.timeout(probe.limit), closing(probe.across(everywhere)) as found:
                async for node, item, reading in found:
                    self._gatherings[node].readings[(probe.id, item)] = reading
        except TimeoutError:
            self._miss(probe, f"{NO_ANSWER} within {probe.limit:g} s", Failure.TIMEOUT)
        except (AgentError, AgentLost) as error:
            self._miss(probe, error.message, Failure.ERROR)

    def _told(self, probe: Probe, done: int, total: int) -> None:
        self._events.put_nowait(AcrossProgress(probe.id, done, total))

    def _miss(self, probe: Probe, why: str, failure: Failure) -> None:
        for gathering in self._gatherings.values():
            gathering.missing[probe.id] = Reading(probe.id, self._clock.wall(), why, failure=failure)

    def _everywhere(self, probe: Probe) -> Everywhere:
        host, ranks = {}, {}
        for name, gathering in self._gatherings.items():
            if not gathering.connection.host or gathering.lost:
                continue  # What is back by now was asked nothing.
            if (agent := gathering.link.host_agent) is not None:
                host[name] = gathering.asking(agent)
            if (agent := gathering.link.rank_agent) is not None:
                ranks[name] = gathering.asking(agent)
        facts = {name: gathering.facts for name, gathering in self._gatherings.items()}
        return Everywhere(
            self._topology,
            self._plan,
            facts,
            host,
            ranks,
            self._clock,
            self._limits,
            self._request.pings,
            partial(self._told, probe),
        )

    def _progress(self, name: str) -> None:
        gathering = self._gatherings[name]
        words, since = next(iter(gathering.out.items()), ("", 0.0))
        self._events.put_nowait(NodeProgress(name, gathering.done, gathering.total, words, since))


def _nothing(one: Check, subject: str) -> Result:
    """Return that a check has nothing to say: what says nothing must not count as good."""
    return Result(one.id, subject, Outcome.NA, "", because="nothing to look at: no rank is to run there")


def _inapplicable(one: Check, topology: Topology) -> str:
    """Return why a check makes no sense for a file, or nothing."""
    if topology.platform not in one.platforms:
        return f"not on {topology.platform}" if topology.has_npus else "there are no NPUs"
    lacking = [
        need for need in one.needs if probe_of(need) is None and Query(need) not in QUERIES[topology.platform]
    ]
    return f"{topology.platform} has no {lacking[0]}" if lacking else ""
