"""Leases between consoles: who works on which ranks now, kept on the nodes beside the ranks' records.

Every operation holds one for the ranks that it touches, taken on all its nodes or on none, and renews it while it
runs; a console that is gone loses it after `LEASE_TTL`. Nodes are asked in one order by every console and nobody
waits for a lease, so two operations on the same ranks cannot stop each other: one of them gets it. The rank's own
lock and record on the node stay what keeps one rank from running twice.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pdtui.clock import Clock
from pdtui.errors import ActionRefused, RemoteError
from pdtui.fleet.intents import Breaking
from pdtui.fleet.scope import duration
from pdtui.fleet.snapshot import LeaseStatus
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.leases import (
    Lease,
    LeaseClaim,
    LeaseEnd,
    LeaseResult,
)

LEASE_TTL = 30.0
"""Seconds after which the lease of a console that is gone ends by itself."""

LEASE_TIMEOUT = 5.0
"""Seconds that a node has to answer about leases; one that does not is worked on without."""

RENEWALS = 6
"""Tries to renew within the life of a lease."""

VERBS = {
    "start": "starts",
    "stop": "stops",
    "restart": "restarts",
    "container up": "brings up",
    "container down": "takes down",
    "container recreate": "makes anew",
}


class Hold:
    """A lease that an operation holds on its nodes."""

    def __init__(
        self,
        claim: LeaseClaim,
        ranks: Mapping[str, tuple[str, ...]],
        desk: LeaseDesk,
        ended: Sequence[LeaseStatus],
    ) -> None:
        self._claim = claim
        self._ranks = ranks
        self._desk = desk
        self.ended = tuple(ended)
        """Leases of others that were broken for it."""
        self.missing: dict[str, str] = {}
        """Nodes on which it could not be taken, and why."""
        self._asking: set[asyncio.Future[LeaseResult | None]] = set()

    @property
    def id(self) -> str:
        """Its name on the nodes."""
        return self._claim.id

    async def kept(self) -> str:
        """Renew it until somebody else has ended it; return who and why, in words."""
        end = ""
        while not end:
            await self._desk.pause()
            end = await self.lost()
        return end

    async def lost(self) -> str:
        """Renew it once; return who has ended it and why, empty while it is held."""
        for result in await asyncio.gather(*(self._renew(node) for node in self._ranks)):
            end = next((lease.end for lease in result.leases if lease.end), None) if result else None
            if end is not None:
                return end_words(end)
        return ""

    async def lost_on(self, node: str) -> str:
        """Renew it on one node that was away; return who has its ranks in hand there, empty when it is held."""
        result = await self._renew(node)
        for lease in result.leases if result is not None else ():
            if lease.end is not None:
                return end_words(lease.end)
            return self._desk.words(node, lease)
        return ""

    async def _renew(self, node: str) -> LeaseResult | None:
        """Renew it on one node; return what is in the way."""
        # Shielded: a request that was given up half-way could bring back what is released meanwhile.
        asking = asyncio.ensure_future(self._ask(node))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        return await asyncio.shield(asking)

    async def _ask(self, node: str) -> LeaseResult | None:
        result = await self._desk.ask(node, replace(self._claim, ranks=self._ranks[node]))
        if isinstance(result, str):
            self.missing[node] = result
            return None
        self.missing.pop(node, None)
        return result if result.outcome != "held" else None

    async def release(self) -> None:
        """Give it back where that can be done; elsewhere it ends by itself."""
        await asyncio.gather(*self._asking)
        await asyncio.gather(*(self._desk.release(node, self.id) for node in self._ranks))


class LeaseDesk:
    """Takes leases for the operations of one console, and says what is in their way."""

    def __init__(
        self,
        links: Mapping[str, NodeLink],
        *,
        cluster: str,
        clock: Clock,
        by: str,
        origin: str,
        ttl: float,
        with_hosts: bool = False,
    ) -> None:
        """`with_hosts`: where no agent beside the ranks answers, as without a container, the host's is asked."""
        self._links = links
        self._silent: dict[str, NodeAgent] = {}
        """Agents in containers that gave no answer: those may be frozen."""
        self._with_hosts = with_hosts
        self._cluster = cluster
        self._clock = clock
        self._by = by
        self._origin = origin
        self._ttl = ttl
        self.holder = secrets.token_hex(8)
        """This console, on the nodes."""

    def for_hosts(self) -> LeaseDesk:
        """Return a desk of the same console for what is done to the hosts' containers."""
        desk = LeaseDesk(
            self._links,
            cluster=self._cluster,
            clock=self._clock,
            by=self._by,
            origin=self._origin,
            ttl=self._ttl,
            with_hosts=True,
        )
        desk.holder = self.holder
        return desk

    def _agent(self, node: str) -> NodeAgent | None:
        link = self._links[node]
        inside = link.rank_agent
        if self._with_hosts and (inside is None or self._silent.get(node) is inside):
            return link.host_agent
        return inside

    def _gave_no_answer(self, node: str, agent: NodeAgent) -> None:
        if self._with_hosts and agent is self._links[node].rank_agent:
            self._silent[node] = agent

    async def pause(self) -> None:
        """Wait until leases should be renewed."""
        await self._clock.sleep(self._ttl / RENEWALS)

    async def in_the_way(self, ranks: Mapping[str, tuple[str, ...]]) -> Sequence[LeaseStatus]:
        """Ask the nodes for other consoles' leases on these ranks (node -> ids); no answer counts as none."""
        found = await asyncio.gather(*(self._list(node) for node in ranks))
        leases = [
            (node, lease)
            for node, on_node in zip(ranks, found, strict=True)
            for lease in on_node
            if lease.claim.holder != self.holder and _collide(lease.claim.ranks, ranks[node])
        ]
        return merged(leases, self._clock.wall())

    async def _list(self, node: str) -> Sequence[Lease]:
        agent = self._agent(node)
        if agent is None or agent.facts.state_dir_error:
            return ()
        try:
            async with self._clock.timeout(LEASE_TIMEOUT):
                return await agent.leases(self._cluster)
        except TimeoutError:
            self._gave_no_answer(node, agent)
            return ()
        except RemoteError:
            return ()

    async def take(
        self,
        verb: str,
        what: str,
        ranks: Mapping[str, tuple[str, ...]],
        *,
        everywhere: Mapping[str, tuple[str, ...]],
        breaking: Breaking,
    ) -> Hold:
        """Take a lease on all nodes of `ranks` (node -> ids) or on none. Raises `ActionRefused` (`leased`).

        `everywhere` has all nodes on which nobody else may work on ranks, and which: another file may have them
        elsewhere.
        Nodes that cannot give one are `missing` in the result: what may be done there is for others to say.
        """
        rivals = await self.in_the_way(everywhere)
        self._refuse([one for one in rivals if not breaking.covers(one.id)], what)
        # A lease that is broken ends where it is held.
        wanted = {**ranks, **{node: everywhere[node] for one in rivals for node in one.nodes}}
        claim = LeaseClaim(secrets.token_hex(8), self.holder, self._by, self._origin, verb, what, ())
        hold = Hold(claim, wanted, self, rivals)
        try:
            for node in sorted(wanted):
                result = await self.ask(
                    node,
                    replace(claim, ranks=wanted[node]),
                    breaks=[one.id for one in rivals],
                    reason=breaking.reason,
                )
                if isinstance(result, str):
                    hold.missing[node] = result
                elif result.outcome == "refused":
                    self._refuse(merged([(node, one) for one in result.leases], self._clock.wall()), what)
            # Others may have taken theirs for the same ranks on other nodes meanwhile, and see this one then.
            broken = {one.id for one in rivals}
            self._refuse([one for one in await self.in_the_way(everywhere) if one.id not in broken], what)
        except (ActionRefused, asyncio.CancelledError):
            await hold.release()
            raise
        return hold

    def _refuse(self, rivals: Sequence[LeaseStatus], what: str) -> None:
        if rivals:
            be = "are" if what.startswith(("all ", "groups ")) or "," in what else "is"
            lines = [lease_words(one, self._clock.wall()) for one in rivals]
            raise ActionRefused(
                f"{what} {be} in another operator's hands: {'; '.join(lines)}",
                kind="leased",
                remedy="wait for its end (a console that is gone loses its lease within "
                f"{self._ttl:.0f} s), or take over: --break-lease REASON",
            )

    def words(self, node: str, lease: Lease) -> str:
        """Say whose lease it is that is in the way on a node, and what for."""
        return next(lease_words(one, self._clock.wall()) for one in merged([(node, lease)], self._clock.wall()))

    async def ask(
        self, node: str, claim: LeaseClaim, *, breaks: Sequence[str] = (), reason: str = ""
    ) -> LeaseResult | str:
        """Take or renew a lease on one node; returns in words why it cannot be had there."""
        agent = self._agent(node)
        if agent is None:
            return "unreachable"
        if agent.facts.state_dir_error:
            return agent.facts.state_dir_error
        try:
            async with self._clock.timeout(LEASE_TIMEOUT):
                return await agent.take_lease(self._cluster, claim, ttl=self._ttl, breaks=breaks, reason=reason)
        except TimeoutError:
            self._gave_no_answer(node, agent)
            return f"no answer within {LEASE_TIMEOUT:.0f} s"
        except RemoteError as error:
            return error.message

    async def release(self, node: str, lease: str) -> None:
        """Give a lease back on one node; without an answer it ends by itself."""
        agent = self._agent(node)
        if agent is None or agent.facts.state_dir_error:
            return
        try:
            async with self._clock.timeout(LEASE_TIMEOUT):
                await agent.release_lease(self._cluster, lease)
        except (RemoteError, TimeoutError):
            return


def _collide(held: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether two lists have a rank in common; an empty one stands for all."""
    return not held or bool(set(held) & set(wanted))


def merged(leases: Sequence[tuple[str, Lease]], now: float) -> tuple[LeaseStatus, ...]:
    """Return what several nodes say of leases, each once."""
    found: dict[str, LeaseStatus] = {}
    for node, lease in leases:
        claim = lease.claim
        seen = found.get(claim.id)
        if seen is None:
            found[claim.id] = LeaseStatus(
                id=claim.id,
                by=claim.by,
                origin=claim.origin,
                verb=claim.verb,
                what=claim.what,
                nodes=(node,),
                ranks=claim.ranks,
                since=round(now - lease.age, 1),
            )
        else:
            found[claim.id] = replace(
                seen,
                nodes=(*seen.nodes, node),
                ranks=tuple(dict.fromkeys((*seen.ranks, *claim.ranks))),
                since=min(seen.since, round(now - lease.age, 1)),
            )
    return tuple(found.values())


def lease_words(lease: LeaseStatus, now: float) -> str:
    """Return `bob@host (from 10.0.0.9) restarts group decode on node3, node4 since 4 min`."""
    where = f" (from {lease.origin})" if lease.origin and lease.origin != "local" else ""
    does = VERBS.get(lease.verb, lease.verb)
    age = duration(max(0.0, now - lease.since))
    return f"{lease.by}{where} {does} {lease.what} on {', '.join(lease.nodes)} for {age} now"


def end_words(end: LeaseEnd) -> str:
    """Return how a lease was taken away: `bob@host (from 10.0.0.9) has taken over: wrong group`."""
    where = f" (from {end.origin})" if end.origin and end.origin != "local" else ""
    if end.expired:
        return f"nothing was heard from here for too long, and {end.by}{where} has taken over"
    return f"{end.by}{where} has taken over{': ' + end.reason if end.reason else ''}"
