"""The one immutable picture of the cluster that everything above the fleet reads.

At most ten a second are made; a node or rank whose values did not change keeps the same object, so readers
may compare with `is`. Times are wall-clock seconds since the epoch and say when a value was true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pdtui.readings.verdict import Reason, Verdict
from pdtui.remote.messages.ranks import GoneWith
from pdtui.topology.model import Role


class NodeState(StrEnum):
    """Whether a node can be asked."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    """It will not come by itself (host key, password, no python3); `error` and `remedy` say what to do."""


class RankState(StrEnum):
    """What a rank is doing."""

    UNKNOWN = "unknown"
    """Not asked yet."""
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    """Alive, /health lost."""
    STALLED = "stalled"
    """/health answers 200, no tokens although requests run."""
    STOPPING = "stopping"
    FAILED = "failed"
    LOST = "lost"
    """Its node is unreachable: values are the last known ones."""
    UNMANAGED = "unmanaged"
    """A server in its planned place that our keeper did not start."""
    UNKEPT = "unkept"
    """Ours, its keeper is gone."""


WARM_UP = "warm-up"
"""The stage of a rank that answers on /health and is not in rotation yet: its first completion is under way."""

RankFlag = Literal["outdated", "not-in-file"]

WRONG_STATES = frozenset({RankState.FAILED, RankState.UNHEALTHY, RankState.STALLED, RankState.LOST})
"""States that need an operator."""

BROKEN_STATES = WRONG_STATES - {RankState.LOST}
"""States of ranks that something has happened to."""

ALIVE_STATES = frozenset(
    {
        RankState.STARTING,
        RankState.READY,
        RankState.UNHEALTHY,
        RankState.STALLED,
        RankState.STOPPING,
        RankState.UNKEPT,
        RankState.UNMANAGED,
    }
)
"""States in which processes run."""

UNSEEN_STATES = frozenset({RankState.UNKNOWN, RankState.LOST})
"""States in which nobody sees whether processes run."""


@dataclass(frozen=True, slots=True)
class NpuStatus:
    """One NPU as last seen."""

    id: int
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    """Why, worst first; empty when healthy."""
    link: str | None = None
    """UP, DOWN, or None without an answer."""
    net_health: str | None = None
    vnic: str | None = None
    health: str | None = None
    """npu-smi's word."""
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None
    temperature_c: float | None = None
    utilization: int | None = None
    """AI core, per cent."""
    power_w: float | None = None
    observed_at: float | None = None
    """When the oldest value that the verdict rests on was true."""
    rank: str = ""
    """The rank that the plan puts here."""
    processes: tuple[tuple[int, str, int], ...] = ()
    """pid, name, MB of HBM, as npu-smi lists them."""
    address: str | None = None
    """Of its RoCE port."""
    vnic_address: str | None = None
    next_try: float | None = None
    """While a tool hangs on it: when it is asked again (wall clock)."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about a node that can be used and will hurt later."""

    id: str
    """Stable, one word: `logout`."""
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process that uses what this cluster's plan needs, and is no part of it."""

    pid: int | None
    """None: somebody else's, and the node does not say whose."""
    user: str = ""
    command: str = ""
    since: float | None = None
    npus: tuple[int, ...] = ()
    hbm_mb: int | None = None
    """Over all its NPUs."""
    ports: tuple[int, ...] = ()
    """Planned ports that it holds."""
    rank: str = ""
    """`cluster:group/dp_rank` when another cluster's pdtui started it."""
    hits: tuple[str, ...] = ()
    """Ranks of this cluster that are planned where it is."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class OwnerlessHbm:
    """Memory of an NPU that is used and that no process is known to hold."""

    npu: int
    used_mb: int
    rank: str = ""
    """The rank that the plan puts here."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One server as last seen."""

    name: str
    host: str
    roles: tuple[Role, ...]
    state: NodeState
    since: float
    error: str = ""
    remedy: str = ""
    attempt: int = 0
    next_try: float | None = None
    npus: tuple[NpuStatus, ...] = ()
    observed_at: float | None = None
    """When the last reading came in."""
    clock_offset: float = 0.0
    """Seconds that the node's clock is ahead of ours."""
    facts: str = ""
    """One line about the machine: user, Python, where state is kept."""
    tool_error: str = ""
    """Why NPU readings are missing: a hanging or absent tool."""
    conditions: tuple[Condition, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()
    ownerless: tuple[OwnerlessHbm, ...] = ()


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """What a ready rank's /metrics says; None where a version does not say it, or it cannot be said yet.

    Counts are since the server began; rates and means are over `interval_s`, and TTFT, TPOT and acceptance over
    the last reading in which there were any, which may be older: `..._at` says from when they are.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1; blocks that only keep a prefix for later do not count."""
    generation_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    ttft_s: float | None = None
    """Mean over the requests of the last reading that had any."""
    tpot_s: float | None = None
    """Mean time between two tokens; says nothing on a prefill rank."""
    local_prefill_tokens: float | None = None
    """Prompt tokens that a decode rank computed itself: KV that was not pulled. Warm-up does not count."""
    observed_at: float = 0.0
    interval_s: float | None = None
    """Between this reading and the one before; None: there is none before."""
    ttft_at: float | None = None
    tpot_at: float | None = None
    preemptions: int | None = None
    preempted: int | None = None
    """Requests that were preempted in the interval."""
    acceptance: float | None = None
    """0 to 1: share of the drafted tokens that were accepted (speculative decoding)."""
    acceptance_at: float | None = None
    accepted_length: float | None = None
    """Mean tokens a step, the model's own one included."""
    acceptance_by_position: tuple[float, ...] = ()
    """0 to 1 for the first, second ... drafted token."""
    external_share: float | None = None
    """0 to 1: prompt tokens whose KV came from another rank, of all since the server began."""
    expired_leases: int | None = None
    """Requests whose blocks a prefill rank gave up before they were fetched (NIXL says it, Mooncake does not)."""
    late_pulls: int | None = None
    """Pulls that ended after their blocks were given up: what they read may have been another request's."""
    failed_transfers: int | None = None
    errors: int | None = None
    """Requests that ended with an error."""
    aborts: int | None = None
    """Requests whose client left."""


FileState = Literal["loaded", "changed", "broken", "removed"]
"""How the topology file on disk is, against the one that was loaded."""

AlarmId = Literal["computes-prompts", "kv-held", "kv-expired"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something about a rank that answers and does not work as it should; it ends by itself."""

    id: AlarmId
    """`computes-prompts`: a decode rank computes prompts itself; `kv-held`: a prefill rank's KV cache is full of
    finished prompts; `kv-expired`: a prefill rank gave up blocks that nobody had fetched."""
    severity: Literal["warning", "error"]
    message: str
    remedy: str
    since: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a rank is as it is, in one sentence, with the line that shows it."""

    summary: str
    first_cause: str = ""
    """The rank whose line came first, if another's."""
    line: str = ""
    signature: str = ""
    """Id of the signature that matched."""
    remedy: str = ""
    last_work: str = ""
    """What its log said last of its work, with the time; empty: nothing."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank as last seen."""

    id: str
    group: str
    role: Role
    node: str
    devices: tuple[int, ...]
    api_port: int
    state: RankState
    since: float
    """When it entered this state; 0: not known (never started, or nobody wrote it down)."""
    stage: str = ""
    """While starting: the last milestone, `weights 63 %`."""
    stage_since: float | None = None
    """When that milestone was reached (not its percentage)."""
    pid: int | None = None
    exit_status: int | None = None
    """-N: ended by signal N."""
    flags: tuple[RankFlag, ...] = ()
    diagnosis: Diagnosis | None = None
    health: str = ""
    """`200`, `503`, `refused`, `timeout`; empty when not asked."""
    started: float | None = None
    ended: float | None = None
    gone_with: GoneWith = ""
    """What ended with it, so that nobody wrote down how; `ended` is then when it wrote last."""
    stopped_by: str = ""
    """Who asked last for its end, in this run or the one before; empty if nobody did."""
    stopped_at: float | None = None
    """When that was."""
    run: int = 0
    by: str = ""
    difference: tuple[str, ...] = ()
    """With `outdated` or unmanaged: how argv and env differ from the plan, a line each."""
    metrics: RankMetrics | None = None
    alarms: tuple[Alarm, ...] = ()
    """What its metrics say is wrong, worst first."""
    observed_at: float | None = None
    """When the oldest was said of what its state rests on: its record, and /health where it is asked."""
    last_state: RankState | None = None
    """While lost: the last known state."""
    last_start_s: float | None = None
    """How long its last start took."""
    log: str = ""
    log_note: str = ""
    """Unmanaged: what must be known about its log, or why there is none."""
    log_pids: tuple[int, ...] = ()
    """Its processes, when others write to the same log; empty: the log is its own."""
    evidence: str = ""
    """Folder on its node of what was last kept to explain an end."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank that nobody asked for."""

    rank: str
    at: float | None
    exit_status: int | None
    """-N: ended by signal N."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What is true of a group as a whole; what concerns rendezvous and loss holds for MoE groups only."""

    name: str
    role: Role
    total: int
    deaths: tuple[Death, ...] = ()
    """In their order."""
    must_restart: tuple[str, ...] = ()
    """Ranks that run although the group is lost: they hang and take nobody back."""
    waiting: tuple[str, ...] = ()
    """Ranks that wait for missing ones."""
    waits_for: tuple[str, ...] = ()
    """The missing ones: they do not run, and nobody here is about to start them."""
    waits_on: tuple[str, ...] = ()
    """The nodes of the missing ones."""
    waiting_since: float | None = None
    late: tuple[str, ...] = ()
    """Ranks that were started anew while the rest serves: they wait in vain."""
    after: str = ""
    """A decode rank that died shortly before this prefill group broke."""
    after_s: float = 0.0
    """Seconds between the two."""


@dataclass(frozen=True, slots=True)
class OperationStep:
    """One line of an operation's progress."""

    label: str
    state: Literal["waiting", "running", "done", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """One running or ended action."""

    id: str
    verb: Literal["start", "stop", "restart", "container up", "container down", "container recreate"]
    targets: tuple[str, ...]
    """Ids of ranks; of containers, their nodes."""
    by: str
    since: float
    state: Literal["running", "done", "failed", "cancelled"]
    steps: tuple[OperationStep, ...] = ()
    error: str = ""
    ended: float | None = None

    @property
    def of_nodes(self) -> bool:
        """Whether its targets are nodes."""
        return self.verb.startswith("container ")


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """An operation of another console, by the lease that it holds."""

    id: str
    by: str
    origin: str
    """Where that operator sits: an address, or `local`."""
    verb: str
    what: str
    """`group decode`."""
    nodes: tuple[str, ...]
    ranks: tuple[str, ...]
    """Empty: not said, so all."""
    since: float


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A trouble that an operator knows of: it is shown as such, and no longer told until `expires`."""

    key: str
    """`node3/9:link-down` (subject and id of a reason, check, alarm or state); `node3/*:flapping` for all NPUs."""
    reason: str
    """Typed by the operator."""
    by: str
    at: float
    expires: float

    def covers(self, key: str) -> bool:
        """Return whether it is about a trouble of this key."""
        if self.key == key:
            return True
        subject, _, known = self.key.rpartition(":")
        found, _, trouble = key.rpartition(":")
        return subject.endswith("/*") and known == trouble and found.rpartition("/")[0] == subject[:-2]


def acknowledgement(known: Iterable[Acknowledgement], key: str) -> Acknowledgement | None:
    """Return what covers a key, the acknowledgement of just this one first."""
    return min((one for one in known if one.covers(key)), key=lambda one: one.key != key, default=None)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, newest last."""

    at: float
    severity: Literal["info", "good", "warning", "error"]
    subject: str
    """A rank, node, `node/npu` or operation."""
    message: str


@dataclass(frozen=True, slots=True)
class Headline:
    """What is wrong, in one sentence, and where the key leads."""

    message: str
    subject: str
    severity: Literal["warning", "error"]


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Is it serving?"""

    word: Literal["SERVING", "DEGRADED", "DOWN", "STARTING", "STOPPED", "UNKNOWN"]
    since: float | None
    prefill_ready: int
    prefill_total: int
    decode_ready: int
    decode_total: int
    running: int | None = None
    tokens_per_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class PreflightStatus:
    """How far the running preflight is, or how the last one ended; its report is asked for apart."""

    state: Literal["running", "done", "stopped"]
    began: float
    ended: float | None = None
    nodes_done: int = 0
    nodes_total: int = 0
    waits_for: tuple[tuple[str, str], ...] = ()
    """Nodes that are not done, with the call that is waited for."""
    failed: int = 0
    unknown: int = 0
    warned: int = 0
    passed: int = 0
    """Results so far."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment."""

    revision: int
    made_at: float
    cluster: str
    nodes: tuple[NodeStatus, ...]
    ranks: tuple[RankStatus, ...]
    serving: ServingStatus
    headline: Headline | None = None
    operations: tuple[OperationStatus, ...] = ()
    """Running ones and the last few that ended."""
    leases: tuple[LeaseStatus, ...] = ()
    """What other consoles do now."""
    events: tuple[Event, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    file_changed: bool = False
    """The topology file on disk is no longer the one that was loaded."""
    file_broken: str = ""
    """The first error of the changed file, because of which no command would load it: `line 12: ...`."""
    file_removed: bool = False
    """There is no topology file on disk any more."""
    preflight: PreflightStatus | None = None
    """None: this console has made none."""
    acknowledgements: tuple[Acknowledgement, ...] = ()
    """Those in force, over all nodes."""

    def acknowledged(self, key: str) -> Acknowledgement | None:
        """Return why a trouble is no longer told, the acknowledgement of just this one first; None: it is told."""
        return acknowledgement(self.acknowledgements, key)

    def node(self, name: str) -> NodeStatus | None:
        """Return a node by name."""
        return next((node for node in self.nodes if node.name == name), None)

    def group(self, name: str) -> GroupStatus | None:
        """Return a group by name."""
        return next((group for group in self.groups if group.name == name), None)

    def rank(self, rank_id: str) -> RankStatus | None:
        """Return a rank by id."""
        return next((rank for rank in self.ranks if rank.id == rank_id), None)
