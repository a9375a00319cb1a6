"""The console's side of an agent: how it is started, and what it can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import AgentLost, ConnectError
from pdtui.remote import parse
from pdtui.remote.channel import Channel, Transport
from pdtui.remote.execution import AgentExecution
from pdtui.remote.failures import bootstrap_failure
from pdtui.remote.interface import Execution
from pdtui.remote.loader import bootstrap, read_hello
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
    RankRecord,
    RankSpec,
    StartResult,
    StopResult,
    WarmUp,
)
from pdtui.remote.rpc import Rpc

HELLO_TIMEOUT = 30.0


class AgentClient:
    """Implements `NodeAgent` over a channel. Made by `connect`; `close` must be awaited."""

    def __init__(self, channel: Channel, facts: Facts, clock: Clock) -> None:
        self._rpc = Rpc(channel, clock)
        self._facts = facts

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
        return self._rpc.lost

    async def ended(self) -> AgentLost:
        """Wait until the connection ends; return why."""
        return await self._rpc.ended()

    async def close(self) -> None:
        """End the agent and wait a little for it; requests that are out raise `AgentLost`."""
        await self._rpc.close()

    async def request(self, op: str, **args: Any) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Send a request and return its result and blobs. Raises `AgentError`, `AgentLost`."""
        return await self._rpc.request(op, **args)

    async def run(self, command: Command) -> Completed:
        """Run one command."""
        value, blobs = await self.request("run", **_wire(command))
        return parse.completed(command, value, blobs)

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        """Run many commands, one at a time per device; yield each when it is done."""
        wire = [_wire(command) for command in commands]
        stream = self._rpc.parts("batch", commands=wire, parallel=parallel)
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

    async def follow(
        self, path: str, *, offset: int | None = None, tail: int = 65536, mark: bool = False
    ) -> AsyncIterator[LogChunk]:
        """Follow a file; one that does not exist yet is waited for."""
        stream = self._rpc.parts("follow", path=path, offset=offset, tail=tail, mark=mark)
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

    async def acks(self, cluster: str, *, unless: str = "") -> AckList:
        """Return the acknowledgements that the node has; none when it has still those with digest `unless`."""
        value, _ = await self.request("acknowledged", cluster=cluster, unless=unless)
        return parse.ack_list(value)

    async def put_acks(self, cluster: str, acks: Sequence[Ack]) -> AckList:
        """Hand over acknowledgements; the node keeps the newest of each trouble, and returns what it has."""
        entries = [
            {
                "key": one.key,
                "id": one.id,
                "reason": one.reason,
                "by": one.by,
                "from": one.origin,
                "age": one.age,
                "left": one.left,
                "removed": one.removed,
            }
            for one in acks
        ]
        value, _ = await self.request("acknowledge", cluster=cluster, acks=entries)
        return parse.ack_list(value)

    def execute(self, spec: ExecSpec) -> Execution:
        """Return a command that starts when its output is asked for."""
        request = self._rpc.next_id()
        size = list(spec.tty) if spec.tty is not None else None
        stream = self._rpc.parts("exec", request=request, argv=list(spec.argv), env=dict(spec.env), tty=size)
        return AgentExecution(request, stream, self._rpc.request)

    async def clock_offset(self) -> float:
        """Return how far the node's wall clock is ahead of ours, from the ping with the shortest round trip."""
        return await self._rpc.clock_offset()


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
