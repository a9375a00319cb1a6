"""A simulated cluster with an engine over it, and the hands that break and mend it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import yaml

from pdtui.cli.status import as_dict
from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused
from pdtui.fleet.engine import EngineThread
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Intent, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus, RankState, Snapshot
from pdtui.readings.verdict import Verdict
from pdtui.remote.messages.commands import Command
from pdtui.sim.control import send_fault
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.acceptance.served import PDTUI, Served, serve
from tests.faults.commands import carry_out
from tests.faults.wire import Wire, Wires
from tests.support.processes import Process, carrying

T = TypeVar("T")
HERE = Path(__file__).parent
SPEED = 40.0
"""Of the stand-in: a rank is ready within a second or two."""
WHOLE = 60.0
"""Seconds that the cluster has to be whole again after a row."""
EVERY = 0.1


def alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own; `asyncio.run` would take the loop of other tests away."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class WallClock(SystemClock):
    """The machine's clock, whose time of day can jump."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


@dataclass
class Bench:
    """Everything that a row may touch."""

    served: Served
    file: Path
    """The topology file that leads through the wires."""
    engine: EngineThread
    clock: WallClock
    folder: Path
    """For whatever a row writes."""
    wires: Wires = field(default_factory=Wires)
    """To each node, where it has one."""
    sshd: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Address and port of each node's sshd, past the wires."""
    begun: list[subprocess.Popen[str]] = field(default_factory=list)
    """Commands that were not waited for at once."""
    said: list[dict[str, Any]] = field(default_factory=list)
    """What the row's commands have said."""
    aside: frozenset[str] = frozenset()
    """Nodes and ranks to which something happens beside all rows."""

    # --- looking

    @property
    def snapshot(self) -> Snapshot:
        """The newest picture."""
        return self.engine.snapshot

    def document(self, since: float) -> dict[str, Any]:
        """Return the picture with what has happened since a time, and what the row's commands have said."""
        now = self.snapshot
        return {
            **as_dict(now),
            "headline": asdict(now.headline) if now.headline is not None else None,
            "events": [asdict(event) for event in now.events if event.at >= since],
            "operations": [asdict(op) for op in now.operations if op.since >= since],
            "file_changed": now.file_changed,
            "said": list(self.said),
        }

    def until(self, probe: Callable[[], object], what: str, within: float = 60.0) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + within
        while not probe():
            assert time.monotonic() < deadline, f"not within {within} s: {what}"
            time.sleep(EVERY)

    def state(self, rank: str) -> RankState:
        """Return what a rank is shown to do."""
        status = self.snapshot.rank(rank)
        return status.state if status is not None else RankState.UNKNOWN

    def pid(self, rank: str) -> int | None:
        """Return a rank's pid as its node counts."""
        status = self.snapshot.rank(rank)
        return status.pid if status is not None else None

    def wire(self, node: str) -> Wire:
        """Return the stretch to a node."""
        return self.wires[node]

    def home(self, node: str) -> Path:
        """Return the folder of a simulated node."""
        return self.served.root / "nodes" / node

    # --- real processes

    def of_rank(self, rank: str, *words: str) -> list[Process]:
        """Return the processes of a rank whose command line holds all words; its keeper is none of them."""
        found = carrying(f"PDTUI_RANK={self.engine.topology.name}:{rank}", str(self.served.root))
        return [one for one in found if all(word in one.command for word in words)]

    def keeper_of(self, rank: str) -> Process:
        """Return the keeper of a rank."""
        folder = f"/{rank.replace('/', '.')}/"
        return next(one for one in carrying(folder, str(self.served.root)) if "keeper" in one.command)

    def agents_on(self, node: str) -> list[Process]:
        """Return the agents on a node."""
        return [one for one in carrying(f"PDTUI_SIM_NODE={self.home(node)}") if "-u -c" in one.command]

    def kill(self, processes: Sequence[Process], number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to processes, which must be there."""
        assert processes, "nothing to signal"
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # It may have ended with the one before.
                os.kill(process.pid, number)

    def on(self, node: str, script: str) -> str:
        """Run a shell script on a node, past the wires; returns what it printed."""

        async def run() -> str:
            host, port = self.sshd[node]
            keys = self.served.root / "ssh"
            async with asyncssh.connect(
                host,
                port,
                client_keys=[str(keys / "id_ed25519")],
                known_hosts=str(keys / "known_hosts"),
                config=None,
                agent_path=None,
            ) as connection:
                done = await connection.run(script)
                assert done.exit_status == 0, (script, done.stdout, done.stderr)
                return str(done.stdout)

        return alone(run())

    def inside(self, node: str, program: str, *words: str) -> str:
        """Run a Python program where a node's ranks live, through our own agent; returns what it printed."""
        done: Future[str] = Future()

        async def run(fleet: Fleet) -> None:
            agent = fleet.agent(node)
            assert agent is not None, node
            completed = await agent.run(Command(("python3", "-c", program, *words)))
            done.set_result((completed.stdout if completed.status == 0 else completed.stderr).decode())

        self.engine.begin(run)
        return done.result(60)

    def fault(self, spec: str) -> None:
        """Switch a fault of the simulator."""
        send_fault(spec, self.served.root)

    # --- commands and operations

    def process(self, *words: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run a command, `FILE` standing for the short topology file, as a process of its own; checks nothing."""
        return self.served.run(*_words(words, self.short), timeout=timeout)

    def pdtui(self, *words: str, timeout: float = 90.0) -> tuple[int, str]:
        """Run a command over the engine; returns its exit status and what it said."""
        return carry_out(self.engine, _words(words, self.file), timeout)

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command and do not wait."""
        process = subprocess.Popen(
            [PDTUI, *_words(words, self.short)],
            env=self.served.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.begun.append(process)
        return process

    def command(self, *words: str, alone: bool = False, timeout: float = 90.0) -> None:
        """Run a command; what it said and its exit status are shown to the row as `command`.

        `alone`: as a process of its own, with its own fleet, as for another file.
        """
        if alone:
            done = self.process(*words, timeout=timeout)
            status, output = done.returncode, f"{done.stdout}\n{done.stderr}"
        else:
            status, output = self.pdtui(*words, timeout=timeout)
        self.said.append({"status": status, "output": output})

    def ended(self, process: subprocess.Popen[str], within: float = 90.0) -> None:
        """Wait for a command that was begun; what it said is shown to the row as `command`."""
        output, _ = process.communicate(timeout=within)
        self.said.append({"status": process.returncode, "output": output})

    def background(self, node: str, argv: Sequence[str]) -> int:
        """Start a process on a node that stays; returns its pid there."""
        line = shlex.join(argv)
        return int(self.on(node, f"setsid {line} > /dev/null 2>&1 < /dev/null & echo $!"))

    def submit(self, intent: Intent) -> str:
        """Begin an operation of the engine."""
        return alone(self.engine.submit(intent))

    def done(self, intent: Intent) -> str:
        """Carry an operation out; returns how it ended."""

        async def run() -> str:
            try:
                status = await self.engine.wait(await self.engine.submit(intent))
            except ActionRefused as refused:
                return f"refused: {refused}"
            return f"{status.state}: {status.error}" if status.error else status.state

        return alone(run())

    def start(self, *ranks: str) -> str:
        """Start ranks and wait."""
        return self.done(StartRanks(ranks))

    def stop(self, *ranks: str, grace: float = 30.0) -> str:
        """Stop ranks and wait."""
        return self.done(StopRanks(ranks, grace=grace))

    def poll(self, *nodes: str) -> None:
        """Read NPUs now."""
        alone(self.engine.poll_now(nodes))

    @cached_property
    def short(self) -> Path:
        """The topology file without the nodes that carry no ranks: a command connects to fewer."""
        return self.variant("short", lambda _: None)

    def variant(self, name: str, change: Callable[[Any], None]) -> Path:
        """Write a changed copy of the topology file, without nodes that carry no ranks, and return it."""
        document = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        used = {rank.node for rank in self.engine.plan.ranks}
        document["nodes"] = {node: said for node, said in document["nodes"].items() if node in used}
        change(document)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path

    # --- whole again

    def _watched(self) -> Sequence[NodeStatus]:
        return [node for node in self.snapshot.nodes if node.name not in self.aside]

    def trouble(self) -> str:
        """Return what keeps the cluster from being whole; empty when nothing does."""
        now = self.snapshot
        nodes = self._watched()
        ranks = [rank for rank in now.ranks if rank.id not in self.aside]
        found = [f"{node.name} {node.state}" for node in nodes if node.state is not NodeState.CONNECTED]
        found += [
            f"{node.name}: {node.error or node.tool_error}" for node in nodes if node.error or node.tool_error
        ]
        found += [f"{rank.id} {rank.state}" for rank in ranks if rank.state is not RankState.READY]
        found += [
            f"{node.name} NPU {npu.id}: {'; '.join(reason.summary for reason in npu.reasons)}"
            for node in nodes
            for npu in node.npus
            if _ails(npu)
        ]
        found += [f"{op.id} {op.verb} running" for op in now.operations if op.state == "running"]
        return ", ".join(found)

    def mend(self) -> None:
        """Make everything whole again, whatever the last row did; fails when it cannot be done."""
        for node in self.sshd.keys() - self.aside:
            self.wires[node].restore()
        self.clock.ahead = 0.0
        for process in self.begun:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=60)
        self.begun.clear()
        said: list[str] = []
        ranks = tuple(rank.id for rank in self.engine.plan.ranks if rank.id not in self.aside)
        for attempt in range(2):
            deadline = time.monotonic() + (WHOLE if attempt else WHOLE / 3)
            while (trouble := self.trouble()) and time.monotonic() < deadline:
                away = [node.name for node in self._watched() if node.state is not NodeState.CONNECTED]
                if away:
                    self.poll(*away)  # Tries those at once that wait for their next try.
                elif sick := [node.name for node in self._watched() if _sick(node)]:
                    self.poll(*sick)
                elif ids := tuple(rank for rank in ranks if self.state(rank) in _DOWN):
                    self.done(RestartRanks(ids, grace=5.0))
                time.sleep(EVERY)
            if not trouble:
                return
            for node in self.engine.topology.nodes.keys() - self.aside:
                self.fault(f"heal {node}")
            said.append(self.done(StopRanks(ranks, grace=1.0)))
            said.append(self.done(StartRanks(ranks)))
        raise AssertionError("; ".join([f"the cluster is not whole again: {self.trouble()}", *said]))


def _words(words: Sequence[str], file: Path) -> list[str]:
    return [str(file) if word == "FILE" else word for word in words]


def _sick(node: NodeStatus) -> bool:
    return bool(node.error or node.tool_error) or any(map(_ails, node.npus))


def _ails(npu: NpuStatus) -> bool:
    """Return whether an NPU is not well, but for a link that is back: that it was down is told for an hour."""
    told = {reason.id for reason in npu.reasons}
    return npu.verdict is not Verdict.HEALTHY and not (npu.verdict is Verdict.DEGRADED and told == {"flapping"})


_DOWN = (RankState.FAILED, RankState.STOPPED, RankState.UNHEALTHY, RankState.STALLED, RankState.UNKEPT)


@contextmanager
def loopback(base: Path) -> Iterator[Bench]:
    """Bring up the cluster that needs nothing but this machine's loopback, with wires to its nodes."""
    with serve(base, HERE / "cluster.yaml", speed=SPEED) as served, Wires() as wires:
        file, sshd = _rewire(served, wires)
        with _over(served, file, base) as made:
            made.wires, made.sshd = wires, sshd
            for node in sshd:
                # A file system of its own: it can be filled and made read-only without harm to this machine.
                made.on(node, f"mount -t tmpfs -o size=48m,mode=700 tmpfs {served.root}/state")
            made.mend()
            yield made


@contextmanager
def servers(base: Path) -> Iterator[Bench]:
    """Bring up the cluster of servers with a network, OpenSSH and a container each."""
    with (
        serve(base, HERE / "servers.yaml", speed=SPEED, options=["--netns"]) as served,
        _over(served, Path(served.topology), base) as made,
    ):
        made.mend()
        yield made


@contextmanager
def _over(served: Served, file: Path, base: Path) -> Iterator[Bench]:
    """Begin to watch a cluster."""
    clock, topology = WallClock(), load_checked(file)
    folder = base / "rows"
    folder.mkdir()
    with EngineThread(
        topology, make_plan(topology), clock=clock, read_only=False, by="table@test", journal_dir=base / "journal"
    ) as engine:
        made = Bench(served, file, engine, clock, folder)
        made.until(lambda: made.snapshot.ranks[0].state is RankState.STOPPED, "first answers", 60.0)
        yield made


def _rewire(served: Served, wires: Wires) -> tuple[Path, dict[str, tuple[str, int]]]:
    """Lay a wire to each node and write a topology file that uses it."""
    document = yaml.safe_load(Path(served.topology).read_text(encoding="utf-8"))
    keys = served.root / "ssh"
    known = (keys / "known_hosts").read_text(encoding="ascii").splitlines()
    ours, sshd = keys / "known_wires", {}
    lines: list[str] = []
    for name, node in document["nodes"].items():
        host, port = node["host"], node["ssh"]["port"]
        sshd[name] = (host, port)
        node["ssh"]["port"] = wires.lay(name, host, port).port
        (key,) = [line.partition(" ")[2] for line in known if line.startswith(f"[{host}]:{port} ")]
        lines.append(f"[{host}]:{node['ssh']['port']} {key}")
    ours.write_text("\n".join(lines) + "\n", encoding="ascii")
    document["ssh"]["known_hosts"] = str(ours)
    path = served.root / "wired.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path, sshd
