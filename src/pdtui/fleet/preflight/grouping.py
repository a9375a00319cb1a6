"""Results that say the same together, and subjects in few words: what people read, in text and Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pdtui.fleet.preflight.outcome import WORST_FIRST, Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.text import spans


@dataclass(frozen=True, slots=True)
class Grouped:
    """One statement of one check, and all subjects that it is made of."""

    result: Result
    """The first of them."""
    subjects: tuple[str, ...]


def grouped(results: Iterable[Result], outcome: Outcome) -> tuple[Grouped, ...]:
    """Return the results of one outcome, those that say the same of several subjects as one; in their order."""
    found: dict[tuple[str, ...], list[Result]] = {}
    for one in results:
        if one.outcome is outcome:
            found.setdefault((one.check, one.summary, one.remedy, one.because, one.known), []).append(one)
    return tuple(Grouped(same[0], tuple(one.subject for one in same)) for same in found.values())


_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.DOTALL)


def in_short(subjects: Sequence[str]) -> str:
    """Return subjects in few words: `node1-4, node6/9, node6/11`, in the order in which their kinds come."""
    kinds: dict[str, list[int]] = {}
    for subject in subjects:
        match = _NUMBERED.fullmatch(subject)
        if match and not match[2].startswith("0"):
            kinds.setdefault(match[1], []).append(int(match[2]))
        elif match and match[2] == "0":
            kinds.setdefault(match[1], []).append(0)
        else:
            kinds.setdefault(subject, [])
    words: list[str] = []
    for kind, numbers in kinds.items():
        words += [kind + span for span in spans(set(numbers)).split(", ")] if numbers else [kind]
    return ", ".join(words)


def reason_of(result: Result) -> str:
    """Return why something was not run or makes no sense, and of what, unless the reason says that itself."""
    because = result.because or result.summary
    told = result.subject == "cluster" or node_of(result.subject) in because
    return because if told else f"{result.subject}: {because}"


def node_of(subject: str) -> str:
    """Return the part of a subject that may be a node's name: `node3` of `node3/9 -> node1/2`."""
    return subject.partition(" ")[0].partition("/")[0]


def ping_table(report: PreflightReport) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the matrix of pings by node: its head, and for each source a row of `good/all`."""
    made: Counter[tuple[str, str]] = Counter()
    good: Counter[tuple[str, str]] = Counter()
    for one in report.pings:
        ends = node_of(one.source), node_of(one.target)
        made[ends] += 1
        good[ends] += one.outcome is Outcome.PASS
    sources, heard = {source for source, _ in made}, {target for _, target in made}
    targets = [name for name in report.nodes if name in heard]
    rows = [
        [
            source,
            *(f"{good[source, target]}/{count}" if (count := made[source, target]) else "" for target in targets),
        ]
        for source in report.nodes
        if source in sources
    ]
    return ["pings from", *(f"to {target}" for target in targets)], rows


def worst(results: Iterable[Result]) -> Mapping[tuple[str, str], Outcome]:
    """Return the worst outcome of each check on each node (or `cluster`, or a group of ranks)."""
    found: dict[tuple[str, str], Outcome] = {}
    for one in results:
        key = (one.check, node_of(one.subject))
        if key not in found or WORST_FIRST.index(one.outcome) < WORST_FIRST.index(found[key]):
            found[key] = one.outcome
    return found
