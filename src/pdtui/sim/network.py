"""The simulated network as the simulation sees it: the process that carries frames, and what is wrong there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.child import Child
from pdtui.sim.machine import python

OPERATOR = "198.18.0.1"
"""The operator's address: of a range that is for tests (RFC 2544), and of no server."""
_DIALER = Path(__file__).resolve().parent / "dialer.py"
_NEEDS = "it needs Linux with user and network namespaces for everybody, /dev/net/tun and OpenSSH's sshd"


@dataclass(frozen=True, slots=True)
class Impairment:
    """What is wrong with the cable of one node."""

    cut: bool = False
    """No frame gets through, and nobody is told."""
    loss: float = 0.0
    """Part of the frames that is lost, each way."""
    delay: float = 0.0
    """Seconds that a packet and its answer take together."""


class Network:
    """Frames between the nodes of one simulation; `proxy_command` leads into it from outside."""

    def __init__(self, log: Path, *, clock: Clock) -> None:
        # A socket's path has to be short, and the simulation's folder may be anywhere.
        self._folder = Path(tempfile.mkdtemp(prefix="pdtui-net-"))
        self._dials = self._folder / "dial"
        self._child = Child("pdtui.sim.fabric", [str(self._dials), OPERATOR], log=log, clock=clock)
        self._impairments: dict[str, Impairment] = {}

    @property
    def proxy_command(self) -> str:
        """What an SSH client runs to reach %h and %p from the operator's place."""
        return shlex.join([python(), "-I", "-S", str(_DIALER), str(self._dials)]) + " %h %p"

    async def start(self) -> None:
        """Start it. Raises `SimulationError` where the kernel does not allow it."""
        problem = await self._child.start()
        if problem:
            raise SimulationError(f"no simulated network here: {problem}", remedy=_NEEDS)

    async def plug(self, name: str, address: str, names: Sequence[str], tap: int) -> None:
        """Connect a node's interface (in place of its last one), known under its address and `names`."""
        try:
            request = {"op": "port", "name": name, "address": address, "names": list(names)}
            await self._child.ask(request, [tap])
        finally:
            os.close(tap)

    async def impair(
        self, name: str, *, cut: bool | None = None, loss: float | None = None, delay: float | None = None
    ) -> None:
        """Change what is wrong with a node's cable; what is not given stays."""
        new = self._impairments.get(name, Impairment())
        new = replace(new, cut=new.cut if cut is None else cut)
        new = replace(new, loss=new.loss if loss is None else loss)
        new = replace(new, delay=new.delay if delay is None else delay)
        self._impairments[name] = new
        request = {"op": "impair", "name": name, "cut": new.cut, "loss": new.loss, "delay": new.delay}
        await self._child.ask(request)

    async def close(self) -> None:
        """End it."""
        await self._child.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
