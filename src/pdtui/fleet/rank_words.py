"""A rank's state and end in a few words."""

from __future__ import annotations

from pdtui.fleet.snapshot import RankState, RankStatus


def describe_state(rank: RankStatus) -> str:
    """Return a rank's state in a few words: `failed: exit 1: HCCL connect timeout`."""
    parts = [str(rank.state)]
    if rank.state is RankState.FAILED and rank.exit_status is not None:
        parts.append(exit_words(rank.exit_status))
    if rank.state is RankState.UNHEALTHY and rank.health:
        parts.append(f"/health {rank.health}")
    if rank.state is RankState.UNMANAGED and rank.pid is not None:
        parts.append(f"pid {rank.pid} on port {rank.api_port}")
    if rank.diagnosis is not None and rank.diagnosis.summary:
        parts.append(rank.diagnosis.summary)
    return ": ".join(parts)


def exit_words(status: int) -> str:
    """Return `exit 1` or `signal 9`."""
    return f"signal {-status}" if status < 0 else f"exit {status}"
