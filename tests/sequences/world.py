"""Two nodes in memory, up to three consoles on them, and everything that can happen to either."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Intent, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.leases import LEASE_TIMEOUT
from pdtui.fleet.snapshot import ALIVE_STATES, OperationStatus, RankState
from pdtui.remote.messages.leases import Lease
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import ProcessState, RankRecord, RankSpec
from tests.sequences.topologies import CLUSTER, NODES, Loaded, load, variants_of
from tests.sequences.truth import Truth
from tests.support.memory_node import MemoryLink, MemoryNode
from tests.support.memory_ranks import Behaviour, Run
from tests.support.virtual_time import VirtualClock, VirtualLoop

TICK = 1.0
READY_DEADLINE = 120.0
"""Seconds that these consoles wait for a rank."""
LOST_AFTER = 15.0
"""Seconds after which a connection is given up whose agent says nothing (`remote.rpc`)."""
LONGEST_OPERATION = 500.0
"""Seconds: a restart whose stop needs every patience that there is, and whose start then takes too long."""
NEVER = 1e9


@dataclass
class Done:
    """An operation, and how it ended."""

    console: int
    incarnation: int
    intent: Intent
    began: float
    id: str = ""
    refused: str = ""
    ended: float | None = None
    status: OperationStatus | None = None
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Rank as the console calls it -> node, rank as the node calls it."""
    handed_over: frozenset[str] = frozenset()
    """Ranks that a later action of the same console has taken over."""


@dataclass
class Console:
    """One console that is open."""

    number: int
    incarnation: int
    fleet: Fleet
    loaded: Loaded
    links: Mapping[str, MemoryLink]
    stack: AsyncExitStack
    closing: bool = False


class World:
    """All of it. Every method of one word is a step of a sequence."""

    def __init__(self, kind: str, folder: Path, files: Path, loop: VirtualLoop) -> None:
        self.kind = kind
        self.clock = VirtualClock(loop)
        self.nodes = {name: MemoryNode(name, self.clock, behaviour=self._starts(name)) for name in NODES}
        self.truth = Truth(CLUSTER, self.nodes)
        self.consoles: list[Console | None] = [None, None, None]
        self.done: list[Done] = []
        self.started: list[tuple[float, str, RankSpec]] = []
        """When, on which node, what."""
        self.next: Behaviour | None = None
        """How the next rank that is started behaves."""
        self.rough_until = float("-inf")
        """Until then answers were late, so what is shown may be."""
        self.away_until = float("-inf")
        """When a node was last out of reach of a console, or too slow for it."""
        self.broken: BaseException | None = None
        """What went wrong in something that goes on beside the steps."""
        self.neighbours: dict[str, Run] = {}
        """Ranks of another cluster, by node."""
        self._folder, self._files = folder, files
        self._tasks: set[asyncio.Task[object]] = set()
        self._incarnations = 0
        for node in self.nodes.values():
            self._add_neighbours(node)
            node.on_http = partial(self._answers, node.name)

    def _answers(self, name: str, run: Run) -> None:
        self.truth.note(name, run, self.now)

    def _add_neighbours(self, node: MemoryNode) -> None:
        """Put ranks of another cluster there, under the same names."""
        record = RankRecord("other", "d/0", ProcessState.RUNNING, run=1, api_port=9000, address="192.0.0.9")
        self.neighbours[node.name] = node.ranks.add(
            (record.cluster, record.rank), record, Behaviour(ready_after=0.0)
        )

    def _starts(self, name: str) -> _Starts:
        return _Starts(self, name)

    # --- the passing of time

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Let something go on beside the steps."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error

    @property
    def busy(self) -> str:
        """What goes on beside the steps, in words."""
        running = [done for done in self.done if done.ended is None]
        return f"{running} {self._tasks}" if running or self._tasks else ""

    @property
    def leases(self) -> Sequence[Lease]:
        """What is held on any node."""
        return [lease for node in self.nodes.values() for lease in node.leases.list(CLUSTER)]

    def look(self) -> None:
        """Let groups live and die together, and note what is true."""
        self.truth.look(self.now)
        links = [link for node in self.nodes.values() for link in node.links]
        if any(link.host_agent is None for link in links) or any(
            node.stuck or node.delay >= LEASE_TIMEOUT for node in self.nodes.values()
        ):
            self.away_until = self.now
        if self.kind == "moe":
            self._groups()

    def _groups(self) -> None:
        members: dict[int, list[tuple[str, MemoryNode, int]]] = {}
        for node in self.nodes.values():
            for (cluster, rank), runs in node.ranks.runs.items():
                if cluster == CLUSTER and rank.startswith("d/"):
                    size = _dp_size(runs[-1].record.argv)
                    members.setdefault(size, []).append((rank, node, len(runs) - 1))
        for size, found in members.items():
            alive = [(node, (CLUSTER, rank)) for rank, node, _ in found if self._serves(node, rank)]
            runs = [node.ranks.runs[key][-1] for node, key in alive]
            if len(runs) < size:
                for run in runs:
                    ready = self.now - run.born >= run.behaviour.ready_after
                    if run.behaviour.dies_after is None and ready:  # Its collective operations fail.
                        run.behaviour = replace(run.behaviour, dies_after=self.now - run.born + 3.0)
                    elif not ready:
                        run.behaviour = replace(run.behaviour, ready_after=NEVER)
            elif len(runs) == size:
                for run in runs:
                    if run.behaviour.ready_after == NEVER and not run.behaviour.log:
                        run.behaviour = replace(run.behaviour, ready_after=self.now - run.born + 2.0)

    @staticmethod
    def _serves(node: MemoryNode, rank: str) -> bool:
        run = node.ranks.newest((CLUSTER, rank))
        return run is not None and node.ranks.serves(run)

    # --- consoles

    async def open(self, number: int, variant: int) -> None:
        """Open a console, on one or another state of the file."""
        if self.consoles[number] is not None:
            return
        names = variants_of(self.kind)
        loaded = load(names[variant % len(names)], self._files)
        self._incarnations += 1
        links = {name: node.link() for name, node in self.nodes.items()}
        stack = AsyncExitStack()
        fleet = Fleet(
            loaded.topology,
            loaded.plan,
            clock=self.clock,
            read_only=False,
            by=f"user{number}@desk",
            journal_dir=self._journal(self._incarnations),
            links=links,
            ready_deadline=READY_DEADLINE,
        )
        await stack.enter_async_context(fleet)
        console = Console(number, self._incarnations, fleet, loaded, links, stack)
        self.consoles[number] = console

    async def close(self, number: int) -> None:
        """Close a console; what it does is cancelled."""
        console = self.consoles[number]
        if console is None or console.closing:
            return
        console.closing = True
        async with asyncio.timeout(30.0):
            await console.stack.aclose()
        self.consoles[number] = None
        for node in self.nodes.values():
            node.links = [link for link in node.links if link not in console.links.values()]

    def _journal(self, incarnation: int) -> Path:
        return self._folder / f"journal-{incarnation}"

    def entries(self, incarnation: int) -> Sequence[Mapping[str, object]]:
        """Return a console's journal."""
        path = self._journal(incarnation) / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # --- actions

    def targets(self, console: Console, words: str) -> tuple[str, ...]:
        """Return the ranks that a target means."""
        ranks = console.fleet.store.ranks
        if words == "failed":
            return tuple(rank.id for rank in ranks.values() if rank.state is RankState.FAILED)
        if words == "alive":
            return tuple(
                rank.id
                for rank in ranks.values()
                if rank.difference or (rank.state in ALIVE_STATES and rank.state is not RankState.UNMANAGED)
            )
        if words == "all":
            return tuple(console.loaded.plan.by_id)
        found = tuple(rank for rank in console.loaded.plan.by_id if rank == words or rank.startswith(f"{words}/"))
        return found or tuple(rank for rank in ranks if rank.startswith(words))

    def act(self, number: int, verb: str, words: str, **options: object) -> None:
        """Begin an action; it goes on beside the steps."""
        console = self.consoles[number]
        if console is None or console.closing:
            return
        ids = self.targets(console, words)
        if not ids:
            return
        intent: Intent
        if verb == "start":
            intent = StartRanks(ids)
        elif verb == "stop":
            intent = StopRanks(ids, grace=5.0)
        else:
            intent = RestartRanks(ids, grace=5.0, whole_group=bool(options.get("whole", True)))
        self.begin(self.perform(console, intent))

    async def perform(self, console: Console, intent: Intent) -> Done:
        """Submit and wait, for as long as an action may take."""
        done = Done(console.number, console.incarnation, intent, self.now)
        self.done.append(done)
        try:
            async with asyncio.timeout(LONGEST_OPERATION):
                done.id = await console.fleet.submit(intent)
                status = console.fleet.store.operations[done.id]
                done.places = {rank_id: self.place(console, rank_id) for rank_id in status.targets}
                done.status = await console.fleet.wait(done.id)
                operation = console.fleet._supervisor._operations[done.id]
                done.handed_over = frozenset(i for i in done.places if operation.is_superseded(i))
        except ActionRefused as error:
            done.refused = error.message
        except TimeoutError:
            raise AssertionError(
                f"{intent} has not ended within {LONGEST_OPERATION:.0f} s: {done.status}"
            ) from None
        done.ended = self.now
        self.look()
        return done

    @staticmethod
    def place(console: Console, rank_id: str) -> tuple[str, str]:
        """Return where a rank is, and its name there."""
        return console.fleet.store.ranks[rank_id].node, rank_id.partition("@")[0]

    def cancel(self, number: int) -> None:
        """Cancel what a console began last."""
        console = self.consoles[number]
        if console is None or console.closing:
            return
        running = [op.id for op in console.fleet.store.operations.values() if op.state == "running"]
        if running:
            self.begin(console.fleet.cancel(running[-1]))

    # --- what happens to nodes

    def roughen(self, seconds: float) -> None:
        """Take into account that what is shown may be late for a while."""
        self.rough_until = max(self.rough_until, self.now + seconds)

    def cut(self, name: str, number: int | None = None) -> None:
        """Cut a node off, from everybody or from one console."""
        for console in self._meant(number):
            console.links[name].block(True)

    def restore(self, name: str, number: int | None = None) -> None:
        """Mend it."""
        for console in self._meant(number):
            console.links[name].block(False)

    def _meant(self, number: int | None) -> Sequence[Console]:
        return [c for c in self.consoles if c is not None and not c.closing and number in (None, c.number)]

    def kill_agent(self, name: str) -> None:
        """Kill the agents of a node; the connections come back by themselves."""
        for console in self._meant(None):
            if console.links[name].host_agent is not None:
                console.links[name].drop()

    def lose(self, name: str, what: str) -> None:
        """Lose the connection in the middle of the next start or stop: `request` or `answer`."""
        self.nodes[name].losing = "request" if what == "request" else "answer"

    def freeze(self, name: str, seconds: float) -> None:
        """Let the agents of a node say nothing for a while; connections are given up after a time."""

        async def frozen() -> None:
            node = self.nodes[name]
            node.stuck = True
            await asyncio.sleep(min(seconds, LOST_AFTER))
            if seconds >= LOST_AFTER:
                self.kill_agent(name)
                await asyncio.sleep(seconds - LOST_AFTER)
            node.stuck = False
            self.kill_agent(name)  # What was asked meanwhile is lost.

        self.roughen(seconds + 40.0)
        self.begin(frozen())

    def slow(self, name: str, delay: float) -> None:
        """Let each request take its time."""
        self.nodes[name].delay = delay
        self.roughen(NEVER)

    def kill(self, name: str, rank: str, what: str) -> None:
        """Kill a part of a rank: server, engine, keeper, all, or keeper and server at once."""
        node = self.nodes[name]
        node.ranks.settle()
        run = node.ranks.newest((CLUSTER, rank))
        if run is None:
            return
        if what == "all":
            node.kill(CLUSTER, rank)
        if what in ("keeper", "keeper+server"):
            node.kill_keeper(CLUSTER, rank)
        if what in ("server", "keeper+server"):
            node.kill_server(CLUSTER, rank)
        if what == "engine" and node.ranks.serves(run):
            node.ranks.end(run, node.ranks.pids((CLUSTER, rank)) - {run.record.pid or 0})
            run.behaviour = replace(run.behaviour, dies_after=self.now - run.born + 1.0)
        self.look()

    def reboot(self, name: str, seconds: float) -> None:
        """Reboot a node; it is away for a while, and its pids begin again."""

        async def away() -> None:
            node = self.nodes[name]
            for link in node.links:
                link.block(True)
            node.reboot()
            self._add_neighbours(node)
            self.look()
            await asyncio.sleep(seconds)
            self.restore(name)

        self.begin(away())

    def take_port(self, name: str, port: int) -> None:
        """Let a stranger listen on a port, under the pid of a dead rank if there is one."""
        node = self.nodes[name]
        if any(listener.port == port for listener in node.ports()):
            return
        dead = [
            run.record.pid
            for runs in node.ranks.runs.values()
            for run in runs
            if run.record.pid is not None and run.record.pid not in node.table.by_pid
        ]
        process = node.table.add(pid=dead[0] if dead else None)
        node.strangers.append(ProcessInfo(process.pid, 1, process.pid, self.now, ("nginx",), {}, "www"))
        node.listeners.append(Listener("0.0.0.0", port, process.pid, "nginx: master"))

    def free_port(self, name: str) -> None:
        """Let the strangers of a node go."""
        node = self.nodes[name]
        node.table.remove(info.pid for info in node.strangers)
        node.strangers.clear()
        node.listeners.clear()

    def set_clock(self, name: str, seconds: float) -> None:
        """Set a node's clock."""
        self.nodes[name].skew = seconds

    def behave(self, how: str) -> None:
        """Say how the next rank that is started behaves."""
        self.next = BEHAVIOURS[how]

    def sicken(self, name: str, rank: str, health: int | None) -> None:
        """Change what a running rank answers on /health."""
        run = self.nodes[name].ranks.newest((CLUSTER, rank))
        if run is not None:
            run.behaviour = replace(run.behaviour, health=health)

    def calm(self) -> None:
        """End all that is wrong with nodes and connections."""
        for node in self.nodes.values():
            node.delay, node.losing, node.launch_takes = 0.0, "", 0.0
            for link in node.links:
                if link.blocked:
                    link.block(False)
        self.next = None
        self.rough_until = min(self.rough_until, self.now + 40.0)


BEHAVIOURS = {
    "quick": Behaviour(ready_after=1.0),
    "slow": Behaviour(ready_after=15.0),
    "never": Behaviour(ready_after=NEVER, log="loading for ever\n"),
    "dies early": Behaviour(ready_after=5.0, dies_after=2.0),
    "dies late": Behaviour(ready_after=2.0, dies_after=12.0),
    "deaf": Behaviour(ready_after=2.0, ignores_term=True),
    "lingers": Behaviour(ready_after=2.0, term_takes=3.0),
}


@dataclass
class _Starts:
    """Called by a node when it starts a rank: notes it and says how it behaves."""

    world: World
    node: str

    def __call__(self, spec: RankSpec) -> Behaviour:
        world = self.world
        world.started.append((world.now, self.node, spec))
        behaviour, world.next = world.next or Behaviour(ready_after=2.0), None
        if self._taken(spec):
            behaviour = replace(behaviour, dies_after=1.0, ready_after=NEVER)  # Its port cannot be bound.
        elif world.kind == "moe" and spec.rank.startswith("d/") and _dp_size(spec.argv) > 1 and not behaviour.log:
            behaviour = replace(behaviour, ready_after=NEVER)  # Until its group is there.
        return behaviour

    def _taken(self, spec: RankSpec) -> bool:
        """Return whether another process holds a port of this rank, or another rank that has begun."""
        node = self.world.nodes[self.node]
        ports = {spec.api_port, *spec.ports}
        runs = [runs[-1] for runs in node.ranks.runs.values() if node.ranks.serves(runs[-1])]
        held = {port for run in runs for port in (run.record.api_port, *run.record.ports)}
        return bool(ports & (held | {listener.port for listener in node.listeners}))


def _dp_size(argv: Sequence[str]) -> int:
    return int(argv[argv.index("--data-parallel-size") + 1]) if "--data-parallel-size" in argv else 1
