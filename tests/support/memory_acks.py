"""The acknowledgements on a server in memory, by the rules of the real agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdtui.errors import AgentError
from pdtui.remote.messages.acks import AHEAD, KEPT, LONGEST, SAME, Ack, AckList


@dataclass(slots=True)
class Kept:
    """One entry of the file; times are the server's wall clock."""

    ack: Ack
    at: float
    expires: float


class Acks:
    """Acknowledgements by cluster and key."""

    def __init__(self, *, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._kept: dict[str, dict[str, Kept]] = {}
        self.full = False
        """The disk is full."""

    def list(self, cluster: str, unless: str) -> AckList:
        """Return what is there."""
        now = self._wall()
        known = {key: one for key, one in self._kept.get(cluster, {}).items() if one.at > now - LONGEST}
        digest = repr(sorted((key, one.ack.id) for key, one in known.items()))
        if digest == unless:
            return AckList(digest, None)
        return AckList(digest, tuple(self._view(known[key]) for key in sorted(known)))

    def _view(self, kept: Kept) -> Ack:
        now, ack = self._wall(), kept.ack
        age, left = max(-AHEAD, now - kept.at), max(0.0, kept.expires - now)
        return Ack(ack.key, ack.id, ack.reason, ack.by, ack.origin, age, left, ack.removed)

    def put(self, cluster: str, acks: Sequence[Ack]) -> AckList:
        """Take over what is newer."""
        known, now = self._kept.setdefault(cluster, {}), self._wall()
        for ack in acks:
            new = Kept(ack, now - ack.age, now + ack.left)
            if ack.key not in known or self._is_newer(new, known[ack.key]):
                if self.full:
                    raise AgentError("No space left on device", code="disk_full")
                known[ack.key] = new
        for key in sorted(known, key=lambda key: known[key].at)[:-KEPT]:
            del known[key]
        return self.list(cluster, "")

    def _is_newer(self, new: Kept, old: Kept) -> bool:
        apart = new.at - min(old.at, self._wall())
        return new.ack.id != old.ack.id and (apart >= SAME or (apart > -SAME and new.ack.id > old.ack.id))
