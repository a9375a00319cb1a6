"""`python -m pdtui.sim FILE`: a simulated cluster as a process of its own.

Prints the path of the topology file to use when the nodes can be reached, and runs until SIGTERM, SIGINT,
SIGHUP, or the end of its standard input (so that it ends with whoever started it, however that ends).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from pdtui.errors import FileError, PdtuiError, UsageError
from pdtui.sim.control import Control
from pdtui.sim.simulation import NetworkKind, Simulation


async def serve(file: Path, root: Path | None, speed: float, *, isolate: bool, network: NetworkKind) -> None:
    """Run a simulation until it shall end. Raises `FileError`, `SimulationError`."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    simulated = Simulation(file, root, speed=speed, isolate=isolate, network=network)
    async with simulated as simulation, Control(simulation):
        print(simulation.topology_path, flush=True)  # noqa: T201
        watching = _watch_stdin(loop, over)
        try:
            await over.wait()
        finally:
            if watching:
                loop.remove_reader(0)


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
    given = parser.parse_args()
    try:
        network: NetworkKind = "netns" if given.netns else "loopback"
        asyncio.run(serve(given.file, given.root, given.speed, isolate=not given.no_namespaces, network=network))
    except PdtuiError as error:
        print(f"pdtui: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, FileError | UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
