"""What has changed between two pictures of the cluster, as a supervisor wants to be told: once, by what it means.

Pure. A node that cannot be reached says nothing about its NPUs and ranks, so they stay as they were last seen
(`carried`) and only the node itself is told. What is acknowledged is marked, for those who leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pdtui.fleet.rank_words import describe_state
from pdtui.fleet.snapshot import (
    WRONG_STATES,
    NodeState,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
    Snapshot,
)
from pdtui.fleet.troubles import (
    FINE,
    Trouble,
    bad_reasons,
    is_away,
    of_alarms,
    of_node,
    of_npu,
    of_rank,
    reason_id,
)
from pdtui.readings.verdict import SEVERITY, Verdict

Kind = Literal["node", "npu", "rank", "service", "alarm", "file"]

SETTLING = 60.0
"""Seconds after a connection came back in which an NPU may still be unread: what was known of it stays."""

LEARNING = 180.0
"""Seconds after a node was first seen in which what only sharpens a verdict is read for the first time."""

_VERDICTS = {**SEVERITY, Verdict.NA: 0, Verdict.HEALTHY: 0}
_STATES = {RankState.UNKEPT: 1, RankState.STALLED: 2, RankState.UNHEALTHY: 3, RankState.FAILED: 4}
"""How bad a state is; 0: one that is well, or that somebody asked for."""
_SERVING = {"SERVING": 0, "DEGRADED": 1, "STARTING": 2, "STOPPED": 2, "UNKNOWN": 2, "DOWN": 3}


@dataclass(frozen=True, slots=True)
class Transition:
    """One change."""

    at: float
    kind: Kind
    subject: str
    """A node, `node/npu`, rank, `service`, or `file`."""
    before: str
    after: str
    """A state, verdict, serving word or severity; empty: there was, or is, nothing."""
    worse: bool
    summary: str
    """One sentence without the subject."""
    key: str = ""
    """What acknowledges it; empty: nothing does."""
    acknowledged: bool = False
    """It is known: to be left out by all that calls an operator."""
    because: str = ""
    """The rank that failed first, and took this one with it: that one calls."""

    @property
    def calls(self) -> bool:
        """Whether an operator should be called."""
        return self.worse and not self.acknowledged and not self.because


class Follower:
    """Keeps the last picture, and tells of each new one what has changed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._seen = snapshot
        self._began: dict[str, float] = {}
        """Node -> when it was first seen connected."""
        self._learn(snapshot)

    def awaits_cause(self, snapshot: Snapshot) -> bool:
        """Return whether a rank has just failed, and why has not been read yet from its log."""
        before = {rank.id: rank for rank in self._seen.ranks}
        return any(
            rank.state is RankState.FAILED
            and rank.diagnosis is None
            and (rank.id not in before or before[rank.id].state is not RankState.FAILED)
            for rank in snapshot.ranks
        )

    def take(self, snapshot: Snapshot) -> tuple[Transition, ...]:
        """Return what has changed since the last one."""
        now = carried(self._seen, snapshot)
        found = transitions(self._seen, now)
        self._seen = now
        self._learn(snapshot)
        return tuple(map(self._as_news, found))

    def _learn(self, snapshot: Snapshot) -> None:
        for node in snapshot.nodes:
            if node.state is NodeState.CONNECTED:
                self._began.setdefault(node.name, snapshot.made_at)

    def _as_news(self, one: Transition) -> Transition:
        """Return a transition; what was found because it was asked for the first time may be old: no call.

        A failed NPU always calls: what makes one is read before the first picture.
        """
        began = self._began.get(one.subject.partition("/")[0], one.at)
        if one.kind == "npu" and one.worse and one.after == Verdict.DEGRADED and one.at - began < LEARNING:
            return replace(one, worse=False, summary=f"{one.summary} (found at the first look)")
        return one


def carried(old: Snapshot, new: Snapshot) -> Snapshot:
    """Return the new picture with NPUs and ranks that nobody sees now as they were seen last."""
    unseen = {node.name for node in new.nodes if is_away(node) or node.state is NodeState.CONNECTING}
    before = {node.name: node for node in old.nodes}
    ranks = {rank.id: rank for rank in old.ranks}
    nodes = tuple(_carried_node(before.get(node.name), node, new.made_at, unseen) for node in new.nodes)
    return replace(
        new,
        nodes=nodes,
        ranks=tuple(
            ranks[rank.id] if rank.id in ranks and (rank.node in unseen or rank.state is RankState.LOST) else rank
            for rank in new.ranks
        ),
    )


def _carried_node(old: NodeStatus | None, new: NodeStatus, now: float, unseen: set[str]) -> NodeStatus:
    if old is None or (new.name not in unseen and now - new.since >= SETTLING):
        return new
    known = {npu.id: npu for npu in old.npus}

    def as_known(npu: NpuStatus) -> NpuStatus:
        before = known.get(npu.id)
        if before is None or before.observed_at is None:
            return npu
        fresh = npu.observed_at is not None and npu.observed_at >= new.since
        return before if new.name in unseen or (npu.verdict is Verdict.UNKNOWN and not fresh) else npu

    npus = tuple(map(as_known, new.npus)) if new.npus else old.npus
    tool_error = old.tool_error if new.name in unseen else new.tool_error
    return replace(new, npus=npus, tool_error=tool_error)


def transitions(old: Snapshot, new: Snapshot) -> tuple[Transition, ...]:
    """Return what has changed, what calls an operator first, nodes before what is on them."""
    compare = _Comparison(old, new)
    found = [*compare.service(), *compare.file(), *compare.nodes(), *compare.npus(), *compare.ranks()]
    return tuple(sorted(found, key=lambda one: not one.calls))


class _Comparison:
    """Two pictures."""

    def __init__(self, old: Snapshot, new: Snapshot) -> None:
        self._old, self._new = old, new
        self._same_words = old.acknowledgements == new.acknowledgements

    def _known(self, trouble: Trouble) -> bool:
        return self._new.acknowledged(trouble.key) is not None

    def _was_known(self, trouble: Trouble) -> bool:
        return self._old.acknowledged(trouble.key) is not None

    def _told_again(self, old: Iterable[Trouble], new: Iterable[Trouble]) -> Sequence[Trouble]:
        """Return what was there before and was acknowledged, and no longer is."""
        if self._same_words:
            return ()
        before = {trouble.key for trouble in old if self._was_known(trouble)}
        return [trouble for trouble in new if trouble.key in before and not self._known(trouble)]

    def _of(
        self, trouble: Trouble, before: str, after: str, *, worse: bool, summary: str, known: bool | None = None
    ) -> Transition:
        known = self._known(trouble) if known is None else known
        at = self._new.made_at
        return Transition(at, trouble.kind, trouble.subject, before, after, worse, summary, trouble.key, known)

    def _again(self, trouble: Trouble, state: str) -> Transition:
        summary = f"no longer acknowledged: {trouble.summary}"
        return self._of(trouble, state, state, worse=trouble.severity != "info", summary=summary)

    def service(self) -> Iterable[Transition]:
        """Tell how the service has changed."""
        before, after = self._old.serving, self._new.serving
        if before.word != after.word:
            ready = f"P {after.prefill_ready}/{after.prefill_total} D {after.decode_ready}/{after.decode_total}"
            worse = _SERVING[after.word] > _SERVING[before.word]
            why = f": {self._new.headline.message}" if self._new.headline and after.word != "SERVING" else ""
            yield Transition(
                self._new.made_at,
                "service",
                "service",
                before.word,
                after.word,
                worse,
                f"{before.word} -> {after.word}, {ready}{why}",
            )

    def file(self) -> Iterable[Transition]:
        """Tell that the file on disk is not what was loaded."""
        before, after = _file_word(self._old), _file_word(self._new)
        if before != after:
            words = {
                "broken": f"broken on disk: {self._new.file_broken}; what was loaded stays",
                "removed": "removed from disk; what was loaded stays",
                "changed": "changed on disk; not loaded",
                "loaded": "on disk as it was loaded",
            }
            worse = after in ("broken", "removed")
            yield Transition(self._new.made_at, "file", "file", before, after, worse, words[after])

    def nodes(self) -> Iterable[Transition]:
        """Tell of servers: reachable or not, and conditions that begin or end."""
        before = {node.name: node for node in self._old.nodes}
        for node in self._new.nodes:
            old = before.get(node.name)
            if old is None or (old is node and self._same_words):
                continue
            was, now = ({trouble.id: trouble for trouble in of_node(one)} for one in (old, node))
            for name, trouble in now.items():
                if trouble.severity == "info" or (name in was and was[name].severity != "info"):
                    continue
                yield self._of(trouble, _state(old), _state(node), worse=True, summary=trouble.summary)
            for name, trouble in was.items():
                if name not in now and trouble.severity != "info":
                    words = "connected again" if is_away(old) else f"no longer: {trouble.summary}"
                    yield self._of(trouble, _state(old), _state(node), worse=False, summary=words)
            for trouble in self._told_again(was.values(), now.values()):
                yield self._again(trouble, _state(node))

    def npus(self) -> Iterable[Transition]:
        """Tell of NPUs whose verdict has changed, or that have a new reason which is no better."""
        before = {node.name: node for node in self._old.nodes}
        for node in self._new.nodes:
            old_node = before.get(node.name)
            if old_node is None or (old_node.npus is node.npus and self._same_words):
                continue
            known = {npu.id: npu for npu in old_node.npus}
            for npu in node.npus:
                old = known.get(npu.id)
                if old is None or (old is npu and self._same_words):
                    continue
                back = npu.verdict in FINE and self._new.made_at - node.since < SETTLING
                if not (back and old.verdict is Verdict.UNKNOWN):  # Its node came back: that was told.
                    yield from self._npu(node.name, old, npu)

    def _npu(self, node: str, old: NpuStatus, new: NpuStatus) -> Iterable[Transition]:
        was, now = list(of_npu(node, old)), list(of_npu(node, new))
        before, after = _VERDICTS[old.verdict], _VERDICTS[new.verdict]
        unsure = new.verdict is Verdict.UNKNOWN
        if old.observed_at is None and (new.observed_at is None or unsure or new.verdict in FINE):
            return  # First readings that are good are no news.
        ids = {reason_id(reason) for reason in bad_reasons(old)}
        worst = {reason_id(reason) for reason in bad_reasons(new) if _VERDICTS[reason.verdict] >= after}
        appeared = [trouble for trouble in now if trouble.id not in ids and trouble.id in worst]
        if before == after and (unsure or not appeared):
            for trouble in self._told_again(was, now):
                yield self._again(trouble, str(new.verdict))
            return
        why = appeared or now
        if why:
            trouble = next((one for one in why if not self._known(one)), why[0])
            known = all(map(self._known, why))
            summary = f"NPU {old.verdict} -> {new.verdict}: {trouble.summary}"
        else:
            trouble = was[0] if was else Trouble("npu", f"{node}/{new.id}", "", "info", "")
            known = bool(was) and all(map(self._known, was))
            summary = f"NPU {old.verdict} -> {new.verdict}"
        carries = f", carries {new.rank}" if new.rank and why else ""
        yield self._of(
            trouble,
            str(old.verdict),
            str(new.verdict),
            worse=after > before or (after == before and bool(appeared)),
            summary=summary + carries,
            known=known,
        )

    def ranks(self) -> Iterable[Transition]:
        """Tell of ranks whose state has changed, and of alarms that begin or end."""
        before = {rank.id: rank for rank in self._old.ranks}
        for rank in self._new.ranks:
            old = before.get(rank.id)
            if old is rank and self._same_words:
                continue
            if old is not None:
                yield from self._rank(old, rank)
            elif rank.state in WRONG_STATES:
                yield from self._rank(replace(rank, state=RankState.UNKNOWN), rank)
            yield from self._alarms(old, rank)

    def _rank(self, old: RankStatus, new: RankStatus) -> Iterable[Transition]:
        if old.state is new.state:
            for trouble in self._told_again(of_rank(old), of_rank(new)):
                yield self._again(trouble, str(new.state))
            return
        was, now = _seen_state(old), _seen_state(new)
        if was is now or RankState.LOST in (was, now) or now is RankState.UNKNOWN:
            return  # The node's own transition says it.
        if was is RankState.UNKNOWN and not (_STATES.get(now) or now is RankState.UNMANAGED):
            return
        nothing = Trouble("rank", new.id, str(now), "info", "")
        trouble = next(iter((*of_rank(new), *of_rank(old))), nothing)
        worse = _STATES.get(now, 0) > _STATES.get(was, 0)
        cause = new.diagnosis.first_cause if worse and new.diagnosis is not None else ""
        told = self._of(trouble, str(was), str(now), worse=worse, summary=f"{was} -> {describe_state(new)}")
        yield replace(told, because="" if cause == new.id else cause)

    def _alarms(self, old: RankStatus | None, new: RankStatus) -> Iterable[Transition]:
        was = {trouble.id: trouble for trouble in of_alarms(old)} if old is not None else {}
        now = {trouble.id: trouble for trouble in of_alarms(new)}
        for name, trouble in now.items():
            before = was.get(name)
            if before is None or (before.severity, trouble.severity) == ("warning", "error"):
                word = before.severity if before is not None else ""
                yield self._of(trouble, word, trouble.severity, worse=True, summary=trouble.summary)
        for name, trouble in was.items():
            if name not in now:
                yield self._of(trouble, trouble.severity, "", worse=False, summary=f"no longer: {trouble.summary}")
        for trouble in self._told_again(was.values(), now.values()):
            yield self._again(trouble, trouble.severity)


def _state(node: NodeStatus) -> str:
    return str(node.state)


def _seen_state(rank: RankStatus) -> RankState:
    return rank.last_state or rank.state if rank.state is RankState.LOST else rank.state


def _file_word(snapshot: Snapshot) -> str:
    if snapshot.file_broken:
        return "broken"
    if snapshot.file_removed:
        return "removed"
    return "changed" if snapshot.file_changed else "loaded"
