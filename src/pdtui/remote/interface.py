"""What the rest of pdtui sees of a node: protocols, no code that reaches anything.

The implementations are in `client`, `execution` and `link`, the values in `messages`; tests of higher layers
implement `NodeAgent` in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pdtui.errors import ConnectError
from pdtui.remote.messages.acks import Ack, AckList
from pdtui.remote.messages.commands import Command, Completed, ExecChunk, ExecSpec, Facts, HttpReply, LogChunk
from pdtui.remote.messages.leases import Lease, LeaseClaim, LeaseResult
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import Evidence, RankRecord, RankSpec, StartResult, StopResult, WarmUp


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

        `env` names the variables to read, `known` the processes (pid, start) of which a brief answer does while
        their command line is what was told last; those whose PDTUI_RANK begins with `skip` are left out unless
        their pid is asked for.
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

    def follow(
        self, path: str, *, offset: int | None = None, tail: int = 65536, mark: bool = False
    ) -> AsyncIterator[LogChunk]:
        """Follow a file from `offset`, or from `tail` bytes before its end; goes on until closed.

        `mark`: a piece without bytes says once that all that there was has come.
        """
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

    async def acks(self, cluster: str, *, unless: str = "") -> AckList:
        """Return the acknowledgements that the node has; none when it has still those with digest `unless`."""
        ...

    async def put_acks(self, cluster: str, acks: Sequence[Ack]) -> AckList:
        """Hand over acknowledgements; the node keeps the newest of each trouble, and returns what it has."""
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
