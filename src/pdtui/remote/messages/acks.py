"""Acknowledgements: troubles of a cluster that its operators know of, kept on the nodes."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 90 * 86400.0
"""Seconds: no acknowledgement is longer, and each is remembered so long, so that no older one comes back."""

SAME = 2.0
"""Seconds within which two clocks do not say which of two acknowledgements is newer; then the larger id is."""

AHEAD = 60.0
"""Seconds: one that follows another at once is dated after it."""

KEPT = 500
"""Troubles of a cluster that are remembered; the newest."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The newest acknowledgement of a trouble, also one that has ended; durations instead of a node's times."""

    key: str
    """Subject and id of what is wrong: `node3/9:link-down`."""
    id: str
    """One for all nodes."""
    reason: str
    by: str
    origin: str
    """Where the operator sat."""
    age: float
    """Seconds since it was given, or taken back; a little below 0 if that followed another at once."""
    left: float
    """Seconds for which it still counts."""
    removed: bool = False
    """It was taken back."""


@dataclass(frozen=True, slots=True)
class AckList:
    """What a node has."""

    digest: str
    """What this list is known by."""
    acks: tuple[Ack, ...] | None
    """None: the list that was asked about is still what it has."""
