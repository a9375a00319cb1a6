"""What one reading alone says of an NPU: the same words for saved text, for the verdict and for preflight.

What needs more than one reading (is RoCE in use on this node, did a counter grow) is in `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pdtui.readings import hccn
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.reasons import kind_of
from pdtui.readings.verdict import SEVERITY, Verdict
from pdtui.readings.words import REMEDIES, failure_words
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
    npu, chip = (device // 2, device % 2) if platform == "a3" else (device, 0)
    return Place(str(device), str(npu), str(chip))


_ANYWHERE = Place()


def good(summary: str) -> Assessment:
    """Return that all is well."""
    return Assessment(Verdict.HEALTHY, summary)


def finding(reason_id: str, summary: str, place: Place = _ANYWHERE, *, raw: str = "") -> Assessment:
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
    if failure in (Failure.UNSUPPORTED, Failure.NOT_CONFIGURED):
        return Assessment(Verdict.NA, words)
    kind = kind_of("no-answer")
    return Assessment(
        Verdict.UNKNOWN, words, kind.meaning, REMEDIES.get(failure, ""), f"no-answer-{name.replace(' ', '-')}"
    )


NO_NETWORK: tuple[Platform, ...] = ("a5", "cpu")
"""Platforms whose network is read but not judged."""


def assess_link(link: hccn.Link, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess `-link`. On A3 a port that is DOWN may not be in use, which one NPU alone cannot tell."""
    if link.status == "UP":
        return good("link UP")
    if platform == "a3":
        return finding("link-unknown", "link DOWN, and whether RoCE is configured is not known yet", place)
    return finding("link-down", "link DOWN", place)


NET_HEALTH_WORDS: Mapping[str, tuple[str, str]] = {
    "success": ("", ""),
    "socket fail": ("net-health", "the probe could not open its socket"),
    "socket failed": ("net-health", "the probe could not open its socket"),
    "receive timeout": ("net-health", "the detect address does not answer"),
    "unreachable": ("net-health", "the detect address is unreachable"),
    "time exceeded": ("net-health", "sending the probe takes too long"),
    "fault": ("net-health", "the probe cannot be sent; typical right after a link went down"),
    "init": ("net-health-init", "no probe result: no detect address is set, or it was just set"),
    "thread error": ("net-health-unknown", "the probe does not run"),
    "detect ip set": ("net-health-init", "the detect address is being set"),
}
"""Word of `-net_health` with the link UP, in small letters -> id of the reason, what it says."""


def assess_net_health(health: hccn.NetHealth, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess `-net_health`; it says something only while the link is UP."""
    kind, words = NET_HEALTH_WORDS.get(health.word.lower(), ("net-health-unknown", "a word that is not known"))
    if not kind:
        return good(f"net health {health.word}")
    return finding(kind, f"net health {health.word}: {words}", place)


def assess_vnic(vnic: hccn.Vnic, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess `-vnic`, the HCCS plane, which A2 does not have."""
    if platform == "a2":
        return Assessment(Verdict.NA, "there is no HCCS plane between nodes on A2")
    if vnic.status == "DOWN":
        return finding("vnic-down", "vnic link DOWN", place)
    if not vnic.address:
        return finding("vnic-no-address", "vnic UP but without an address", place)
    return good(f"vnic UP, {vnic.address}")


def assess_netdetect(netdetect: hccn.NetDetect, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess `-netdetect`."""
    if not netdetect.address:
        return finding("netdetect-unset", "no detect address is set", place)
    return good(f"detect address {netdetect.address}")


def assess_address(address: hccn.Address, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess `-ip`."""
    return good(f"address {address.address}")


def assess_chip(chip: Chip, platform: Platform, place: Place | None = None) -> Assessment:
    """Assess the health word of one chip in npu-smi's table."""
    place = place or Place(str(chip.device), str(chip.npu), str(chip.chip))
    word = chip.health
    if word == "OK":
        return good("npu-smi health OK")
    if word == "Warning":
        return finding("npu-health-warning", "npu-smi health Warning (minor fault)", place, raw=chip.rows)
    if word in ("Alarm", "Critical"):
        return finding("npu-health", f"npu-smi health {word}", place, raw=chip.rows)
    summary = f"npu-smi health {word}" if word else "npu-smi health is blank"
    return finding("npu-health-unknown", summary, place, raw=chip.rows)


def assess_table(table: Table, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Assess the whole table: the worst of its chips; what is missing from it one table cannot know."""
    chips = [(chip, assess_chip(chip, platform)) for chip in table.chips]
    bad = [(chip, one) for chip, one in chips if one.verdict is not Verdict.HEALTHY]
    if not bad:
        end = "" if table.complete else "; the table is cut"
        return (
            good(f"{len(chips)} NPUs OK{end}")
            if table.complete
            else finding("npu-unseen", f"{len(chips)} NPUs OK{end}")
        )
    chip, worst = max(bad, key=lambda one: SEVERITY[one[1].verdict])
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    return Assessment(
        worst.verdict,
        f"NPU {chip.device}: {worst.summary}{more}",
        worst.meaning,
        worst.remedy,
        worst.id,
        worst.raw,
    )


_Assess = Callable[[object, Platform, Place], Assessment]

_BY_TYPE: dict[type, _Assess] = {}


def register(kind: type[T], assess_one: Callable[[T, Platform, Place], Assessment], *, network: bool) -> None:
    """Let `assess` judge values of a type; those of the network only where it is judged."""

    def call(value: object, platform: Platform, place: Place) -> Assessment:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        if network and platform in NO_NETWORK:
            return Assessment(Verdict.NA, f"the network of {platform} is read, not judged")
        return assess_one(value, platform, place)

    _BY_TYPE[kind] = call


register(hccn.Link, assess_link, network=True)
register(hccn.NetHealth, assess_net_health, network=True)
register(hccn.Vnic, assess_vnic, network=True)
register(hccn.NetDetect, assess_netdetect, network=True)
register(hccn.Address, assess_address, network=True)
register(Chip, assess_chip, network=False)
register(Table, assess_table, network=False)


def assess(value: object, platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Return what one value alone says; n/a for a kind that says nothing of health, or where it is not judged."""
    judge_one = _BY_TYPE.get(type(value))
    return judge_one(value, platform, place) if judge_one else Assessment(Verdict.NA, "")


def assess_reading(name: str, reading: Reading[T], platform: Platform, place: Place = _ANYWHERE) -> Assessment:
    """Return what a reading says, with or without a value; `name` is what was asked."""
    if reading.value is None:
        return assess_failure(name, reading)
    return assess(reading.value, platform, place)
