"""The HCCS plane: the vnic, the lanes between chips, the place in the super pod. On A3 it decides."""

from __future__ import annotations

from pdtui.readings.assess.chip import assess_hccs, assess_spod
from pdtui.readings.assess.network import assess_vnic
from pdtui.readings.judge.case import Case
from pdtui.readings.judge.history import NpuReadings
from pdtui.readings.judge.node import NodeSight
from pdtui.readings.verdict import Verdict

_WINDOW = 3600.0
"""Seconds for which growth of retries and errors is told."""


def judge_vnic(case: Case, readings: NpuReadings) -> None:
    """Judge the port of the plane."""
    vnic = case.current("vnic", readings.vnic, case.ages.network)
    if vnic is not None:
        case.add(assess_vnic(vnic, case.platform, case.place), readings.vnic.good)


def judge_lanes(case: Case, readings: NpuReadings) -> None:
    """Judge the links between chips: lanes that are down, retries and errors that grow."""
    hccs = case.known(readings.hccs)
    if hccs is None:
        return
    case.add(assess_hccs(hccs, case.platform, case.place), readings.hccs.good)
    grown = case.grown(readings.hccs, _WINDOW)
    if grown:
        words = ", ".join(f"{name} +{amount}" for name, amount in sorted(grown.items())[:4])
        case.find("hccs-errors", f"HCCS {words} in the last hour", readings.hccs.good)


def judge_pod(case: Case, readings: NpuReadings, node: NodeSight) -> None:
    """Judge the place in the super pod, by itself and beside the other NPUs of the node."""
    spod = case.known(readings.spod)
    if spod is None:
        return
    alone = assess_spod(spod, case.platform, case.place)
    if alone.verdict is not Verdict.HEALTHY:
        case.add(alone, readings.spod.good)
    elif case.device in node.spod:
        case.find("spod", node.spod[case.device], readings.spod.good)
