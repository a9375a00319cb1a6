"""The process side of a simulated node: its first process, and what is started through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.child import Child

Isolation = Literal["namespace", "plain", "netns"]
"""Own pid namespace and the machine's network; neither; both namespaces of its own."""

_MODULE = "pdtui.sim.node_init"


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process on the node."""

    number: int
    pid: int
    """As the node sees it."""
    ended: asyncio.Future[int]
    """Exit status; -N when signal N ended it."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A node's place in the simulated network."""

    name: str
    address: str


class NodeProcesses:
    """Starts processes on a node and ends all of them.

    `isolation` says what came of the wish for an own pid namespace: `plain` where the kernel refuses it. With an
    `interface` the node is a machine of its own or nothing.
    """

    def __init__(
        self,
        folder: Path,
        hostname: str,
        *,
        clock: Clock,
        shared_state: Path,
        isolate: bool = True,
        interface: Interface | None = None,
    ) -> None:
        self._folder = folder
        self._shared_state = shared_state
        self._hostname = hostname
        self._clock = clock
        self._interface = interface
        self.isolation: Isolation = "netns" if interface else "namespace" if isolate else "plain"
        self.refused = ""
        """Why there is no own pid namespace."""
        self._child: Child | None = None
        self._ended: dict[int, asyncio.Future[int]] = {}

    @property
    def pid(self) -> int:
        """Pid on this machine of the process that stands for the node."""
        return self._child.pid if self._child else 0

    @property
    def running(self) -> bool:
        """Whether the node is up."""
        return self._child is not None

    @property
    def own_namespace(self) -> bool:
        """Whether the node has a pid view and a boot id of its own."""
        return self.isolation != "plain"

    async def start(self) -> None:
        """Start the node's first process. Raises `SimulationError`."""
        problem = await self._start(self.isolation)
        if problem and self.isolation == "namespace":
            self.refused = problem
            await self.close()
            self.isolation = "plain"
            problem = await self._start("plain")
        if problem:
            await self.close()
            raise SimulationError(f"the processes of a simulated node cannot be started: {problem}")

    async def _start(self, mode: Isolation) -> str:
        arguments = [mode, self._hostname, str(self._folder), str(self._shared_state)]
        if self._interface is not None:
            arguments += [self._interface.name, self._interface.address]
        self._child = Child(
            _MODULE,
            arguments,
            log=self._folder / "run" / "init.log",
            clock=self._clock,
            heard=self._heard,
            gone=self._gone,
        )
        return await self._child.start()

    def take_tap(self) -> int:
        """Return the descriptor that carries the frames of the node's interface; the caller closes it."""
        (tap,) = self._running().take_descriptors()
        return tap

    def _heard(self, message: dict[str, Any]) -> None:
        ended = self._ended.pop(message["exit_of"], None)
        if ended and not ended.done():
            ended.set_result(message["exit"])

    def _gone(self) -> None:
        """The node is down: whatever waits learns it."""
        for future in self._ended.values():
            if not future.done():
                future.set_result(-9)
        self._ended.clear()

    def _running(self) -> Child:
        if self._child is None:
            raise SimulationError("the node is down")
        return self._child

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
        child = self._running()
        number = child.number()
        request = {
            "op": "spawn",
            "file": file or argv[0],
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd),
            "tty": tty,
        }
        ended = self._ended[number] = asyncio.get_running_loop().create_future()
        try:
            answer = await child.ask(request, descriptors, number=number)
        except SimulationError:
            self._ended.pop(number, None)
            raise
        return Spawned(number, answer.get("pid", -9), ended)

    def signal(self, process: Spawned, number: int) -> None:
        """Send a signal to a process and its group."""
        with contextlib.suppress(SimulationError):
            self._running().send({"op": "signal", "of": process.number, "signal": number})

    async def kill(self, pids: Sequence[int], number: int) -> None:
        """Send a signal to processes by the pids that the node knows them by."""
        await self._running().ask({"op": "kill", "pids": list(pids), "signal": number})

    async def kill_named(self, name: str, number: int) -> None:
        """Send a signal to every process of the node's own pid namespace whose program has this name."""
        await self._running().ask({"op": "kill_named", "name": name, "signal": number})

    async def limit_files(self, files: int) -> None:
        """Set how many files processes of the node may have open, also those that run; 0: as it was."""
        await self._running().ask({"op": "limit", "files": files})

    async def end_logins(self) -> None:
        """Kill every process of the node's own pid namespace but the first; containers go on."""
        await self._running().ask({"op": "end_logins"})

    async def close(self) -> None:
        """End every process of the node."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()
