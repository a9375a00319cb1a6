"""A program of the simulator in a process of its own, and the socket over which it is told what to do."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.machine import python

_SOURCES = str(Path(__file__).resolve().parents[2])
_SECONDS_TO_START = 20.0
_SECONDS_TO_END = 20.0


class Child:
    """Runs `python -m MODULE FD ARGUMENTS...`, FD being a Unix SEQPACKET socket with one JSON packet a message.

    The program says `ready` or `refused` first. What carries the `id` of a request answers it; everything else
    goes to `heard`. It ends when the socket does.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        clock: Clock,
        heard: Callable[[dict[str, Any]], None] | None = None,
        gone: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; `gone` is called once, at the program's end or this object's."""
        self._module = module
        self._arguments = tuple(arguments)
        self._log = log
        self._clock = clock
        self._heard = heard
        self._on_end = gone
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._first: asyncio.Future[dict[str, Any]] | None = None
        self._descriptors: list[int] = []

    @property
    def pid(self) -> int:
        """Pid on this machine."""
        return self._process.pid if self._process else 0

    async def start(self) -> str:
        """Start the program; returns why it refuses to run, or nothing."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        with theirs, self._log.open("ab") as log:
            argv = [python(), "-S", "-s", "-P", "-m", self._module, str(theirs.fileno()), *self._arguments]
            # Returns at once; asyncio's own subprocesses would need a child watcher on every loop.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                argv,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.defpath, "PYTHONPATH": _SOURCES},
                cwd="/",
            )
        self._socket = ours
        loop.add_reader(ours, self._readable)
        try:
            async with self._clock.timeout(_SECONDS_TO_START):
                return str((await self._first).get("refused", ""))
        except TimeoutError:
            return f"no answer within {_SECONDS_TO_START:.0f} s"

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 4)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            if not packet:
                self._gone()
                return
            self._descriptors += descriptors
            self._handle(json.loads(packet))

    def _handle(self, message: dict[str, Any]) -> None:
        if self._first is not None and ("ready" in message or "refused" in message):
            if not self._first.done():
                self._first.set_result(message)
            return
        asked = self._asked.pop(message["id"], None) if "id" in message else None
        if asked is not None:
            if not asked.done():
                asked.set_result(message)
        elif self._heard is not None:
            self._heard(message)

    def _gone(self) -> None:
        """The program has ended, or is told to: whatever waits learns it."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        if self._first is not None and not self._first.done():
            self._first.set_result({"refused": "its first process ended"})
        for future in self._asked.values():
            if not future.done():
                future.set_result({"gone": True})
        self._asked.clear()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        if self._on_end is not None:
            self._on_end()

    def number(self) -> int:
        """Return a number that no request had before."""
        self._count += 1
        return self._count

    async def ask(
        self, request: dict[str, Any], descriptors: Sequence[int] = (), *, number: int | None = None
    ) -> dict[str, Any]:
        """Send a request and return its answer. Raises `SimulationError` when there is nobody to ask."""
        request = {**request, "id": self.number() if number is None else number}
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[request["id"]] = answer
        self.send(request, descriptors)
        return await answer

    def send(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request that has no answer. Raises `SimulationError`."""
        if self._socket is None:
            raise SimulationError("the node is down")
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except OSError as error:
            raise SimulationError(f"the node does not answer: {error.strerror}") from error

    async def close(self) -> None:
        """End the program, and wait for its end."""
        process, self._process = self._process, None
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

    def take_descriptors(self) -> list[int]:
        """Return what came with `ready`; the caller closes it."""
        taken, self._descriptors = self._descriptors, []
        return taken
