"""The frames between console and agent: requests with ids, answers in parts, pings, and the end of it all.

The wire format is described at the top of `agent`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost
from pdtui.remote import parse
from pdtui.remote.channel import Channel, ExitInfo
from pdtui.remote.failures import remedy_for

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
CLOSE_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class Part:
    """A result (`n` is None) or an item."""

    value: Mapping[str, Any]
    blobs: Mapping[str, bytes]
    n: int | None = None
    last: bool = False
    size: int = 0
    """Bytes that it holds."""


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


class Rpc:
    """One agent's channel from hello to end. `close` must be awaited."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._lost: AgentLost | None = None
        self._gone = asyncio.Event()
        self._heard = self._answered = clock.monotonic()
        self._offsets: deque[tuple[float, float]] = deque(maxlen=12)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]

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
        args = json.dumps(message.get("args", {}), separators=(",", ":")).encode()
        head = {name: value for name, value in message.items() if name != "args"}
        lines = []
        if len(args) > RAW_PIECE:
            for at in range(0, len(args), RAW_PIECE):
                piece = base64.b64encode(args[at : at + RAW_PIECE]).decode()
                lines.append(json.dumps({"id": message["id"], "data": ["args", piece]}).encode())
            lines.append(json.dumps(head).encode())
        else:
            lines.append(json.dumps(head).encode()[:-1] + b',"args":' + args + b"}")
        try:
            for line in lines:
                self._channel.writer.write(line + b"\n")
        except OSError as error:
            self._fail(_said(error))
            raise AgentLost(f"connection lost: {_said(error)}") from error

    def next_id(self) -> int:
        """Return an id that no other request has."""
        return next(self._ids)

    async def parts(self, op: str, *, request: int | None = None, **args: Any) -> AsyncGenerator[Part, None]:
        """Send a request and yield what comes, the result last; leaving early cancels it on the node."""
        request = self.next_id() if request is None else request
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
            self._post({"id": self.next_id(), "op": op, "args": args})

    async def request(self, op: str, **args: Any) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """Send a request and return its result and blobs. Raises `AgentError`, `AgentLost`."""
        stream = self.parts(op, **args)
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

    async def clock_offset(self) -> float:
        """Return how far the node's wall clock is ahead of ours, from the ping with the shortest round trip."""
        if not self._offsets:
            await self._measure()
        return min(self._offsets)[1]


def _said(error: OSError) -> str:
    """Return a system error in the system's words, without its number."""
    return error.strerror or str(error) or type(error).__name__
