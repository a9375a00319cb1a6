"""The process side of a simulated node: its first process, and what is started through it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.folder import python

Isolation = Literal["namespace", "plain"]

_SCRIPT = Path(__file__).resolve().parent / "node_init.py"
_SECONDS_TO_START = 20.0
_SECONDS_TO_END = 20.0


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process on the node."""

    number: int
    pid: int
    """As the node sees it."""
    ended: asyncio.Future[int]
    """Exit status; -N when signal N ended it."""


class NodeProcesses:
    """Starts processes on a node and ends all of them.

    `isolation` says what came of the wish for an own pid namespace: `plain` where the kernel refuses it.
    """

    def __init__(
        self, folder: Path, hostname: str, *, clock: Clock, shared_state: Path, isolate: bool = True
    ) -> None:
        self._folder = folder
        self._shared_state = shared_state
        self._hostname = hostname
        self._clock = clock
        self._isolate = isolate
        self.isolation: Isolation = "namespace" if isolate else "plain"
        self.refused = ""
        """Why there is no own pid namespace."""
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._started: dict[int, asyncio.Future[int]] = {}
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[str] | None = None

    @property
    def pid(self) -> int:
        """Pid on this machine of the process that stands for the node."""
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start the node's first process. Raises `SimulationError`."""
        if self._isolate:
            self.refused = await self._start("namespace")
            if not self.refused:
                return
            await self.close()
        self.isolation = "plain"
        problem = await self._start("plain")
        if problem:
            raise SimulationError(f"the processes of a simulated node cannot be started: {problem}")

    async def _start(self, mode: Isolation) -> str:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        with theirs, (self._folder / "run" / "init.log").open("ab") as log:
            argv = [python(), "-I", "-S", str(_SCRIPT), str(theirs.fileno()), mode]
            argv += [self._hostname, str(self._folder), str(self._shared_state)]
            # Returns at once; asyncio's own subprocesses would need a child watcher on every loop.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                argv,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.defpath},
                cwd="/",
            )
        self._socket = ours
        loop.add_reader(ours, self._readable)
        try:
            async with self._clock.timeout(_SECONDS_TO_START):
                return await self._ready
        except TimeoutError:
            return f"no answer within {_SECONDS_TO_START:.0f} s"

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                packet = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._gone()
                return
            self._handle(json.loads(packet))

    def _handle(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._settle("")
        elif "refused" in message:
            self._settle(message["refused"])
        elif "pid" in message:
            started = self._started.pop(message["id"], None)
            if started and not started.done():
                started.set_result(message["pid"])
        elif "exit" in message:
            ended = self._ended.pop(message["id"], None)
            if ended and not ended.done():
                ended.set_result(message["exit"])
        elif "done" in message:
            done = self._started.pop(message["id"], None)
            if done and not done.done():
                done.set_result(0)

    def _settle(self, problem: str) -> None:
        if self._ready and not self._ready.done():
            self._ready.set_result(problem)

    def _gone(self) -> None:
        """The node is down: whatever waits learns it."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._settle("its first process ended")
        for future in (*self._started.values(), *self._ended.values()):
            if not future.done():
                future.set_result(-9)
        self._started.clear()
        self._ended.clear()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        descriptors: Sequence[int],
        file: str = "",
        tty: bool = False,
    ) -> Spawned:
        """Start a process with these three descriptors. Raises `SimulationError` when the node is down."""
        self._count += 1
        number = self._count
        request = {
            "op": "spawn",
            "id": number,
            "file": file or argv[0],
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd),
            "tty": tty,
        }
        loop = asyncio.get_running_loop()
        started = self._started[number] = loop.create_future()
        ended = self._ended[number] = loop.create_future()
        self._send(request, descriptors)
        pid = await started
        return Spawned(number, pid, ended)

    def _send(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._socket is None:
            raise SimulationError("the node is down")
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except OSError as error:
            raise SimulationError(f"the node does not answer: {error.strerror}") from error

    def signal(self, process: Spawned, number: int) -> None:
        """Send a signal to a process and its group."""
        with contextlib.suppress(SimulationError):
            self._send({"op": "signal", "id": process.number, "signal": number})

    async def kill(self, pids: Sequence[int], number: int) -> None:
        """Send a signal to processes by the pids that the node knows them by."""
        self._count += 1
        done = self._started[self._count] = asyncio.get_running_loop().create_future()
        self._send({"op": "kill", "id": self._count, "pids": list(pids), "signal": number})
        await done

    async def close(self) -> None:
        """End every process of the node."""
        process, self._process = self._process, None
        if self._socket is not None:
            self._gone()
        if process is None:
            return
        try:
            async with self._clock.timeout(_SECONDS_TO_END):
                while process.poll() is None:
                    await self._clock.sleep(0.01)
        except TimeoutError:
            process.kill()
        process.wait()
