"""What happens to the processes of ranks that run."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pdtui.fleet.intents import RestartRanks
from tests.faults.bench import Bench
from tests.faults.table import Event, Row, Shown


def killed(rank: str, *words: str) -> Event:
    """SIGKILL to processes of a rank: those whose command line holds the words, all without any."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        bench.kill(bench.of_rank(rank, *words))
        yield
        bench.done(RestartRanks((rank,)))

    return event


@contextmanager
def keeper_killed(bench: Bench) -> Iterator[None]:
    bench.kill([bench.keeper_of("spare/0")])
    yield
    bench.done(RestartRanks(("spare/0",)))


@contextmanager
def server_frozen(bench: Bench) -> Iterator[None]:
    servers = bench.of_rank("spare/0", "vllm serve")
    bench.kill(servers, signal.SIGSTOP)
    try:
        yield
    finally:
        bench.kill(servers, signal.SIGCONT)


@contextmanager
def ignores_term(bench: Bench) -> Iterator[None]:
    bench.kill(bench.of_rank("spare/0"), signal.SIGSTOP)  # Takes TERM only when it is woken; KILL always.
    done = threading.Thread(target=bench.stop, args=("spare/0",), kwargs={"grace": 1.0})
    done.start()
    yield
    done.join(60)
    bench.start("spare/0")


def switched(fault: str, target: str) -> Event:
    """Switch a fault of the simulator on, and off again."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        bench.fault(f"{fault} {target} on")
        try:
            yield
        finally:
            bench.fault(f"{fault} {target} off")

    return event


@contextmanager
def stalled(bench: Bench) -> Iterator[None]:
    bench.fault("stall p/0 on")
    status = bench.snapshot.rank("p/0")
    assert status is not None
    body = b'{"model": "ds_r1", "prompt": "How long is a piece of string?", "max_tokens": 64}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: rank\r\nContent-Type: application/json\r\n"
    with socket.create_connection((bench.sshd["node1"][0], status.api_port), 10) as asking:
        asking.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        try:
            yield
        finally:
            bench.fault("stall p/0 off")


@contextmanager
def log_flood(bench: Bench) -> Iterator[None]:
    """A rank writes 5,000 lines a second for three seconds while its log is followed."""
    rank = bench.snapshot.rank("spare/0")
    assert rank is not None
    bench.engine.log("spare/0")
    bench.until(lambda: bench.engine.log("spare/0").next_seq > 0, "the followed log's first lines")
    before = bench.engine.log("spare/0")
    script = (
        "import time\n"
        f"log = open({rank.log!r}, 'ab', 0)\n"
        "for piece in range(30):\n"
        "    log.write(b''.join(b'INFO flood line %05d of a rank that talks a lot\\n' % (500 * piece + n) "
        "for n in range(500)))\n"
        "    time.sleep(0.1)\n"
    )
    bench.on("node4", f"python3 -c {_quoted(script)}")
    bench.until(lambda: _last(bench).startswith("INFO flood line 14999"), "the last line of the flood", 30.0)
    after = bench.engine.log("spare/0")
    assert after.next_seq - before.next_seq >= 15000, "every line was read"
    assert after.dropped == before.dropped, "no line was lost"
    yield
    bench.engine.unfollow("spare/0")


def _last(bench: Bench) -> str:
    view = bench.engine.log("spare/0")
    lines = bench.engine.log_lines("spare/0", view.next_seq - 1, 1)
    return lines[-1].text if lines else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


RANKS = (
    Row(
        "rank-killed",
        "a rank is killed, all its processes at once (as the kernel's OOM killer may)",
        "SIGKILL to API server, EngineCore and workers",
        killed("spare/0"),
        (
            Shown("spare/0", "failed", ("killed by SIGKILL", "dmesg")),
            Shown("headline", says=("spare/0 failed at", "SIGKILL")),
            Shown("decode/0", "ready"),
        ),
        30.0,
        in_status=True,
    ),
    Row(
        "api-server-killed",
        "only the API server of a rank is killed; its engine lives on and holds the NPUs",
        "SIGKILL to `vllm serve`",
        killed("spare/0", "vllm serve"),
        (Shown("spare/0", "failed", ("processes left of its last run: pid",)),),
        20.0,
    ),
    Row(
        "engine-killed",
        "the EngineCore of a rank is killed",
        "SIGKILL to VLLM::EngineCore",
        killed("spare/0", "VLLM::EngineCore"),
        (Shown("spare/0", "failed", ("died",)),),
        30.0,
    ),
    Row(
        "worker-killed",
        "a worker of a rank is killed",
        "SIGKILL to VLLM::Worker",
        killed("spare/0", "VLLM::Worker_TP1"),
        (Shown("spare/0", "failed", ("worker",)),),
        30.0,
    ),
    Row(
        "moe-rank-killed",
        "one rank of a MoE group is killed and takes its group with it",
        "SIGKILL to all processes of decode/2",
        killed("decode/2"),
        (
            *(Shown(f"decode/{n}", "failed") for n in range(4)),
            Shown("decode/0", "failed", ("lost its group", "decode/2")),
            Shown("headline", says=("decode/2",)),
            Shown("serving", "DOWN"),
        ),
        25.0,
    ),
    Row(
        "moe-rank-0-killed",
        "rank 0 of a MoE group, where all meet, is killed",
        "SIGKILL to all processes of decode/0",
        killed("decode/0"),
        (
            *(Shown(f"decode/{n}", "failed") for n in range(4)),
            Shown("decode/3", "failed", ("lost its group", "decode/0")),
            Shown("serving", "DOWN"),
        ),
        25.0,
    ),
    Row(
        "keeper-killed",
        "the keeper of a rank is killed: the rank serves on, and is not started twice",
        "SIGKILL to the keeper",
        keeper_killed,
        (Shown("spare/0", "unkept", ("200",)), Shown("serving", "DEGRADED|SERVING")),
        30.0,
        in_status=True,
    ),
    Row(
        "health-hangs",
        "a rank lives but no longer answers /health",
        "SIGSTOP to its API server",
        server_frozen,
        (Shown("spare/0", "unhealthy", ("timeout",)),),
        40.0,
        aside=frozenset({"spare/0"}),
        late=True,
    ),
    Row(
        "ignores-term",
        "a rank does not react to TERM when it is stopped",
        "SIGSTOP to all its processes, then stop with 1 s grace",
        ignores_term,
        (Shown("spare/0", "stopped"), Shown("operation", "done", ("1 by KILL",))),
        20.0,
    ),
    Row(
        "stalled",
        "a rank answers /health but makes no tokens though requests run",
        "the stand-in's engine stops making tokens while completions run",
        stalled,
        (Shown("p/0", "stalled", ("200",)),),
        120.0,
        aside=frozenset({"p/0"}),
    ),
    Row(
        "log-flood",
        "a rank writes 5,000 lines a second while its log is followed",
        "15,000 lines appended to the rank's log in 3 s",
        log_flood,
        (Shown("spare/0", "ready"),),
        40.0,
    ),
)
