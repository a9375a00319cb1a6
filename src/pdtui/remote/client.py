"""The console's side of an agent: requests with ids, answers from frames, pings, and the end of it all.

The wire format is described at the top of `agent`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.remote import parse
from pdtui.remote.channel import Channel, ExitInfo, Transport
from pdtui.remote.execution import AgentExecution, Part
from pdtui.remote.failures import bootstrap_failure, remedy_for
from pdtui.remote.interface import Execution
from pdtui.remote.loader import bootstrap, read_hello
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
    RankRecord,
    RankSpec,
    StartResult,
    StopResult,
    WarmUp,
)

FRAME = 65536
RAW_PIECE = 45000
BUFFER_LIMIT = 4 * FRAME
"""Bytes without a newline after which the far end is no agent any more."""
BLOB_LIMIT = 64 << 20
"""Bytes of one request that wait to be complete or to be taken; the agent's own limits are far below."""
PART_LIMIT = 10_000
"""Items of one request that wait to be taken."""
PING_EVERY = 5.0
LOST_AFTER = 15.0
"""Seconds without a byte, although a ping is out."""
DEAF_AFTER = 60.0
"""Seconds without an answer to a ping, whatever else comes: on a slow link bulk may be ahead of it."""
JUMP = 1.0
"""Seconds by which two measured offsets of a clock differ when one of the clocks was set."""
HELLO_TIMEOUT = 30.0
CLOSE_TIMEOUT = 3.0


@dataclass(slots=True)
class _Pending:
    """One request that is out."""

    parts: asyncio.Queue[Part | Exception] = field(default_factory=asyncio.Queue)
    blobs: dict[str, bytearray] = field(default_factory=dict)
    size: int = 0

    def hold(self, size: int) -> None:
        """Count bytes that wait. Raises ValueError when they become too many."""
        self.size += size
        if self.size > BLOB_LIMIT:
            raise ValueError("an answer is too large")

    def add(self, name: str, data: bytes) -> None:
        """Collect a piece of a blob. Raises ValueError when it becomes too much."""
        self.hold(len(data))
        self.blobs.setdefault(name, bytearray()).extend(data)

    def take(self, n: int | None) -> dict[str, bytes]:
        """Return the blobs of the result or of item `n`."""
        prefix = "" if n is None else f"{n}."
        names = [name for name in self.blobs if name.startswith(prefix)]
        taken = {name[len(prefix) :]: bytes(self.blobs.pop(name)) for name in names}
        self.size -= sum(map(len, taken.values()))
        return taken


class AgentClient:
    """Implements `NodeAgent` over a channel. Made by `connect`; `close` must be awaited."""

    def __init__(self, channel: Channel, facts: Facts, clock: Clock) -> None:
        self._channel = channel
        self._facts = facts
        self._clock = clock
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._lost: AgentLost | None = None
        self._gone = asyncio.Event()
        self._heard = self._answered = clock.monotonic()
        self._offsets: deque[tuple[float, float]] = deque(maxlen=12)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]

    @classmethod
    async def connect(
        cls,
        transport: Transport,
        *,
        clock: Clock,
        prefix: Sequence[str] = (),
        state_dir: str | None = None,
        machine: str = "",
        user: str = "",
        python: str = "python3",
    ) -> AgentClient:
        """Start an agent behind `prefix` and return its client. Raises `ConnectError`.

        `machine` is what the machine around a container is called, `user` who logs in.
        """
        boot = bootstrap(prefix=prefix, state_dir=state_dir, machine=machine, python=python)
        channel = await transport.open(boot.argv)
        try:
            async with clock.timeout(HELLO_TIMEOUT):
                facts = await _hello(channel, boot.payload, boot.nonce)
                if facts is None:
                    raise bootstrap_failure(await asyncio.shield(channel.closed), prefix, user)
        except TimeoutError:
            channel.writer.close()
            raise ConnectError(
                f"no agent within {HELLO_TIMEOUT:.0f} s: the node's shell or python3 hangs",
                kind="timeout",
                remedy="look whether a start-up file of its shell (~/.bashrc) waits, or reads its input",
            ) from None
        except BaseException:
            channel.writer.close()
            raise
        return cls(channel, facts, clock)

    @property
    def facts(self) -> Facts:
        """What the agent said when it started."""
        return self._facts

    @property
    def lost(self) -> AgentLost | None:
        """Why the connection ended; None while it is up."""
        return self._lost

    async def ended(self) -> AgentLost:
        """Wait until the connection ends; return why."""
        await self._gone.wait()
        assert self._lost is not None  # noqa: S101
        return self._lost

    async def close(self) -> None:
        """End the agent and wait a little for it; requests that are out raise `AgentLost`."""
        self._fail("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with self._clock.timeout(CLOSE_TIMEOUT):
                await asyncio.shield(self._channel.closed)
        except TimeoutError:
            return

    # ---- frames

    def _fail(self, reason: str) -> None:
        """End once: every request that is out raises `AgentLost`."""
        if self._lost is not None:
            return
        self._lost = AgentLost(f"connection lost: {reason}")
        for pending in self._pending.values():
            pending.parts.put_nowait(AgentLost(self._lost.message))
        self._channel.writer.close()
        self._gone.set()

    async def _receive(self) -> None:
        """Read frames until the end."""
        buffer = bytearray()
        reason = "ended by the other side"
        try:
            while True:
                data = await self._channel.reader.read(FRAME)
                if not data:
                    break
                self._heard = self._clock.monotonic()
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                if len(buffer) > BUFFER_LIMIT:
                    raise ValueError("a line without end")
                for line in lines:
                    self._take(bytes(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"what came is not from an agent ({type(error).__name__})"
        except OSError as error:
            reason = _said(error)
        else:
            reason = await self._last_words() or reason
        self._fail(reason)

    async def _last_words(self) -> str:
        """Return what the far end said on stderr before it ended, else how it ended."""
        try:
            async with self._clock.timeout(1.0):
                info: ExitInfo = await asyncio.shield(self._channel.closed)
        except TimeoutError:
            return ""
        lines = info.stderr.strip().splitlines()
        if lines:
            return lines[-1]
        return f"the agent there was killed (SIG{info.signal.removeprefix('SIG')})" if info.signal else ""

    def _take(self, line: bytes) -> None:
        """Sort one frame to its request; frames of requests that were given up are dropped."""
        if not line:
            return
        frame = json.loads(line)
        pending = self._pending.get(frame["id"])
        if pending is None:
            return
        if "data" in frame:
            name, piece = frame["data"]
            pending.add(str(name), base64.b64decode(piece, validate=True))
        elif "error" in frame:
            error = parse.table(frame["error"])
            code = parse.text(error.get("code"))
            pending.parts.put_nowait(
                AgentError(parse.text(error.get("message")), code=code, remedy=remedy_for(code))
            )
        else:
            n = parse.whole(frame.get("n"))
            blobs = pending.take(n)
            size = len(line) + sum(map(len, blobs.values()))
            pending.hold(len(line))
            value = frame.get("ok", frame.get("item"))
            if "json" in blobs:
                value = json.loads(blobs.pop("json"))
            if not isinstance(value, dict):
                raise TypeError("a result must be an object")
            if "b64" in value:
                blobs["data"] = base64.b64decode(value["b64"], validate=True)
            if pending.parts.qsize() > PART_LIMIT:
                raise ValueError("an answer has too many parts")
            pending.parts.put_nowait(Part(value, blobs, n, "ok" in frame, size))

    def _post(self, message: Mapping[str, Any]) -> None:
        """Send one message, in several frames when it is large. Raises `AgentLost`."""
        if self._lost is not None:
            raise AgentLost(self._lost.message)
        frames = [message]
        args = json.dumps(message.get("args", {})).encode()
        if len(args) > RAW_PIECE:
            pieces = [args[at : at + RAW_PIECE] for at in range(0, len(args), RAW_PIECE)]
            frames = [{"id": message["id"], "data": ["args", base64.b64encode(p).decode()]} for p in pieces]
            frames.append({"id": message["id"], "op": message["op"]})
        try:
            for frame in frames:
                self._channel.writer.write(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._fail(_said(error))
            raise AgentLost(f"connection lost: {_said(error)}") from error

    async def _parts(self, op: str, *, request: int | None = None, **args: Any) -> AsyncGenerator[Part, None]:
        """Send a request and yield what comes, the result last; leaving early cancels it on the node."""
        request = next(self._ids) if request is None else request
        pending = self._pending[request] = _Pending()
        done = False
        try:
            self._post({"id": request, "op": op, "args": args})
            while not done:
                part = await pending.parts.get()
                if isinstance(part, Exception):
                    done = True
                    raise part
                done = part.last
                pending.size -= part.size
                yield part
                if op in ("follow", "exec") and not done:
                    self._post_quietly("ack", target=request, bytes=len(part.blobs.get("data", b"")))
        finally:
            del self._pending[request]
            if not done:
                self._post_quietly("cancel", target=request)

    def _post_quietly(self, op: str, **args: Any) -> None:
        """Send what needs no answer; on a connection that has ended there is nobody to tell."""
        if self._lost is None:
            self._post({"id": next(self._ids), "op": op, "args": args})

    async def request(self, op: str, **args: Any) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Send a request and return its result and blobs. Raises `AgentError`, `AgentLost`."""
        stream = self._parts(op, **args)
        try:
            async for part in stream:
                if part.last:
                    return part.value, part.blobs
        finally:
            await stream.aclose()
        raise AgentLost("the agent ended a request without a result")

    async def _keep_alive(self) -> None:
        """Ping; an agent from which nothing comes any more is lost, whatever TCP says."""
        while self._lost is None:
            try:
                async with self._clock.timeout(LOST_AFTER):
                    await self._measure()
            except TimeoutError:
                now = self._clock.monotonic()
                if now - self._heard >= LOST_AFTER - 1 or now - self._answered >= DEAF_AFTER:
                    self._fail(f"no answer for {now - self._answered:.0f} s")
            except AgentError:
                self._answered = self._clock.monotonic()  # odd, but it lives
            except AgentLost:
                return
            await self._clock.sleep(PING_EVERY)

    async def _measure(self) -> None:
        """Ping once and note round trip and offset of the node's clock."""
        begin, begin_wall = self._clock.monotonic(), self._clock.wall()
        value, _ = await self.request("ping")
        self._answered = self._clock.monotonic()
        trip = self._answered - begin
        offset = parse.real(value.get("wall")) - (begin_wall + trip / 2)
        if any(abs(offset - known) > JUMP + (trip + took) / 2 for took, known in self._offsets):
            self._offsets.clear()  # a clock was set: what was measured before is wrong now
        self._offsets.append((trip, offset))

    # ---- requests

    async def run(self, command: Command) -> Completed:
        """Run one command."""
        value, blobs = await self.request("run", **_wire(command))
        return parse.completed(command, value, blobs)

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        """Run many commands, one at a time per device; yield each when it is done."""
        wire = [_wire(command) for command in commands]
        stream = self._parts("batch", commands=wire, parallel=parallel)
        try:
            async for part in stream:
                if part.n is not None and 0 <= part.n < len(commands):
                    command = commands[part.n]
                    yield command, parse.completed(command, part.value, part.blobs)
        finally:
            await stream.aclose()

    async def start_rank(self, spec: RankSpec) -> StartResult:
        """Start a rank under a keeper, unless any process of it lives."""
        value, _ = await self.request("start", spec=asdict(spec))
        return parse.start_result(value)

    async def stop_rank(self, cluster: str, rank: str, *, grace: float, by: str, lease: str = "") -> StopResult:
        """TERM to every process of a rank, KILL after `grace` seconds; returns when they are gone."""
        value, _ = await self.request("stop", cluster=cluster, rank=rank, grace=grace, by=by, lease=lease)
        return parse.stop_result(value)

    async def ranks(self, cluster: str) -> Sequence[RankRecord]:
        """Return what the rank directories of a cluster say."""
        value, _ = await self.request("ranks", cluster=cluster)
        return [parse.rank_record(raw) for raw in _objects(value, "ranks")]

    async def check_state(self) -> None:
        """Return if the folder for records takes a start. Raises `AgentError` that says why it does not."""
        await self.request("check")

    async def ports(self) -> Sequence[Listener]:
        """Return the listening TCP ports."""
        value, _ = await self.request("ports")
        return [parse.listener(raw) for raw in _objects(value, "ports")]

    async def processes(
        self,
        *,
        match: Sequence[str],
        env: Sequence[str] = (),
        pids: Sequence[int] = (),
        known: Sequence[tuple[int, int]] = (),
        skip: str = "",
    ) -> Sequence[ProcessInfo]:
        """Return processes one of whose words contains one of `match`, and those of `pids`."""
        value, _ = await self.request(
            "processes", match=list(match), env=list(env), pids=list(pids), known=list(known), skip=skip
        )
        return [parse.process(raw) for raw in _objects(value, "processes")]

    async def stop_tree(self, cluster: str, pid: int, start: int, *, grace: float, lease: str = "") -> StopResult:
        """TERM to a process and all below it, KILL after `grace` seconds; returns when they are gone."""
        boot = self.facts.boot_id
        value, _ = await self.request(
            "stop_tree", cluster=cluster, pid=pid, start=start, grace=grace, boot=boot, lease=lease
        )
        return parse.stop_result(value)

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
        """GET from a port on the node. `keep` filters samples by exact metric name, or by `prefix*`."""
        value, blobs = await self.request(
            "http", host=host, port=port, path=path, timeout=timeout, keep=list(keep), limit=limit
        )
        return parse.http_reply(value, blobs)

    async def warm_up(self, record: RankRecord, body: Mapping[str, object], *, timeout: float, by: str) -> WarmUp:
        """POST a completion to a rank and keep the result with its run."""
        value, _ = await self.request(
            "warm_up",
            cluster=record.cluster,
            rank=record.rank,
            run=record.run,
            host=record.address,
            port=record.api_port,
            body=dict(body),
            timeout=timeout,
            by=by,
        )
        return parse.warm_up(value) or WarmUp("failed", error="its agent gave no result")

    async def save_evidence(
        self, cluster: str, rank: str, *, stamp: str, files: Mapping[str, str], collect: bool
    ) -> Evidence:
        """Keep texts beside a rank's newest run; `collect` adds the ends of its logs."""
        value, _ = await self.request(
            "evidence", cluster=cluster, rank=rank, stamp=stamp, files=dict(files), collect=collect
        )
        return Evidence(parse.text(value.get("folder")), parse.texts(value.get("errors")))

    async def follow(self, path: str, *, offset: int | None = None, tail: int = 65536) -> AsyncIterator[LogChunk]:
        """Follow a file; one that does not exist yet is waited for."""
        stream = self._parts("follow", path=path, offset=offset, tail=tail)
        try:
            async for part in stream:
                if not part.last:
                    yield parse.log_chunk(path, part.value, part.blobs.get("data", b""))
        finally:
            await stream.aclose()

    async def read_file(self, path: str, *, limit: int = 1 << 20) -> bytes:
        """Return a file's bytes. Raises `AgentError` with code `not_found` or `permission`."""
        _, blobs = await self.request("read", path=path, limit=limit)
        return blobs.get("data", b"")

    async def journal(self, cluster: str, entry: Mapping[str, object]) -> None:
        """Append one entry to the cluster's journal on the node."""
        await self.request("journal", cluster=cluster, entry=dict(entry))

    async def journal_tail(self, cluster: str, *, limit: int = 1 << 20) -> bytes:
        """Return the last bytes of the cluster's journal on the node."""
        _, blobs = await self.request("journal_tail", cluster=cluster, limit=limit)
        return blobs.get("data", b"")

    async def leases(self, cluster: str) -> Sequence[Lease]:
        """Return the leases that are held on the node."""
        value, _ = await self.request("leases", cluster=cluster)
        return [parse.lease(raw) for raw in _objects(value, "leases")]

    async def take_lease(
        self, cluster: str, claim: LeaseClaim, *, ttl: float, breaks: Sequence[str] = (), reason: str = ""
    ) -> LeaseResult:
        """Take a lease for `ttl` seconds, or renew it; `breaks` are ids of others' that it may end."""
        lease = {
            "holder": claim.holder,
            "by": claim.by,
            "from": claim.origin,
            "verb": claim.verb,
            "what": claim.what,
            "ranks": list(claim.ranks),
        }
        value, _ = await self.request(
            "lease", cluster=cluster, id=claim.id, lease=lease, ttl=ttl, breaks=list(breaks), reason=reason
        )
        return parse.lease_result(value)

    async def release_lease(self, cluster: str, lease: str) -> None:
        """Give a lease back."""
        await self.request("unlease", cluster=cluster, id=lease)

    def execute(self, spec: ExecSpec) -> Execution:
        """Return a command that starts when its output is asked for."""
        request = next(self._ids)
        size = list(spec.tty) if spec.tty is not None else None
        stream = self._parts("exec", request=request, argv=list(spec.argv), env=dict(spec.env), tty=size)
        return AgentExecution(request, stream, self.request)

    async def clock_offset(self) -> float:
        """Return how far the node's wall clock is ahead of ours, from the ping with the shortest round trip."""
        if not self._offsets:
            await self._measure()
        return min(self._offsets)[1]


def _wire(command: Command) -> dict[str, Any]:
    """Return a command as the agent takes it."""
    return {
        "argv": list(command.argv),
        "timeout": command.timeout,
        "device": command.device,
        "env": dict(command.env),
        "limit": command.limit,
        "max_age": command.max_age,
    }


def _objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects of a list in a result."""
    found = value.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


async def _hello(channel: Channel, payload: bytes, nonce: str) -> Facts | None:
    """Send the agent and read its first line; None when the process ended before."""
    try:
        channel.writer.write(payload)
        await channel.writer.drain()
    except OSError:
        return None  # it ended without reading all: how, says the exit
    return await read_hello(channel.reader, nonce)


def _said(error: OSError) -> str:
    """Return a system error in the system's words, without its number."""
    return error.strerror or str(error) or type(error).__name__
