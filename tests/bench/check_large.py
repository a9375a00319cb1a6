"""Measure by hand what `pdtui check` costs: `python -m tests.bench.check_large [--nodes 64] [--runs 5]`.

Prints the CPU of the whole command, interpreter and imports in it, for a plain and for a crowded file, beside that
of `pdtui --version` in the same run: what is above that is the file's own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.topology.generate import crowded, large


def cpu_of(words: Sequence[str]) -> float:
    """Return the CPU seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    program = [sys.executable, "-m", "pdtui"]
    with tempfile.TemporaryDirectory() as folder:
        commands = {"--version": [*program, "--version"]}
        for name, make in (("large", large), ("crowded", crowded)):
            file = Path(folder, f"{name}.yaml")
            file.write_text(make(given.nodes))
            lines = len(file.read_text().splitlines())
            commands[f"check {name} ({given.nodes} nodes, {lines} lines)"] = [*program, "check", str(file)]
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(given.runs):
            for name, words in commands.items():
                times[name].append(cpu_of(words))
    for name, seconds in times.items():
        print(f"{statistics.median(seconds):6.2f} s CPU  {max(seconds):6.2f} at most  pdtui {name}")


if __name__ == "__main__":
    main()
