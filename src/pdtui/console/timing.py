"""Durations and times of day as the console writes them: short, and of one shape."""

from __future__ import annotations

import time


def duration(seconds: float | None) -> str:
    """Return `42 s`, `1m10s`, `3h12m`, `5d03h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def elapsed(now: float, since: float | None) -> str:
    """Return how long something has been so; `-` when the time is not known, for which 0 is written too."""
    return duration(now - since) if since else "-"


def latency(seconds: float | None) -> str:
    """Return `212 ms` below a second, `1.25 s` above; `-` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def clock_time(wall: float | None, *, milliseconds: bool = False) -> str:
    """Return the local time of day, `12:03:47` or `12:03:47.102`; empty for None."""
    if wall is None:
        return ""
    text = time.strftime("%H:%M:%S", time.localtime(wall))
    return f"{text}.{int(wall * 1000) % 1000:03d}" if milliseconds else text


def day_and_time(wall: float) -> str:
    """Return the local day and time, `12-01 08:30`."""
    return time.strftime("%m-%d %H:%M", time.localtime(wall))


def count(value: float | None) -> str:
    """Return a number in at most five cells: `470`, `14.9k`, `1.2M`; `-` for None."""
    if value is None:
        return "-"
    if value < 10_000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.1f}M"
