"""Ranks as a node keeps them: what starts one, its record, what became of a start and a stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

RECORD_FORMAT = 1
"""Version of the rank directory on disk."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What the agent needs to start a rank."""

    cluster: str
    rank: str
    """`group/dp_rank`."""
    script: str
    """The bash script that becomes the rank (ends in `exec vllm serve ...`)."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    digest: str
    address: str
    api_port: int
    ports: tuple[int, ...]
    """All ports that the rank will bind, for the record."""
    devices: tuple[int, ...]
    by: str
    """Who starts it, `user@host`."""
    hbm_before: Mapping[str, int] = field(default_factory=dict)
    """NPU id -> MB used before the start."""
    lease: str = ""
    """Id of the lease that the operation holds there; refused once somebody else has broken it."""


class ProcessState(StrEnum):
    """What a rank directory and the process table say together."""

    NONE = "none"
    """No record, or a record that was cleared."""
    RUNNING = "running"
    UNKEPT = "unkept"
    """The rank's processes live, its keeper does not."""
    EXITED = "exited"


GoneWith = Literal["", "keeper", "container", "machine"]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The completion that a rank was sent before it takes requests."""

    state: Literal["running", "ok", "skipped", "failed"]
    """skipped: the server did not take the request, which says nothing about its engine."""
    at: float = 0.0
    """Node's wall clock when it was sent."""
    seconds: float = 0.0
    error: str = ""
    tokens: int = 0
    """Prompt tokens that the rank computed for it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was kept on a node to explain the end of a rank."""

    folder: str
    errors: tuple[str, ...] = ()
    """What could not be written, a line each."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank directory as its agent reads it."""

    cluster: str
    rank: str
    state: ProcessState
    pid: int | None = None
    keeper: int | None = None
    run: int = 0
    """Number of this start, from 1."""
    started: float = 0.0
    """Node's wall clock, seconds since the epoch."""
    by: str = ""
    digest: str = ""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    api_port: int = 0
    address: str = ""
    ports: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    hbm_before: Mapping[str, int] = field(default_factory=dict)
    exit_status: int | None = None
    exit_signal: int | None = None
    ended: float | None = None
    gone_with: GoneWith = ""
    """What ended with it, or before it, so that nobody wrote down how; `ended` is then when it wrote last."""
    stop_requested: bool = False
    """The end was asked for: `stopped`, not `failed`."""
    stopped_by: str = ""
    """Who asked last for an end, of this run or of the one before; empty if nobody did."""
    stopped_at: float | None = None
    """When; node's wall clock."""
    log: str = ""
    """Path of the run's log on the node."""
    log_note: str = ""
    """Why the log grows without being rotated; empty when it is rotated."""
    processes: tuple[int, ...] = ()
    """Pids that belong to the rank now, by descent, session or its variable."""
    warm_up: WarmUp | None = None
    """Of this run; None: none was sent."""
    evidence: str = ""
    """Folder of what was last kept to explain an end, of any run."""
    format: int = RECORD_FORMAT


@dataclass(frozen=True, slots=True)
class StartResult:
    """What became of a start."""

    outcome: Literal["started", "already_running"]
    record: RankRecord


@dataclass(frozen=True, slots=True)
class StopResult:
    """What became of a stop."""

    outcome: Literal["stopped", "not_running", "still_running"]
    killed: bool
    """The grace period did not suffice."""
    survivors: tuple[int, ...]
    record: RankRecord | None
