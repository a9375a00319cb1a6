"""A server in memory: rank records, processes, ports, HTTP, files. Several consoles may have links to one node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.remote.interface import (
    Command,
    Completed,
    Facts,
    HttpReply,
    LinkState,
    LinkStatus,
    Listener,
    LogChunk,
    NodeAgent,
    ProcessInfo,
    ProcessState,
    RankRecord,
    RankSpec,
    StartResult,
    StopResult,
)


@dataclass(slots=True)
class Behaviour:
    """How a rank that is started behaves; seconds are counted from its start."""

    ready_after: float = 3.0
    dies_after: float | None = None
    exit_status: int = 1
    ignores_term: bool = False
    health: int | None = 200
    """Status of /health once ready; None: no answer."""
    metrics: str = ""
    log: str = ""
    """What it writes to its log at its start."""


@dataclass(slots=True)
class Process:
    """A rank's process."""

    record: RankRecord
    behaviour: Behaviour
    born: float
    keeper: bool = True


@dataclass
class MemoryNode:
    """One server. Time comes from `clock`; state is worked out when it is asked for, so nothing runs by itself."""

    name: str
    clock: Clock
    behaviour: Callable[[RankSpec], Behaviour] = field(default=lambda _spec: Behaviour())
    handler: Callable[[Command], Completed] | None = None
    """Answers `run` and `batch`; without one every command is not found."""
    reachable: bool = True
    error: ConnectError | None = None
    skew: float = 0.0
    state_dir_error: str = ""
    starts: list[RankSpec] = field(default_factory=list)
    journal: list[Mapping[str, object]] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    """Of processes that are not ours."""
    http_replies: dict[tuple[int, str], HttpReply] = field(default_factory=dict)
    """Answers of ports that are not ours."""
    strangers: list[ProcessInfo] = field(default_factory=list)
    files: dict[str, bytearray] = field(default_factory=dict)
    links: list[MemoryLink] = field(default_factory=list)
    stuck: bool = False
    """The agent answers nothing."""

    def __post_init__(self) -> None:
        self._records: dict[tuple[str, str], RankRecord] = {}
        self._processes: dict[tuple[str, str], Process] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._appended = asyncio.Event()
        self._pid = 1000

    def link(self) -> MemoryLink:
        """Return a new connection to this node, as another console would have it."""
        link = MemoryLink(self)
        self.links.append(link)
        return link

    def cut(self, error: ConnectError | None = None) -> None:
        """Make the node unreachable; a given error is one that will not go by itself."""
        self.reachable, self.error = False, error
        for link in self.links:
            link.refresh()

    def restore(self) -> None:
        """Make the node reachable again."""
        self.reachable, self.error = True, None
        for link in self.links:
            link.refresh()

    def kill(self, cluster: str, rank: str, signal: int = 9, *, leaving: tuple[int, ...] = ()) -> None:
        """End a rank's process from outside; `leaving` are processes of it that live on."""
        key = (cluster, rank)
        self._exit(key, status=-signal, asked=False)
        self._records[key] = replace(self._records[key], processes=leaving)

    def kill_keeper(self, cluster: str, rank: str) -> None:
        """End a rank's keeper; the rank lives on."""
        process = self._processes[cluster, rank]
        process.keeper = False

    def processes_of(self, cluster: str) -> Mapping[str, Process]:
        """Return the running ranks of a cluster."""
        self._settle()
        return {rank: process for (name, rank), process in self._processes.items() if name == cluster}

    def set_behaviour(self, cluster: str, rank: str, behaviour: Behaviour) -> None:
        """Change how a running rank behaves from now on."""
        self._processes[cluster, rank].behaviour = behaviour

    def add_record(self, record: RankRecord, behaviour: Behaviour | None = None) -> None:
        """Put a rank directory on the node, with its process if it runs."""
        key = (record.cluster, record.rank)
        self._records[key] = record
        if record.state in (ProcessState.RUNNING, ProcessState.UNKEPT):
            process = Process(record, behaviour or Behaviour(ready_after=0.0), self.clock.monotonic())
            process.keeper = record.state is ProcessState.RUNNING
            self._processes[key] = process

    def append(self, path: str, data: bytes) -> None:
        """Write to a file; followers see it."""
        self.files.setdefault(path, bytearray()).extend(data)
        self._appended.set()
        self._appended = asyncio.Event()

    def wall(self) -> float:
        """Return the node's clock."""
        return self.clock.wall() + self.skew

    def _exit(self, key: tuple[str, str], *, status: int, asked: bool) -> None:
        process = self._processes.pop(key, None)
        if process is None:
            return
        self._records[key] = replace(
            process.record,
            state=ProcessState.EXITED,
            pid=process.record.pid,
            exit_status=status if status >= 0 else None,
            exit_signal=-status if status < 0 else None,
            ended=self.wall(),
            stop_requested=asked,
            processes=(),
        )

    def _settle(self) -> None:
        now = self.clock.monotonic()
        for key, process in list(self._processes.items()):
            dies = process.behaviour.dies_after
            if dies is not None and now - process.born >= dies:
                self._exit(key, status=process.behaviour.exit_status, asked=False)

    def _ready(self, process: Process) -> bool:
        return self.clock.monotonic() - process.born >= process.behaviour.ready_after

    async def start(self, spec: RankSpec) -> StartResult:
        """Start a rank unless it runs, under the rank's lock."""
        key = (spec.cluster, spec.rank)
        async with self._locks.setdefault(key, asyncio.Lock()):
            await asyncio.sleep(0)
            self._settle()
            if key in self._processes:
                return StartResult("already_running", self._record(key))
            before = self._records.get(key)
            self.starts.append(spec)
            self._pid += 10
            run = before.run + 1 if before is not None else 1
            asked = before if before is not None and before.stop_requested else None
            log = f"/state/{spec.cluster}/{spec.rank.replace('/', '.')}/runs/{run}/log"
            record = RankRecord(
                cluster=spec.cluster,
                rank=spec.rank,
                state=ProcessState.RUNNING,
                pid=self._pid,
                keeper=self._pid - 1,
                run=run,
                started=self.wall(),
                by=spec.by,
                stopped_by=asked.stopped_by if asked is not None else "",
                stopped_at=asked.stopped_at if asked is not None else None,
                digest=spec.digest,
                argv=spec.argv,
                env=spec.env,
                api_port=spec.api_port,
                address=spec.address,
                ports=spec.ports,
                devices=spec.devices,
                hbm_before=spec.hbm_before,
                log=log,
                processes=(self._pid, self._pid + 1),
            )
            behaviour = self.behaviour(spec)
            self.append(log, behaviour.log.encode())
            self._processes[key] = Process(record, behaviour, self.clock.monotonic())
            self._records[key] = record
            return StartResult("started", record)

    async def stop(self, cluster: str, rank: str, grace: float, by: str) -> StopResult:
        """End a rank: at once on TERM, or after the grace period."""
        key = (cluster, rank)
        async with self._locks.setdefault(key, asyncio.Lock()):
            self._settle()
            process = self._processes.get(key)
            if process is None:
                record = self._records.get(key)
                if record is None or not record.processes:
                    return StopResult("not_running", False, (), record)
                self._records[key] = replace(record, processes=(), stop_requested=True)
                return StopResult("stopped", True, (), self._records[key])
            process.record = replace(process.record, stopped_by=by, stopped_at=self.wall())
            if process.behaviour.ignores_term:
                await self.clock.sleep(grace)
            self._exit(key, status=-9 if process.behaviour.ignores_term else 0, asked=True)
            return StopResult("stopped", process.behaviour.ignores_term, (), self._records[key])

    def _record(self, key: tuple[str, str]) -> RankRecord:
        process = self._processes.get(key)
        if process is None:
            return self._records[key]
        return process.record if process.keeper else replace(process.record, state=ProcessState.UNKEPT)

    def records(self, cluster: str) -> Sequence[RankRecord]:
        """Return what the rank directories say."""
        self._settle()
        return [self._record(key) for key in self._records if key[0] == cluster]

    def ports(self) -> Sequence[Listener]:
        """Return all listeners: the ready ranks' and the strangers'."""
        self._settle()
        ours = [
            Listener(p.record.address, p.record.api_port, p.record.pid, "vllm serve", f"{cluster}:{rank}")
            for (cluster, rank), p in self._processes.items()
            if self._ready(p)
        ]
        return [*ours, *self.listeners]

    def http(self, port: int, path: str) -> HttpReply:
        """Answer as the API server on a port would."""
        self._settle()
        for process in self._processes.values():
            if process.record.api_port == port and self._ready(process):
                if process.behaviour.health is None:
                    return HttpReply(None, error="timeout")
                if path == "/metrics":
                    return HttpReply(200, process.behaviour.metrics.encode())
                return HttpReply(process.behaviour.health)
        return self.http_replies.get((port, path), HttpReply(None, error="refused"))


class MemoryAgent:
    """Implements `NodeAgent` over a `MemoryNode`, for one link."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.lost = asyncio.Event()

    @property
    def facts(self) -> Facts:
        return Facts(
            1,
            "3.11.4",
            "root",
            0,
            self.node.name,
            f"machine-{self.node.name}",
            "boot",
            self.node.wall(),
            "/state",
            self.node.state_dir_error,
        )

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.node.stuck:
            await self.lost.wait()
        if self.lost.is_set():
            raise AgentLost(f"connection to {self.node.name} lost")

    async def run(self, command: Command) -> Completed:
        await self._answer()
        if self.node.handler is None:
            return Completed(command.argv, None, b"", b"", error="not found", started=self.node.wall())
        return self.node.handler(command)

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        for command in commands:
            yield command, await self.run(command)

    async def start_rank(self, spec: RankSpec) -> StartResult:
        await self._answer()
        return await self.node.start(spec)

    async def stop_rank(self, cluster: str, rank: str, *, grace: float, by: str) -> StopResult:
        await self._answer()
        return await self.node.stop(cluster, rank, grace, by)

    async def ranks(self, cluster: str) -> Sequence[RankRecord]:
        await self._answer()
        return self.node.records(cluster)

    async def ports(self) -> Sequence[Listener]:
        await self._answer()
        return self.node.ports()

    async def processes(self, *, match: Sequence[str], env: Sequence[str] = ()) -> Sequence[ProcessInfo]:
        await self._answer()
        return [
            replace(info, env={name: info.env[name] for name in env if name in info.env})
            for info in self.node.strangers
            if any(part in word for word in info.argv for part in match)
        ]

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
        await self._answer()
        return self.node.http(port, path)

    async def follow(self, path: str, *, offset: int | None = None, tail: int = 65536) -> AsyncIterator[LogChunk]:
        await self._answer()
        if path not in self.node.files:
            raise AgentError(f"no such file: {path}", code="not_found")
        data = self.node.files[path]
        position = max(0, len(data) - tail) if offset is None else offset
        while True:
            if len(data) > position:
                piece = bytes(data[position:])
                yield LogChunk(path, position, piece, position + len(piece), at=self.node.wall())
                position += len(piece)
                continue
            appended = asyncio.ensure_future(self.node._appended.wait())
            lost = asyncio.ensure_future(self.lost.wait())
            try:
                await asyncio.wait((appended, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                appended.cancel()
                lost.cancel()
            if self.lost.is_set():
                raise AgentLost(f"connection to {self.node.name} lost")

    async def read_file(self, path: str, *, limit: int = 1 << 20) -> bytes:
        await self._answer()
        if path not in self.node.files:
            raise AgentError(f"no such file: {path}", code="not_found")
        return bytes(self.node.files[path][:limit])

    async def journal(self, cluster: str, entry: Mapping[str, object]) -> None:
        await self._answer()
        self.node.journal.append(dict(entry))

    async def clock_offset(self) -> float:
        await self._answer()
        return self.node.skew


class MemoryLink:
    """Implements `NodeLink` over a `MemoryNode`."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self._agent: MemoryAgent | None = None
        self._changed = asyncio.Event()
        self._status = LinkStatus(LinkState.CONNECTING, node.clock.wall())
        self.forwards: list[tuple[str, int]] = []

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def status(self) -> LinkStatus:
        return self._status

    @property
    def host_agent(self) -> NodeAgent | None:
        return self._agent

    @property
    def rank_agent(self) -> NodeAgent | None:
        return self._agent

    def refresh(self) -> None:
        """Take over whether the node can be reached."""
        now = self.node.clock.wall()
        if self.node.reachable:
            self._agent = MemoryAgent(self.node)
            self._status = LinkStatus(LinkState.CONNECTED, now)
        else:
            if self._agent is not None:
                self._agent.lost.set()
            self._agent = None
            error = self.node.error or ConnectError(f"{self.name} is unreachable", kind="timeout")
            state = LinkState.FAILED if self.node.error else LinkState.RECONNECTING
            self._status = LinkStatus(state, now, attempt=1, next_try=now + 2, error=error)
        self._changed.set()

    def retry_now(self) -> None:
        if self._agent is None:
            self.refresh()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        if self._agent is None:
            raise ConnectError(f"{self.name} is unreachable", kind="lost")
        self.forwards.append((host, port))
        return host, port

    async def run(self) -> None:
        self.refresh()
        try:
            await asyncio.Event().wait()
        finally:
            if self._agent is not None:
                self._agent.lost.set()
            self._agent = None
