"""Acknowledgements: which troubles the operators of a cluster know of, kept on its nodes and merged over them.

Every node holds the newest acknowledgement of each trouble, also those that have ended or were taken back, and
each console carries what one node lacks to it, also to one that was away. So they outlive consoles and nodes, and
one that was taken back stays so. Times become those of our clock when an acknowledgement is first seen.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdtui.clock import Clock
from pdtui.errors import ActionRefused, RemoteError
from pdtui.fleet.intents import Acknowledge, Unacknowledge
from pdtui.fleet.journal import Journal
from pdtui.fleet.snapshot import Acknowledgement
from pdtui.fleet.store import Store
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.acks import KEPT, LONGEST, SAME, Ack, AckList
from pdtui.text import clean_line
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan

INTERVAL = 5.0
"""Seconds between two looks at a node."""

TIMEOUT = 5.0
"""Seconds that a node has to answer about them."""

SHORTEST = 60.0
"""Seconds: less is no acknowledgement."""

REASON_LENGTH = 400

_SUBJECT = re.compile(r"([a-z0-9][a-z0-9-]*)(?:/(\d+|\*))?")
_ID = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest acknowledgement of one trouble, on our clock."""

    ack: Acknowledgement
    id: str
    origin: str
    removed: bool

    def counts(self, now: float) -> bool:
        """Return whether it is in force."""
        return not self.removed and self.ack.expires > now

    def is_newer(self, other: Entry) -> bool:
        """Return whether it stands instead of another one of the same trouble."""
        apart = self.ack.at - other.ack.at
        return self.id != other.id and (apart >= SAME or (apart > -SAME and self.id > other.id))

    def sent(self, now: float) -> Ack:
        """Return it as a node takes it."""
        ack = self.ack
        left = LONGEST if self.removed else max(0.0, ack.expires - now)
        age = now - ack.at
        return Ack(ack.key, self.id, ack.reason, ack.by, self.origin, age, left, self.removed)


class AckBook:
    """The acknowledgements of one cluster as this console knows them."""

    def __init__(
        self,
        links: Mapping[str, NodeLink],
        store: Store,
        *,
        cluster: str,
        clock: Clock,
        by: str,
        journal: Journal,
        read_only: bool,
    ) -> None:
        """Prepare; with `read_only` nothing is written to nodes, neither new ones nor what a node lacks."""
        self._links = links
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._by = by
        self._journal = journal
        self._read_only = read_only
        self._entries: dict[str, Entry] = {}
        self._on_node: dict[str, Mapping[str, str]] = {}
        """Node -> key -> id of what it has."""
        self._digests: dict[str, str] = {}
        self._agents: dict[str, NodeAgent] = {}
        self._looked_at: dict[str, float] = {}

    @property
    def in_force(self) -> tuple[Acknowledgement, ...]:
        """What is acknowledged now, by key."""
        now = self._clock.wall()
        known = [entry.ack for entry in self._entries.values() if entry.counts(now)]
        return tuple(sorted(known, key=lambda ack: ack.key))

    async def run(self) -> None:
        """Let go of what ends by itself, until cancelled."""
        while True:
            await self._clock.sleep(1.0)
            self._publish()

    async def look(self, node: str, agent: NodeAgent) -> None:
        """Keep in step with one node: ask and give, if that is due."""
        if agent is not self._agents.get(node):  # A node that was away may have been set back.
            self._agents[node] = agent
            self._digests.pop(node, None)
            self._on_node.pop(node, None)
        elif self._clock.monotonic() - self._looked_at.get(node, float("-inf")) < INTERVAL:
            return
        await self._look(node, agent)
        self._publish()

    async def _look(self, node: str, agent: NodeAgent) -> str:
        """Take what a node has, give it what it lacks; returns why that could not be done."""
        self._looked_at[node] = self._clock.monotonic()
        try:
            async with self._clock.timeout(TIMEOUT):
                self._take(node, await agent.acks(self._cluster, unless=self._digests.get(node, "")))
                lacking = () if self._read_only else self._lacking(node)
                if lacking:
                    now = self._clock.wall()
                    self._take(
                        node, await agent.put_acks(self._cluster, [entry.sent(now) for entry in lacking[:KEPT]])
                    )
        except TimeoutError:
            return f"no answer within {TIMEOUT:.0f} s"
        except RemoteError as error:
            return error.message
        return ""

    def _take(self, node: str, found: AckList) -> None:
        self._digests[node] = found.digest
        if found.acks is None:
            return
        self._on_node[node] = {ack.key: ack.id for ack in found.acks}
        now = self._clock.wall()
        for ack in found.acks[:KEPT]:
            given = Acknowledgement(ack.key, ack.reason, ack.by, now - ack.age, now + ack.left)
            self._put(Entry(given, ack.id, ack.origin, ack.removed))

    def _put(self, entry: Entry) -> None:
        known = self._entries.get(entry.ack.key)
        if known is None or entry.is_newer(known):
            self._entries[entry.ack.key] = entry

    def _lacking(self, node: str) -> Sequence[Entry]:
        """Return what a node lacks or has older; what has ended by itself only if it has an older one."""
        there, now = self._on_node.get(node, {}), self._clock.wall()
        return [
            entry
            for key, entry in self._entries.items()
            if there.get(key) != entry.id and (key in there or entry.removed or entry.counts(now))
        ]

    def _publish(self) -> None:
        now = self._clock.wall()
        old = [key for key, entry in self._entries.items() if entry.ack.at < now - LONGEST]
        for key in old:
            del self._entries[key]
        self._store.set_acknowledgements(self.in_force)

    async def carry_out(self, intent: Acknowledge | Unacknowledge) -> Mapping[str, str]:
        """Acknowledge a trouble, or take that back; returns nodes that do not have it yet, and why.

        Raises `ActionRefused`: read-only, no valid key, no reason, or no node could keep it.
        """
        entry = self._entry(intent)
        before = self._entries.get(entry.ack.key)
        self._entries[entry.ack.key] = entry
        missing = await self._spread()
        if len(missing) == len(self._links):
            if before is None:
                del self._entries[entry.ack.key]
            else:
                self._entries[entry.ack.key] = before
            why = "; ".join(f"{node}: {words}" for node, words in list(missing.items())[:3])
            raise ActionRefused(f"no node could keep it: {why}", kind="blocked")
        self._publish()
        self._store.publish()  # So that whoever has asked sees it at once.
        await self._note(intent, entry, missing)
        return missing

    def _entry(self, intent: Acknowledge | Unacknowledge) -> Entry:
        if self._read_only:
            raise ActionRefused("read-only: nothing is acknowledged from here", kind="read_only")
        now = self._clock.wall()
        if isinstance(intent, Unacknowledge):
            known = self._entries.get(intent.key)
            if known is None or not known.counts(now):
                raise ActionRefused(f"{intent.key} is not acknowledged", kind="unknown_target")
            ack = Acknowledgement(intent.key, "", self._by, max(now, known.ack.at + SAME), now + LONGEST)
            return Entry(ack, secrets.token_hex(8), self._journal.origin, removed=True)
        self._check(intent)
        known = self._entries.get(intent.key)
        at = now if known is None else max(now, known.ack.at + SAME)
        ack = Acknowledgement(intent.key, clean_line(intent.reason).strip(), self._by, at, now + intent.seconds)
        return Entry(ack, secrets.token_hex(8), self._journal.origin, removed=False)

    def _check(self, intent: Acknowledge) -> None:
        subject, _, name = intent.key.rpartition(":")
        match = _SUBJECT.fullmatch(subject)
        if match is None or _ID.fullmatch(name) is None:
            raise ActionRefused(
                f"{intent.key!r} names no trouble",
                kind="unknown_target",
                remedy="SUBJECT:ID, such as node3/9:link-down",
            )
        nodes, groups = self._store.nodes, {rank.group for rank in self._store.ranks.values()}
        if match[1] not in nodes and match[1] not in groups:
            raise ActionRefused(f"no node or group {match[1]}", kind="unknown_target")
        if not clean_line(intent.reason).strip():
            raise ActionRefused("an acknowledgement needs a reason", kind="blocked")
        if len(intent.reason) > REASON_LENGTH:
            raise ActionRefused(f"the reason is longer than {REASON_LENGTH} characters", kind="blocked")
        if not SHORTEST <= intent.seconds <= LONGEST:
            raise ActionRefused("an acknowledgement lasts from a minute to 90 days", kind="unknown_target")

    async def _spread(self) -> dict[str, str]:
        """Give every node that can be reached what it lacks; returns the others, and why."""
        results = await asyncio.gather(*map(self._give, self._links))
        return {node: words for node, words in zip(self._links, results, strict=True) if words}

    async def _give(self, node: str) -> str:
        agent = self._links[node].rank_agent
        if agent is None:
            return "unreachable"
        if agent.facts.state_dir_error:
            return agent.facts.state_dir_error
        return await self._look(node, agent)

    async def _note(self, intent: Acknowledge | Unacknowledge, entry: Entry, missing: Mapping[str, str]) -> None:
        """Write it to the journals: here, and on the node that it is about, or one that has it."""
        ack = entry.ack
        if isinstance(intent, Acknowledge):
            written = self._journal.write(
                "acknowledge", key=ack.key, reason=ack.reason, until=round(ack.expires, 3), missing=list(missing)
            )
        else:
            written = self._journal.write("unacknowledge", key=ack.key, missing=list(missing))
        subject = ack.key.rpartition(":")[0]
        rank = self._store.ranks.get(subject)
        node = rank.node if rank is not None else subject.partition("/")[0]
        has = [name for name in self._links if name not in missing]
        agent = self._links[node if node in has else has[0]].rank_agent
        if agent is None:
            return
        try:
            async with self._clock.timeout(TIMEOUT):
                await agent.journal(self._cluster, written)
        except (RemoteError, TimeoutError) as error:
            self._store.event("warning", node, f"journal not written: {error or 'no answer'}")


async def acknowledged(
    links: Mapping[str, NodeLink], topology: Topology, plan: Plan, *, clock: Clock, journal: Journal
) -> tuple[Acknowledgement, ...]:
    """Ask the nodes that are reached, once, for what is acknowledged; changes nothing there."""
    store, name = Store(topology, plan, clock=clock), topology.name
    book = AckBook(links, store, cluster=name, clock=clock, by="", journal=journal, read_only=True)
    agents = {node: link.rank_agent for node, link in links.items()}
    await asyncio.gather(*(book.look(node, agent) for node, agent in agents.items() if agent is not None))
    return book.in_force
