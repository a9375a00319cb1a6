"""One preflight as the console sees it: what has been said so far, and what was said before it. No widgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pdtui.fleet.preflight.events import AcrossProgress, Began, Ended, NodeEnded, NodeProgress, PreflightEvent
from pdtui.fleet.preflight.outcome import BAD, WORST_FIRST, Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.topology.plan import Plan

CLUSTER = "cluster"
"""The column of what is said of all nodes together."""

Key = tuple[str, str]
"""Check and subject of a result."""
Fate = Literal["runs", "done", "cancelled", "failed"]

_RANK = {outcome: number for number, outcome in enumerate(WORST_FIRST)}


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome that counts of several; None of none."""
    return min(outcomes, key=_RANK.__getitem__, default=None)


def column_of(subject: str, plan: Plan) -> str:
    """Return the node that a result is shown under, or the cluster: `node3/9 -> node1/2` is node3's."""
    first = subject.partition(" -> ")[0]
    rank = plan.by_id.get(first)
    return rank.node if rank is not None else first.partition("/")[0]


@dataclass(frozen=True)
class Table:
    """Checks by nodes."""

    checks: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Outcome]
    """By check and column: the worst that is said there; absent: nothing yet."""


class Run:
    """Takes the events of one run. Results of checks or nodes that it does not ask stay as they were before."""

    def __init__(self, request: PreflightRequest, plan: Plan, before: Run | None, began: float) -> None:
        self.request = request
        self.began = began
        self.ended: float | None = None
        self.fate: Fate = "runs"
        self.error = ""
        self.nodes: tuple[str, ...] = ()
        """Those that are asked."""
        self.checks: tuple[str, ...] = ()
        """Those that are asked for."""
        self.progress: dict[str, NodeProgress] = {}
        self.answered: set[str] = set()
        self.across: AcrossProgress | None = None
        self.revision = 0
        """Grows with each event."""
        self._plan = plan
        self._before = before.results if before is not None else ()
        self._checks_before = before.all_checks if before is not None else ()
        self._nodes_before = before.all_nodes if before is not None else ()
        self._report: PreflightReport | None = None
        self._fresh: dict[Key, Result] = {}
        self._kept: dict[Key, Result] = {}
        self._was: Mapping[Key, Outcome] = {}
        self._sorted: tuple[int, tuple[Result, ...]] = (-1, ())

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.fate == "runs"

    def take(self, event: PreflightEvent) -> None:
        """Take what has happened."""
        self.revision += 1
        if isinstance(event, Began):
            self._begin(event)
        elif isinstance(event, NodeProgress):
            self.progress[event.node] = event
        elif isinstance(event, NodeEnded):
            self.answered.add(event.node)
            self._take_results(event.results)
        elif isinstance(event, AcrossProgress):
            self.across = event
        elif isinstance(event, Ended):
            self._report = event.report
            self._fresh = {}
            self._take_results(event.report.results)
            self.ended, self.fate = event.report.ended, "done"

    def _begin(self, event: Began) -> None:
        self.nodes, self.checks, self.began = event.nodes, event.checks, event.at
        asked, nodes = set(event.checks), {*event.nodes, CLUSTER}
        self._was = {(result.check, result.subject): result.outcome for result in self._before}
        self._kept = {
            (result.check, result.subject): result
            for result in self._before
            if result.check not in asked or column_of(result.subject, self._plan) not in nodes
        }

    def _take_results(self, results: Sequence[Result]) -> None:
        self._fresh.update({(result.check, result.subject): result for result in results})

    def end(self, fate: Fate, at: float, error: str = "") -> None:
        """End without a report."""
        if self.running:
            self.fate, self.ended, self.error = fate, at, error
            self.revision += 1

    @property
    def results(self) -> tuple[Result, ...]:
        """All that is known, worst first, then in the order of the checks."""
        if self._sorted[0] == self.revision:
            return self._sorted[1]
        order = {check: number for number, check in enumerate(self.all_checks)}
        known = [*self._kept.values(), *self._fresh.values()]
        made = sorted(known, key=lambda one: (_RANK[one.outcome], order.get(one.check, len(order))))
        self._sorted = (self.revision, tuple(made))
        return self._sorted[1]

    @property
    def all_checks(self) -> tuple[str, ...]:
        """The checks of this run and of those before it."""
        before = self._checks_before
        if len(before) > len(self.checks):
            return (*before, *(check for check in self.checks if check not in before))
        return (*self.checks, *(check for check in before if check not in self.checks))

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The nodes of this run and of those before it."""
        return tuple(dict.fromkeys((*self.nodes, *self._nodes_before)))

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many results there are of each outcome."""
        return Counter(result.outcome for result in self.results)

    def is_fresh(self, result: Result) -> bool:
        """Whether a result is of this run, not of one before."""
        return (result.check, result.subject) in self._fresh

    @property
    def compares(self) -> bool:
        """Whether there is a run before this one."""
        return bool(self._was)

    def is_new(self, result: Result) -> bool:
        """Whether it is worse than what the run before said of the same; a first run has no news."""
        if not self.compares or result.outcome not in BAD or not self.is_fresh(result):
            return False
        was = self._was.get((result.check, result.subject)) or self._was_of_node(result)
        return was is None or _RANK[was] > _RANK[result.outcome]

    def _was_of_node(self, result: Result) -> Outcome | None:
        """Return what was said of a result's node as a whole: of many NPUs there is one line, of few one each."""
        return self._was.get((result.check, column_of(result.subject, self._plan)))

    def gone(self) -> tuple[Key, ...]:
        """Return what was wrong before, was asked again and is not wrong any more.

        What was not run this time may still be.
        """
        if self.running:
            return ()
        bad = (*BAD, Outcome.NOT_RUN)
        now = {(one.check, column_of(one.subject, self._plan)) for one in self.results if one.outcome in bad}
        unasked = {one.check for one in self.results if one.outcome is Outcome.NOT_RUN and one.subject == CLUSTER}
        was = [key for key, outcome in self._was.items() if outcome in BAD and key[0] not in unasked]
        return tuple(key for key in was if (key[0], column_of(key[1], self._plan)) not in now)

    def table(self, nodes: Sequence[str], checks: Sequence[str]) -> Table:
        """Return the worst of each check and node."""
        cells: dict[tuple[str, str], Outcome] = {}
        for result in self.results:  # Worst first: the first one stays.
            cells.setdefault((result.check, column_of(result.subject, self._plan)), result.outcome)
        return Table(tuple(checks), (CLUSTER, *nodes), cells)

    def at(self, check: str, column: str) -> tuple[Result, ...]:
        """Return the results of one cell."""
        mine = (one for one in self.results if one.check == check)
        return tuple(one for one in mine if column_of(one.subject, self._plan) == column)

    def report(self, cluster: str, digest: str, now: float) -> PreflightReport:
        """Return what is known as a report, also of a run that was cancelled or asked for a part only."""
        made = self._report or PreflightReport(
            cluster, digest, "", self.began, self.ended or now, self.nodes, self.checks, ()
        )
        order = {check: number for number, check in enumerate(self.all_checks)}
        results = sorted(self.results, key=lambda one: order.get(one.check, len(order)))
        return replace(made, nodes=self.all_nodes, checks=self.all_checks, results=tuple(results))
