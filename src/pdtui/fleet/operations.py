"""One running action and its progress, as the snapshot shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal

from pdtui.clock import Clock
from pdtui.fleet.intents import ContainerVerb
from pdtui.fleet.leases import Hold
from pdtui.fleet.snapshot import OperationStatus, OperationStep
from pdtui.fleet.store import Store
from pdtui.fleet.targets import in_short

StepState = Literal["waiting", "running", "done", "failed", "skipped"]
Verb = Literal["start", "stop", "restart"] | ContainerVerb


class Operation:
    """Phases first, then a line for each rank (of containers: each node); every change goes to the store."""

    def __init__(
        self, op_id: str, verb: Verb, ids: tuple[str, ...], by: str, *, store: Store, clock: Clock, hold: Hold
    ) -> None:
        self.id = op_id
        self.verb = verb
        self.ids = ids
        self.hold = hold
        """Its lease on the nodes."""
        self.interrupted = ""
        """Why it was ended from outside, if it was."""
        self._by = by
        self._store = store
        self._clock = clock
        self._since = clock.wall()
        self._phases: dict[str, OperationStep] = {}
        self._ranks = {rank_id: OperationStep(rank_id, "waiting") for rank_id in ids}
        self._ended: float | None = None
        self._state: Literal["running", "done", "failed", "cancelled"] = "running"
        self._error = ""
        self._superseded: set[str] = set()
        self.finished = asyncio.Event()
        """Set when it has ended; `status` is final then."""
        self._report()

    @property
    def status(self) -> OperationStatus:
        """The operation now."""
        return OperationStatus(
            id=self.id,
            verb=self.verb,
            targets=self.ids,
            by=self._by,
            since=self._since,
            state=self._state,
            steps=(*self._phases.values(), *self._ranks.values()),
            error=self._error,
            ended=self._ended,
        )

    @property
    def lease(self) -> str:
        """Id of its lease on the nodes."""
        return self.hold.id

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._state == "running"

    @property
    def rank_steps(self) -> Mapping[str, OperationStep]:
        """Each rank's line."""
        return self._ranks

    def phase(self, label: str, state: StepState, detail: str = "") -> None:
        """Set a phase's line; a new label comes after the ones before."""
        step = OperationStep(label, state, detail)
        if self._phases.get(label) != step:
            self._phases[label] = step
            self._report()

    def rank(self, rank_id: str, state: StepState, detail: str = "") -> None:
        """Set a rank's line."""
        step = OperationStep(rank_id, state, detail)
        if self._ranks[rank_id] != step:
            self._ranks[rank_id] = step
            self._report()

    def failed(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return those of `ids` that failed or were skipped."""
        return tuple(rank_id for rank_id in ids if self._ranks[rank_id].state in ("failed", "skipped"))

    def supersede(self, ids: Iterable[str]) -> None:
        """Leave these ranks to a later action."""
        self._superseded.update(ids)
        self._store.event("info", self.id, f"{self.verb} leaves {len(self._superseded)} ranks to a later action")

    def is_superseded(self, rank_id: str) -> bool:
        """Return whether a later action has taken a rank over."""
        return rank_id in self._superseded

    def cut_short(self) -> str:
        """Say of every rank that is not done how the operation leaves it; returns that of all in few words."""
        words: dict[str, list[str]] = {}
        for rank_id, step in self._ranks.items():
            if step.state in ("waiting", "running"):
                again = "not begun" if step.state == "waiting" else "cut off there"
                if not self.status.of_nodes:
                    again = (
                        "not started again" if self.verb == "restart" and self._is_stopped(step) else "not begun"
                    )
                step = OperationStep(rank_id, "skipped", f"{step.detail}, {again}" if step.detail else again)
                self._ranks[rank_id] = step
            if step.state == "skipped":
                words.setdefault(step.detail, []).append(rank_id)
        return "; ".join(f"{in_short(ids)}: {detail}" for detail, ids in words.items())

    @staticmethod
    def _is_stopped(step: OperationStep) -> bool:
        return step.detail.startswith(("stopped", "killed", "not running"))

    def finish(self, state: Literal["done", "failed", "cancelled"], error: str = "") -> None:
        """End it."""
        self._state, self._error, self._ended = state, error, self._clock.wall()
        for label, step in self._phases.items():
            if step.state == "running":
                self._phases[label] = OperationStep(label, "done" if state == "done" else "failed", step.detail)
        self._report()
        self.finished.set()

    def _report(self) -> None:
        self._store.put_operation(self.status)
