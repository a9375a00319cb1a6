"""What happens to a node's disk and clock, to the topology file, and to consoles."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pdtui.fleet.intents import RestartRanks
from tests.acceptance.served import PDTUI
from tests.faults.bench import Bench
from tests.faults.table import Row, Shown
from tests.support.raw_terminal import RawTerminal


@contextmanager
def disk_full_before(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    with filled(bench, "node4"):
        bench.command("start", "FILE", "spare")
        yield


@contextmanager
def filled(bench: Bench, node: str) -> Iterator[None]:
    """Leave no block of a node's state_dir free."""
    full = f"{bench.served.root}/state/full"
    bench.on(
        node, f"dd if=/dev/zero of={full} bs=64k 2>/dev/null; dd if=/dev/zero bs=1 of={full}.1 2>/dev/null; true"
    )
    try:
        yield
    finally:
        bench.on(node, f"rm -f {full} {full}.1")


@contextmanager
def disk_full_meanwhile(bench: Bench) -> Iterator[None]:
    with filled(bench, "node4"):
        bench.kill(bench.of_rank("spare/0"))
        yield
    bench.done(RestartRanks(("spare/0",)))


@contextmanager
def read_only(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    state = f"{bench.served.root}/state"
    bench.on("node4", f"mount -o remount,ro {state}")
    try:
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.on("node4", f"mount -o remount,rw {state}")


@contextmanager
def clock_jumps(bench: Bench) -> Iterator[None]:
    bench.clock.ahead = 7200.0
    bench.kill(bench.of_rank("spare/0"))
    yield
    bench.clock.ahead = 0.0
    bench.done(RestartRanks(("spare/0",)))


@contextmanager
def file_broken(bench: Bench) -> Iterator[None]:
    text = bench.file.read_text(encoding="utf-8")
    bench.file.write_text(text.replace("groups:", "groups: [", 1), encoding="utf-8")
    try:
        bench.command("status", "FILE")
        yield
    finally:
        bench.file.write_text(text, encoding="utf-8")


@contextmanager
def file_edited(bench: Bench) -> Iterator[None]:
    def change(file: Any) -> None:
        file["groups"]["spare"]["args"] = {"max-num-seqs": 24}

    bench.command("status", str(bench.variant("edited", change)), alone=True)
    yield


@contextmanager
def group_removed(bench: Bench) -> Iterator[None]:
    def change(file: Any) -> None:
        del file["groups"]["spare"]

    path = str(bench.variant("removed", change))
    bench.command("status", path, alone=True)
    bench.command("stop", path, "spare/0", alone=True)
    yield
    bench.start("spare/0")


@contextmanager
def console_killed(bench: Bench) -> Iterator[None]:
    before = {rank.id: rank.pid for rank in bench.snapshot.ranks}
    with RawTerminal([PDTUI, str(bench.short)], size=(100, 30), env=bench.served.env) as terminal:
        terminal.until(b"SERVING")
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait(30)
    with RawTerminal([PDTUI, str(bench.short)], size=(100, 30), env=bench.served.env) as terminal:
        terminal.until(b"SERVING")
        terminal.type(b"q")
        assert terminal.ended() == 0
    bench.command("status", "FILE", alone=True)
    yield
    assert {rank.id: rank.pid for rank in bench.snapshot.ranks} == before, "the same processes"


PLACES = (
    Row(
        "disk-full-at-start",
        "the disk under state_dir is full when a rank is to be started",
        "a file system of its own, filled to the last byte; then `pdtui start`",
        disk_full_before,
        (Shown("command", "1", ("No space left",)), Shown("spare/0", "stopped")),
        30.0,
    ),
    Row(
        "disk-full-meanwhile",
        "the disk under state_dir is full while a rank runs, and then the rank dies",
        "the same, then SIGKILL to the rank: its end is recorded all the same",
        disk_full_meanwhile,
        (Shown("spare/0", "failed", ("-9", "SIGKILL")), Shown("node4", "connected")),
        20.0,
    ),
    Row(
        "state-dir-read-only",
        "the file system under state_dir is read-only",
        "remounted read-only; then `pdtui start`",
        read_only,
        (Shown("command", "1", ("Read-only file system",)),),
        30.0,
    ),
    Row(
        "clock-jumps",
        "the console's clock jumps by two hours, and a rank dies",
        "its time of day put ahead; SIGKILL to the rank",
        clock_jumps,
        (Shown("spare/0", "failed", ("SIGKILL",)), Shown("node2/0", "healthy")),
        60.0,
    ),
    Row(
        "file-broken",
        "the topology file is broken by an edit while the console runs",
        "a bracket too many, written to the file",
        file_broken,
        (
            Shown("file", "changed"),
            Shown("event", "error", ("broken on disk: line", "what was loaded stays")),
            Shown("command", "2", ("line",)),
            Shown("spare/0", "ready"),
        ),
        20.0,
    ),
    Row(
        "file-edited",
        "the file is edited: ranks run with other arguments than it says",
        "another --max-num-seqs; `pdtui status`",
        file_edited,
        (Shown("command", "0|1", ("outdated", "max-num-seqs")), Shown("spare/0", "ready")),
        20.0,
    ),
    Row(
        "group-removed",
        "a group is removed from the file while its ranks run",
        "`pdtui status` and `pdtui stop spare/0` with the changed file",
        group_removed,
        (
            Shown("command", "0|1", ("spare/0", "not-in-file")),
            Shown("command", "0", ("spare/0", "ok")),
            Shown("spare/0", "stopped"),
        ),
        30.0,
    ),
    Row(
        "console-killed",
        "the console is killed; another one is opened",
        "SIGKILL to `pdtui FILE` on a terminal",
        console_killed,
        (Shown("command", "0|1", ("SERVING",)), Shown("spare/0", "ready"), Shown("decode/0", "ready")),
        60.0,
    ),
)
