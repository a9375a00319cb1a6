"""When values are too old to be vouched for."""

from __future__ import annotations

from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus
from pdtui.readings.verdict import Verdict

STALE_AFTER = 15.0
"""Seconds after which values are shown as no longer current."""


def shown_verdict(node: NodeStatus, npu: NpuStatus, now: float) -> Verdict:
    """Return an NPU's verdict as it can be vouched for now: old good news are none, bad ones stay."""
    if npu.verdict is Verdict.HEALTHY and (
        node.state is not NodeState.CONNECTED or is_stale(node.observed_at, now)
    ):
        return Verdict.UNKNOWN
    return npu.verdict


def is_stale(observed_at: float | None, now: float) -> bool:
    """Return whether a value is too old to be taken for current."""
    return observed_at is None or now - observed_at > STALE_AFTER
