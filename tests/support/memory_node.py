"""A server in memory: rank records, processes, ports, HTTP, files. Several consoles may have links to one node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.remote.interface import (
    Execution,
    LinkState,
    LinkStatus,
    NodeAgent,
)
from pdtui.remote.messages.acks import Ack, AckList
from pdtui.remote.messages.commands import (
    Command,
    Completed,
    ExecSpec,
    Facts,
    HttpReply,
    LogChunk,
)
from pdtui.remote.messages.leases import Lease, LeaseClaim, LeaseResult
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import (
    Evidence,
    ProcessState,
    RankRecord,
    RankSpec,
    StartResult,
    StopResult,
    WarmUp,
)
from tests.support.memory_acks import Acks
from tests.support.memory_leases import Leases
from tests.support.memory_ranks import Behaviour, Key, ProcessTable, RankDirectories, Run

__all__ = ["Behaviour", "MemoryAgent", "MemoryLink", "MemoryNode"]

T = TypeVar("T")

LOCK_PATIENCE = 30.0
"""Seconds that an agent waits for a rank's lock."""


@dataclass(slots=True)
class Job:
    """A request as the node has it; given up, it does no more than it must."""

    cancelled: bool = False


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
    completions: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    """Warm-up requests: rank and body."""
    links: list[MemoryLink] = field(default_factory=list)
    stubborn: set[int] = field(default_factory=set)
    """Strangers that ignore TERM."""
    revives: dict[int, ProcessInfo] = field(default_factory=dict)
    """What something starts again when a stranger has ended, by its pid."""
    disk_full: bool = False
    stuck: bool = False
    """The agent answers nothing."""
    delay: float = 0.0
    """Seconds that each request takes to get there."""
    launch_takes: float = 0.0
    """Seconds of a start during which the rank's lock is held."""
    losing: Literal["", "request", "answer"] = ""
    """The next start or stop ends its connection: before it got there, or before its answer came back."""
    disk_error: AgentError | None = None
    """Why no record can be written."""
    on_http: Callable[[Run], None] | None = None
    """Called before a rank answers over HTTP."""

    def __post_init__(self) -> None:
        self.table = ProcessTable()
        self.ranks = RankDirectories(self.table, monotonic=self.clock.monotonic, wall=self.wall)
        self.acks = Acks(wall=self.wall)
        self.leases = Leases(monotonic=self.clock.monotonic, boot=lambda: self.table.boot_id)
        self._locks: dict[Key, asyncio.Lock] = {}
        self._appended = asyncio.Event()
        self._work: set[asyncio.Task[Any]] = set()

    async def stop_tree(self, pid: int, start: int, grace: float) -> StopResult:
        """End a process that was started by hand, with all below it and the ports that they hold."""
        root = next((info for info in self.strangers if (info.pid, info.start) == (pid, start)), None)
        if root is None:
            return StopResult("not_running", False, (), None)
        if pid in self.stubborn:
            await self.clock.sleep(grace)
        gone = {pid, *root.tree}
        self.strangers = [info for info in self.strangers if info.pid not in gone]
        self.listeners = [held for held in self.listeners if held.pid not in gone]
        if pid in self.revives:
            self.strangers.append(self.revives.pop(pid))
        return StopResult("stopped", pid in self.stubborn, (), None)

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
        """End a rank's processes from outside; `leaving` are processes of it that live on, under these pids."""
        key = (cluster, rank)
        self.ranks.settle()
        run, pids = self.ranks.newest(key), self.ranks.pids(key)
        if run is None:
            return
        for pid in leaving:
            parent = run.record.pid or 1
            self.table.add(parent=parent, session=parent, marker=f"{cluster}:{rank}", pid=pid)
        self.ranks.end(run, pids, signal=signal)

    def kill_server(self, cluster: str, rank: str, signal: int = 9) -> None:
        """End a rank's server alone; its engine lives on."""
        self.ranks.settle()
        run = self.ranks.newest((cluster, rank))
        if run is not None and run.record.pid is not None and self.ranks.serves(run):
            self.ranks.end(run, {run.record.pid}, signal=signal)

    def kill_keeper(self, cluster: str, rank: str) -> None:
        """End a rank's keeper; the rank lives on."""
        run = self.ranks.newest((cluster, rank))
        if run is not None and run.record.keeper is not None and self.ranks.is_kept(run):
            self.table.remove({run.record.keeper})

    def reboot(self) -> None:
        """End every process, strangers included; pids begin again. The caller cuts and restores the links."""
        self.table.reboot()
        self.listeners.clear()
        self.strangers.clear()

    def processes_of(self, cluster: str) -> Mapping[str, Sequence[int]]:
        """Return the pids of the ranks of a cluster that have any."""
        self.ranks.settle()
        keys = [key for key in self.ranks.runs if key[0] == cluster]
        return {key[1]: sorted(pids) for key in keys if (pids := self.ranks.pids(key))}

    def set_behaviour(self, cluster: str, rank: str, behaviour: Behaviour) -> None:
        """Change how a running rank behaves from now on."""
        run = self.ranks.newest((cluster, rank))
        assert run is not None
        run.behaviour = behaviour

    def add_record(self, record: RankRecord, behaviour: Behaviour | None = None) -> None:
        """Put a rank directory on the node, or in the place of its last start; with its processes if it runs."""
        key = (record.cluster, record.rank)
        before = self.ranks.newest(key)
        if before is not None and before.record.run == record.run:
            before.record = replace(record, pid=before.record.pid, keeper=before.record.keeper)
            return
        alive = record.state in (ProcessState.RUNNING, ProcessState.UNKEPT)
        run = self.ranks.add(key, record, behaviour or Behaviour(ready_after=0.0), pid=record.pid)
        if record.state is ProcessState.UNKEPT and run.record.keeper is not None:
            self.table.remove({run.record.keeper})
        elif not alive:
            self.ranks.end(run, self.ranks.pids(key), status=record.exit_status, signal=record.exit_signal)
            run.exit = (record.exit_status, record.exit_signal, record.ended or self.wall())
            if record.stop_requested:
                run.stop = (record.stopped_by, record.stopped_at or self.wall())
            for pid in record.processes:
                self.table.add(session=pid, marker=f"{record.cluster}:{record.rank}", pid=pid)

    def append(self, path: str, data: bytes) -> None:
        """Write to a file; followers see it."""
        self.files.setdefault(path, bytearray()).extend(data)
        self._appended.set()
        self._appended = asyncio.Event()

    def wall(self) -> float:
        """Return the node's clock."""
        return self.clock.wall() + self.skew

    @property
    def locked(self) -> Sequence[Key]:
        """Ranks whose lock somebody holds."""
        return [key for key, lock in self._locks.items() if lock.locked()]

    def _ready(self, run: Run) -> bool:
        return self.ranks.serves(run) and self.clock.monotonic() - run.born >= run.behaviour.ready_after

    def _of(self, cluster: str, rank: str) -> RankRecord:
        view = self.ranks.view((cluster, rank))
        assert view is not None
        return view

    async def work(self, job: Coroutine[Any, Any, T]) -> T:
        """Do what goes on to its end on the node, whoever still waits for it."""
        task = asyncio.ensure_future(job)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def _lock(self, key: Key, job: Job) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        until = self.clock.monotonic() + LOCK_PATIENCE
        while lock.locked():
            if job.cancelled or self.clock.monotonic() > until:
                raise AgentError(f"rank {key[1]} is in use by another console", code="locked")
            await self.clock.sleep(0.02)
        async with lock:
            yield

    async def start(self, spec: RankSpec, job: Job) -> StartResult:
        """Start a rank unless any process of it lives, under the rank's lock."""
        key = (spec.cluster, spec.rank)
        if self.state_dir_error:
            raise AgentError(self.state_dir_error, code="no_state_dir")
        async with self._lock(key, job):
            self.leases.check(spec.cluster, spec.lease)
            self.ranks.settle()
            view = self.ranks.view(key)
            if view is not None and view.processes:
                return StartResult("already_running", view)
            if self.launch_takes:
                await self.clock.sleep(self.launch_takes)
            self.starts.append(spec)
            before = self.ranks.newest(key)
            number = before.record.run + 1 if before is not None else 1
            log = f"/state/{spec.cluster}/{spec.rank.replace('/', '.')}/runs/{number}/log"
            record = RankRecord(
                cluster=spec.cluster,
                rank=spec.rank,
                state=ProcessState.RUNNING,
                run=number,
                started=self.wall(),
                by=spec.by,
                digest=spec.digest,
                argv=spec.argv,
                env=spec.env,
                api_port=spec.api_port,
                address=spec.address,
                ports=spec.ports,
                devices=spec.devices,
                hbm_before=spec.hbm_before,
                log=log,
            )
            behaviour = self.behaviour(spec)
            self.append(log, behaviour.log.encode())
            self.ranks.add(key, record, behaviour)
            return StartResult("started", self._of(*key))

    async def stop(
        self, cluster: str, rank: str, grace: float, by: str, job: Job, *, lease: str = ""
    ) -> StopResult:
        """TERM to every process of a rank, KILL after the grace period; the lock is held for the TERM only."""
        key = (cluster, rank)
        async with self._lock(key, job):
            self.leases.check(cluster, lease)
            self.ranks.settle()
            run, view = self.ranks.newest(key), self.ranks.view(key)
            if view is None or not view.processes:
                return StopResult("not_running", False, (), view)
            if run is not None:
                run.stop = (by, self.wall())
            self._tell(key)
        begin, killed, pause = self.clock.monotonic(), False, 0.02
        while not job.cancelled:
            self.ranks.settle()
            now = self.ranks.newest(key)
            pids = self.ranks.pids(key)
            if now is not run or not (pids or (run is not None and self.ranks.is_kept(run))):
                return StopResult("stopped", killed, (), self.ranks.view(key))
            late = self.clock.monotonic() - begin - grace
            if late > 15:
                return StopResult("still_running", killed, tuple(sorted(pids)), self.ranks.view(key))
            if late > 0 and pids:
                killed = True
                if run is not None:
                    self.ranks.end(run, pids, signal=9)
                else:
                    self.table.remove(pids)
                continue
            self._tell(key)
            await self.clock.sleep(pause)
            pause = min(0.25, pause * 1.5)
        raise AgentError("the stop was cancelled", code="cancelled")

    def _tell(self, key: Key) -> None:
        """Send TERM: a server ends when its behaviour says so, what it has left behind at once."""
        run = self.ranks.newest(key)
        if run is None:
            self.table.remove(self.ranks.pids(key))
        elif not self.ranks.serves(run):
            self.ranks.end(run, self.ranks.pids(key))
        elif run.told is None:
            run.told = self.clock.monotonic()
            self.ranks.settle()

    async def warm_up(self, record: RankRecord, body: Mapping[str, object]) -> WarmUp:
        """Answer a completion as a rank would, and keep the result with its run."""
        run = self.ranks.newest((record.cluster, record.rank))
        if run is None or run.record.run != record.run:
            raise AgentError("it was started again meanwhile", code="conflict")
        self.completions.append((record.rank, body))
        run.record = replace(run.record, warm_up=WarmUp("running", at=self.wall()))
        await self.clock.sleep(run.behaviour.warm_up_takes)
        result = replace(run.behaviour.warm_up, at=self.wall())
        run.record = replace(run.record, warm_up=result)
        return result

    def save_evidence(self, cluster: str, rank: str, stamp: str, files: Mapping[str, str]) -> Evidence:
        """Keep texts beside the newest run."""
        if self.disk_full:
            raise AgentError("less than 256 MiB are free", code="no_space")
        run = self.ranks.newest((cluster, rank))
        assert run is not None
        folder = f"{run.record.log.removesuffix('/log')}/evidence/{stamp}"
        for name, text in files.items():
            self.files[f"{folder}/{name}"] = bytearray(text.encode())
        run.record = replace(run.record, evidence=folder)
        return Evidence(folder)

    def records(self, cluster: str) -> Sequence[RankRecord]:
        """Return what the rank directories and the process table say."""
        self.ranks.settle()
        keys = [key for key in self.ranks.runs if key[0] == cluster]
        views = [self.ranks.view(key) for key in keys]
        return [view for view in views if view is not None]

    def ports(self) -> Sequence[Listener]:
        """Return all listeners: the ready ranks', their engines' and the strangers'."""
        self.ranks.settle()
        ours: list[Listener] = []
        for (cluster, rank), runs in self.ranks.runs.items():
            run, tag = runs[-1], f"{cluster}:{rank}"
            record = run.record
            if self._ready(run):
                ours.append(Listener(record.address, record.api_port, record.pid, "vllm serve", tag))
        ours.extend(
            Listener("0.0.0.0", port, process.pid, "VLLM::EngineCore", process.marker)
            for process in self.table.by_pid.values()
            for port in process.ports
        )
        return [*ours, *self.listeners]

    def http(self, port: int, path: str) -> HttpReply:
        """Answer as the API server on a port would."""
        self.ranks.settle()
        for runs in self.ranks.runs.values():
            run = runs[-1]
            if run.record.api_port == port and self._ready(run):
                if self.on_http is not None:
                    self.on_http(run)
                if run.behaviour.health is None:
                    return HttpReply(None, error="timeout")
                if path == "/metrics":
                    return HttpReply(200, run.behaviour.metrics.encode())
                return HttpReply(run.behaviour.health)
        return self.http_replies.get((port, path), HttpReply(None, error="refused"))


class MemoryAgent:
    """Implements `NodeAgent` over a `MemoryNode`, for one link."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self.lost = asyncio.Event()
        self.jobs: list[Job] = []

    @property
    def facts(self) -> Facts:
        return Facts(
            1,
            "3.11.4",
            "root",
            0,
            self.node.name,
            f"machine-{self.node.name}",
            self.node.table.boot_id,
            self.node.wall(),
            "/state",
            self.node.state_dir_error,
        )

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.node.delay:
            await self.node.clock.sleep(self.node.delay)
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
        return await self._act(lambda job: self.node.start(spec, job))

    async def stop_rank(self, cluster: str, rank: str, *, grace: float, by: str, lease: str = "") -> StopResult:
        return await self._act(lambda job: self.node.stop(cluster, rank, grace, by, job, lease=lease))

    async def _act(self, do: Callable[[Job], Coroutine[Any, Any, T]]) -> T:
        """Do something on the node that goes on when its answer is no longer wanted, or cannot come back."""
        await self._answer()
        losing, self.node.losing = self.node.losing, ""
        if losing == "request":
            self.lose()
            raise AgentLost(f"connection to {self.node.name} lost")
        job = Job()
        self.jobs.append(job)
        work = asyncio.ensure_future(self.node.work(do(job)))
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
            if losing == "answer":
                self.lose()
            if self.lost.is_set():
                raise AgentLost(f"connection to {self.node.name} lost")
            return work.result()
        finally:
            job.cancelled = True
            self.jobs.remove(job)
            lost.cancel()
            work.add_done_callback(lambda done: done.cancelled() or done.exception())

    def lose(self) -> None:
        """End this connection; the agent on the node goes with it."""
        for link in self.node.links:
            if link.host_agent is self:
                link.drop()
        self.end()

    def end(self) -> None:
        """Be gone: what is asked and what is out fails."""
        self.lost.set()
        for job in self.jobs:
            job.cancelled = True

    async def ranks(self, cluster: str) -> Sequence[RankRecord]:
        await self._answer()
        return self.node.records(cluster)

    async def check_state(self) -> None:
        await self._answer()
        if self.node.disk_error is not None:
            raise self.node.disk_error

    async def ports(self) -> Sequence[Listener]:
        await self._answer()
        return self.node.ports()

    async def processes(
        self,
        *,
        match: Sequence[str],
        env: Sequence[str] = (),
        pids: Sequence[int] = (),
        known: Sequence[tuple[int, int]] = (),
        skip: str = "",
    ) -> Sequence[ProcessInfo]:
        await self._answer()
        found = [
            info
            for info in self.node.strangers
            if info.pid in pids
            or (
                any(part in word for word in info.argv for part in match)
                and not (skip and info.rank.startswith(skip))
            )
        ]
        return [
            replace(info, argv=(), env={}, user="", brief=True)
            if (info.pid, info.start) in known
            else replace(info, env={name: info.env[name] for name in env if name in info.env})
            for info in found
        ]

    async def stop_tree(self, cluster: str, pid: int, start: int, *, grace: float, lease: str = "") -> StopResult:
        await self._answer()
        if lease:
            self.node.leases.check(cluster, lease)
        return await self.node.stop_tree(pid, start, grace)

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

    async def warm_up(self, record: RankRecord, body: Mapping[str, object], *, timeout: float, by: str) -> WarmUp:
        return await self._act(lambda _: self.node.warm_up(record, body))

    async def save_evidence(
        self, cluster: str, rank: str, *, stamp: str, files: Mapping[str, str], collect: bool
    ) -> Evidence:
        await self._answer()
        return self.node.save_evidence(cluster, rank, stamp, files)

    async def follow(
        self, path: str, *, offset: int | None = None, tail: int = 65536, mark: bool = False
    ) -> AsyncIterator[LogChunk]:
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
            if mark:
                mark = False
                yield LogChunk(path, position, b"", position, at=self.node.wall())
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
        self.node.journal.append(dict(entry, received=self.node.wall()))

    async def journal_tail(self, cluster: str, *, limit: int = 1 << 20) -> bytes:
        await self._answer()
        lines = "".join(json.dumps(entry) + "\n" for entry in self.node.journal)
        return lines.encode()[-limit:]

    async def leases(self, cluster: str) -> Sequence[Lease]:
        await self._answer()
        return self.node.leases.list(cluster)

    async def take_lease(
        self, cluster: str, claim: LeaseClaim, *, ttl: float, breaks: Sequence[str] = (), reason: str = ""
    ) -> LeaseResult:
        await self._answer()
        return self.node.leases.take(cluster, claim, ttl, breaks, reason)

    async def release_lease(self, cluster: str, lease: str) -> None:
        await self._answer()
        self.node.leases.release(cluster, lease)

    async def acks(self, cluster: str, *, unless: str = "") -> AckList:
        await self._answer()
        return self.node.acks.list(cluster, unless)

    async def put_acks(self, cluster: str, acks: Sequence[Ack]) -> AckList:
        await self._answer()
        return self.node.acks.put(cluster, acks)

    def execute(self, spec: ExecSpec) -> Execution:
        raise AgentError("no processes in memory", code="system")

    async def clock_offset(self) -> float:
        await self._answer()
        return self.node.skew


class MemoryLink:
    """Implements `NodeLink` over a `MemoryNode`."""

    def __init__(self, node: MemoryNode) -> None:
        self.node = node
        self._agent: MemoryAgent | None = None
        self._changed = asyncio.Event()
        self._dropped = asyncio.Event()
        self._running = False
        self.blocked = False
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
        if self.node.reachable and not self.blocked:
            self._agent = MemoryAgent(self.node)
            self._status = LinkStatus(LinkState.CONNECTED, now)
        else:
            self._lose_agent()
            error = self.node.error or ConnectError(f"{self.name} is unreachable", kind="timeout")
            state = LinkState.FAILED if self.node.error else LinkState.RECONNECTING
            self._status = LinkStatus(state, now, attempt=1, next_try=now + 2, error=error)
        self._changed.set()

    def block(self, blocked: bool) -> None:
        """Make the node unreachable over this connection alone, or reachable again."""
        self.blocked = blocked
        if self._running:
            self.refresh()

    def drop(self) -> None:
        """Lose the connection; it comes back by itself after a second."""
        self._lose_agent()
        now = self.node.clock.wall()
        error = ConnectError(f"connection to {self.name} lost", kind="lost")
        self._status = LinkStatus(LinkState.RECONNECTING, now, attempt=1, next_try=now + 1, error=error)
        self._changed.set()
        self._dropped.set()

    def _lose_agent(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.end()

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
        self._running = True
        self.refresh()
        try:
            while True:
                await self._dropped.wait()
                self._dropped.clear()
                await self.node.clock.sleep(1.0)
                if self._agent is None:
                    self.refresh()
        finally:
            self._running = False
            self._lose_agent()
