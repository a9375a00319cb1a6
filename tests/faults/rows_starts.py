"""What goes wrong when ranks are started and stopped."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from pdtui.cli.live import SETTLE
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from tests.faults.bench import Bench
from tests.faults.rows_npus import replaced
from tests.faults.table import Event, Row, Shown

STRANGER = """\
import socket, time
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
taken.bind(({address!r}, {port}))
taken.listen(5)
time.sleep(600)
"""


def refused_start(rank: str = "spare") -> Event:
    """Start a group that is stopped by hand beforehand."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        bench.command("start", "FILE", rank)
        yield

    return event


@contextmanager
def port_taken(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    script = STRANGER.format(address=bench.sshd["node4"][0], port=7100)
    pid = bench.background("node4", ["python3", "-c", script])
    try:
        bench.until(lambda: _accepts(bench.sshd["node4"][0], 7100), "the stranger listens")
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.on("node4", f"kill -9 {pid}")
    bench.until(lambda: bench.state("spare/0") is RankState.STOPPED, "the stranger is gone")


def _accepts(host: str, port: int) -> bool:
    with closing(socket.socket()) as knocking:
        return knocking.connect_ex((host, port)) == 0


@contextmanager
def port_of_other_cluster(bench: Bench) -> Iterator[None]:
    def rename(file: Any) -> None:
        file["name"] = "other"

    bench.command("start", str(bench.variant("other", rename)), "spare", alone=True)
    yield


@contextmanager
def port_of_mate(bench: Bench) -> Iterator[None]:
    """Give the port of a rank that runs to another one: an edit that swaps ports."""

    def change(file: Any) -> None:
        file["groups"]["other"] = {
            **file["groups"]["spare"],
            "devices": [4, 5],
            "rpc_port": 12421,
            "kv_port": 14800,
        }
        file["groups"]["spare"]["api_port"] = 7200

    bench.command("start", str(bench.variant("swapped", change)), "other", alone=True)
    yield


@contextmanager
def beside_silent_nodes(bench: Bench) -> Iterator[None]:
    """Start what has nothing to do with two nodes from which nothing comes."""
    bench.stop("spare/0")
    for node in ("node5", "node6"):
        bench.wire(node).silence()
    try:
        began = bench.clock.monotonic()
        bench.command("start", str(bench.file), "spare", alone=True)
        assert bench.clock.monotonic() - began < SETTLE, "it waited for nodes on which it does nothing"
        yield
    finally:
        for node in ("node5", "node6"):
            bench.wire(node).restore()


@contextmanager
def device_busy(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    pid = bench.background("node4", ["sleep", "600"])
    held = bench.home("node4") / "npu" / "0" / "hbm" / str(pid)
    held.write_text("30000 python3\n", encoding="ascii")
    try:
        bench.poll("node4")
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.on("node4", f"kill -9 {pid}")
        held.unlink()


@contextmanager
def memory_held(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    bench.fault("hbm node4/1 30000")
    try:
        bench.poll("node4")
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.fault("heal node4/1")


@contextmanager
def bad_flag(bench: Bench) -> Iterator[None]:
    def change(file: Any) -> None:
        file["groups"]["spare"]["args"] = {"max-num-seqs": "many"}

    bench.stop("spare/0")
    bench.command("start", str(bench.variant("bad-flag", change)), "spare", alone=True)
    yield


@contextmanager
def model_missing(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    bench.fault("model all missing")
    try:
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.fault("model all off")


@contextmanager
def out_of_memory(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    bench.fault("die-at-start spare/0 on")
    try:
        bench.command("start", "FILE", "spare")
        yield
    finally:
        bench.fault("die-at-start spare/0 off")


@contextmanager
def never_ready(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    with replaced("node4", "vllm", "#!/bin/sh\necho INFO importing for ever\nexec sleep 600\n")(bench):
        bench.command("start", "FILE", "spare", "--timeout", "4", alone=True)
        yield
    bench.done(RestartRanks(("spare/0",), grace=1.0))


@contextmanager
def half_a_group(bench: Bench) -> Iterator[None]:
    bench.stop("decode/0", "decode/1", "decode/2", "decode/3")
    words = ("--override", "group:decode", "--reason", "the other node is away", "--timeout", "4")
    bench.command("start", "FILE", "@node2", *words, alone=True)
    yield
    bench.done(RestartRanks(("decode/0", "decode/1", "decode/2", "decode/3")))


@contextmanager
def two_starts(bench: Bench) -> Iterator[None]:
    for _ in range(6):  # On a busy machine one may have ended before the other comes to it.
        bench.said.clear()
        bench.stop("spare/0")
        both = [bench.popen("start", "FILE", "spare") for _ in range(2)]
        for one in both:
            bench.ended(one)
        assert len(bench.of_rank("spare/0", "vllm serve")) == 1
        if any(said["status"] for said in bench.said):
            break
    yield


@contextmanager
def console_killed_in_start(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    starting = bench.popen("start", "FILE", "spare")
    bench.until(lambda: bench.of_rank("spare/0"), "the first process of the rank")
    starting.kill()
    starting.communicate(timeout=30)
    bench.command("start", "FILE", "spare")
    bench.command("start", "FILE", "spare", "--break-lease", "its console was killed")
    yield


@contextmanager
def console_killed_in_stop(bench: Bench) -> Iterator[None]:
    frozen = bench.of_rank("spare/0")
    bench.kill(frozen, signal.SIGSTOP)
    stopping = bench.popen("stop", "FILE", "spare", "--grace", "60")
    bench.until(lambda: bench.state("spare/0") is RankState.STOPPING, "the rank is shown as stopping")
    stopping.kill()
    stopping.communicate(timeout=30)
    bench.command("stop", "FILE", "spare", "--grace", "1")
    bench.command("stop", "FILE", "spare", "--grace", "1", "--break-lease", "its console was killed")
    yield
    bench.start("spare/0")


@contextmanager
def cut_in_start(bench: Bench) -> Iterator[None]:
    bench.stop("spare/0")
    bench.submit(StartRanks(("spare/0",)))
    bench.until(lambda: bench.of_rank("spare/0"), "the first process of the rank")
    bench.wire("node4").reset()
    yield


@contextmanager
def cut_in_stop(bench: Bench) -> Iterator[None]:
    bench.kill(bench.of_rank("spare/0"), signal.SIGSTOP)
    began = bench.clock.wall()
    bench.submit(StopRanks(("spare/0",), grace=3.0))
    bench.until(lambda: _asked_to_stop(bench) > began, "the rank is told to stop")
    bench.wire("node4").reset()
    yield
    bench.start("spare/0")


def _asked_to_stop(bench: Bench) -> float:
    status = bench.snapshot.rank("spare/0")
    return (status.stopped_at or 0.0) if status is not None else 0.0


@contextmanager
def by_hand(bench: Bench) -> Iterator[None]:
    """Start the rank's own script in a shell, as one does without a console."""
    bench.stop("spare/0")
    _, script = bench.pdtui("plan", "FILE", "--rank", "spare/0")
    home = bench.home("node4") / "root"
    (home / "by_hand.sh").write_text(script, encoding="utf-8")
    bench.on(
        "node4", f"setsid bash -ic 'exec bash {home}/by_hand.sh' > {home}/by_hand.log 2>&1 < /dev/null & exit 0"
    )
    bench.until(lambda: bench.state("spare/0") is RankState.UNMANAGED, "a rank that nobody here has started", 30.0)
    bench.command("start", "FILE", "spare")
    yield
    assert bench.pdtui("stop", "FILE", "spare")[0] == 0
    bench.until(lambda: bench.state("spare/0") is RankState.STOPPED, "the rank by hand is gone")


STARTS = (
    Row(
        "port-taken",
        "a stranger listens on a rank's API port before its start",
        "a process that binds the port; then `pdtui start`",
        port_taken,
        (
            Shown("spare/0", "stopped"),
            Shown("command", "1", ("API port 7100 of spare/0 on node4 is held by pid", "not started here")),
        ),
        30.0,
    ),
    Row(
        "port-of-other-cluster",
        "a rank's ports are taken by a rank of another cluster (another file, same servers)",
        "`pdtui start` of a copy of the file under another name, while spare/0 runs",
        port_of_other_cluster,
        (Shown("command", "1", ("7100", "spare/0 of cluster faulty")), Shown("spare/0", "ready")),
        30.0,
    ),
    Row(
        "port-of-mate",
        "a rank's API port is held by another rank of the same file, which had it before an edit",
        "`pdtui start` of a group that got the port of spare/0, while spare/0 runs",
        port_of_mate,
        (
            Shown("command", "1", ("API port 7100 of other/0", "spare/0, pid", "restart spare/0")),
            Shown("spare/0", "ready"),
        ),
        30.0,
    ),
    Row(
        "start-beside-silent",
        "a group is started while two other nodes are silent",
        "no byte to node5 and node6 is carried, connections stay open; then `pdtui start`",
        beside_silent_nodes,
        (
            Shown("command", "0", ("no answer yet from node5, node6: not waited for", "spare/0", "ok")),
            Shown("spare/0", "ready"),
        ),
        30.0,
    ),
    Row(
        "device-busy",
        "a foreign process holds memory of a rank's NPU before its start",
        "a process that npu-smi lists with 30 GB; then `pdtui start`",
        device_busy,
        (Shown("command", "1", ("NPU 0 of node4 is used by python3 (pid", "not started here")),),
        30.0,
    ),
    Row(
        "memory-held",
        "an NPU's memory is held though no process owns it",
        "30 GB in npu-smi's table without a process; then `pdtui start`",
        memory_held,
        (Shown("command", "1", ("NPU 1 of node4 holds", "without a process that owns it")),),
        30.0,
    ),
    Row(
        "bad-flag",
        "a rank ends at once: a value that vLLM does not take",
        "--max-num-seqs many",
        bad_flag,
        (
            Shown("command", "1", ("exit 2", "max-num-seqs")),
            Shown("spare/0", "failed", ("max-num-seqs",)),
        ),
        30.0,
    ),
    Row(
        "model-missing",
        "a rank ends at once: its model is not there",
        "the model's folder moved away",
        model_missing,
        (Shown("command", "1", ("exit 1",)), Shown("spare/0", "failed", ("model",))),
        30.0,
    ),
    Row(
        "out-of-memory",
        "a rank runs out of NPU memory while it loads",
        "the stand-in's worker dies with torch_npu's words",
        out_of_memory,
        (Shown("command", "1", ("memory",)), Shown("spare/0", "failed", ("memory",))),
        30.0,
    ),
    Row(
        "never-ready",
        "a rank hangs while it starts",
        "a `vllm` that never gets anywhere; `pdtui start --timeout 4`",
        never_ready,
        (
            Shown("command", "1", ("not ready within 4 s",)),
            Shown("spare/0", "starting"),
        ),
        45.0,
    ),
    Row(
        "half-a-group",
        "only a part of a MoE group is started",
        "`pdtui start @node2` with the blocker overridden",
        half_a_group,
        (
            Shown("command", "1", ("not ready within 4 s",)),
            Shown("decode/0", "starting"),
            Shown("decode/2", "stopped"),
            Shown("serving", "DOWN|STARTING"),
        ),
        45.0,
    ),
    Row(
        "two-starts",
        "two operators start the same group at the same time",
        "two `pdtui start`",
        two_starts,
        (
            Shown("command", "0", ("spare/0", "ok")),
            Shown("command", "1", ("in another operator's hands", "starts group spare", "--break-lease")),
            Shown("spare/0", "ready"),
        ),
        30.0,
    ),
    Row(
        "killed-in-start",
        "the operator's command is killed in the middle of a start",
        "SIGKILL to `pdtui start` once the rank's first process runs; then `pdtui start`, with --break-lease",
        console_killed_in_start,
        (
            Shown("command", "1", ("in another operator's hands", "starts group spare", "--break-lease")),
            Shown("command", "0", ("already running", "ok")),
            Shown("spare/0", "ready"),
        ),
        60.0,
    ),
    Row(
        "killed-in-stop",
        "the operator's command is killed in the middle of a stop; a second one finishes",
        "SIGKILL to `pdtui stop` while the rank ignores TERM; then `pdtui stop`, with --break-lease",
        console_killed_in_stop,
        (
            Shown("command", "1", ("in another operator's hands", "stops group spare", "--break-lease")),
            Shown("command", "0", ("spare/0", "ok")),
            Shown("spare/0", "stopped"),
        ),
        80.0,
    ),
    Row(
        "cut-in-start",
        "the connection breaks in the middle of a start",
        "TCP reset once the rank's first process runs",
        cut_in_start,
        (Shown("operation", "done", ("start", "ready")), Shown("spare/0", "ready")),
        30.0,
    ),
    Row(
        "cut-in-stop",
        "the connection breaks in the middle of a stop, which goes on when it is back",
        "TCP reset while the rank ignores TERM",
        cut_in_stop,
        (Shown("operation", "done", ("1 stopped",)), Shown("spare/0", "stopped")),
        45.0,
    ),
    Row(
        "by-hand",
        "a rank was started by hand, without the console",
        "its own script in a shell; then `pdtui start`",
        by_hand,
        (
            Shown("spare/0", "unmanaged", ("200",)),
            Shown("command", "1", ("started by hand", "takes it over")),
        ),
        40.0,
    ),
)
