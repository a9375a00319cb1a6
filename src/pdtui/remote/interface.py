"""What the rest of pdtui sees of a node: messages and protocols, no code that reaches anything.

The implementations are in `transports`, `client` and `link`; tests of higher layers implement `NodeAgent`
in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from pdtui.errors import ConnectError

PROTOCOL = 1
"""Version of the agent's RPC."""

RECORD_FORMAT = 1
"""Version of the rank directory on disk."""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a process ended, as far as the transport knows."""

    status: int | None
    signal: str | None = None
    stderr: str = ""
    """The last few KiB of stderr, cleaned."""


class ByteWriter(Protocol):
    """The sending half of a channel."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short again."""
        ...

    def close(self) -> None:
        """End the channel; the remote process sees end of file and is ended."""
        ...


class ByteReader(Protocol):
    """The receiving half of a channel."""

    async def read(self, limit: int = -1) -> bytes:
        """Return at most `limit` bytes; empty at the end."""
        ...

    async def readline(self) -> bytes:
        """Return a line with its newline; what is left at the end."""
        ...

    async def readexactly(self, count: int) -> bytes:
        """Return exactly `count` bytes. Raises `asyncio.IncompleteReadError`."""
        ...


@dataclass(frozen=True, slots=True)
class Channel:
    """One process at the far end: its stdin, its stdout, and its end."""

    reader: ByteReader
    writer: ByteWriter
    closed: asyncio.Future[ExitInfo]


class Transport(Protocol):
    """A way to a node: asyncssh, this machine, or memory. Bytes only."""

    async def open(self, argv: Sequence[str]) -> Channel:
        """Start a process. Raises `ConnectError`."""
        ...

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return a loopback address that leads to `host:port` as the node sees it. Raises `ConnectError`."""
        ...

    async def close(self) -> None:
        """End the connection and everything on it."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What the agent says of its machine when it starts."""

    protocol: int
    python: str
    user: str
    uid: int
    hostname: str
    machine_id: str
    boot_id: str
    wall: float
    """The node's clock when it answered, seconds since the epoch."""
    state_dir: str
    """The folder of rank directories that it chose."""
    state_dir_error: str = ""
    """Why no folder is writable; ranks cannot be started then."""
    in_container: bool = False
    mount_namespace: str = ""
    """Tells the files that it sees from those that others see; empty where the kernel does not say."""
    state_mount: str = ""
    """Where the file system of `state_dir` is mounted; `/` is the root of the machine or the container."""
    state_mount_type: str = ""
    """Type of that file system; `bind` where a folder of it is mounted, as a host's folder is in a container."""
    other_user: str = ""
    """Whose agents keep records in `other_folder`, which ours cannot use; empty: nobody's."""
    other_folder: str = ""
    logout_user: str = ""
    """The user with whose last session systemd-logind ends what is started here; empty: it does not."""
    logout_source: str = ""
    """The file that says so."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended (or never started)."""

    argv: tuple[str, ...]
    status: int | None
    """Exit status; -N when signal N ended it; None when it could not be started."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    error: str = ""
    """Why it could not be started: the system's words."""
    started: float = 0.0
    """Node's wall clock, seconds since the epoch."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command for `run` or `batch`. Read-only vendor tools and our own scripts; argv, never a shell line."""

    argv: tuple[str, ...]
    timeout: float = 10.0
    """Seconds on the node, then its process group is killed."""
    key: str = ""
    """What the caller knows it by; returned with the result."""
    device: int | None = None
    """Commands for one device run one at a time over all consoles."""
    env: Mapping[str, str] = field(default_factory=dict)
    limit: int = 1 << 20
    """Bytes kept of each stream."""
    max_age: float = 0.0
    """Seconds; a shared reading of the same argv that is not older may answer instead."""


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


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP port and its owner."""

    address: str
    port: int
    pid: int | None
    command: str
    """Cleaned command line; empty when it cannot be read."""
    rank: str = ""
    """`cluster:group/dp_rank` from the owner's PDTUI_RANK variable, if it has one."""


OutputKind = Literal["file", "deleted", "pipe", "socket", "tty", "null", "other", "unreadable"]


@dataclass(frozen=True, slots=True)
class Output:
    """Where a process's stdout goes."""

    kind: OutputKind = "unreadable"
    """`deleted`: a file that has lost its name, or whose name is another file's now."""
    path: str = ""
    """What to follow; empty for what is no file."""
    name: str = ""
    """As the node calls it."""
    id: str = ""
    """The same for all processes that write to it."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process, for unmanaged and foreign ones."""

    pid: int
    ppid: int
    session: int
    started: float
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Only the names that were asked for."""
    user: str
    start: int = 0
    """When it started in the node's clock ticks since boot: with the pid it names a process for ever."""
    rank: str = ""
    """`cluster:group/dp_rank` from its PDTUI_RANK variable, if it has one."""
    inner: int = 0
    """Its pid in the container that it is in; `pid` elsewhere, 0 when it was not asked."""
    tree: tuple[int, ...] = ()
    """Pids of all that descends from it."""
    output: Output = Output()
    env_known: bool = True
    """Its environment can be read."""
    brief: bool = False
    """The caller knows it: only pid, start, ppid, tree and output are filled in."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer from a port on the node, or why there is none."""

    status: int | None
    body: bytes = b""
    error: str = ""
    """`refused`, `timeout` or the system's words."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a followed file. Offsets are valid for the life of the file, whatever is rotated away."""

    path: str
    offset: int
    data: bytes
    next_offset: int
    gap: bool = False
    """What lay between the asked offset and `offset` is gone."""
    at: float = 0.0
    """Node's wall clock when it was read."""


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Who works on which ranks of a node: what a console writes beside the records while an operation runs."""

    id: str
    """One for all nodes of an operation."""
    holder: str
    """The console; its own operations are never in each other's way through leases."""
    by: str
    origin: str
    """Where the operator sits."""
    verb: str
    what: str
    """`group decode`."""
    ranks: tuple[str, ...]
    """Those of this node."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """How somebody's lease was taken from him."""

    by: str
    origin: str
    reason: str
    expired: bool = False
    """It had not been renewed in time: nobody broke it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as its node sees it; durations instead of the node's times."""

    claim: LeaseClaim
    age: float
    """Seconds since it was taken."""
    left: float
    """Seconds until it ends by itself unless it is renewed."""
    end: LeaseEnd | None = None


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What became of taking or renewing a lease."""

    outcome: Literal["held", "refused", "broken"]
    leases: tuple[Lease, ...] = ()
    """Refused: those in the way. Held: those that were broken for it. Broken: the own one, with its end."""


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """A command of the operator, with its streams."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """On top of the agent's environment."""
    tty: tuple[int, int] | None = None
    """Rows and columns of a terminal that it gets; None: pipes."""


@dataclass(frozen=True, slots=True)
class ExecChunk:
    """What a command has written."""

    stream: Literal["out", "err"]
    data: bytes


class Execution(Protocol):
    """A command that runs. Every call raises `AgentLost` or `AgentError`."""

    def output(self) -> AsyncIterator[ExecChunk]:
        """Start it and yield what it writes until it ends; leaving early kills its process group."""
        ...

    @property
    def status(self) -> int | None:
        """Its exit status, -N for signal N; None before its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it something to read; returns when there is room for more."""
        ...

    async def end_input(self) -> None:
        """Close its stdin."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Tell its terminal of another size."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...


class NodeAgent(Protocol):
    """The agent on one node (or in its container). Every call raises `AgentLost` or `AgentError`."""

    @property
    def facts(self) -> Facts:
        """What it said when it started."""
        ...

    async def run(self, command: Command) -> Completed:
        """Run one command."""
        ...

    def batch(self, commands: Sequence[Command], *, parallel: int = 4) -> AsyncIterator[tuple[Command, Completed]]:
        """Run many, one at a time per device; yield each when it is done."""
        ...

    async def start_rank(self, spec: RankSpec) -> StartResult:
        """Start a rank under a keeper, unless it runs already."""
        ...

    async def stop_rank(self, cluster: str, rank: str, *, grace: float, by: str, lease: str = "") -> StopResult:
        """TERM to every process of a rank, KILL after `grace` seconds; returns when they are gone.

        Refused (`lease_lost`) when the operation's lease was broken.
        """
        ...

    async def ranks(self, cluster: str) -> Sequence[RankRecord]:
        """Return what the rank directories of a cluster say."""
        ...

    async def check_state(self) -> None:
        """Return if the folder for records takes a start: room, writing, locks. Raises `AgentError` if not."""
        ...

    async def ports(self) -> Sequence[Listener]:
        """Return the listening TCP ports."""
        ...

    async def processes(
        self,
        *,
        match: Sequence[str],
        env: Sequence[str] = (),
        pids: Sequence[int] = (),
        known: Sequence[tuple[int, int]] = (),
        skip: str = "",
    ) -> Sequence[ProcessInfo]:
        """Return processes one of whose words contains one of `match`, and those of `pids`.

        `env` names the variables to read, `known` the processes (pid, start) of which a brief answer suffices;
        those whose PDTUI_RANK begins with `skip` are left out unless their pid is asked for.
        """
        ...

    async def stop_tree(self, cluster: str, pid: int, start: int, *, grace: float, lease: str = "") -> StopResult:
        """TERM to a process that no keeper of ours started and to all below it, KILL after `grace` seconds.

        Returns when they are gone; `not_running` when the pid is another process's by now. With a `lease` of the
        cluster that is no longer held, nothing is told to end.
        """
        ...

    async def http(
        self,
        host: str,
        port: int,
        path: str,
        *,
        timeout: float = 3.0,
        keep: Sequence[str] = (),
        limit: int = 1 << 20,
    ) -> HttpReply:
        """GET from a port on the node; `keep` filters Prometheus text by metric name, on the node."""
        ...

    async def warm_up(self, record: RankRecord, body: Mapping[str, object], *, timeout: float, by: str) -> WarmUp:
        """POST a completion to a rank and keep the result with its run. `timeout` in seconds, on the node."""
        ...

    async def save_evidence(
        self, cluster: str, rank: str, *, stamp: str, files: Mapping[str, str], collect: bool
    ) -> Evidence:
        """Keep texts beside a rank's newest run; `collect` adds the ends of its logs. Asked again, it adds."""
        ...

    def follow(self, path: str, *, offset: int | None = None, tail: int = 65536) -> AsyncIterator[LogChunk]:
        """Follow a file from `offset`, or from `tail` bytes before its end; goes on until closed."""
        ...

    async def read_file(self, path: str, *, limit: int = 1 << 20) -> bytes:
        """Return a file's bytes. Raises `AgentError` with code `not_found` or `permission`."""
        ...

    async def journal(self, cluster: str, entry: Mapping[str, object]) -> None:
        """Append one entry to the cluster's journal on the node."""
        ...

    async def journal_tail(self, cluster: str, *, limit: int = 1 << 20) -> bytes:
        """Return the last bytes of the cluster's journal on the node."""
        ...

    async def leases(self, cluster: str) -> Sequence[Lease]:
        """Return the leases that are held on the node."""
        ...

    async def take_lease(
        self, cluster: str, claim: LeaseClaim, *, ttl: float, breaks: Sequence[str] = (), reason: str = ""
    ) -> LeaseResult:
        """Take a lease for `ttl` seconds, or renew it; `breaks` are ids of others' that it may end."""
        ...

    async def release_lease(self, cluster: str, lease: str) -> None:
        """Give a lease back."""
        ...

    def execute(self, spec: ExecSpec) -> Execution:
        """Return a command that starts when its output is asked for."""
        ...

    async def clock_offset(self) -> float:
        """Return how far the node's wall clock is ahead of ours, in seconds."""
        ...


class LinkState(StrEnum):
    """Where a connection stands."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    """It will not come by itself: a host key, a password, no python3. Tried again, slowly."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A connection now."""

    state: LinkState
    since: float
    """Wall clock, seconds since the epoch."""
    attempt: int = 0
    """Tries since it was last connected."""
    next_try: float | None = None
    """Wall clock."""
    error: ConnectError | None = None


class NodeLink(Protocol):
    """A connection that keeps itself up: backs off with jitter, never gives up, delays nobody else."""

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def status(self) -> LinkStatus:
        """Where it stands."""
        ...

    @property
    def host_agent(self) -> NodeAgent | None:
        """The agent on the host (NPU tools); None while there is no connection."""
        ...

    @property
    def rank_agent(self) -> NodeAgent | None:
        """The agent where ranks run: in the container if there is one, else the host's."""
        ...

    async def changed(self) -> None:
        """Return when `status` has changed since the last call of this method."""
        ...

    def retry_now(self) -> None:
        """Do not wait for the next try; nothing while connected."""
        ...

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return a loopback address that leads to `host:port` as the node sees it. Raises `ConnectError`."""
        ...

    async def run(self) -> None:
        """Keep the connection up until cancelled."""
        ...
