"""What must hold whatever is done, at every moment and when all is quiet again."""

from __future__ import annotations

from collections import Counter

from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from tests.sequences.topologies import CLUSTER
from tests.sequences.truth import Double
from tests.sequences.world import Console, Done, World

SHOWN_WITHIN = 7.5
"""Seconds within which what a console shows must have been true: two polls, a look at /health, its time-out."""
SAME_MOMENT = 1e-3
"""Seconds for which times of one moment may differ: they are sums of others."""
SETTLED_WITHIN = 1.5
"""Seconds after which a console has its connection again."""
PATIENCE = 75.0
"""Seconds that a start may wait for a rank that is dead: it looks for the cause, its node may be away."""
ROUGH = 45.0
"""The same where answers are late."""


class Checks:
    """Each raises AssertionError."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._judged = 0

    def always(self) -> None:
        """See that nothing is wrong now."""
        world = self._world
        if world.broken is not None:
            raise world.broken
        doubles = [double.words for double in world.truth.doubles() if not self._out_of_sight(double)]
        assert not doubles, doubles
        for name, run in world.neighbours.items():
            assert world.nodes[name].ranks.serves(run), f"the other cluster's rank on {name} was killed"
        for node in world.nodes.values():
            for info in node.strangers:
                assert info.pid in node.table.by_pid, f"a stranger was killed on {node.name}"
        for console in world.consoles:
            if console is not None and not console.closing:
                for event in console.fleet.store.snapshot.events:
                    assert "internal error" not in event.message, event.message
                self._shown(console)
                self._waiting(console)
        for done in world.done[self._judged :]:
            if done.ended is not None and done.status is not None:
                self._ended(done)
        while self._judged < len(world.done) and world.done[self._judged].ended is not None:
            self._judged += 1

    def _waiting(self, console: Console) -> None:
        """See that no start waits for a rank that has ended."""
        world = self._world
        for done in world.done:
            if done.incarnation != console.incarnation or done.ended is not None or not done.id:
                continue
            steps = {step.label: step for step in console.fleet.store.operations[done.id].steps}
            for rank_id, (node, rank) in done.places.items():
                if steps[rank_id].state != "running" or isinstance(done.intent, StopRanks):
                    continue
                facts = list(world.truth.of(node, rank).between(world.now - PATIENCE, world.now))
                began = [
                    at for at, where, s in world.started if (where, s.rank) == (node, rank) and at >= done.began
                ]
                dead = len(facts) == 1 and facts[0].run and not facts[0].serves
                assert not (dead and began), f"{done.id} waits for {rank}, which is dead: {steps[rank_id]}"

    def _out_of_sight(self, double: Double) -> bool:
        """Return whether one of two nodes was out of some console's sight when it began to start a rank there.

        A console asks all nodes of its file who works on a rank and where it runs; what does not answer it cannot
        ask, and a lease on a node that it has not reached for long has ended.
        """
        if double.first is None:
            return False
        begun = [
            done.began
            for done in self._world.done
            if done.began <= double.second and (done.ended is None or done.ended >= double.first)
        ]
        return self._world.away_until >= min(begun, default=double.first) - SETTLED_WITHIN

    @property
    def _slack(self) -> float:
        return ROUGH if self._world.now <= self._world.rough_until else SHOWN_WITHIN

    def _shown(self, console: Console) -> None:
        world = self._world
        for rank in console.fleet.store.ranks.values():
            if rank.observed_at is None or rank.state not in (RankState.READY, RankState.FAILED):
                continue
            at = world.now - (world.clock.wall() - rank.observed_at)
            node, name = world.place(console, rank.id)
            history = world.truth.of(node, name)
            facts = list(history.between(at - SAME_MOMENT, world.now))
            if rank.state is RankState.READY:
                assert any(fact.ready for fact in facts), f"{rank.id} is shown ready and was not: {facts}"
            else:
                asked = all(fact.asked and fact.run == rank.run for fact in facts)
                assert not asked, f"{rank.id} is shown failed and was asked to end: {facts}"

    def _ended(self, done: Done) -> None:
        """See that what an action says of itself is true."""
        status = done.status
        assert status is not None
        assert status.state != "running"
        if status.state == "failed":
            assert status.error, "it says why"
        if status.state != "done":
            return
        steps = {step.label: step for step in status.steps}
        for rank_id, (node, rank) in done.places.items():
            if steps[rank_id].state != "done":
                assert rank_id in done.handed_over, f"done, but {steps[rank_id]}"
            elif isinstance(done.intent, StopRanks):
                self._nothing_left(done, node, rank)
            else:
                self._came_up(done, node, rank)

    def _nothing_left(self, done: Done, node: str, rank: str) -> None:
        world = self._world
        assert done.ended is not None
        again = any(
            at >= done.began - 1e-6 and where == node and spec.rank == rank for at, where, spec in world.started
        )
        facts = list(world.truth.of(node, rank).between(done.began, done.ended))
        gone = any(not fact.pids for fact in facts)
        assert gone or again, f"a stop of {rank} said done and left {sorted(facts[0].pids)} on {node}"

    def _came_up(self, done: Done, node: str, rank: str) -> None:
        world = self._world
        assert done.ended is not None
        facts = list(world.truth.of(node, rank).between(done.ended - self._slack, done.ended))
        assert any(f.ready for f in facts), f"a {done.id} of {rank} said done, but it is not ready: {facts}"
        if not isinstance(done.intent, StartRanks):
            fresh = [at for at, where, s in world.started if at >= done.began and (where, s.rank) == (node, rank)]
            assert fresh, f"a restart of {rank} said done and started nothing"

    def quiet(self) -> None:
        """See that every console shows what is true, now that nothing goes on."""
        world = self._world
        self.always()
        for console in world.consoles:
            if console is not None:
                self._same(console)
        for node in world.nodes.values():
            assert not node.locked, f"{node.name}: a lock of {node.locked} is held"
        self._journals()
        self._once_each()

    def _once_each(self) -> None:
        """See that no operation has started a rank twice, however often it had to ask."""
        started = Counter((where, spec.rank, spec.lease) for _, where, spec in self._world.started)
        assert set(started.values()) <= {1}, started

    def _same(self, console: Console) -> None:
        world, shown = self._world, console.fleet.store.ranks
        for rank in console.loaded.plan.ranks:
            state = shown[rank.id].state
            true = world.truth.shown_as(rank.node, rank.id, rank.host, rank.api_port)
            assert state in true, f"console {console.number} shows {rank.id} {state}; it is {true}"
        planned = {(rank.node, rank.id) for rank in console.loaded.plan.ranks}
        strays = {world.place(console, rank_id) for rank_id in shown} - planned
        alive = {
            (name, rank)
            for name, node in world.nodes.items()
            for cluster, rank in node.ranks.runs
            if cluster == CLUSTER and node.ranks.pids((cluster, rank))
        }
        assert strays == alive - planned, f"console {console.number}: ranks that its file does not have"

    def _journals(self) -> None:
        world = self._world
        for done in world.done:
            if not done.id:
                continue
            entries = [e for e in world.entries(done.incarnation) if e.get("operation") == done.id]
            events = [str(entry["event"]) for entry in entries]
            ends = [event for event in events if event.endswith(" ended")]
            assert ends == [f"{events[0]} ended"], f"{done.id}: {events} in the journal"
            assert events[-1] == ends[0]
            assert entries[-1]["state"] in ("done", "failed", "cancelled")
            assert done.status is None or entries[-1]["state"] == done.status.state

    def all_stopped(self, done: Done) -> None:
        """See that the last stop has left nothing."""
        world = self._world
        assert not done.refused, done.refused
        assert done.status is not None
        assert done.status.state == "done", (done.status.error, done.status.steps)
        for name, node in world.nodes.items():
            left = [p for p in node.table.by_pid.values() if p.marker.startswith(f"{CLUSTER}:")]
            assert not left, f"left on {name} after the last stop: {left}"
            assert not node.locked
