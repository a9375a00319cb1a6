"""Measure by hand what a preflight of many nodes takes: `python -m tests.bench.preflight_nodes [--hang NODE]`.

A simulated cluster whose vendor tools take half a second a call; by default the eight-node EP file, 128 NPUs.
Prints the wall time and the CPU of `pdtui preflight`, and what it says. The budget: 60 s on two cores, also with
one node on which every call of the tools hangs. The CPU of the simulated nodes is
not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from pdtui.assets import asset_dir
from pdtui.sim.simulation import Simulation

BUDGET = 60.0
"""Seconds."""


async def measure(file: Path, hang: str, call: float) -> int:
    """Run it once and print; returns 1 when it took longer than its budget."""
    with tempfile.TemporaryDirectory() as folder:
        async with Simulation(file, Path(folder) / "sim") as simulation:
            await simulation.fault(f"slow-tools all {call:g}")
            if hang:
                await simulation.fault(f"hang {hang}")
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pdtui",
                "preflight",
                str(simulation.topology_path),
                env={**os.environ, "XDG_STATE_HOME": folder},
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            wall = time.monotonic() - began
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = out.decode()
    print(text.partition("\n")[0])
    if hang:
        print("\n".join(line for line in text.split("\n") if hang in line and "hangs" in line))
    print(f"wall {wall:.1f} s, budget {BUDGET:.0f} s; CPU of children {used.ru_utime + used.ru_stime:.1f} s")
    return int(wall > BUDGET)


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file", nargs="?", type=Path, default=asset_dir("sample_configs") / "deepseek-r1-large-ep.yaml"
    )
    parser.add_argument("--hang", default="", metavar="NODE", help="a node on which every call of the tools hangs")
    parser.add_argument(
        "--call", type=float, default=0.5, metavar="SECONDS", help="what a call of the tools takes"
    )
    chosen = parser.parse_args()
    return asyncio.run(measure(chosen.file, chosen.hang, chosen.call))


if __name__ == "__main__":
    sys.exit(main())
