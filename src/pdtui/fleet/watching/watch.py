"""The loop of `pdtui watch`: new pictures in, transitions out, to all that want to know."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pdtui.clock import Clock
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.journal import Journal
from pdtui.fleet.snapshot import NodeState, Snapshot
from pdtui.fleet.transitions import Follower, Transition
from pdtui.fleet.troubles import healthy, troubles
from pdtui.fleet.waiting import first_of
from pdtui.fleet.watching.hook import Hook
from pdtui.topology.redact import redacted_text

SCHEMA = 1
PAUSE = 1.0
"""Seconds between two looks: what changes back within it is not told."""

UNEXPLAINED = 8.0
"""Seconds that a rank's end waits for its first cause, which its log has."""

TRANSITIONS = "transitions"
"""Name of the journal of transitions: beside that of actions, which a flapping link must not push out."""


class Watch:
    """Tells what changes on one cluster."""

    def __init__(
        self,
        fleet: FleetHandle,
        *,
        clock: Clock,
        by: str,
        folder: Path,
        tell: Callable[[Transition], None],
        complain: Callable[[str], None],
        only_worse: bool = False,
        hook: Hook | None = None,
    ) -> None:
        """Prepare; `tell` gets the transitions that are asked for, `complain` what hinders the watching itself."""
        self._fleet = fleet
        self._clock = clock
        self._tell = tell
        self._complain = complain
        self._only_worse = only_worse
        self._hook = hook
        self._news = asyncio.Event()
        self._journal = Journal(folder, clock=clock, by=by, name=TRANSITIONS, trouble=self._note)
        self._follower = Follower(fleet.snapshot)
        self._unwritten = ""
        self._polls: dict[str, asyncio.Task[None]] = {}
        """By node: NPUs that are read now, because a rank there got worse."""
        self.counts: Counter[tuple[str, bool]] = Counter()
        """Transitions so far, by kind and whether they were to worse."""

    async def run(self) -> None:
        """Watch until cancelled."""
        began = summary(self._fleet.snapshot)
        self._journal.write("watch", state="began", serving=began["serving"], troubles=len(_troubles(began)))
        end = self._fleet.subscribe(self._news.set)
        self._news.set()  # For what has changed before.
        hooking = asyncio.ensure_future(self._hook.run()) if self._hook is not None else None
        if hooking is not None:
            hooking.add_done_callback(self._hook_ended)
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._take()
                await self._clock.sleep(PAUSE)
        finally:
            end()
            for poll in self._polls.values():
                poll.cancel()
            await asyncio.gather(*self._polls.values(), return_exceptions=True)
            if hooking is not None:
                hooking.cancel()
                await asyncio.gather(hooking, return_exceptions=True)
            self._journal.write("watch", state="ended")

    async def _take(self) -> None:
        snapshot = self._fleet.snapshot
        until = self._clock.monotonic() + UNEXPLAINED
        while self._follower.awaits_cause(snapshot) and self._clock.monotonic() < until:
            await first_of(self._clock.sleep(0.25), self._news.wait())
            self._news.clear()
            snapshot = self._fleet.snapshot
        for transition in self._follower.take(snapshot):
            self._pass_on(replace(transition, summary=redacted_text(transition.summary)))
            if transition.kind == "rank" and transition.worse:
                self._read_npus(snapshot, transition.subject)

    def _read_npus(self, snapshot: Snapshot, rank: str) -> None:
        """Read the NPUs where a rank got worse: a link may have taken it with it, and is told at once then."""
        status = snapshot.rank(rank)
        if status is None or status.node in self._polls:
            return
        poll = asyncio.ensure_future(self._fleet.poll_now((status.node,)))
        self._polls[status.node] = poll
        poll.add_done_callback(lambda task: self._polled(status.node, task))

    def _polled(self, node: str, task: asyncio.Task[None]) -> None:
        self._polls.pop(node, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"{node}: its NPUs could not be read: {error}")

    def _pass_on(self, one: Transition) -> None:
        self.counts[one.kind, one.worse] += 1
        self._journal.write("transition", **_placed(one), **_fields(one))
        if one.worse or not self._only_worse:
            self._tell(one)
            if self._hook is not None and not one.acknowledged and not one.because:
                self._hook.offer(as_json(one, self._fleet.topology.name))

    def _hook_ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"internal error, the hook is run no more: {error!r}")
            self._hook = None

    def _note(self, error: str) -> None:
        if error and not self._unwritten:
            self._complain(f"transitions are not written down: {error}")
        self._unwritten = error


def as_json(one: Transition, cluster: str) -> str:
    """Return a transition as one line of JSON: an interface."""
    return json.dumps({"schema_version": SCHEMA, "cluster": cluster, **asdict(one)}, ensure_ascii=False)


def summary(snapshot: Snapshot) -> Mapping[str, object]:
    """Return the present state in short, as the first line of `--json` has it: an interface."""
    return {
        "schema_version": SCHEMA,
        "cluster": snapshot.cluster,
        "at": snapshot.made_at,
        "kind": "summary",
        "serving": snapshot.serving.word,
        "prefill": [snapshot.serving.prefill_ready, snapshot.serving.prefill_total],
        "decode": [snapshot.serving.decode_ready, snapshot.serving.decode_total],
        "nodes": [sum(node.state is NodeState.CONNECTED for node in snapshot.nodes), len(snapshot.nodes)],
        "healthy": healthy(snapshot),
        "troubles": [
            {
                "key": one.key,
                "severity": one.severity,
                "summary": redacted_text(one.summary),
                "acknowledged": snapshot.acknowledged(one.key) is not None,
            }
            for one in troubles(snapshot)
        ],
    }


def _troubles(short: Mapping[str, object]) -> list[object]:
    found = short["troubles"]
    return found if isinstance(found, list) else []


def _fields(one: Transition) -> Mapping[str, object]:
    return {name: value for name, value in asdict(one).items() if name != "at"}


def _placed(one: Transition) -> Mapping[str, object]:
    """Return where it is, as entries of the journal have it."""
    if one.kind in ("rank", "alarm"):
        return {"rank": one.subject}
    return {"node": one.subject.partition("/")[0]} if one.kind in ("node", "npu") else {}
