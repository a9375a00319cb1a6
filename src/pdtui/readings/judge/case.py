"""Collects what is said of one NPU, and when it will have to be said anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import Assessment, Place, assess_failure, finding, place_of
from pdtui.readings.judge.history import Ages, Observed
from pdtui.readings.verdict import SEVERITY, Reason, Verdict
from pdtui.topology.model import Platform

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one NPU."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    """What is not healthy, worst first."""
    oldest: float | None
    """When the oldest value that the verdict rests on was true."""
    until: float | None = None
    """Wall clock from which it may be another one without any new answer, because values age."""


class Case:
    """Collects reasons, and the age of what the verdict rests on."""

    def __init__(self, device: int, platform: Platform, now: float, ages: Ages) -> None:
        self.device = device
        self.platform: Platform = platform
        self.place: Place = place_of(device, platform)
        self.now = now
        self.ages = ages
        self._reasons: list[Reason] = []
        self._healthy = False
        self._times: list[float] = []
        self._ends: list[float] = []

    def add(self, told: Assessment, reading: Reading[T] | None) -> None:
        """Take one assessment; healthy and n/a leave no reason behind."""
        if told.verdict is Verdict.HEALTHY:
            self._healthy = True
        elif told.verdict is not Verdict.NA:
            at, command, raw = (reading.at, reading.command, reading.raw) if reading else (None, "", "")
            raw = told.raw or raw
            self._reasons.append(
                Reason(told.verdict, told.summary, command, raw, at, told.remedy, told.id, told.meaning)
            )

    def find(self, reason_id: str, summary: str, reading: Reading[T] | None, *, raw: str = "") -> None:
        """Take a reason of a kind, in this NPU's words."""
        self.add(finding(reason_id, summary, self.place, raw=raw), reading)

    def current(self, name: str, observed: Observed[T], max_age: float, *, setting: bool = False) -> T | None:
        """Return a value without which the NPU cannot be called healthy; when there is none, the reason is noted.

        A busy tool leaves the last value standing while it is fresh; every other failure does not. The age of a
        setting, which is asked rarely, makes no picture old.
        """
        latest, good = observed.latest, observed.good
        if (resting := good or latest) and not setting:
            self._times.append(resting.at)
        slug = name.replace(" ", "-")
        if latest is None:
            self.find(f"not-asked-{slug}", f"{name}: not asked yet", None)
            return None
        busy = latest.failure is Failure.BUSY
        if (latest.failure is not None and not busy) or good is None or good.value is None:
            self.add(assess_failure(name, latest), latest)
            return None
        if self.now - good.at > max_age:
            self.find(f"stale-{slug}", f"{name}: the last answer is too old", good)
            return None
        self._ends.append(good.at + max_age)
        return good.value

    def known(self, observed: Observed[T]) -> T | None:
        """Return a value that only sharpens the verdict; None when there is none, or none that is fresh."""
        good = observed.good
        if good is None or good.value is None or self.now - good.at > self.ages.slow:
            return None
        if observed.latest is not None and observed.latest.failure in (
            Failure.NOT_CONFIGURED,
            Failure.UNSUPPORTED,
        ):
            return None
        self._ends.append(good.at + self.ages.slow)
        return good.value

    def grown(self, observed: Observed[T], window: float) -> dict[str, int]:
        """Return how much each counter of a device grew inside a window, in seconds before now.

        What grew while nobody could ask for longer than the window may be as old as that: it is not counted.
        """
        found: dict[str, int] = {}
        for step in observed.steps:
            if self.now - step.at <= window and step.at - step.since <= window:
                self._ends.append(step.at + window)
                for name, amount in step.amounts.items():
                    found[name] = found.get(name, 0) + amount
        return found

    def judgement(self) -> Judgement:
        """Return the worst finding as the verdict."""
        reasons = tuple(sorted(self._reasons, key=lambda reason: -SEVERITY[reason.verdict]))
        oldest, until = min(self._times, default=None), min(self._ends, default=None)
        if reasons:
            return Judgement(reasons[0].verdict, reasons, oldest, until)
        return Judgement(Verdict.HEALTHY if self._healthy else Verdict.NA, (), oldest, until)
