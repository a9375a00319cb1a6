"""Measure by hand what a simulated cluster costs: `python -m tests.bench.demo_memory [FILE] [--speed N]`.

Prints the seconds until every rank is ready and the memory (PSS, so that shared pages count once) of all
processes by kind. The budget for the eight-node EP file, 72 ranks: 60 s on two quiet cores, 2.5 GiB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from pdtui.assets import asset_dir

KINDS = {
    "API servers": r"/bin/vllm serve",
    "EngineCore": r"^VLLM::EngineCore",
    "workers": r"^VLLM::Worker",
    "coordinators": r"^VLLM::DPCoordinator",
    "nodes' first processes": r"node_init\.py",
    "simulator": r"-m pdtui\.sim",
    "pdtui demo": r"pdtui demo|-m pdtui demo",
}
"""Name -> what its command line looks like; the rest are agents and keepers."""


def descendants(root: int) -> list[int]:
    """Return a process and everything below it, sessions or not."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, size = {root}, 0
    while len(found) != size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return sorted(found)


def pss_kib(pid: int) -> int:
    """Return the proportional set size of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def kind(pid: int) -> str:
    """Return what a process is."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return next((name for name, pattern in KINDS.items() if re.search(pattern, line)), "agents and keepers")
    return "gone"


def main() -> None:
    """Run the demo, measure, end it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", default=str(asset_dir("sample_configs") / "deepseek-r1-large-ep.yaml"))
    parser.add_argument("--speed", default="1")
    given = parser.parse_args()
    began = time.monotonic()
    demo = subprocess.Popen(
        [sys.executable, "-m", "pdtui", "demo", given.file, "--serve", "--speed", given.speed],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        for line in demo.stderr or ():
            print(f"{time.monotonic() - began:6.1f} s  {line.rstrip()}")
            if "it ends with" in line:
                break
        counts: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for pid in descendants(demo.pid):
            counts[kind(pid)] += 1
            memory[kind(pid)] += pss_kib(pid)
        for name, kib in memory.most_common():
            print(f"{name:24} {counts[name]:4} processes {kib / 1024:8.1f} MiB")
        print(f"{'all':24} {sum(counts.values()):4} processes {sum(memory.values()) / 1024:8.1f} MiB")
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait()


if __name__ == "__main__":
    main()
