"""Runs preflights one at a time, keeps the last report, and says how far the running one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from pdtui.clock import Clock
from pdtui.errors import ActionRefused
from pdtui.fleet.journal import Journal
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight import checks
from pdtui.fleet.preflight.check import chosen
from pdtui.fleet.preflight.events import Ended, NodeEnded, NodeProgress, PreflightEvent
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport, counts_words
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.preflight.runner import Preflight
from pdtui.fleet.snapshot import PreflightStatus
from pdtui.remote.interface import NodeLink
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan


class PreflightDesk:
    """The one place of a fleet from which its nodes are looked over."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        links: Mapping[str, NodeLink],
        *,
        clock: Clock,
        by: str,
        journal: Journal | None,
        publish: Callable[[PreflightStatus], None] = lambda _status: None,
        limits: Limits | None = None,
    ) -> None:
        """Prepare; `journal`: where it is noted that one ran, None: nowhere. `publish` gets every new status."""
        self._topology = topology
        self._plan = plan
        self._links = links
        self._clock = clock
        self._by = by
        self._journal = journal
        self._publish = publish
        self._limits = limits
        self._status: PreflightStatus | None = None
        self.last: PreflightReport | None = None
        """What the last one said, whole or as far as it came; reading it is safe from any thread."""

    async def run(self, request: PreflightRequest, nodes: tuple[str, ...]) -> AsyncIterator[PreflightEvent]:
        """Look over these nodes. Raises `UsageError` for an unknown check, `ActionRefused` while another runs."""
        checks.load()
        wanted = chosen(request.only)
        if self._status is not None and self._status.state == "running":
            far = f"{self._status.nodes_done} of {self._status.nodes_total} nodes are done"
            raise ActionRefused(
                f"a preflight runs already, {far}",
                kind="conflict",
                remedy="wait for it, or stop it",
            )
        links = {name: self._links[name] for name in nodes}
        work = Preflight(
            self._topology,
            self._plan,
            links,
            wanted,
            clock=self._clock,
            by=self._by,
            request=request,
            limits=self._limits,
        )
        self._say(PreflightStatus("running", self._clock.wall(), nodes_total=len(nodes)))
        whole = False
        try:
            async with closing(work.run()) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        whole = True
                        self._end(event.report)
                    else:
                        self._follow(event)
                    yield event
        finally:
            if not whole:
                self._end(replace(work.report, complete=False))

    def _follow(self, event: PreflightEvent) -> None:
        status = self._status
        if status is None:
            return
        match event:
            case NodeProgress():
                waits = {name: words for name, words in status.waits_for if name != event.node}
                if event.waits_for:
                    waits[event.node] = event.waits_for
                self._say(replace(status, waits_for=tuple(waits.items())))
            case NodeEnded():
                waiting = tuple(one for one in status.waits_for if one[0] != event.node)
                self._say(
                    replace(counted(status, event.results), nodes_done=status.nodes_done + 1, waits_for=waiting)
                )
            case _:
                pass

    def _end(self, report: PreflightReport) -> None:
        self.last = report
        if self._status is not None:
            blank = PreflightStatus(
                "done" if report.complete else "stopped",
                report.began,
                ended=report.ended,
                nodes_done=len(report.nodes) if report.complete else self._status.nodes_done,
                nodes_total=len(report.nodes),
            )
            self._say(counted(blank, report.results))
        if self._journal is not None:
            self._journal.write(
                "preflight",
                state="done" if report.complete else "stopped",
                targets=list(report.targets),
                only=list(report.only),
                counts=counts_words(report.counts),
                seconds=round(report.ended - report.began, 1),
            )

    def _say(self, status: PreflightStatus) -> None:
        self._status = status
        self._publish(status)


def counted(status: PreflightStatus, results: tuple[Result, ...]) -> PreflightStatus:
    """Return a status with these results counted in."""
    counts = Counter(result.outcome for result in results)
    return replace(
        status,
        failed=status.failed + counts[Outcome.FAIL],
        unknown=status.unknown + counts[Outcome.UNKNOWN],
        warned=status.warned + counts[Outcome.WARN],
        passed=status.passed + counts[Outcome.PASS],
    )
