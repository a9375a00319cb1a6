"""From an NPU's readings to one verdict, with the reasons for it.

Planes are judged apart and the worst counts; a plane that is not deployed counts for nothing. On A3 the HCCS
plane decides, and RoCE is n/a when it is configured on no NPU. What is not known is neither good nor bad: without
npu-smi's health, and the port of the plane in use, no NPU is healthy; what else is asked can only make it worse.
"""

from __future__ import annotations

from pdtui.readings.judge.case import Case, Judgement
from pdtui.readings.judge.chip import judge_chip, judge_memory
from pdtui.readings.judge.hccs import judge_lanes, judge_pod, judge_vnic
from pdtui.readings.judge.history import Ages, NpuReadings, Observed, read_answer
from pdtui.readings.judge.node import NodeSight, RocePlane, node_sight, roce_plane
from pdtui.readings.judge.roce import judge_roce, judge_tls
from pdtui.readings.npu_smi import Table
from pdtui.topology.model import Platform

__all__ = [
    "Ages",
    "Judgement",
    "NodeSight",
    "NpuReadings",
    "Observed",
    "RocePlane",
    "judge",
    "node_sight",
    "read_answer",
    "roce_plane",
]


def judge(
    device: int,
    platform: Platform,
    table: Observed[Table],
    readings: NpuReadings,
    node: NodeSight,
    *,
    now: float,
    ages: Ages | None = None,
) -> Judgement:
    """Return the verdict on one NPU at wall time `now`."""
    case = Case(device, platform, now, ages or Ages())
    if readings.hanging:
        case.find("tool-hangs", readings.hanging, readings.late)
    judge_chip(case, table)
    judge_memory(case, readings)
    if platform == "a3":
        judge_vnic(case, readings)
        judge_pod(case, readings, node)
    if platform in ("a2", "a3"):
        judge_lanes(case, readings)
        judge_roce(case, readings, node)
        judge_tls(case, readings, node)
    return case.judgement()
