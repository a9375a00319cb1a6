"""What the NPUs of a node say only together: is RoCE in use, who differs, who shares a switch port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pdtui.readings.hccn.network import Link
from pdtui.readings.hccn_conf import HccnConf
from pdtui.readings.judge.history import NpuReadings, Observed, absent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RocePlane:
    """What all NPUs of a node together say about its RoCE plane."""

    deployed: bool | None
    """Some NPU has an address or a link; None while that is not known."""
    any_up: bool
    any_address: bool = False


def roce_plane(readings: Mapping[int, NpuReadings], conf: HccnConf | None = None) -> RocePlane:
    """Judge whether a node has a RoCE plane.

    An address or a link anywhere means yes, and so does an address in hccn.conf: then links that are all down are
    not as they should be. Otherwise every device asked, none with an address and most of them saying so means no:
    a few on which the tool hangs do not hide what the others say.
    """
    values = list(readings.values())
    any_up = any(r.link.value == Link("UP") for r in values)
    addressed = any(r.ip.value is not None and not absent(r.ip) for r in values)
    written = conf is not None and any(conf.plans_address(device) for device in readings)
    if any_up or addressed or written:
        return RocePlane(True, any_up, addressed)
    asked = bool(values) and all(r.ip.latest is not None for r in values)
    none = asked and 2 * sum(absent(r.ip) for r in values) > len(values)
    return RocePlane(False if none else None, False)


@dataclass(frozen=True, slots=True)
class NodeSight:
    """What the verdict on one NPU needs to know of its node."""

    roce: RocePlane = RocePlane(None, False)
    tls: Mapping[int, str] = field(default_factory=dict)
    """Devices whose TLS switch is not as the others', in words."""
    lldp: Mapping[int, str] = field(default_factory=dict)
    """Devices that hear the switch port of another."""
    spod: Mapping[int, str] = field(default_factory=dict)
    """Devices that are elsewhere in a super pod than the others."""
    conf: Observed[HccnConf] = field(default_factory=Observed)


def node_sight(readings: Mapping[int, NpuReadings], conf: Observed[HccnConf] | None = None) -> NodeSight:
    """Look over all NPUs of a node."""
    conf = conf or Observed()
    return NodeSight(roce_plane(readings, conf.value), _tls(readings), _lldp(readings), _spod(readings), conf)


def ids(devices: list[int]) -> str:
    """Return devices in words: `NPU 3`, `NPUs 3, 5`, `the others`."""
    if len(devices) > 4:
        return "the others"
    return f"NPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


_K = TypeVar("_K", bound=Hashable)


def _unlike(values: Mapping[int, _K], count: int, words: Callable[[_K, _K, str], str]) -> dict[int, str]:
    """Return the devices whose value is not that of most; without a majority all of them.

    Before most of a node's `count` devices have answered nobody is told to differ.
    """
    ranked = Counter(values.values()).most_common()
    if len(ranked) < 2 or 2 * len(values) <= count:
        return {}
    most, times = ranked[0]
    tie = ranked[1][1] == times
    found = {}
    for device, value in values.items():
        if value != most or tie:
            other = most if value != most else ranked[1][0]
            found[device] = words(value, other, ids([d for d, theirs in values.items() if theirs == other]))
    return found


def _tls(readings: Mapping[int, NpuReadings]) -> dict[int, str]:
    switches = {device: r.tls.value.enabled for device, r in readings.items() if r.tls.value is not None}

    def words(mine: bool, other: bool, who: str) -> str:
        return f"TLS is {'on' if mine else 'off'}, on {who} it is {'on' if other else 'off'}"

    return _unlike(switches, len(readings), words)


def _lldp(readings: Mapping[int, NpuReadings]) -> dict[int, str]:
    ports: dict[tuple[str, str], list[int]] = {}
    for device, r in readings.items():
        heard = r.lldp.value
        if heard is None or not heard.interface or r.lldp.latest is not r.lldp.good:
            continue  # What was heard before it went silent may be the port that another cable is in by now.
        if switch := heard.chassis or heard.management or heard.system:
            ports.setdefault((switch, heard.interface), []).append(device)
    found = {}
    for (_, interface), devices in ports.items():
        for device in devices if len(devices) > 1 else ():
            others = ids([other for other in devices if other != device])
            found[device] = f"hears switch port {interface}, and so does {others}"
    return found


def _spod(readings: Mapping[int, NpuReadings]) -> dict[int, str]:
    known = {device: r.spod.value for device, r in readings.items() if r.spod.value is not None}
    places = {device: (spod.pod, spod.server, spod.size) for device, spod in known.items()}

    def words(mine: tuple[int, int | None, int], other: tuple[int, int | None, int], who: str) -> str:
        named = zip(("pod id", "server index", "size"), mine, other, strict=True)
        unlike = ", ".join(f"{name} {here}, {there} on {who}" for name, here, there in named if here != there)
        return f"super pod: {unlike}"

    found = _unlike(places, len(readings), words)
    owners: dict[int, list[int]] = {}
    for device, spod in known.items():
        owners.setdefault(spod.sdid, []).append(device)
    for sdid, devices in owners.items():
        for device in devices if len(devices) > 1 else ():
            others = ids([other for other in devices if other != device])
            found.setdefault(device, f"super pod: SDID {sdid}, and so has {others}")
    return found
