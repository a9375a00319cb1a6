"""Lines of a vLLM server's log: where and when, how bad, which start-up milestone.

Wording: the sources of vLLM and vLLM-Ascend, and captured start-up logs.
Lines come cleaned, without their newline.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", ""]

_PREFIX = re.compile(
    r"(?:\((?P<process>[^()]{1,60}?)(?: pid=(?P<pid>\d{1,9}))?\) )?"
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)(?: (?P<date>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)"
    r"(?: \[(?P<place>[^\]]{1,80})\]| (?P<old_place>[\w./-]{1,80}:\d{1,6})\])?|:\s+)"
)
"""Since version 0.8 the place stands in brackets; before, only one closed it."""


@dataclass(frozen=True, slots=True)
class LogPrefix:
    """What vLLM and uvicorn print before a message."""

    level: str
    process: str
    """`APIServer`, `EngineCore_DP3`, `Worker_TP0`; empty for uvicorn's lines."""
    pid: int | None
    place: str
    """`core.py:133`."""
    message: str


def prefix_of(line: str) -> LogPrefix | None:
    """Return the prefix of a line and the message behind it; None for lines that are continued or not vLLM's."""
    match = _PREFIX.match(line)
    if match is None:
        return None
    pid = int(match["pid"]) if match["pid"] else None
    place = match["place"] or match["old_place"] or ""
    return LogPrefix(match["level"], match["process"] or "", pid, place, line[match.end() :].lstrip())


_NAME = r"\((?P<process>[A-Za-z][\w.-]{0,60})(?: rank=\d{1,6})?"
_WRITER = re.compile(_NAME + r"(?: pid=(?P<pid>\d{1,9}))?\) ")
_WRITER_WITHIN = re.compile(_NAME + r" pid=(?P<pid>\d{1,9})\) (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
"""Behind a progress bar that was not ended before another process wrote."""
_DP_RANK = re.compile(r"_DP(\d{1,6})(?:_|$)")


def is_of(line: str, pids: frozenset[int], dp_rank: int | None) -> bool | None:
    """Return whether a process of a rank wrote a line of a log that several ranks share.

    vLLM puts the process's name and pid before its lines, with the DP rank in the name of engines and workers of a
    group. None: the line does not say (uvicorn's, banners, older versions).
    """
    match = _WRITER.match(line) or _WRITER_WITHIN.search(line)
    if match is None:
        return None
    if match["pid"] and int(match["pid"]) in pids:
        return True
    rank = _DP_RANK.search(match["process"])
    if rank is not None and dp_rank is not None:
        return int(rank[1]) == dp_rank
    return False if match["pid"] or rank is not None else None


_STAMP = re.compile(
    r"(?:(?P<year>20\d\d)-)?(?P<month>[01]\d)-(?P<day>[0-3]\d)[ T-](?P<h>[0-2]\d):(?P<m>[0-5]\d):(?P<s>[0-5]\d)"
    r"(?:[.,](?P<fraction>\d{1,6}))?"
)
_STAMP_WITHIN = 80
"""Characters of a line in which a time is looked for."""


def stamp_of(line: str, near: float) -> float | None:
    """Return the time that a line carries, as if its clock showed UTC, in seconds since the epoch.

    vLLM prints no year; it is the one that comes closest to `near`. Good for comparing lines of servers in one
    time zone, not for comparing with other clocks.
    """
    match = _STAMP.search(line, 0, _STAMP_WITHIN)
    if match is None:
        return None
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    clock = (int(match["h"]), int(match["m"]), int(match["s"]))
    fraction = float(f"0.{match['fraction']}") if match["fraction"] else 0.0
    if match["year"]:
        return calendar.timegm((int(match["year"]), month, day, *clock)) + fraction
    year = 1970 + int(near // 31556952)
    candidates = [calendar.timegm((y, month, day, *clock)) for y in (year - 1, year, year + 1) if 1970 <= y < 9999]
    return min(candidates, key=lambda at: abs(at - near)) + fraction


_ERROR = re.compile(
    r"^(?:\([^()]{1,60}\) )?(?:(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most recent call last\))"
    r"|^(?:[a-zA-Z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)(?::|$)"
    r"|^\[?(?:ERROR|E\d{4} \d\d:)|\[rank\d+\]:\[E\d{4}|^vllm[\w ]{0,20}: error:|^Fatal Python error"
    r"|^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S{0,8} (?:- )?[\w.]{1,40} (?:- )?(?:ERROR|CRITICAL)\b"
    r"|^(?:\S{0,80}: line \d+: .{0,200})?(?:Segmentation fault|Bus error|Killed|Aborted)\b"
)
_WARNING = re.compile(
    r"^(?:\([^()]{1,60}\) )?WARNING\b|^\[?(?:WARNING|W\d{4} \d\d:)|\[rank\d+\]:\[W\d{4}"
    r"|^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S{0,8} (?:- )?[\w.]{1,40} (?:- )?WARN(?:ING)?\b"
)


def severity(line: str) -> Severity:
    """Return how bad a line is, from its level or its shape."""
    if _ERROR.search(line):
        return "error"
    return "warning" if _WARNING.search(line) else ""


@dataclass(frozen=True, slots=True)
class _Milestone:
    step: int
    pattern: re.Pattern[str]
    words: str
    """With `{}` for a percentage."""


def _milestones() -> tuple[_Milestone, ...]:
    table = (
        (1, r"Platform plugin ascend is activated", "plugin"),
        (2, r"Resolved architecture:|Using max model len", "configuration"),
        (3, r"Started DP Coordinator process", "coordinator"),
        (
            4,
            r"Waiting for \d+ local, \d+ remote core engine|Waiting for READY message from DP Coord",
            "waiting for group",
        ),
        (5, r"Initializing a V1 LLM engine", "engine"),
        (6, r"Starting to load model", "weights"),
        (
            7,
            r"(?:Loading \w+ checkpoint shards|Multi-thread loading (?:\w+ checkpoint )?shards"
            r"|Loading safetensors using [\w ]{1,40}):\s+(\d{1,3})%",
            "weights {} %",
        ),
        (8, r"Loading weights took", "weights 100 %"),
        (9, r"Loading drafter model", "drafter"),
        (10, r"Loading model weights took|Model loading took", "weights loaded"),
        (11, r"Available KV cache memory|KV cache size:|Maximum concurrency for", "KV cache"),
        (
            12,
            r"Initializing Mooncake|Initializing NIXL|Registering KV_Caches|KVCache\w+Thread .*listening",
            "KV link",
        ),
        (13, r"Compile and warming up model", "warming up"),
        (14, r"Capturing (?:[\w-]+ ){0,4}graphs?\b.*?(\d{1,3})%", "graphs {} %"),
        (15, r"Graph capturing finished", "graphs 100 %"),
        (16, r"init engine \(profile", "engine ready"),
        (
            17,
            r"Starting vLLM (?:API )?server|Started server process|Waiting for application startup",
            "API server",
        ),
        (18, r"Application startup complete", "ready"),
    )
    return tuple(_Milestone(step, re.compile(pattern, re.IGNORECASE), words) for step, pattern, words in table)


_MILESTONES = _milestones()
_ANY = re.compile(
    "|".join(m.pattern.pattern.replace("(\\d{1,3})", "\\d{1,3}") for m in _MILESTONES), re.IGNORECASE
)
_ZONE_STEP = 900
_DRAFTER = 9
_READY = 18


class StageReader:
    """Follows a start-up: feed it lines (and states of progress bars), read `stage`.

    Milestones of several processes come mixed; a stage never goes back.
    """

    def __init__(self, started: float = 0.0) -> None:
        """`started`: the node's wall clock when the server began (lines carry local time, without a zone)."""
        self.stage = ""
        """`weights 63 %`, `KV cache`, `ready`; empty before the first milestone."""
        self.since: float | None = None
        """When that milestone (not its percentage) was reached, on the node's clock: the last time that a line
        carried by then."""
        self._started = started
        self._zone: float | None = None
        self._last: float | None = None
        self._step = 0
        self._percent = -1

    @property
    def ready(self) -> bool:
        """Whether the server has said that its start-up is complete."""
        return self._step >= _READY

    def feed(self, line: str) -> bool:
        """Take one line; returns whether the stage has changed."""
        self._take_time(line)
        if not _ANY.search(line):
            return False
        before = self.stage
        for milestone in _MILESTONES:
            match = milestone.pattern.search(line)
            if match is not None:
                self._reach(milestone, min(100, int(match[1])) if match.re.groups else -1)
        return self.stage != before

    def _take_time(self, line: str) -> None:
        """Note a line's time; the zone is what sets the first one apart from the start, in quarters of an hour."""
        at = stamp_of(line, self._started) if self._started else None
        if at is None:
            return
        if self._zone is None:
            self._zone = round((at - self._started) / _ZONE_STEP) * _ZONE_STEP
        self._last = max(self._last or 0.0, at - self._zone)

    def _reach(self, milestone: _Milestone, percent: int) -> None:
        step, words = milestone.step, milestone.words
        if step == 7 and self._step == _DRAFTER:
            step, words = _DRAFTER, "drafter {} %"
        if (step, percent) > (self._step, self._percent):
            if step != self._step:
                self.since = self._last
            self._step, self._percent = step, percent
            self.stage = words.format(percent)


_STEPS = {milestone.words.partition(" {}")[0]: milestone.step for milestone in _MILESTONES}
_PERCENT = re.compile(r" (\d{1,3}) %$")


def stage_step(stage: str) -> int:
    """Return how far a stage of `StageReader` is, for ordering; 0 for words that are none."""
    return _STEPS.get(_PERCENT.sub("", stage), 0)
