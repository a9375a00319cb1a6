"""The registry of checks, and what each of them gets to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdtui.errors import UsageError
from pdtui.fleet.answers import NO_ANSWER
from pdtui.fleet.preflight.facts import Item, NodeFacts
from pdtui.fleet.preflight.outcome import Evidence, Finding, Outcome, Result
from pdtui.fleet.preflight.probes import place_of
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.words import failure_words, remedy_of
from pdtui.text import did_you_mean, spans
from pdtui.topology.model import Node, Platform, Topology
from pdtui.topology.plan import Plan

ORDER = (
    "ssh",
    "clock",
    "container",
    "host-network",
    "shm",
    "devices",
    "tools",
    "npu-count",
    "npu-health",
    "link",
    "net-health",
    "gateway",
    "netdetect",
    "lldp",
    "lldp-order",
    "hccn-conf",
    "hccn-conf-container",
    "tls",
    "vnic",
    "spod",
    "ping",
    "nic",
    "host-ip",
    "ports",
    "reach",
    "model",
    "driver",
    "firmware",
    "cann",
    "vllm",
    "vllm-ascend",
    "mooncake",
    "mooncake-import",
    "proxy-env",
    "hbm",
    "disk",
    "ulimit",
    "ephemeral-ports",
)
"""All ids, in the order in which they are shown: what others rest on comes first."""

NAMED = 3
"""Devices with the same trouble that are named one by one; more are one line."""

SHOWN = 3
"""Answers that are kept as evidence of one result."""

WITH_NPUS: tuple[Platform, ...] = ("a2", "a3", "a5")
EVERYWHERE: tuple[Platform, ...] = (*WITH_NPUS, "cpu")


@dataclass(frozen=True, slots=True)
class Check:
    """One registered check."""

    id: str
    title: str
    needs: tuple[str, ...]
    """`Query` and probe ids whose readings it looks at."""
    scope: Literal["node", "cluster"]
    platforms: tuple[Platform, ...]
    """Elsewhere it makes no sense."""
    body: Callable[[Any], Iterable[Result]]

    def __hash__(self) -> int:
        return hash(self.id)


_CHECKS: dict[str, Check] = {}


def check(
    id: str,  # noqa: A002 - the word that results, options and acknowledgements use
    title: str,
    *,
    needs: Sequence[str] = (),
    scope: Literal["node", "cluster"] = "node",
    platforms: tuple[Platform, ...] = EVERYWHERE,
) -> Callable[[Callable[[Any], Iterable[Result]]], Callable[[Any], Iterable[Result]]]:
    """Register a check: a pure function of a `NodeView` (scope node) or a `Survey` (scope cluster) to results.

    On a platform that is not among `platforms`, or that does not have one of the queries in `needs`, it is not
    applicable; on a node that was not reached as far as its needs go, it is not run. Both without being called.
    """
    if id not in ORDER:
        raise ValueError(f"no check {id} is planned")

    def register(body: Callable[[Any], Iterable[Result]]) -> Callable[[Any], Iterable[Result]]:
        if id in _CHECKS:
            raise ValueError(f"check {id} is registered twice")
        _CHECKS[id] = Check(id, title, tuple(needs), scope, platforms, body)
        return body

    return register


def registered() -> tuple[Check, ...]:
    """Return all checks in their order. `checks.load()` registers them."""
    return tuple(_CHECKS[name] for name in ORDER if name in _CHECKS)


def chosen(only: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these ids, all if none is named. Raises `UsageError` for an id that is none."""
    known = registered()
    ids = {one.id for one in known}
    for word in only:
        if word not in ids:
            all_ids = ", ".join(one.id for one in known)
            raise UsageError(f"no check {word!r}{did_you_mean(word, ids) or f'; there are {all_ids}'}")
    return tuple(one for one in known if not only or one.id in only)


class _Says:
    """How checks make results: everything but the subject comes with it."""

    check: Check

    def _result(
        self, outcome: Outcome, subject: str, summary: str, readings: Sequence[Reading[Any]], remedy: str = ""
    ) -> Result:
        return Result(self.check.id, subject, outcome, summary, remedy, evidence_of(readings))


@dataclass(frozen=True)
class NodeView(_Says):
    """One node as a check sees it. `on` says what a result is about: an NPU's id, a rank, or the node itself."""

    check: Check
    topology: Topology
    plan: Plan
    node: Node
    facts: NodeFacts
    now: float
    """Wall clock."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def platform(self) -> Platform:
        """The generation of its NPUs."""
        return self.topology.platform

    @property
    def devices(self) -> range:
        """The ids of its NPUs."""
        return range(self.topology.npus_per_node)

    def read(self, need: str, item: Item = None) -> Reading[Any]:
        """Return a reading; for what was not gathered, one without value that says why."""
        return self.facts.get(need, item)

    def subject(self, on: Item = None) -> str:
        """Return the subject of a result: `node3`, `node3/9`, or a word as it is (a rank)."""
        return self.name if on is None else f"{self.name}/{on}" if isinstance(on, int) else on

    def passed(self, summary: str, *readings: Reading[Any], on: Item = None) -> Result:
        """Return that it is as it should be."""
        return self._result(Outcome.PASS, self.subject(on), summary, readings)

    def warned(self, summary: str, *readings: Reading[Any], on: Item = None, remedy: str = "") -> Result:
        """Return that it can be used and will hurt."""
        return self._result(Outcome.WARN, self.subject(on), summary, readings, remedy)

    def failed(self, summary: str, *readings: Reading[Any], on: Item = None, remedy: str = "") -> Result:
        """Return that it cannot be used."""
        return self._result(Outcome.FAIL, self.subject(on), summary, readings, remedy)

    def unknown(self, reading: Reading[Any], *, what: str = "", on: Item = None) -> Result:
        """Return that nothing is known because a reading has no value, with its reason, evidence and remedy.

        `what`: what could not be read, `the clock`.
        """
        finding = unknown(reading, what)
        return self._result(finding.outcome, self.subject(on), finding.summary, (reading,), finding.remedy)

    def not_applicable(self, because: str, *, on: Item = None) -> Result:
        """Return that it makes no sense here."""
        return Result(self.check.id, self.subject(on), Outcome.NA, "", because=because)

    def not_run(self, because: str, *, on: Item = None) -> Result:
        """Return that it was not run because something before it failed."""
        return Result(self.check.id, self.subject(on), Outcome.NOT_RUN, "", because=because)

    def per_device(
        self,
        need: str,
        judge: Callable[[int, Any], Finding],
        *,
        without: Callable[[int, Reading[Any]], Finding | None] = lambda _device, _reading: None,
        devices: Iterable[int] | None = None,
    ) -> Iterator[Result]:
        """Judge the readings of each NPU and yield them rolled up.

        `judge` sees a device and its value; `without` a device and a reading that has none, and returns None for
        «unknown, and why», which is right unless that failure means something to the check (not configured).
        """
        found: list[tuple[int, Finding, Reading[Any]]] = []
        for device in self.devices if devices is None else devices:
            reading = self.read(need, device)
            if reading.value is None:
                found.append((device, without(device, reading) or unknown(reading), reading))
            else:
                found.append((device, judge(device, reading.value), reading))
        return self.rolled(found)

    def rolled(self, found: Sequence[tuple[int, Finding, Reading[Any]]]) -> Iterator[Result]:
        """Yield findings on NPUs in few lines: all that are fine in one, a few bad ones named, many in one."""
        groups: dict[Finding, list[tuple[int, Reading[Any]]]] = {}
        for device, finding, reading in found:
            groups.setdefault(finding, []).append((device, reading))
        for finding, members in groups.items():
            good = finding.outcome in (Outcome.PASS, Outcome.NA)
            if not good and len(members) <= NAMED and len(members) < max(2, len(found)):
                for device, reading in members:
                    yield self._of_device(finding, self.subject(device), finding.summary, (reading,))
                continue
            which = spans(device for device, _ in members)
            all_of = len(members) == len(found)
            words = f"all {len(members)} NPUs" if all_of and len(members) > 1 else f"NPU {which}"
            summary = f"{words}: {finding.summary}"
            yield self._of_device(finding, self.name, summary, () if good else [reading for _, reading in members])

    def _of_device(self, finding: Finding, subject: str, summary: str, readings: Sequence[Reading[Any]]) -> Result:
        if finding.outcome in (Outcome.NA, Outcome.NOT_RUN):
            return Result(self.check.id, subject, finding.outcome, "", finding.remedy, (), summary)
        return self._result(finding.outcome, subject, summary, readings, finding.remedy)


@dataclass(frozen=True)
class Survey(_Says):
    """All nodes as a check sees them."""

    check: Check
    topology: Topology
    plan: Plan
    nodes: Mapping[str, NodeFacts]
    """Those that were asked, in the order of the file; also those that were not reached."""
    now: float

    def view(self, node: str) -> NodeView:
        """Return one node's view."""
        return NodeView(
            self.check, self.topology, self.plan, self.topology.nodes[node], self.nodes[node], self.now
        )

    @property
    def views(self) -> tuple[NodeView, ...]:
        """The nodes that were reached as far as the check's needs go."""
        return tuple(self.view(node) for node, facts in self.nodes.items() if not barrier(self.check, facts))

    def passed(self, summary: str, *readings: Reading[Any], on: str = "cluster") -> Result:
        """Return that it is as it should be."""
        return self._result(Outcome.PASS, on, summary, readings)

    def warned(self, summary: str, *readings: Reading[Any], on: str = "cluster", remedy: str = "") -> Result:
        """Return that it can be used and will hurt."""
        return self._result(Outcome.WARN, on, summary, readings, remedy)

    def failed(self, summary: str, *readings: Reading[Any], on: str = "cluster", remedy: str = "") -> Result:
        """Return that it cannot be used."""
        return self._result(Outcome.FAIL, on, summary, readings, remedy)

    def unknown(self, reading: Reading[Any], *, what: str = "", on: str = "cluster") -> Result:
        """Return that nothing is known because a reading has no value."""
        finding = unknown(reading, what)
        return self._result(finding.outcome, on, finding.summary, (reading,), finding.remedy)

    def not_applicable(self, because: str, *, on: str = "cluster") -> Result:
        """Return that it makes no sense here."""
        return Result(self.check.id, on, Outcome.NA, "", because=because)

    def not_run(self, because: str, *, on: str = "cluster") -> Result:
        """Return that it was not run because something before it failed."""
        return Result(self.check.id, on, Outcome.NOT_RUN, "", because=because)

    def same(
        self,
        what: str,
        values: Mapping[str, tuple[str, Reading[Any]]],
        *,
        remedy: str = "",
        outcome: Outcome = Outcome.FAIL,
    ) -> Iterator[Result]:
        """Yield whether a value is the same everywhere; where not, who differs from the most, or all in a tie.

        `values`: subject -> (the value in words, the reading that it is from). Nothing is yielded without values.
        """
        counts = Counter(value for value, _ in values.values())
        if not counts:
            return
        ranked = counts.most_common(2)
        most, number = ranked[0]
        if len(counts) == 1:
            yield self.passed(f"{what} {most} on all {len(values)}" if len(values) > 1 else f"{what} {most}")
            return
        next_most, next_number = ranked[1]
        for subject, (value, reading) in values.items():
            if value != most or next_number == number:
                other = most if value != most else next_most
                others = f"{number} of {len(values)} have {other}" if number > 1 else "all differ"
                yield self._result(outcome, subject, f"{what} {value}; {others}", (reading,), remedy)


def unknown(reading: Reading[Any], what: str = "") -> Finding:
    """Return the finding of a reading without a value: that it hangs, or why there is none."""
    last = reading.raw.rpartition("\n")[2]
    if reading.failure is Failure.TIMEOUT:
        words = f"hangs: {last if NO_ANSWER in last else f'{NO_ANSWER} in time'}"
    elif reading.failure is Failure.EMPTY and reading.raw:
        return Finding(Outcome.UNKNOWN, f"{what}: {last}" if what else last)  # It was not gathered, and why.
    else:
        words = failure_words(reading)
    tool = any(name in reading.command for name in _TOOLS)
    remedy = _STANDS_STILL if reading.failure is Failure.TIMEOUT and not tool else remedy_of(reading)
    return Finding(Outcome.UNKNOWN, f"{what}: {words}" if what else words, remedy)


_TOOLS = ("npu-smi", "hccn_tool")

_STANDS_STILL = (
    "look whether the machine is overloaded, a disk hangs (dmesg), or a container is paused (docker ps)"
)


def evidence_of(readings: Sequence[Reading[Any]]) -> tuple[Evidence, ...]:
    """Return the first few readings as evidence."""
    return tuple(Evidence(one.command, one.raw, one.at) for one in readings[:SHOWN])


def barrier(one: Check, facts: NodeFacts) -> str:
    """Return why a check cannot be run on a node, or nothing: what it needs is not reached there."""
    if not one.needs:
        return ""
    reached = facts.connection
    if not reached.host:
        return f"{facts.node} is not reached"
    if not reached.ranks and any(place_of(need) == "ranks" for need in one.needs):
        return f"the container of {facts.node} is not reached"
    return ""
