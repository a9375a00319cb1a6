"""What the console costs: 64 nodes x 16 NPUs and 576 ranks, and 64 nodes x 8 ranks without NPUs, each at 1 Hz in a
real terminal (a pty that counts bytes).

By hand: `python -m tests.bench.console_refresh [--seconds 10] [--changed 0.05] [--log 0] [--size 120x70]
[--grid npus|ranks|both]`.
CPU and memory are of the console's process, the engine is a thread that makes the snapshots; bytes are what an
SSH connection would carry. CPU and bytes are trustworthy on a busy machine, wall-clock lag is not.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import random
import resource
import select
import struct
import sys
import tempfile
import termios
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdtui.fleet.snapshot import NodeStatus, NpuStatus, RankStatus, Snapshot
from tests.support.fake_fleet import NOW, FakeFleet


def main() -> None:
    """Run consoles in children on a pty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--changed", type=float, default=0.05, help="share of NPUs that change each second")
    parser.add_argument("--log", type=int, default=0, help="log lines a second of the rank that is shown")
    parser.add_argument("--size", default="120x70")
    parser.add_argument("--grid", choices=["npus", "ranks", "both"], default="both")
    options = parser.parse_args()
    for grid in ("npus", "ranks") if options.grid == "both" else (options.grid,):
        options.grid = grid
        _measure(options)


_CELLS = {"npus": "1024 NPUs and 576 ranks", "ranks": "512 ranks"}


def _measure(options: argparse.Namespace) -> None:
    """Run one console and print what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            _child(options, report)
            os._exit(0)
        width, height = (int(part) for part in options.size.split("x"))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        arrived = _drain(terminal)
        os.waitpid(child, 0)
        result: dict[str, Any] = json.loads(report.read_text())
    seconds = result["seconds"]
    total = sum(size for at, size in arrived if result["begun"] <= at <= result["begun"] + seconds)
    cells = _CELLS[options.grid]
    print(f"{options.size}, {options.changed:.0%} of {cells} a second, {options.log} log lines/s, {seconds:.1f} s")
    print(f"  to the terminal   {total / seconds / 1000:8.1f} kB/s")
    print(f"  CPU               {result['cpu'] / seconds * 1000:8.1f} ms a second")
    print(f"  RSS               {result['rss'] / 1024:8.1f} MB")
    print(f"  longest loop gap  {result['gap'] * 1000:8.0f} ms")


def _drain(terminal: int) -> list[tuple[float, int]]:
    """Read all that is drawn; returns when and how much."""
    arrived: list[tuple[float, int]] = []
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65536)
        except OSError:
            return arrived
        if not data:
            return arrived
        arrived.append((time.monotonic(), len(data)))


def _child(options: argparse.Namespace, report: Path) -> None:
    from pdtui.console.terminal import prepare_textual

    prepare_textual(slow=False)
    from pdtui.console.app import ConsoleApp, Options

    ranks = options.grid == "ranks"
    fleet = FakeFleet.cpu(nodes=64, prefill=2, decode=6) if ranks else FakeFleet.healthy(nodes=64)
    app = ConsoleApp(fleet, Options(), clock=_Clock())
    figures: dict[str, float] = {"gap": 0.0}

    def engine() -> None:
        chance = random.Random(7)
        time.sleep(2.0)  # start-up is another matter
        begun, cpu = time.monotonic(), _cpu()
        while time.monotonic() - begun < options.seconds:
            fleet.publish(_changed(fleet._snapshot, options.changed, chance))
            if options.log:
                head = "(EngineCore_DP0 pid=3000) INFO 11-30 12:00:01 [core.py:1] Added request"
                first = "d/0" if ranks else "decode/0"
                fleet.write_log(first, *(f"{head} {chance.random()} {n} " + "x" * 120 for n in range(options.log)))
            time.sleep(1.0)
        figures.update(
            begun=begun,
            seconds=time.monotonic() - begun,
            cpu=_cpu() - cpu,
            rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )
        report.write_text(json.dumps(figures))
        app.call_from_thread(app.exit)

    def watch() -> None:
        """Measure how long the loop takes to come round."""
        before = time.monotonic()

        def beat() -> None:
            nonlocal before
            now = time.monotonic()
            figures["gap"] = max(figures["gap"], now - before - 0.05)
            before = now

        app.set_interval(0.05, beat)

    app.call_later(watch)
    threading.Thread(target=engine, daemon=True).start()
    app.run()
    sys.stdout.flush()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Clock:
    """The day of the fake snapshots, running."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def wall(self) -> float:
        return NOW + time.monotonic() - self._begun

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def timeout(self, seconds: float | None) -> Any:
        raise NotImplementedError


def _changed(snapshot: Snapshot, share: float, chance: random.Random) -> Snapshot:
    """Return the next second: some NPUs and ranks have other values, every node was polled."""

    def npu(one: NpuStatus) -> NpuStatus:
        if chance.random() >= share:
            return one
        used = chance.randrange(50_000, 65_000)
        return replace(one, hbm_used_mb=used, temperature_c=40.0 + chance.randrange(20))

    def node(one: NodeStatus) -> NodeStatus:
        return replace(one, npus=tuple(npu(each) for each in one.npus), observed_at=(one.observed_at or 0) + 1)

    def rank(one: RankStatus) -> RankStatus:
        if one.metrics is None or chance.random() >= share:
            return one
        metrics = replace(one.metrics, running=chance.randrange(40), observed_at=(one.observed_at or 0) + 1)
        return replace(one, metrics=metrics, observed_at=metrics.observed_at)

    return replace(
        snapshot,
        revision=snapshot.revision + 1,
        nodes=tuple(node(one) for one in snapshot.nodes),
        ranks=tuple(rank(one) for one in snapshot.ranks),
    )


if __name__ == "__main__":
    main()
