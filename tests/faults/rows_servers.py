"""What happens to OpenSSH, to packets, to whole machines and to containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pdtui.fleet.intents import RestartRanks
from pdtui.sim.faults import NO_PYTHON
from tests.faults.bench import Bench
from tests.faults.table import Event, Row, Shown


def switched(on: str, off: str, *, command: tuple[str, ...] = ()) -> Event:
    """Switch faults of the simulator on and off again; a command may tell what it thinks of it."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        bench.fault(on)
        try:
            if command:
                bench.command(*command, alone=True)
            yield
        finally:
            bench.fault(off)
            bench.poll(on.split()[1])

    return event


@contextmanager
def slow_and_lossy(bench: Bench) -> Iterator[None]:
    bench.fault("slow node2 300ms")
    bench.fault("lossy node2 3%")
    try:
        bench.kill(bench.of_rank("d/0"))
        yield
    finally:
        bench.fault("slow node2 off")
        bench.fault("lossy node2 off")
    bench.done(RestartRanks(("d/0",)))


@contextmanager
def rebooted(bench: Bench) -> Iterator[None]:
    bench.fault("reboot node1")
    yield
    bench.fault("container node1 start")


@contextmanager
def container_without_python(bench: Bench) -> Iterator[None]:
    """Take python3 away inside the container only; the host keeps its own."""
    place = bench.home("node2") / "containers" / "vllm-ascend" / "usr" / "local" / "bin" / "python3"
    target = place.readlink()
    place.unlink()  # What it points to is everybody's.
    place.write_text(NO_PYTHON, encoding="ascii")
    place.chmod(0o755)
    bench.kill(bench.agents_on("node2"))
    try:
        yield
    finally:
        place.unlink()
        place.symlink_to(target)
        bench.poll("node2")


@contextmanager
def engine_down(bench: Bench) -> Iterator[None]:
    bench.fault("engine-down node2 on")
    bench.kill(bench.agents_on("node2"))
    try:
        yield
    finally:
        bench.fault("engine-down node2 off")
        bench.poll("node2")


SERVERS = (
    Row(
        "openssh-killed",
        "OpenSSH's sshd of a node is killed",
        "SIGKILL to sshd and its sessions",
        switched("sshd-kill node1", "sshd node1"),
        (Shown("node1", "reconnecting", ("refused",)), Shown("p/0", "lost", ("ready",)), Shown("d/0", "ready")),
        30.0,
    ),
    Row(
        "openssh-frozen",
        "OpenSSH's sshd of a node hangs",
        "SIGSTOP to sshd and its sessions",
        switched("sshd-freeze node4", "sshd node4"),
        (Shown("node4", "reconnecting", ("no answer",)),),
        75.0,
        aside=frozenset({"node4"}),
        late=True,
    ),
    Row(
        "packets-dropped",
        "every packet to a node and back is dropped",
        "the node's cable in the simulated network",
        switched("cut node3", "heal node3"),
        (Shown("node3", "reconnecting", ("no answer",)),),
        75.0,
        aside=frozenset({"node3"}),
        late=True,
    ),
    Row(
        "slow-and-lossy",
        "packets take 300 ms longer and 3 % are lost, and a rank dies behind it",
        "the node's cable in the simulated network; SIGKILL to the rank",
        slow_and_lossy,
        (Shown("node2", "connected"), Shown("d/0", "failed", ("killed by SIGKILL",))),
        30.0,
    ),
    Row(
        "rebooted",
        "a node reboots; its container does not begin by itself",
        "every process of the node ends, another boot id",
        rebooted,
        (Shown("node1", says=("is not running", "docker start vllm-ascend")), Shown("p/0", "lost")),
        30.0,
    ),
    Row(
        "rekeyed",
        "a node was reinstalled: another host key",
        "another key for OpenSSH's sshd, its connections end",
        switched("rekey node2 on", "rekey node2 off"),
        (Shown("node2", "failed", ("host key", "ssh-keygen -R")),),
        20.0,
    ),
    Row(
        "forwarding-forbidden",
        "sshd of a node forbids TCP forwarding: test completions cannot reach its ranks",
        "AllowTcpForwarding no; `pdtui ask`",
        switched("no-forwarding node2 on", "no-forwarding node2 off", command=("ask", "FILE", "hello")),
        (Shown("command", "1", ("forward",)), Shown("d/0", "ready")),
        60.0,
    ),
    Row(
        "container-stopped",
        "the container under a rank is stopped",
        "docker stop",
        switched("container node1 stop", "container node1 start"),
        (Shown("node1", says=("is not running", "docker start vllm-ascend")), Shown("p/0", "lost")),
        20.0,
    ),
    Row(
        "container-restarted",
        "the container under a rank is restarted",
        "docker restart",
        switched("container node1 restart", "heal node1"),
        (
            Shown("p/0", "failed", ("its container was stopped or restarted",)),
            Shown("headline", says=("p/0 failed", "its container was stopped or restarted")),
            Shown("node1", "connected"),
        ),
        30.0,
    ),
    Row(
        "container-removed",
        "the container under a rank is removed",
        "docker rm -f",
        switched("container node1 remove", "heal node1"),
        (Shown("node1", says=("there is no container vllm-ascend", "create it")), Shown("p/0", "lost")),
        20.0,
    ),
    Row(
        "container-paused",
        "the container under a rank is paused",
        "docker pause",
        switched("container node1 pause", "container node1 unpause"),
        (Shown("node1", says=("is paused", "docker unpause vllm-ascend")), Shown("p/0", "lost", ("ready",))),
        75.0,
        aside=frozenset({"node1", "p/0"}),
        late=True,
    ),
    Row(
        "container-without-python",
        "there is no python3 in the container, though the host has one",
        "python3 in the container replaced by a script that ends with 127; SIGKILL to the agents",
        container_without_python,
        (Shown("node2", says=("python3", "container vllm-ascend")), Shown("d/0", "lost", ("ready",))),
        30.0,
    ),
    Row(
        "engine-down",
        "the container engine of a node is down, and our agents there end",
        "docker says that its daemon does not run; SIGKILL to the agents",
        engine_down,
        (
            Shown("node2", says=("container vllm-ascend cannot be reached", "systemctl start docker")),
            Shown("d/0", "lost", ("ready",)),
        ),
        20.0,
    ),
)
