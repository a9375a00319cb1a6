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
from pdtui.readings.hccn import Address, Link, NetDetect, NetHealth, Vnic
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.verdict import Reason, Verdict
from pdtui.readings.words import REMEDIES, failure_words
from pdtui.topology.model import Platform

T = TypeVar("T")

HOT_C = 85.0
"""Above this for two readings in a row a chip throttles (field guides' figure)."""

_SEVERITY = {
    Verdict.NA: 0,
    Verdict.HEALTHY: 1,
    Verdict.DEGRADED: 2,
    Verdict.UNKNOWN: 3,
    Verdict.FAILED: 4,
}


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

    def __init__(self, now: float) -> None:
        self.now = now
        self.reasons: list[Reason] = []
        self.healthy = False
        self.times: list[float] = []

    def add(
        self, verdict: Verdict, summary: str, reading: Reading[T] | None, remedy: str = "", raw: str = ""
    ) -> None:
        """Take one finding; healthy and n/a leave no reason behind."""
        if reading is not None:
            self.times.append(reading.at)
        if verdict is Verdict.HEALTHY:
            self.healthy = True
        elif verdict is not Verdict.NA:
            at, command = (reading.at, reading.command) if reading else (None, "")
            raw = raw or (reading.raw if reading else "")
            self.reasons.append(Reason(verdict, summary, command, raw, at, remedy))

    def current(self, name: str, observed: Observed[T], max_age: float) -> T | None:
        """Return the value that may be judged; without one the reason why is noted.

        A busy tool leaves the last value standing while it is fresh; every other failure does not.
        """
        latest, good = observed.latest, observed.good
        if resting := good or latest:
            self.times.append(resting.at)
        if latest is None:
            self.add(Verdict.UNKNOWN, f"{name}: not asked yet", None)
            return None
        if latest.failure is not None and latest.failure is not Failure.BUSY:
            self.add(Verdict.UNKNOWN, f"{name}: {failure_words(latest)}", latest, REMEDIES.get(latest.failure, ""))
            return None
        if good is None or good.value is None:
            self.add(Verdict.UNKNOWN, f"{name}: {failure_words(latest)}", latest, REMEDIES[Failure.BUSY])
            return None
        if self.now - good.at > max_age:
            self.add(Verdict.UNKNOWN, f"{name}: the last answer is too old", good)
            return None
        return good.value

    def judgement(self) -> Judgement:
        """Return the worst finding as the verdict."""
        reasons = tuple(sorted(self.reasons, key=lambda reason: -_SEVERITY[reason.verdict]))
        oldest = min(self.times, default=None)
        if reasons:
            return Judgement(reasons[0].verdict, reasons, oldest)
        return Judgement(Verdict.HEALTHY if self.healthy else Verdict.NA, (), oldest)


_HEALTH_REMEDY = (
    "npu-smi info -t health -i {npu} -c {chip} names the error code; do not start a rank here before it is OK"
)


def _judge_chip(case: _Case, device: int, table: Observed[Table], ages: Ages) -> None:
    value = case.current("npu-smi", table, ages.table)
    reading = table.good
    if value is None or reading is None:
        return
    chip = value.of(device)
    if chip is None:
        _judge_missing(case, value, reading)
        return
    word = chip.health
    remedy = _HEALTH_REMEDY.format(npu=chip.npu, chip=chip.chip)
    if word == "OK":
        case.add(Verdict.HEALTHY, "", reading)
    elif word == "Warning":
        case.add(Verdict.DEGRADED, "npu-smi health Warning (minor fault)", reading, remedy, chip.rows)
    elif word in ("Alarm", "Critical"):
        case.add(Verdict.FAILED, f"npu-smi health {word}", reading, remedy, chip.rows)
    else:
        summary = f"npu-smi health {word}" if word else "npu-smi health is blank"
        case.add(Verdict.UNKNOWN, summary, reading, remedy, chip.rows)
    _judge_heat(case, chip, table)


def _judge_missing(case: _Case, table: Table, reading: Reading[Table]) -> None:
    if table.complete:
        remedy = (
            "the chip dropped off the bus or is held by a VM: dmesg, lspci -n | grep 19e5, then the server's BMC"
        )
        case.add(Verdict.FAILED, "not in npu-smi's table", reading, remedy)
    else:
        case.add(Verdict.UNKNOWN, "npu-smi's table is cut, this NPU is not in what came", reading)


def _judge_heat(case: _Case, chip: Chip, table: Observed[Table]) -> None:
    before = table.before.value.of(chip.device) if table.before and table.before.value else None
    degrees, earlier = chip.temperature_c, before.temperature_c if before else None
    if degrees is not None and earlier is not None and min(degrees, earlier) > HOT_C:
        remedy = "it throttles: check fans and inlet temperature"
        case.add(Verdict.DEGRADED, f"{degrees:.0f} °C, above {HOT_C:.0f} °C", table.good, remedy, chip.rows)


def _judge_vnic(case: _Case, readings: NpuReadings, ages: Ages, *, optional: bool) -> None:
    if optional and (readings.vnic.latest is None or _absent(readings.vnic)):
        return
    vnic = case.current("vnic", readings.vnic, ages.network)
    if vnic is None:
        return
    if vnic.status == "DOWN":
        remedy = "the HCCS plane of this NPU is down: compare with its neighbour chip, then the super pod's switch"
        case.add(Verdict.FAILED, "vnic link DOWN", readings.vnic.good, remedy)
    elif not vnic.address:
        case.add(Verdict.DEGRADED, "vnic UP but without an address", readings.vnic.good)
    else:
        case.add(Verdict.HEALTHY, "", readings.vnic.good)


_LINK_REMEDY = "check the cable, the optical module and the switch port (hccn_tool -lldp names the port)"

_HEALTH_WORDS: Mapping[str, tuple[Verdict, str]] = {
    "success": (Verdict.HEALTHY, ""),
    "socket fail": (Verdict.FAILED, "the probe could not open its socket"),
    "socket failed": (Verdict.FAILED, "the probe could not open its socket"),
    "receive timeout": (Verdict.FAILED, "the detect address does not answer"),
    "unreachable": (Verdict.FAILED, "the detect address is unreachable"),
    "time exceeded": (Verdict.FAILED, "sending the probe takes too long"),
    "fault": (Verdict.FAILED, "the probe cannot be sent; typical right after a link went down"),
    "init": (Verdict.DEGRADED, "no probe result: no detect address is set, or it was just set"),
    "thread error": (Verdict.UNKNOWN, "the probe does not run"),
    "detect ip set": (Verdict.DEGRADED, "the detect address is being set"),
}
"""Words of `-net_health` with the link UP; anything else is unknown."""


def _in_vnic_range(netdetect: NetDetect | None) -> bool:
    """Return whether the detect address lies in the subnets of the vNICs, 192.168.0 to 192.168.7."""
    try:
        address = ipaddress.IPv4Address(netdetect.address) if netdetect else None
    except ValueError:
        return False
    return address is not None and address in ipaddress.IPv4Network("192.168.0.0/21")


def _judge_roce(case: _Case, platform: Platform, readings: NpuReadings, plane: RocePlane, ages: Ages) -> None:
    if plane.deployed is False or (platform == "a3" and _absent(readings.link)):
        return
    link = case.current("link", readings.link, ages.network)
    if link is not None and link.status == "DOWN":
        _judge_link_down(case, platform, readings, plane)
    elif link is not None:
        case.add(Verdict.HEALTHY, "", readings.link.good)
    health = case.current("net health", readings.net_health, ages.network)
    if health is None or link is None or link.status == "DOWN":
        return
    verdict, words = _HEALTH_WORDS.get(health.word.lower(), (Verdict.UNKNOWN, "a word that is not known"))
    netdetect = readings.netdetect.good.value if readings.netdetect.good else None
    if health.word.lower() == "receive timeout" and platform == "a3" and _in_vnic_range(netdetect):
        verdict, words = Verdict.DEGRADED, "the detect address lies in the vNIC range, where nobody answers"
    case.add(
        verdict,
        f"net health {health.word}: {words}",
        readings.net_health.good,
        "hccn_tool -netdetect -g shows what it probes: normally the gateway; then the gateway and its switch",
    )


def _judge_link_down(case: _Case, platform: Platform, readings: NpuReadings, plane: RocePlane) -> None:
    good = readings.link.good
    if plane.any_up or platform != "a3":
        case.add(Verdict.FAILED, "link DOWN", good, _LINK_REMEDY)
    elif plane.deployed:
        summary = "link DOWN on every NPU of this node though RoCE addresses are set"
        case.add(Verdict.DEGRADED, summary, good, "not cabled, or the switch is off; HCCS is not affected")
    else:
        case.add(Verdict.UNKNOWN, "link DOWN, and whether RoCE is configured is not known yet", good)


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
    case = _Case(now)
    if readings.hanging:
        case.add(Verdict.UNKNOWN, readings.hanging, None, REMEDIES[Failure.TIMEOUT])
    _judge_chip(case, device, table, limits)
    if platform in ("a3", "a5"):
        _judge_vnic(case, readings, limits, optional=platform == "a5")
    if platform in ("a2", "a3"):
        _judge_roce(case, platform, readings, plane, limits)
    return case.judgement()
