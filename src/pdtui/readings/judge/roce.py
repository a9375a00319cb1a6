"""The RoCE plane: the link, what it does over time, its module, its addresses, its neighbours."""

from __future__ import annotations

import ipaddress

from pdtui.readings.answer import Failure
from pdtui.readings.assess import Assessment, Place, finding
from pdtui.readings.assess.network import (
    FLAP_WINDOW,
    assess_link,
    assess_link_stat,
    assess_net_health,
    assess_netdetect,
    assess_optical,
    assess_tls,
    flap_words,
    flaps,
)
from pdtui.readings.hccn.counters import LinkStat
from pdtui.readings.hccn.network import Link, NetDetect
from pdtui.readings.hccn_conf import HccnConf
from pdtui.readings.judge.case import Case
from pdtui.readings.judge.history import NpuReadings, absent
from pdtui.readings.judge.node import NodeSight, RocePlane
from pdtui.topology.model import Platform

_WINDOW = 1800.0
"""Seconds for which growth of error counters is told."""


def link_in_plane(link: Link, platform: Platform, plane: RocePlane, place: Place) -> Assessment:
    """Assess a RoCE port by what its whole node says of the plane."""
    if link.status == "UP":
        return assess_link(link, platform, place)
    if plane.any_up or platform != "a3":
        return finding("link-down", "link DOWN", place)
    if plane.deployed:
        return finding("link-dark", "link DOWN on every NPU of this node though RoCE addresses are set", place)
    return assess_link(link, platform, place)


def judge_roce(case: Case, readings: NpuReadings, node: NodeSight) -> None:
    """Judge the plane; one that is configured on no NPU counts for nothing."""
    plane = node.roce
    if plane.deployed is False or (
        case.platform == "a3" and (absent(readings.link) or unused(case.device, readings, node.conf.value))
    ):
        return
    link = case.current("link", readings.link, case.ages.network)
    if link is not None:
        case.add(link_in_plane(link, case.platform, plane, case.place), readings.link.good)
    up = link is not None and link.status == "UP"
    _judge_net_health(case, readings, up=up)
    _judge_changes(case, readings, up=up)
    if up or plane.any_up:
        _judge_module(case, readings, up=up)
        _judge_address(case, readings, node)
    if case.device in node.lldp and case.known(readings.lldp) is not None:
        case.find("lldp-shared-port", node.lldp[case.device], readings.lldp.good)


def unused(device: int, readings: NpuReadings, conf: HccnConf | None) -> bool:
    """Return whether a dark port was never meant to be used: it has no address, and none is written for it.

    On A3 some NPUs of a node may be cabled and others not, while HCCS joins them all.
    """
    dark = readings.link.value is not None and readings.link.value.status == "DOWN"
    return dark and absent(readings.ip) and not (conf is not None and conf.plans_address(device))


def _judge_net_health(case: Case, readings: NpuReadings, *, up: bool) -> None:
    health = case.current("net health", readings.net_health, case.ages.probe)
    if health is None or not up:
        return
    netdetect, word = case.known(readings.netdetect), health.word.lower()
    if word == "init" and netdetect is not None and not netdetect.address:
        case.add(assess_netdetect(netdetect, case.platform, case.place), readings.netdetect.good)
    elif word == "receive timeout" and case.platform == "a3" and in_vnic_range(netdetect):
        words = f"net health {health.word}: the detect address lies in the vNIC range, where nobody answers"
        case.find("net-health-vnic", words, readings.net_health.good)
    else:
        case.add(assess_net_health(health, case.platform, case.place), readings.net_health.good)


def in_vnic_range(netdetect: NetDetect | None) -> bool:
    """Return whether the detect address lies in the subnets of the vNICs, 192.168.0 to 192.168.7."""
    try:
        address = ipaddress.IPv4Address(netdetect.address) if netdetect else None
    except ValueError:
        return False
    return address is not None and address in ipaddress.IPv4Network("192.168.0.0/21")


def _judge_changes(case: Case, readings: NpuReadings, *, up: bool) -> None:
    """Judge how the link went up and down; while it is down that says enough."""
    stat = case.known(readings.link_stat)
    if stat is not None and up:
        found = flaps(stat)
        grown = case.grown(readings.link_stat, FLAP_WINDOW)
        if found:
            case.find("flapping", flap_words(len(found), found[0].at), readings.link_stat.good)
        elif grown and not _dated(stat):
            times = grown.get("down", grown.get("up", 0))
            case.find("flapping", f"link changed {times} times within an hour", readings.link_stat.good)
    elif stat is not None and readings.link.value is None:
        case.add(assess_link_stat(stat, case.platform, case.place), readings.link_stat.good)
    counted = case.grown(readings.stat, _WINDOW)
    if counted and case.known(readings.stat) is not None:
        words = ", ".join(f"{name} +{amount}" for name, amount in sorted(counted.items())[:4])
        case.find("errors-growing", f"{words} in half an hour", readings.stat.good)


def _dated(stat: LinkStat) -> bool:
    """Return whether the records tell when the link changed: there are some, and none of them in the future."""
    return bool(stat.records) and stat.records[0].ago >= 0


def _judge_module(case: Case, readings: NpuReadings, *, up: bool) -> None:
    """Judge the optical module; a port that is up has something that carries its signal, whatever it reads."""
    latest = readings.optical.latest
    if latest is not None and latest.failure is Failure.ERROR and "Control link unreachable" in latest.raw:
        case.find("optical-unreachable", "the optical module does not answer (control link unreachable)", latest)
        return
    module = case.known(readings.optical)
    if module is not None and not (up and module.present is False):
        case.add(assess_optical(module, case.platform, case.place), readings.optical.good)


def _judge_address(case: Case, readings: NpuReadings, node: NodeSight) -> None:
    """Judge the address beside hccn.conf and beside the other NPUs."""
    conf = case.known(node.conf)
    written = conf.value(case.device, "address") if conf is not None else ""
    by_dhcp = conf is not None and conf.value(case.device, "udhcpc_enable") not in ("", "0")
    line = conf.line(case.device, "address") if conf is not None else 0
    told = f"address_{case.device}={written} (line {line})"
    latest, good = readings.ip.latest, readings.ip.good
    if latest is not None and latest.failure is Failure.NOT_CONFIGURED:
        if written and not by_dhcp:
            case.find("address-unlike-conf", f"no RoCE address runs, /etc/hccn.conf says {told}", latest)
        elif node.roce.any_address:
            case.find("address-missing", "no RoCE address, though other NPUs have one", latest)
        return
    running = (
        case.current("ip", readings.ip, case.ages.slow, setting=True)
        if case.platform == "a2"
        else case.known(readings.ip)
    )
    if running is None or not written or by_dhcp:
        return
    if written not in (running.address, *(address for address, _ in running.more)):
        words = f"runs with address {running.address}, /etc/hccn.conf says {told}"
        case.find("address-unlike-conf", words, good)


def judge_tls(case: Case, readings: NpuReadings, node: NodeSight) -> None:
    """Judge the TLS switch: equal on all NPUs, and with certificates that hold."""
    tls = case.known(readings.tls)
    if tls is None:
        return
    case.add(assess_tls(tls, case.platform, case.place), readings.tls.good)
    if case.device in node.tls:
        case.find("tls-mixed", node.tls[case.device], readings.tls.good)
