"""The one owner of the fleet's state; makes the immutable snapshots.

Lives on the engine's loop. Everything that is learned about the cluster is put here; a value that did not
change keeps its object, and at most ten snapshots a second are made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pdtui.clock import Clock
from pdtui.fleet.alarms import ended_words
from pdtui.fleet.groups import group_statuses
from pdtui.fleet.headline import file_trouble, journal_trouble, make_headline
from pdtui.fleet.leases import lease_words, merged
from pdtui.fleet.rank_words import describe_state
from pdtui.fleet.serving import serving_status
from pdtui.fleet.snapshot import (
    WRONG_STATES,
    Acknowledgement,
    Alarm,
    Event,
    FileState,
    LeaseStatus,
    NodeState,
    NodeStatus,
    NpuStatus,
    OperationStatus,
    PreflightStatus,
    RankState,
    RankStatus,
    Snapshot,
)
from pdtui.fleet.troubles import known_words, without_known
from pdtui.readings.verdict import Verdict
from pdtui.remote.messages.leases import Lease
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan, RankPlan

SNAPSHOT_INTERVAL = 0.1
"""Seconds between two snapshots."""

EVENTS_KEPT = 500
OPERATIONS_KEPT = 8
"""Ended operations that stay in the snapshot."""

Severity = Literal["info", "good", "warning", "error"]


class Store:
    """State of the cluster as last seen, and the snapshots made of it."""

    def __init__(self, topology: Topology, plan: Plan, *, clock: Clock) -> None:
        self._topology = topology
        self._plan = plan
        self._clock = clock
        now = clock.wall()
        self._nodes = {
            node.name: NodeStatus(
                name=node.name,
                host=node.host,
                roles=topology.roles_of(node.name),
                state=NodeState.CONNECTING,
                since=now,
            )
            for node in topology.nodes.values()
        }
        self._order = {rank.id: index for index, rank in enumerate(plan.ranks)}
        self._ranks = {rank.id: blank_rank(rank) for rank in plan.ranks}
        self._operations: dict[str, OperationStatus] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._troubled: set[str] = set()
        """NPUs (`node/id`) that an event has called not healthy."""
        self._file: FileState = "loaded"
        self._file_broken = ""
        self._journal_error = ""
        self._preflight: PreflightStatus | None = None
        self._leases: dict[str, Sequence[Lease]] = {}
        self._known: tuple[Acknowledgement, ...] = ()
        self._other_hands: dict[str, LeaseStatus] = {}
        self._dirty = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.snapshot = self._build(0)
        """The newest picture; reading the attribute is safe from any thread."""

    @property
    def nodes(self) -> Mapping[str, NodeStatus]:
        """Nodes by name, newer than the snapshot."""
        return self._nodes

    @property
    def ranks(self) -> Mapping[str, RankStatus]:
        """Ranks by id, newer than the snapshot."""
        return self._ranks

    @property
    def operations(self) -> Mapping[str, OperationStatus]:
        """Operations by id, newer than the snapshot."""
        return self._operations

    def on_publish(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each new snapshot, on the engine's loop."""
        self._listeners.append(listener)

    def update_node(self, name: str, **changes: Any) -> None:
        """Change fields of a node's status."""
        old = self._nodes[name]
        new = replace(old, **changes)
        if new == old:
            return
        self._nodes[name] = new
        self._touch()
        if new.state is not old.state:
            self._node_event(old, new)

    def set_npus(self, name: str, npus: tuple[NpuStatus, ...], observed_at: float, tool_error: str) -> None:
        """Take over a node's NPU readings; an NPU whose values did not change keeps its object."""
        old = {npu.id: npu for npu in self._nodes[name].npus}
        kept = tuple(old[npu.id] if old.get(npu.id) == npu else npu for npu in npus)
        for npu in kept:
            before = old.get(npu.id)
            if before is not None and before.verdict is not npu.verdict:
                self._npu_event(name, before, npu)
        self.update_node(name, npus=kept, observed_at=observed_at, tool_error=tool_error)

    def put_rank(self, status: RankStatus) -> None:
        """Take over a rank's status; equal to the old one, nothing changes."""
        old = self._ranks.get(status.id)
        if old == status:
            return
        self._ranks[status.id] = status
        self._touch()
        if old is None or old.state is not status.state:
            self._rank_event(old, status)
        self._alarm_events(old.alarms if old is not None else (), status)

    def drop_rank(self, rank_id: str) -> None:
        """Forget a rank that the file does not have."""
        if self._ranks.pop(rank_id, None) is not None:
            self._touch()

    def put_operation(self, operation: OperationStatus) -> None:
        """Take over an operation's progress."""
        old = self._operations.get(operation.id)
        if old == operation:
            return
        self._operations[operation.id] = operation
        ended = [op.id for op in self._operations.values() if op.state != "running"]
        for op_id in ended[: max(0, len(ended) - OPERATIONS_KEPT)]:
            del self._operations[op_id]
        self._touch()

    def set_leases(self, node: str, leases: Sequence[Lease]) -> None:
        """Take over what other consoles' leases a node has."""
        if not leases and not self._leases.get(node):
            return
        self._leases[node] = leases
        all_nodes = [(name, lease) for name in self._nodes for lease in self._leases.get(name, ())]
        seen = {one.id: one for one in merged(all_nodes, self._clock.wall())}
        before = self._other_hands
        self._other_hands = {
            name: replace(one, since=before[name].since) if name in before else one for name, one in seen.items()
        }
        if self._other_hands != before:
            for name in seen.keys() - before.keys():
                self.event("info", seen[name].by, lease_words(seen[name], self._clock.wall()))
            for name in before.keys() - seen.keys():
                self.event("info", before[name].by, f"{before[name].verb} {before[name].what} has ended")
            self._touch()

    def set_acknowledgements(self, known: tuple[Acknowledgement, ...]) -> None:
        """Take over which acknowledgements are in force."""
        before, now = ({one.key: one for one in some} for some in (self._known, known))
        if before == now:
            return
        self._known = known
        for key, one in now.items():
            if before.get(key) != one:
                self.event("info", key, known_words(one))
        for key in before.keys() - now.keys():
            self.event("info", key, "no longer acknowledged")
        self._touch()

    def set_file(self, state: FileState, error: str = "") -> None:
        """Say how the file on disk is now; `error`: why it could not be loaded, when it is broken."""
        before, known = self._file, self._file_broken
        if (state, error) == (before, known):
            return
        self._file, self._file_broken = state, error
        name = self._topology.path.name
        if state == "broken":
            self.event("error", name, f"broken on disk: {error}; what was loaded stays")
        elif state == "removed":
            self.event("warning", name, "removed from disk; what was loaded stays")
        elif before == "broken":
            self.event("good", name, "no longer broken on disk")
        elif state == "changed":
            self.event("warning", name, "changed on disk; not loaded")
        else:
            self.event("good", name, "on disk as it was loaded")

    def set_journal_error(self, error: str) -> None:
        """Say why this machine's journal cannot be written; empty: it can."""
        if error == self._journal_error:
            return
        before, self._journal_error = self._journal_error, error
        if not error:
            self.event("good", "journal", "is written again here; what was done meanwhile is not in it")
        elif not before:
            self.event("warning", "journal", f"cannot be written here: {error}")
        self._touch()

    def event(self, severity: Severity, subject: str, message: str) -> None:
        """Add an event."""
        self._events.append(Event(self._clock.wall(), severity, subject, message))
        self._touch()

    def set_preflight(self, status: PreflightStatus) -> None:
        """Say how far a preflight is, or how it ended."""
        self._preflight = status
        self._touch()

    async def changed(self) -> None:
        """Return after the next change of anything."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def run(self) -> None:
        """Make a snapshot whenever something changed, at most ten a second, until cancelled."""
        while True:
            await self._dirty.wait()
            self.publish()
            await self._clock.sleep(SNAPSHOT_INTERVAL)

    def publish(self) -> None:
        """Make a snapshot now."""
        self._dirty.clear()
        self.snapshot = self._build(self.snapshot.revision + 1)
        for listener in self._listeners:
            listener()

    def _touch(self) -> None:
        self._dirty.set()
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def _build(self, revision: int) -> Snapshot:
        nodes = tuple(self._nodes.values())
        planned = [self._ranks[rank_id] for rank_id in self._order]
        strays = sorted((rank for rank in self._ranks.values() if rank.id not in self._order), key=lambda r: r.id)
        ranks = (*planned, *strays)
        previous = self.snapshot.serving if revision else None
        now = self._clock.wall()
        operations = tuple(self._operations.values())
        groups = group_statuses(self._topology, planned, operations, now)
        return Snapshot(
            revision=revision,
            made_at=now,
            cluster=self._topology.name,
            nodes=nodes,
            ranks=ranks,
            serving=serving_status(self._topology, planned, previous, now),
            headline=make_headline(*without_known(nodes, ranks, self._known), groups)
            or file_trouble(self._topology.path.name, self._file, self._file_broken)
            or journal_trouble(self._journal_error),
            groups=groups,
            operations=operations,
            leases=tuple(self._other_hands.values()),
            events=tuple(self._events),
            file_changed=self._file in ("changed", "broken"),
            file_broken=self._file_broken,
            file_removed=self._file == "removed",
            preflight=self._preflight,
            acknowledgements=self._known,
        )

    def _node_event(self, old: NodeStatus, new: NodeStatus) -> None:
        if new.state is NodeState.CONNECTED:
            again = " again" if old.state is not NodeState.CONNECTING else ""
            self.event("good", new.name, f"connected{again}")
        elif new.state in (NodeState.FAILED, NodeState.RECONNECTING):
            self.event("error", new.name, new.error or f"connection {new.state}")

    def _npu_event(self, node: str, old: NpuStatus, new: NpuStatus) -> None:
        subject = f"{node}/{new.id}"
        if new.verdict in (Verdict.HEALTHY, Verdict.NA):
            if subject in self._troubled:  # First good readings are no news.
                self._troubled.discard(subject)
                self.event("good", subject, f"NPU {old.verdict} -> {new.verdict}")
            return
        if new.verdict is Verdict.UNKNOWN and old.observed_at is None:
            return
        self._troubled.add(subject)
        why = f": {new.reasons[0].summary}" if new.reasons else ""
        severity: Severity = "error" if new.verdict is Verdict.FAILED else "warning"
        self.event(severity, subject, f"NPU {old.verdict} -> {new.verdict}{why}")

    def _rank_event(self, old: RankStatus | None, new: RankStatus) -> None:
        first = old is None or old.state is RankState.UNKNOWN
        if first and new.state not in WRONG_STATES and new.state is not RankState.UNMANAGED:
            return
        if new.state is RankState.LOST or (old is not None and new.state is old.last_state):
            return  # The node's own event says it; 16 ranks need not repeat it.
        self.event(_severity(new.state), new.id, describe_state(new))

    def _alarm_events(self, before: Sequence[Alarm], rank: RankStatus) -> None:
        """Tell which alarms have begun or ended; those of a rank that no longer answers end without a word."""
        known, now = {alarm.id for alarm in before}, {alarm.id for alarm in rank.alarms}
        for alarm in rank.alarms:
            if alarm.id not in known:
                self.event(alarm.severity, rank.id, alarm.message)
        for alarm in before:
            if alarm.id not in now and rank.metrics is not None:
                self.event("good", rank.id, ended_words(alarm))


def blank_rank(rank: RankPlan, since: float = 0.0) -> RankStatus:
    """Return the status of a planned rank that nobody was asked about yet."""
    return RankStatus(
        id=rank.id,
        group=rank.group,
        role=rank.role,
        node=rank.node,
        devices=rank.devices,
        api_port=rank.api_port,
        state=RankState.UNKNOWN,
        since=since,
    )


def _severity(state: RankState) -> Severity:
    if state is RankState.READY:
        return "good"
    if state in (RankState.FAILED, RankState.UNHEALTHY, RankState.STALLED):
        return "error"
    if state in (RankState.LOST, RankState.UNMANAGED, RankState.UNKEPT):
        return "warning"
    return "info"
