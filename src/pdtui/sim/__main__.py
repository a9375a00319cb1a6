"""`python -m pdtui.sim FILE`: a simulated cluster as a process of its own.

Prints the path of the topology file to use when the nodes can be reached, and runs until SIGTERM, SIGINT,
SIGHUP, or the end of its standard input (so that it ends with whoever started it, however that ends).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from pdtui.clock import SystemClock
from pdtui.errors import FileError, PdtuiError, UsageError
from pdtui.sim.control import Control
from pdtui.sim.scenario import begin, play, read_scenario
from pdtui.sim.simulation import NetworkKind, Simulation
from pdtui.sim.topology_file import TopologyFile

SCENARIO_LOG = "scenario.log"
"""In the root folder: what a scenario has done."""


async def serve(
    file: Path,
    root: Path | None,
    speed: float,
    *,
    isolate: bool,
    network: NetworkKind,
    scenario_path: Path | None = None,
    narrate: bool = False,
) -> None:
    """Run a simulation until it shall end. Raises `FileError`, `SimulationError`."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    scenario = read_scenario(scenario_path, TopologyFile(file).nodes) if scenario_path else None
    simulated = Simulation(file, root, speed=speed, isolate=isolate, network=network)
    async with contextlib.AsyncExitStack() as stack:
        simulation = await stack.enter_async_context(simulated)
        await stack.enter_async_context(Control(simulation))
        if scenario is not None:
            say = _Scribe(simulation.root / SCENARIO_LOG, narrate=narrate)
            await begin(simulation, scenario, say)
            playing = asyncio.create_task(play(simulation, scenario, SystemClock(), say))
            stack.push_async_callback(_end, playing)
        print(simulation.topology_path, flush=True)  # noqa: T201
        watching = _watch_stdin(loop, over)
        try:
            await over.wait()
        finally:
            if watching:
                loop.remove_reader(0)


class _Scribe:
    """Writes what a scenario does to a file, and to stderr where nothing else is shown there."""

    def __init__(self, path: Path, *, narrate: bool) -> None:
        self._path = path
        self._narrate = narrate

    def __call__(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        if self._narrate:
            print(f"scenario: {line}", file=sys.stderr, flush=True)  # noqa: T201


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _watch_stdin(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> bool:
    """End with standard input; False when it is nothing that can be waited for, or a terminal."""

    def read() -> None:
        if not os.read(0, 4096):
            over.set()

    if os.isatty(0):
        return False
    try:
        loop.add_reader(0, read)
    except (PermissionError, ValueError, OSError):
        return False
    return True


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pdtui.sim", description="A simulated cluster.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--root", type=Path, default=None, help="folder for everything; kept at the end")
    parser.add_argument("--speed", type=float, default=1.0, help="divides the durations of a start")
    parser.add_argument("--no-namespaces", action="store_true", help="plain processes in place of pid namespaces")
    parser.add_argument("--netns", action="store_true", help="a network of their own, at the file's addresses")
    parser.add_argument("--scenario", type=Path, default=None, help="a file of faults and when they come")
    parser.add_argument("--narrate", action="store_true", help="tell on stderr what the scenario does")
    given = parser.parse_args()
    try:
        network: NetworkKind = "netns" if given.netns else "loopback"
        asyncio.run(
            serve(
                given.file,
                given.root,
                given.speed,
                isolate=not given.no_namespaces,
                network=network,
                scenario_path=given.scenario,
                narrate=given.narrate,
            )
        )
    except PdtuiError as error:
        print(f"pdtui: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, FileError | UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
