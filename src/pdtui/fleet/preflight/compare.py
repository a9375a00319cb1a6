"""Two preflights compared: what fails now and did not before, what was mended, what has another value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.fleet.preflight.grouping import node_of
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport

_GOOD = (Outcome.PASS, Outcome.NA)
_OPEN = (Outcome.UNKNOWN, Outcome.NOT_RUN)
"""Outcomes that do not say how it is: what was bad before is not mended by them."""
_SECONDS = re.compile(r"\d+(?:\.\d+)? m?s\b")
"""How long something took, which is never the same twice."""
_SEVERITY = {
    Outcome.FAIL: 4,
    Outcome.UNKNOWN: 3,
    Outcome.NOT_RUN: 2,
    Outcome.WARN: 1,
    Outcome.PASS: 0,
    Outcome.NA: 0,
}


@dataclass(frozen=True)
class Comparison:
    """What has changed, in words, a line each."""

    old_name: str
    worse: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Neither better nor worse, but another value."""
    only_old: tuple[str, ...] = ()
    """Nodes and checks that only the earlier one looked at."""
    only_new: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return any(changes for _, changes in self.parts)

    @property
    def parts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What to show, the worst first, with a word before each."""
        return (
            ("worse", self.worse),
            ("mended", self.mended),
            ("changed", self.changed),
            ("only before", self.only_old),
            ("only now", self.only_new),
        )


def compare(old: PreflightReport, new: PreflightReport, old_name: str) -> Comparison:
    """Compare two reports of one cluster.

    Results roll up differently from run to run (16 NPUs that are fine are one line, of three that are not each has
    its own), so what one run does not say of an NPU is what it says of its node.
    """
    if old.cluster != new.cluster:
        old_name = (
            f"{old_name}, which is of another cluster, {old.cluster}: nodes of one name may be different ones"
        )
    before, now = _by_key(old), _by_key(new)
    only_one = set(old.nodes) ^ set(new.nodes)
    checks = set(old.checks) & set(new.checks)

    def compared(key: tuple[str, str]) -> bool:
        return key[0] in checks and node_of(key[1]) not in only_one

    worse: list[str] = []
    mended: list[str] = []
    lost: list[str] = []
    changed: dict[tuple[str, str], list[str]] = {}
    moved: set[tuple[str, str]] = set()
    """Checks on nodes of which something got better or worse: how the rest rolls up is no news then."""
    for key, result in now.items():
        if not compared(key):
            continue
        place = (result.check, node_of(result.subject))
        earlier = before.get(key)
        was = earlier.outcome if earlier is not None else _of_node(old, key)
        if was is None:
            was = Outcome.PASS  # It was fine then, or its check would have said so.
        step = _SEVERITY[result.outcome] - _SEVERITY[was]
        words = f"{result.check} {result.subject}: {was} -> {result.outcome}: {result.summary or result.because}"
        if step < 0 and result.outcome in _OPEN:
            lost.append(words)
            continue
        if step:
            moved.add(place)
        if step > 0:
            worse.append(words)
        elif step < 0:
            mended.append(words)
        elif earlier is not None and _says_other(earlier, result):
            changed.setdefault(place, []).append(
                f"{result.check} {result.subject}: {earlier.summary} -> {result.summary}"
            )
    for key, result in before.items():
        if key in now or not compared(key) or result.outcome in _GOOD:
            continue
        left = _of_node(new, key) or Outcome.PASS
        if left not in _OPEN and _SEVERITY[left] < _SEVERITY[result.outcome]:
            was_words = result.summary or result.because
            mended.append(f"{result.check} {result.subject}: {result.outcome} -> {left}: was {was_words}")
            moved.add((result.check, node_of(result.subject)))
    return Comparison(
        old_name,
        tuple(worse),
        tuple(mended),
        (*lost, *(words for place, lines in changed.items() if place not in moved for words in lines)),
        _only(old, new),
        _only(new, old),
    )


def _says_other(old: Result, new: Result) -> bool:
    """Whether two results of one outcome differ in more than seconds that are good in both."""
    if new.outcome in _GOOD:
        return _SECONDS.sub("", old.summary) != _SECONDS.sub("", new.summary)
    return old.summary != new.summary


def _by_key(report: PreflightReport) -> Mapping[tuple[str, str], Result]:
    found: dict[tuple[str, str], Result] = {}
    for one in report.results:
        known = found.get((one.check, one.subject))
        if known is None or _SEVERITY[one.outcome] > _SEVERITY[known.outcome]:
            found[one.check, one.subject] = one
    return found


def _of_node(report: PreflightReport, key: tuple[str, str]) -> Outcome | None:
    """Return the worst that is said of the node of a subject as a whole, None: nothing."""
    check, subject = key
    said = [
        one.outcome
        for one in report.results
        if one.check == check and one.subject in (node_of(subject), "cluster") and one.subject != subject
    ]
    return max(said, key=lambda outcome: _SEVERITY[outcome], default=None)


def _only(one: PreflightReport, other: PreflightReport) -> tuple[str, ...]:
    nodes = [name for name in one.nodes if name not in other.nodes]
    checks = [name for name in one.checks if name not in other.checks]
    return (*(f"node {name}" for name in nodes), *(f"check {name}" for name in checks))
