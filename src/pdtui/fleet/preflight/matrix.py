"""Which NPU pings which, and in what order: pure arithmetic.

In one round an NPU takes part in one ping at most, as source or as target: a second one would make the tool «busy»
and say nothing about the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Npu:
    """One NPU of the cluster."""

    node: str
    device: int

    def __str__(self) -> str:
        return f"{self.node}/{self.device}"


@dataclass(frozen=True, slots=True)
class Pair:
    """One ping."""

    source: Npu
    target: Npu

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


Allowed = Callable[[Npu, Npu], bool]
"""Whether a ping from one to the other makes sense."""


def reach(prefill: Sequence[Npu], decode: Sequence[Npu], allowed: Allowed) -> tuple[Pair, ...]:
    """Return few pings by which every NPU is source and target once at least.

    With both roles each prefill NPU meets a decode NPU and each decode NPU a prefill NPU, since KV flows between
    them; prefill NPUs of one node meet those of several. An NPU that has nobody to ping is left out.
    """
    made = _Pings(allowed)
    senders, takers = list(dict.fromkeys(prefill)), _across(npu for npu in decode if npu not in set(prefill))
    many, few = (senders, takers) if len(senders) >= len(takers) else (takers, senders)
    if few:
        for one in many:
            made.meet(one, few, swap=many is takers)
        for one in few:
            if not made.degree[one]:
                made.meet(one, many, swap=few is takers)
    everyone = [*senders, *takers]
    halves = [*everyone[len(everyone) // 2 :], *everyone[: len(everyone) // 2]]  # The opposite is on another node.
    for target in everyone:
        if target not in made.targets:
            made.to(target, [npu for npu in halves if npu not in made.sources] or halves, halves)
    for source in everyone:
        if source not in made.sources:
            made.source(source, halves)
    return tuple(made.pairs)


def every_round(npus: Iterable[Npu], allowed: Allowed) -> Iterator[tuple[Pair, ...]]:
    """Yield every ping that makes sense, in rounds in which no NPU takes part twice."""
    ring: list[Npu | None] = list(dict.fromkeys(npus))
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    for turn in range(len(ring) - 1):
        table = [ring[0], *ring[1 + turn :], *ring[1 : 1 + turn]]
        pairs = [
            (one, other)
            for one, other in zip(table[:half], reversed(table[half:]), strict=True)
            if one is not None and other is not None
        ]
        there = tuple(Pair(one, other) for one, other in pairs if allowed(one, other))
        back = tuple(Pair(other, one) for one, other in pairs if allowed(other, one))
        yield from filter(None, (there, back))


def rounds_of(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Return the pings in rounds in which no NPU takes part twice; those that have most before them go first."""
    left = list(pairs)
    rounds: list[tuple[Pair, ...]] = []
    while left:
        degree = Counter(npu for pair in left for npu in (pair.source, pair.target))
        left.sort(key=lambda pair: -max(degree[pair.source], degree[pair.target]))
        taken: set[Npu] = set()
        now: list[Pair] = []
        rest: list[Pair] = []
        for pair in left:
            if pair.source in taken or pair.target in taken:
                rest.append(pair)
            else:
                now.append(pair)
                taken |= {pair.source, pair.target}
        rounds.append(tuple(now))
        left = rest
    return tuple(rounds)


def follow_up(failed: Sequence[Pair], good: Sequence[Pair], allowed: Allowed) -> tuple[Pair, ...]:
    """Return pings that tell whose fault a failed one is: each end of it, from an NPU that is known to work."""
    suspects = list(dict.fromkeys(npu for pair in failed for npu in (pair.source, pair.target)))
    sound = [npu for npu in dict.fromkeys(pair.source for pair in good) if npu not in suspects]
    made = _Pings(allowed)
    for suspect in suspects:
        others = [npu for npu in sound if npu.node != suspect.node] or sound
        made.to(suspect, others, others)
    return tuple(made.pairs)


@dataclass(frozen=True, slots=True)
class Blame:
    """What failed pings have in common: one NPU, one node, or nothing but themselves."""

    subject: str
    """`node3`, `node3/9`, or a pair."""
    pairs: tuple[Pair, ...]


def blame(bad: Sequence[Pair], good: Sequence[Pair]) -> tuple[Blame, ...]:
    """Return whose fault bad pings are, as far as they and the good ones tell.

    A node or an NPU has the fault when nothing reaches it, and who tried is reached by others, or several tried.
    What fails between two that nothing else is known of stays a pair.
    """
    found: list[Blame] = []
    left = list(bad)
    crossing = [pair for pair in left if pair.source.node != pair.target.node]
    for node, pairs in _culprits(crossing, good, lambda npu: npu.node):
        if len({npu.device for pair in pairs for npu in (pair.source, pair.target) if npu.node == node}) > 1:
            found.append(Blame(node, tuple(pair for pair in pairs if pair in left)))
            left = [pair for pair in left if pair not in pairs]
    for name, pairs in _culprits(left, good, str):
        mine = tuple(pair for pair in pairs if pair in left)
        if mine:
            found.append(Blame(name, mine))
            left = [pair for pair in left if pair not in mine]
    return (*found, *(Blame(str(pair), (pair,)) for pair in left))


def _culprits(
    bad: Sequence[Pair], good: Sequence[Pair], key: Callable[[Npu], str]
) -> Iterable[tuple[str, list[Pair]]]:
    """Yield who has the fault, those with most bad pings first, each with all of its bad pings."""
    alive = {
        key(npu) for pair in good for npu in (pair.source, pair.target) if key(pair.source) != key(pair.target)
    }
    dead: dict[str, list[Pair]] = {}
    for pair in bad:
        for name in {key(pair.source), key(pair.target)} - alive:
            dead.setdefault(name, []).append(pair)
    for name, pairs in sorted(dead.items(), key=lambda item: (-len(item[1]), item[0])):
        partners = {key(npu) for pair in pairs for npu in (pair.source, pair.target)} - {name}
        if partners & alive or len(partners) > 1:
            yield name, pairs


class _Pings:
    """Pings as they are decided on, and how many each NPU takes part in."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self.pairs: list[Pair] = []
        self.degree: Counter[Npu] = Counter()
        self.sources: set[Npu] = set()
        self.targets: set[Npu] = set()

    def meet(self, one: Npu, others: Sequence[Npu], *, swap: bool) -> None:
        """Let `one` ping the least busy of the others; with `swap` the other way round."""
        if swap:
            self.to(one, others, others)
        else:
            self.source(one, others)

    def to(self, target: Npu, preferred: Sequence[Npu], others: Sequence[Npu]) -> None:
        """Let somebody ping `target`: one of the preferred if one may."""
        for candidates in (preferred, others):
            able = [npu for npu in candidates if npu != target and self._allowed(npu, target)]
            if able:
                self._add(Pair(min(able, key=lambda npu: self.degree[npu]), target))
                return

    def source(self, source: Npu, others: Sequence[Npu]) -> None:
        """Let `source` ping the least busy of the others."""
        able = [npu for npu in others if npu != source and self._allowed(source, npu)]
        if able:
            self._add(Pair(source, min(able, key=lambda npu: self.degree[npu])))

    def _add(self, pair: Pair) -> None:
        self.pairs.append(pair)
        self.degree.update((pair.source, pair.target))
        self.sources.add(pair.source)
        self.targets.add(pair.target)


def _across(npus: Iterable[Npu]) -> list[Npu]:
    """Return NPUs so that neighbours are on different nodes."""
    return sorted(dict.fromkeys(npus), key=lambda npu: (npu.device, npu.node))
