"""What is known of one rank, put together into its status: pure functions over what its node said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pdtui.fleet.servers import output_words
from pdtui.fleet.snapshot import (
    WARM_UP,
    WRONG_STATES,
    Alarm,
    Diagnosis,
    RankFlag,
    RankMetrics,
    RankState,
    RankStatus,
)
from pdtui.fleet.strangers import ANY_ADDRESS, Unmanaged
from pdtui.remote.messages.processes import Listener
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.topology.compare import Change, argv_changes, env_changes, seen_env_changes
from pdtui.topology.model import Role
from pdtui.topology.plan import RankPlan
from pdtui.topology.script import in_home

LOOPBACK = frozenset({"127.0.0.1", "::1"})

MISSES = 2
"""Unanswered /health requests in a row after which a rank that was ready is unhealthy."""


SAME_WORDS = "the same flags and variables in another order"
"""What is said of an outdated rank whose command differs in nothing else."""

UNREAD_ENV = "its environment cannot be read"


@dataclass(slots=True)
class RankMemory:
    """What a watcher keeps of one rank between two polls."""

    run: int = -1
    state: RankState = RankState.UNKNOWN
    since: float = 0.0
    health: str = ""
    misses: int = 0
    was_ready: bool = False
    """In this run."""
    vouched: bool = False
    """In this run /health was answered by a process of the rank."""
    seen_starting: bool = False
    """In this run, so that the time to ready is known."""
    stage: str = ""
    stage_since: float | None = None
    """Its node's clock."""
    stalled: bool = False
    metrics: RankMetrics | None = None
    alarms: tuple[Alarm, ...] = ()
    """What its metrics say is wrong."""
    diagnosis: Diagnosis | None = None
    diagnosed: bool = False
    diagnosed_end: bool = False
    """Its end was looked into, not only what came before."""
    stage_read: bool = False
    """The stage is today's: its log has been read to the end since it was found starting."""
    broken_start: bool = False
    """It lives, and its log says that it will not come up."""
    lost_process: bool = False
    """One of its processes has ended since the last look."""
    last_start_s: float | None = None
    record: RankRecord | None = None
    unmanaged: Unmanaged | None = None
    """A server in its place that was started by hand."""
    record_at: float | None = None
    """When its directory was read, on our clock."""
    health_at: float | None = None
    """When /health gave the answer on which the state rests."""

    def take_record(self, record: RankRecord | None, at: float) -> None:
        """Take over what the rank directory said then; a new run forgets what was known of the old one."""
        self.record_at = at
        run = record.run if record is not None else 0
        if run != self.run:
            self.run = run
            self.health, self.misses, self.stage, self.stage_since = "", 0, "", None
            self.was_ready = self.vouched = self.seen_starting = self.stalled = self.diagnosed = False
            self.diagnosed_end = self.broken_start = self.stage_read = False
            self.metrics = self.diagnosis = self.health_at = None
            self.alarms = ()
        before = self.record if self.record is not None and record is not None else None
        self.lost_process = bool(before and record and set(before.processes) - set(record.processes))
        self.record = record
        if not (self.alive or self.unmanaged):
            self.health_at = None
            self.health, self.misses, self.stage, self.stage_since = "", 0, "", None
            self.metrics, self.stalled, self.alarms = None, False, ()

    def take_unmanaged(self, found: Unmanaged | None) -> None:
        """Take over what is in its place that no keeper of ours started; another process is another run."""
        known = self.unmanaged
        if (found is None) is not (known is None) or (found and known and _key(found) != _key(known)):
            self.run = -1
        self.unmanaged = found

    def take_health(self, answer: str, at: float) -> None:
        """Take over an answer that /health gave then: a status, `refused` or `timeout`."""
        self.health = answer
        if answer == "200":
            self.misses = 0
            self.was_ready = True
        else:
            self.misses += 1
            self.metrics, self.alarms = None, ()
        if not self.holds_on:
            self.health_at = at

    @property
    def holds_on(self) -> bool:
        """Whether /health missed an answer and the last good one still counts."""
        return self.vouched and 0 < self.misses < MISSES and not self.health.startswith(("4", "5"))

    @property
    def observed_at(self) -> float | None:
        """When the oldest was said of what its state rests on."""
        return min((at for at in (self.record_at, self.health_at) if at is not None), default=None)

    @property
    def warm_up(self) -> str:
        """What became of the first completion of this run; empty when none was sent."""
        known = self.record.warm_up if self.record is not None else None
        return known.state if known is not None else ""

    @property
    def alive(self) -> bool:
        """Whether processes of ours run."""
        return self.record is not None and self.record.state in (ProcessState.RUNNING, ProcessState.UNKEPT)


def _key(found: Unmanaged) -> tuple[int | None, int]:
    return found.pid, found.process.start if found.process is not None else 0


@dataclass(frozen=True, slots=True)
class View:
    """From where a rank is looked at: our time, the node's clock, what is being done to it."""

    now: float
    offset: float
    """Seconds that the node's clock is ahead."""
    stopping: bool
    warming: bool = False
    """It gets its first completion from here."""
    node: str = ""
    extra_flags: tuple[RankFlag, ...] = field(default=())

    def ours(self, at: float | None) -> float | None:
        """Return a node's time on our clock."""
        return None if at is None else at - self.offset


def who_else_listens(
    listeners: Sequence[Listener], rank: RankPlan, cluster: str, record: RankRecord | None
) -> Listener | None:
    """Return the listener on a rank's API port that is certainly another process; None when none is seen."""
    there = [x for x in listeners if x.port == rank.api_port and x.address in (*ANY_ADDRESS, rank.host)]
    if record is None or any(
        x.pid is None or x.pid in record.processes or x.rank == f"{cluster}:{record.rank}" for x in there
    ):
        return None
    return next(iter(there), None)


def state_of(memory: RankMemory, *, stopping: bool, warming: bool = False) -> RankState:
    """Return what a rank is doing, from its record, its port and its health."""
    record = memory.record
    if memory.unmanaged is not None and not memory.alive:
        return RankState.STOPPING if stopping else RankState.UNMANAGED
    if record is None or record.state is ProcessState.NONE:
        return RankState.STOPPED
    if record.state is ProcessState.EXITED:
        return RankState.STOPPED if record.stop_requested else RankState.FAILED
    if stopping or record.stop_requested:
        return RankState.STOPPING
    if record.state is ProcessState.UNKEPT:
        return RankState.UNKEPT
    if memory.health == "200" and (warming or memory.warm_up == "running"):
        return RankState.STARTING
    if memory.health == "200" and memory.warm_up == "failed":
        return RankState.UNHEALTHY
    if memory.health == "200":
        return RankState.STALLED if memory.stalled else RankState.READY
    if memory.health.startswith(("4", "5")):
        return RankState.UNHEALTHY
    if not memory.was_ready:
        return RankState.UNHEALTHY if memory.broken_start else RankState.STARTING
    return RankState.READY if memory.holds_on else RankState.UNHEALTHY


def as_it_runs(rank: RankPlan, memory: RankMemory) -> RankPlan:
    """Return a rank with the address and API port that it was started with: the file may have changed since."""
    record, found = memory.record, memory.unmanaged
    if found is not None and not memory.alive:
        port = found.listener.port if found.listener else found.server.port if found.server else rank.api_port
        bound = found.listener.address if found.listener else ""
        return replace(rank, host=rank.host if bound in ANY_ADDRESS - LOOPBACK else bound, api_port=port)
    if record is None or not memory.alive:
        return rank
    return replace(rank, host=record.address or rank.host, api_port=record.api_port or rank.api_port)


def status_of(rank: RankPlan, memory: RankMemory, view: View) -> RankStatus:
    """Return a planned rank's status."""
    state = state_of(memory, stopping=view.stopping, warming=view.warming)
    record = memory.record
    unmanaged = memory.unmanaged is not None and not memory.alive
    stage, stage_since = memory.stage, memory.stage_since
    if memory.health == "200" and not unmanaged:
        known = record.warm_up if record is not None else None
        stage, stage_since = WARM_UP, known.at if known is not None else None
    shown = None if unmanaged else record
    process = memory.unmanaged.process if memory.unmanaged is not None and unmanaged else None
    log, log_note, log_pids = _log(memory) if unmanaged else (shown.log if shown is not None else "", "", ())
    _enter(memory, state, view)
    flags: list[RankFlag] = list(view.extra_flags)
    difference: tuple[str, ...] = ()
    if unmanaged:
        difference = _by_hand(rank, memory.unmanaged)
    elif record is not None and memory.alive and record.digest != rank.digest:
        flags.append("outdated")
        difference = difference_words(outdated_changes(rank, record)) or (SAME_WORDS,)
    elif record is not None and record.processes and not memory.alive:
        difference = (f"processes left of its last run: pid {', '.join(map(str, record.processes))}",)
    if shown is not None and shown.log_note and memory.alive:
        difference = (*difference, f"its log is not rotated and grows: {shown.log_note}")
    return RankStatus(
        id=rank.id,
        group=rank.group,
        role=rank.role,
        node=rank.node,
        devices=rank.devices,
        api_port=as_it_runs(rank, memory).api_port,
        state=state,
        since=memory.since,
        stage=stage if state is RankState.STARTING or unmanaged else "",
        stage_since=view.ours(stage_since) if state is RankState.STARTING else None,
        pid=_pid(memory),
        exit_status=_exit_status(shown) if state in (RankState.FAILED, RankState.STOPPED) else None,
        flags=tuple(flags),
        diagnosis=_diagnosis(memory) if state in WRONG_STATES else None,
        health=memory.health,
        started=view.ours(process.started if process else shown.started if shown and shown.run else None),
        ended=view.ours(shown.ended) if shown is not None else None,
        gone_with=shown.gone_with if shown is not None else "",
        stopped_by=shown.stopped_by if shown is not None else "",
        stopped_at=view.ours(shown.stopped_at) if shown is not None else None,
        run=shown.run if shown is not None else 0,
        by=process.user if process is not None else shown.by if shown is not None else "",
        difference=difference,
        metrics=memory.metrics,
        alarms=memory.alarms,
        observed_at=memory.observed_at,
        last_start_s=memory.last_start_s,
        log=log,
        log_note=log_note,
        log_pids=log_pids,
        evidence=shown.evidence if shown is not None else "",
    )


def _diagnosis(memory: RankMemory) -> Diagnosis | None:
    """Return why a rank is as it is; a failed warm-up says so first, and its log what it knows."""
    found, record = memory.diagnosis, memory.record
    if record is None or record.warm_up is None or memory.warm_up != "failed" or not memory.alive:
        return found
    words = f"its warm-up request failed: {record.warm_up.error or 'no answer'}"
    remedy = "start it again to repeat the request; if it fails again, restart it"
    if found is None or not found.line:
        return Diagnosis(words, remedy=remedy)
    return replace(found, summary=f"{words}; {found.summary}", remedy=found.remedy or remedy)


def stray_plan(record: RankRecord, node: str, planned: bool) -> RankPlan:
    """Return a stand-in for the plan of a rank that the file does not have (on this node)."""
    group, _, number = record.rank.partition("/")
    producer = any("kv_producer" in word for word in record.argv)
    return RankPlan(
        id=f"{record.rank}@{node}" if planned else record.rank,
        group=group,
        role=Role.PREFILL if producer else Role.DECODE,
        node=node,
        host=record.address,
        dp_rank=int(number) if number.isdigit() else 0,
        local_rank=0,
        devices=record.devices,
        api_port=record.api_port,
        kv_ports=(),
        argv=record.argv,
        env=record.env,
        digest=record.digest,
    )


def _enter(memory: RankMemory, state: RankState, view: View) -> None:
    if state is memory.state:
        return
    first = memory.state is RankState.UNKNOWN
    record = memory.record
    since = 0.0 if first else view.now
    if record is not None and state in (RankState.FAILED, RankState.STOPPED) and record.ended is not None:
        since = record.ended - view.offset
    elif state is RankState.UNMANAGED and memory.unmanaged is not None and memory.unmanaged.process is not None:
        since = memory.unmanaged.process.started - view.offset
    elif record is not None and state is RankState.STARTING:
        since = record.started - view.offset
    elif record is not None and first and state in (RankState.READY, RankState.UNKEPT, RankState.STALLED):
        since = min(view.now, record.started - view.offset + (memory.last_start_s or 0.0))
    elif record is not None and first and state in (RankState.STOPPING, RankState.STOPPED):
        since = view.ours(record.stopped_at) or 0.0
    memory.state, memory.since = state, since
    if state is RankState.STARTING:
        memory.seen_starting = True


def _pid(memory: RankMemory) -> int | None:
    if memory.unmanaged is not None and not memory.alive:
        return memory.unmanaged.pid
    return memory.record.pid if memory.alive and memory.record is not None else None


def _exit_status(record: RankRecord | None) -> int | None:
    if record is None:
        return None
    return -record.exit_signal if record.exit_signal else record.exit_status


def _log(memory: RankMemory) -> tuple[str, str, tuple[int, ...]]:
    """Return an unmanaged rank's log, what must be known about it, and its pids when others write there too."""
    found = memory.unmanaged
    process = found.process if found is not None else None
    if found is None or process is None:
        return "", "its process cannot be seen, and so not where it writes", ()
    pids = (process.pid, *process.tree) if found.sharers > 1 else ()
    words = output_words(process.output, sharers=found.sharers, user=process.user)
    return process.output.path, words, pids


def outdated_changes(rank: RankPlan, record: RankRecord) -> tuple[Change, ...]:
    """Return how a rank of ours that runs differs from the plan."""
    return (*argv_changes(record.argv, rank.argv), *env_changes(record.env, rank.env))


def by_hand_changes(rank: RankPlan, found: Unmanaged) -> tuple[Change, ...]:
    """Return how a server that was started by hand differs from the plan, as far as it can be read."""
    if found.server is None:
        return ()
    process = found.server.process
    changes = argv_changes(found.server.words, in_home(rank.argv, process.env.get("HOME", "")))
    return (*changes, *(seen_env_changes(process.env, rank.env) if process.env_known else ()))


def difference_words(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return a line for each change from what runs to the plan: `--seed: 1 -> 1024 (plan)`."""
    return tuple(change.words(" (plan)") for change in changes)


def _by_hand(rank: RankPlan, found: Unmanaged | None) -> tuple[str, ...]:
    """Return how a server that was started by hand differs from the plan."""
    if found is None or found.server is None:
        return ()
    unread = () if found.server.process.env_known else (UNREAD_ENV,)
    return (*difference_words(by_hand_changes(rank, found)), *unread)
