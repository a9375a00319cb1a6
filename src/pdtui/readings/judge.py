"""From an NPU's readings to one verdict, with the reasons for it.

Planes are judged apart and the worst counts; a plane that is not deployed counts for nothing. On A3 the HCCS
plane (vnic) decides, and RoCE is n/a when it is configured on no NPU. What is not known is neither good nor bad.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import (
    Assessment,
    Place,
    assess_chip,
    assess_failure,
    assess_link,
    assess_net_health,
    assess_vnic,
    finding,
    place_of,
)
from pdtui.readings.hccn import Address, Link, NetDetect, NetHealth, Vnic
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.verdict import SEVERITY, Reason, Verdict
from pdtui.topology.model import Platform

T = TypeVar("T")

HOT_C = 85.0
"""Above this for two readings in a row a chip throttles (field guides' figure)."""


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A query over time: what came last, the last real value, and the one before it."""

    latest: Reading[T] | None = None
    good: Reading[T] | None = None
    before: Reading[T] | None = None

    def then(self, reading: Reading[T]) -> Observed[T]:
        """Return the history with one more reading."""
        if reading.failure is not None:
            return Observed(reading, self.good, self.before)
        return Observed(reading, reading, self.good)


@dataclass(frozen=True, slots=True)
class Ages:
    """How old a value may be and still count, in seconds."""

    table: float = 35.0
    network: float = 60.0


@dataclass(frozen=True, slots=True)
class NpuReadings:
    """Everything that was asked about one device."""

    link: Observed[Link] = Observed()
    net_health: Observed[NetHealth] = Observed()
    vnic: Observed[Vnic] = Observed()
    ip: Observed[Address] = Observed()
    netdetect: Observed[NetDetect] = Observed()
    hanging: str = ""
    """Why this device is not asked for now: the tool hangs on it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one NPU."""

    verdict: Verdict
    reasons: tuple[Reason, ...]
    """What is not healthy, worst first."""
    oldest: float | None
    """When the oldest value that the verdict rests on was true."""


@dataclass(frozen=True, slots=True)
class RocePlane:
    """What all NPUs of a node together say about its RoCE plane."""

    deployed: bool | None
    """Some NPU has an address or a link; None while that is not known."""
    any_up: bool


_ABSENT = (Failure.NOT_CONFIGURED, Failure.UNSUPPORTED)


def _absent(observed: Observed[T]) -> bool:
    """Return whether the tool says that this plane is not there."""
    return observed.latest is not None and observed.latest.failure in _ABSENT


def roce_plane(readings: Mapping[int, NpuReadings]) -> RocePlane:
    """Judge whether a node has a RoCE plane.

    An address or a link anywhere means yes. Every device asked, none with an address and most of them saying so
    means no: a few on which the tool hangs do not hide what the others say.
    """
    values = list(readings.values())
    any_up = any(r.link.good is not None and r.link.good.value == Link("UP") for r in values)
    if any_up or any(r.ip.good is not None for r in values):
        return RocePlane(True, any_up)
    asked = bool(values) and all(r.ip.latest is not None for r in values)
    none = asked and 2 * sum(_absent(r.ip) for r in values) > len(values)
    return RocePlane(False if none else None, False)


class _Case:
    """Collects reasons and the age of what they rest on."""

    def __init__(self, platform: Platform, now: float) -> None:
        self.platform: Platform = platform
        self.now = now
        self.reasons: list[Reason] = []
        self.healthy = False
        self.times: list[float] = []

    def add(self, told: Assessment, reading: Reading[T] | None) -> None:
        """Take one assessment; healthy and n/a leave no reason behind."""
        if reading is not None:
            self.times.append(reading.at)
        if told.verdict is Verdict.HEALTHY:
            self.healthy = True
        elif told.verdict is not Verdict.NA:
            at, command, raw = (reading.at, reading.command, reading.raw) if reading else (None, "", "")
            self.reasons.append(
                Reason(
                    told.verdict, told.summary, command, told.raw or raw, at, told.remedy, told.id, told.meaning
                )
            )

    def current(self, name: str, observed: Observed[T], max_age: float) -> T | None:
        """Return the value that may be judged; without one the reason why is noted.

        A busy tool leaves the last value standing while it is fresh; every other failure does not.
        """
        latest, good = observed.latest, observed.good
        if resting := good or latest:
            self.times.append(resting.at)
        slug = name.replace(" ", "-")
        if latest is None:
            self.add(finding(f"not-asked-{slug}", f"{name}: not asked yet"), None)
            return None
        busy = latest.failure is Failure.BUSY
        if (latest.failure is not None and not busy) or good is None or good.value is None:
            self.add(assess_failure(name, latest), latest)
            return None
        if self.now - good.at > max_age:
            self.add(finding(f"stale-{slug}", f"{name}: the last answer is too old"), good)
            return None
        return good.value

    def judgement(self) -> Judgement:
        """Return the worst finding as the verdict."""
        reasons = tuple(sorted(self.reasons, key=lambda reason: -SEVERITY[reason.verdict]))
        oldest = min(self.times, default=None)
        if reasons:
            return Judgement(reasons[0].verdict, reasons, oldest)
        return Judgement(Verdict.HEALTHY if self.healthy else Verdict.NA, (), oldest)


def _judge_chip(case: _Case, device: int, table: Observed[Table], ages: Ages, place: Place) -> None:
    value = case.current("npu-smi", table, ages.table)
    reading = table.good
    if value is None or reading is None:
        return
    chip = value.of(device)
    if chip is not None:
        case.add(assess_chip(chip, case.platform), reading)
        _judge_heat(case, chip, table)
    elif value.complete:
        case.add(finding("npu-missing", "not in npu-smi's table", place), reading)
    else:
        case.add(finding("npu-unseen", "npu-smi's table is cut, this NPU is not in what came", place), reading)


def _judge_heat(case: _Case, chip: Chip, table: Observed[Table]) -> None:
    before = table.before.value.of(chip.device) if table.before and table.before.value else None
    degrees, earlier = chip.temperature_c, before.temperature_c if before else None
    if degrees is not None and earlier is not None and min(degrees, earlier) > HOT_C:
        place = Place(str(chip.device), str(chip.npu), str(chip.chip))
        words = f"{degrees:.0f} °C, above {HOT_C:.0f} °C"
        case.add(finding("hot", words, place, raw=chip.rows), table.good)


def _judge_vnic(case: _Case, readings: NpuReadings, ages: Ages, place: Place) -> None:
    vnic = case.current("vnic", readings.vnic, ages.network)
    if vnic is not None:
        case.add(assess_vnic(vnic, case.platform, place), readings.vnic.good)


def in_vnic_range(netdetect: NetDetect | None) -> bool:
    """Return whether the detect address lies in the subnets of the vNICs, 192.168.0 to 192.168.7."""
    try:
        address = ipaddress.IPv4Address(netdetect.address) if netdetect else None
    except ValueError:
        return False
    return address is not None and address in ipaddress.IPv4Network("192.168.0.0/21")


def _judge_roce(case: _Case, readings: NpuReadings, plane: RocePlane, ages: Ages, place: Place) -> None:
    if plane.deployed is False or (case.platform == "a3" and _absent(readings.link)):
        return
    link = case.current("link", readings.link, ages.network)
    if link is not None:
        case.add(link_in_plane(link, case.platform, plane, place), readings.link.good)
    health = case.current("net health", readings.net_health, ages.network)
    if health is None or link is None or link.status == "DOWN":
        return
    told = assess_net_health(health, case.platform, place)
    netdetect = readings.netdetect.good.value if readings.netdetect.good else None
    if health.word.lower() == "receive timeout" and case.platform == "a3" and in_vnic_range(netdetect):
        words = f"net health {health.word}: the detect address lies in the vNIC range, where nobody answers"
        told = finding("net-health-vnic", words, place)
    case.add(told, readings.net_health.good)


def link_in_plane(link: Link, platform: Platform, plane: RocePlane, place: Place) -> Assessment:
    """Assess a RoCE port by what its whole node says of the plane."""
    if link.status == "UP":
        return assess_link(link, platform, place)
    if plane.any_up or platform != "a3":
        return finding("link-down", "link DOWN", place)
    if plane.deployed:
        return finding("link-dark", "link DOWN on every NPU of this node though RoCE addresses are set", place)
    return assess_link(link, platform, place)


def judge(
    device: int,
    platform: Platform,
    table: Observed[Table],
    readings: NpuReadings,
    plane: RocePlane,
    *,
    now: float,
    ages: Ages | None = None,
) -> Judgement:
    """Return the verdict on one NPU at wall time `now`."""
    limits = ages or Ages()
    case = _Case(platform, now)
    place = place_of(device, platform)
    if readings.hanging:
        case.add(finding("tool-hangs", readings.hanging, place), None)
    _judge_chip(case, device, table, limits, place)
    if platform == "a3":
        _judge_vnic(case, readings, limits, place)
    if platform in ("a2", "a3"):
        _judge_roce(case, readings, plane, limits, place)
    return case.judgement()
