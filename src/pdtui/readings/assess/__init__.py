"""What one reading alone says of an NPU: the same words for saved text, for the verdict and for preflight.

What needs more than one reading (is RoCE in use on this node, did a counter grow) is in `judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pdtui.readings.answer import Reading
from pdtui.readings.assess import chip, network
from pdtui.readings.assess.base import (
    ANYWHERE,
    Assessment,
    Place,
    assess_failure,
    finding,
    good,
    nothing_to_say,
    place_of,
)
from pdtui.readings.hccn.counters import LinkStat
from pdtui.readings.hccn.lldp import Lldp
from pdtui.readings.hccn.network import Address, Gateway, Link, NetDetect, NetHealth, Vnic
from pdtui.readings.hccn.optical import Optical
from pdtui.readings.hccn.ping import HccsPing, Ping
from pdtui.readings.hccn.port import HccpProcess
from pdtui.readings.hccn.tls import Tls
from pdtui.readings.hccn_conf import HccnConf
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.npu_smi_blocks import Card
from pdtui.readings.npu_smi_identity import Board, Hccs, Spod
from pdtui.topology.model import Platform

__all__ = [
    "ANYWHERE",
    "NO_NETWORK",
    "Assessment",
    "Place",
    "assess",
    "assess_failure",
    "assess_reading",
    "finding",
    "good",
    "nothing_to_say",
    "place_of",
    "register",
]

T = TypeVar("T")

NO_NETWORK: tuple[Platform, ...] = ("a5", "cpu")
"""Platforms whose network is read but not judged."""

_Assess = Callable[[object, Platform, Place], Assessment]

_BY_TYPE: dict[type, _Assess] = {}


def register(kind: type[T], assess_one: Callable[[T, Platform, Place], Assessment], *, network: bool) -> None:
    """Let `assess` judge values of a type; those of the network only where it is judged."""

    def call(value: object, platform: Platform, place: Place) -> Assessment:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        if network and platform in NO_NETWORK:
            return nothing_to_say(f"the network of {platform} is read, not judged")
        return assess_one(value, platform, place)

    _BY_TYPE[kind] = call


register(Link, network.assess_link, network=True)
register(NetHealth, network.assess_net_health, network=True)
register(Vnic, network.assess_vnic, network=True)
register(NetDetect, network.assess_netdetect, network=True)
register(Address, network.assess_address, network=True)
register(Gateway, network.assess_gateway, network=True)
register(Lldp, network.assess_lldp, network=True)
register(Tls, network.assess_tls, network=True)
register(LinkStat, network.assess_link_stat, network=True)
register(Optical, network.assess_optical, network=True)
register(Ping, network.assess_ping, network=True)
register(HccsPing, network.assess_ping, network=True)
register(HccpProcess, network.assess_process, network=True)
register(HccnConf, network.assess_conf, network=True)
register(Hccs, chip.assess_hccs, network=True)
register(Spod, chip.assess_spod, network=True)
register(Chip, chip.assess_chip, network=False)
register(Table, chip.assess_table, network=False)
register(Card, chip.assess_card, network=False)
register(Board, chip.assess_board, network=False)


def assess(value: object, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Return what one value alone says; n/a for a kind that says nothing of health, or where it is not judged."""
    judge_one = _BY_TYPE.get(type(value))
    return judge_one(value, platform, place) if judge_one else nothing_to_say()


def assess_reading(name: str, reading: Reading[T], platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Return what a reading says, with or without a value; `name` is what was asked."""
    if reading.value is None:
        return assess_failure(name, reading)
    return assess(reading.value, platform, place)
