"""What happens on the way to a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
import yaml

from pdtui.fleet.intents import RestartRanks
from tests.faults.bench import Bench
from tests.faults.table import Event, Row, Shown


@contextmanager
def sshd_gone(bench: Bench) -> Iterator[None]:
    bench.wire("node3").refuse()
    yield
    bench.wire("node3").restore()
    bench.poll("node3")


@contextmanager
def reset(bench: Bench) -> Iterator[None]:
    bench.wire("node3").reset()
    yield


@contextmanager
def agent_killed(bench: Bench) -> Iterator[None]:
    bench.kill(bench.agents_on("node3"))
    yield


def silent(node: str) -> Event:
    """Packets to and from a node are dropped."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        bench.wire(node).silence()
        yield
        bench.wire(node).restore()
        bench.poll(node)

    return event


@contextmanager
def frozen(bench: Bench) -> Iterator[None]:
    """What is connected breaks, and new connections are accepted but never answered."""
    bench.wire("node2").silence()
    bench.wire("node2").reset()
    yield
    bench.wire("node2").restore()
    bench.poll("node2")


@contextmanager
def slow(bench: Bench) -> Iterator[None]:
    bench.wire("node4").slow(0.3)
    bench.kill(bench.of_rank("spare/0"))
    yield
    bench.wire("node4").restore()
    bench.done(RestartRanks(("spare/0",)))


@contextmanager
def new_host_key(bench: Bench) -> Iterator[None]:
    """The node presents another key than the one that is known."""
    known = Path(yaml.safe_load(bench.file.read_text(encoding="utf-8"))["ssh"]["known_hosts"])
    before = known.read_text(encoding="ascii")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode("ascii").strip()
    address, port = bench.wire("node5").host, bench.wire("node5").port
    lines = [line for line in before.splitlines() if not line.startswith(f"[{address}]:{port} ")]
    known.write_text("\n".join([*lines, f"[{address}]:{port} {other}"]) + "\n", encoding="ascii")
    bench.wire("node5").reset()
    yield
    known.write_text(before, encoding="ascii")
    bench.poll("node5")


@contextmanager
def no_python(bench: Bench) -> Iterator[None]:
    bench.fault("no-python node5 on")
    bench.wire("node5").reset()
    yield
    bench.fault("no-python node5 off")
    bench.poll("node5")


@contextmanager
def cut_while_following(bench: Bench) -> Iterator[None]:
    """The connection breaks while a log is followed; what the rank writes meanwhile is read afterwards."""
    rank = bench.snapshot.rank("spare/0")
    assert rank is not None
    bench.engine.log("spare/0")
    bench.until(lambda: bench.engine.log("spare/0").next_seq > 0, "the followed log's first lines")
    before = bench.engine.log("spare/0").next_seq
    bench.wire("node4").refuse()
    bench.until(lambda: bench.engine.log("spare/0").error, "word that nothing comes")
    bench.on("node4", f"for n in 1 2 3; do echo written while cut $n >> {rank.log}; done")
    bench.wire("node4").restore()
    bench.poll("node4")

    def came() -> bool:
        view = bench.engine.log("spare/0")
        lines = [line.text for line in bench.engine.log_lines("spare/0", before, view.next_seq - before)]
        return [line for line in lines if "written" in line] == [f"written while cut {n}" for n in (1, 2, 3)]

    bench.until(came, "each line that was written while the connection was cut, once")
    yield
    bench.engine.unfollow("spare/0")


LINKS = (
    Row(
        "sshd-killed",
        "sshd of a node is gone",
        "its port refuses, connections are reset",
        sshd_gone,
        (
            Shown("node3", "reconnecting", ("refused",)),
            Shown("decode/2", "lost", ("ready",)),
            Shown("headline", says=("node3 unreachable", "2 ranks")),
            Shown("decode/0", "ready"),
        ),
        30.0,
    ),
    Row(
        "connection-reset",
        "the connection to a node breaks",
        "TCP reset on the open connection",
        reset,
        (
            Shown("event", "error", ("node3", "connection")),
            Shown("event", "good", ("node3 connected again",)),
            Shown("node3", "connected"),
            Shown("decode/2", "ready"),
        ),
        20.0,
    ),
    Row(
        "agent-killed",
        "our agent on a node is killed",
        "SIGKILL to the agent; its connection stays",
        agent_killed,
        (
            Shown("event", "error", ("node3",)),
            Shown("event", "good", ("node3 connected again",)),
            Shown("decode/3", "ready"),
        ),
        20.0,
    ),
    Row(
        "silent-cut",
        "packets to a node are dropped: nothing breaks, nothing comes",
        "no byte is carried any more, connections stay open",
        silent("node3"),
        (Shown("node3", "reconnecting", ("no answer",)), Shown("decode/2", "lost", ("ready",))),
        75.0,
        aside=frozenset({"node3", "decode/2", "decode/3"}),
        late=True,
    ),
    Row(
        "sshd-frozen",
        "sshd of a node hangs: it accepts and says nothing",
        "connection reset, then accepted without a byte",
        frozen,
        (Shown("node2", "reconnecting", ("no answer",)), Shown("decode/0", "lost", ("ready",))),
        60.0,
        aside=frozenset({"node2", "decode/0", "decode/1"}),
        late=True,
    ),
    Row(
        "slow-link",
        "the link to a node is slow (600 ms there and back), and a rank dies behind it",
        "each piece delayed by 300 ms each way; SIGKILL to spare/0",
        slow,
        (Shown("node4", "connected"), Shown("spare/0", "failed", ("killed by SIGKILL",))),
        40.0,
    ),
    Row(
        "host-key-changed",
        "a node shows another host key than the known one",
        "another key in known_hosts, connection reset",
        new_host_key,
        (Shown("node5", "failed", ("host key", "ssh-keygen")),),
        30.0,
        in_status=True,
    ),
    Row(
        "python-missing",
        "a node has no python3 any more",
        "python3 replaced by a script that ends with 127, connection reset",
        no_python,
        (Shown("node5", "failed", ("python3", "Python 3.6")),),
        20.0,
    ),
    Row(
        "cut-while-following",
        "the connection breaks while a log is followed; the rank writes on",
        "sshd's port refuses, lines are written, the port is back",
        cut_while_following,
        (Shown("node4", "connected"), Shown("spare/0", "ready")),
        30.0,
    ),
)
