"""The leases on a server in memory, by the rules of the real agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdtui.errors import AgentError
from pdtui.remote.messages.leases import (
    Lease,
    LeaseClaim,
    LeaseEnd,
    LeaseResult,
)


@dataclass(slots=True)
class Held:
    """One lease file."""

    claim: LeaseClaim
    taken: float
    until: float
    boot: str
    end: LeaseEnd | None = None


class Leases:
    """Leases by cluster and id; times are the server's monotonic ones."""

    def __init__(self, *, monotonic: Callable[[], float], boot: Callable[[], str]) -> None:
        self._monotonic = monotonic
        self._boot = boot
        self._held: dict[tuple[str, str], Held] = {}
        self.full = False
        """The disk is full."""

    def _of(self, cluster: str) -> dict[str, Held]:
        boot = self._boot()
        return {name: one for (owner, name), one in self._held.items() if owner == cluster and one.boot == boot}

    def _view(self, held: Held) -> Lease:
        now = self._monotonic()
        return Lease(held.claim, now - held.taken, max(0.0, held.until - now), held.end)

    def _counts(self, held: Held) -> bool:
        return held.end is None and held.until > self._monotonic()

    def list(self, cluster: str) -> Sequence[Lease]:
        """Return those that are held."""
        return [self._view(one) for one in self._of(cluster).values() if self._counts(one)]

    def take(self, cluster: str, claim: LeaseClaim, ttl: float, breaks: Sequence[str], reason: str) -> LeaseResult:
        """Take or renew one."""
        leases = self._of(cluster)
        mine = leases.pop(claim.id, None)
        if mine is not None and mine.end is not None:
            return LeaseResult("broken", (self._view(mine),))
        rivals = [
            one
            for one in leases.values()
            if one.end is None and one.claim.holder != claim.holder and set(one.claim.ranks) & set(claim.ranks)
        ]
        held = [one for one in rivals if self._counts(one)]
        if any(one.claim.id not in breaks for one in held):
            return LeaseResult("refused", tuple(map(self._view, held)))
        if self.full:
            raise AgentError("No space left on device", code="disk_full")
        now = self._monotonic()
        taken = mine.taken if mine is not None else now
        self._held[cluster, claim.id] = Held(claim, taken, now + ttl, self._boot())
        before = tuple(map(self._view, held))
        for one in rivals:
            one.end = LeaseEnd(claim.by, claim.origin, reason, expired=one not in held)
        return LeaseResult("held", before)

    def release(self, cluster: str, lease: str) -> None:
        """Give one back."""
        self._held.pop((cluster, lease), None)

    def check(self, cluster: str, lease: str) -> None:
        """Refuse when an operation's lease was taken from it."""
        held = self._of(cluster).get(lease)
        if held is not None and held.end is not None:
            raise AgentError(f"{held.end.by} has taken over", code="lease_lost")
