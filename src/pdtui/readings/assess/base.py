"""What an assessment is, and how one is made of a kind of reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pdtui.readings.answer import ABSENT, Failure, Reading
from pdtui.readings.commands import npu_and_chip
from pdtui.readings.reasons import kind_of
from pdtui.readings.verdict import SEVERITY, Verdict
from pdtui.readings.words import failure_words, remedy_of
from pdtui.topology.model import Platform

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a value says: a verdict, and when it is not a good one what it means and what to do."""

    verdict: Verdict
    summary: str
    meaning: str = ""
    remedy: str = ""
    id: str = ""
    """Of the reason; empty when there is nothing to say."""
    raw: str = ""
    """The part of the answer that it rests on, when that is not the whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """The ids by which the tools know an NPU, for the commands in remedies."""

    device: str = "N"
    npu: str = "N"
    chip: str = "C"


def place_of(device: int, platform: Platform) -> Place:
    """Return how the tools call a device: on A3 npu-smi counts cards of two chips."""
    npu, chip = npu_and_chip(platform, device)
    return Place(str(device), str(npu), str(chip))


ANYWHERE = Place()
"""Where the reading does not say of which NPU it is."""


def good(summary: str) -> Assessment:
    """Return that all is well."""
    return Assessment(Verdict.HEALTHY, summary)


def finding(reason_id: str, summary: str, place: Place = ANYWHERE, *, raw: str = "") -> Assessment:
    """Return an assessment of a kind of reason, in its words."""
    kind = kind_of(reason_id)
    ids = {"device": place.device, "npu": place.npu, "chip": place.chip}
    return Assessment(
        kind.verdict, summary, kind.meaning.format_map(ids), kind.remedy.format_map(ids), reason_id, raw
    )


def assess_failure(name: str, reading: Reading[T]) -> Assessment:
    """Return what a reading without a value says, `name` being what was asked; never good, never bad."""
    failure = reading.failure or Failure.UNREADABLE
    words = f"{name}: {failure_words(reading)}"
    if failure in ABSENT:
        return Assessment(Verdict.NA, words)
    kind = kind_of("no-answer")
    return Assessment(
        Verdict.UNKNOWN, words, kind.meaning, remedy_of(reading), f"no-answer-{name.replace(' ', '-')}"
    )


def nothing_to_say(summary: str = "") -> Assessment:
    """Return that a value says nothing of health."""
    return Assessment(Verdict.NA, summary)


def worst(told: Sequence[Assessment]) -> Assessment:
    """Return the worst of several things said of one value, with the words of all that are as bad."""
    first = max(told, key=lambda one: SEVERITY[one.verdict])
    words = "; ".join(one.summary for one in told if one.verdict is first.verdict)
    return replace(first, summary=words)
