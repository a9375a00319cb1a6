"""What a console or a command asks of the supervisor, and what the supervisor says beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pdtui.fleet.snapshot import LeaseStatus


@dataclass(frozen=True, slots=True)
class Breaking:
    """The permission to take over from other consoles that work on the same ranks."""

    reason: str = ""
    """Typed by the operator; empty: no lease may be broken."""
    ids: tuple[str, ...] = ()
    """Leases that the operator has seen; none: whatever is in the way."""

    def covers(self, lease: str) -> bool:
        """Return whether a lease may be broken."""
        return bool(self.reason) and (not self.ids or lease in self.ids)


DRAIN = 30.0
"""Seconds that running requests have to end before a stop, unless something else is asked for."""

NOT_BREAKING = Breaking()


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start ranks that do not run."""

    ids: tuple[str, ...]
    reason: str = ""
    override: tuple[str, ...] = ()
    """Blockers to pass over, by their `Blocker.id`; then `reason` is needed."""
    confirm: str = ""
    """The cluster's name, typed, where a protected cluster asks for it."""
    breaking: Breaking = NOT_BREAKING


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Stop ranks: TERM, KILL after the grace period, then check what is left."""

    ids: tuple[str, ...]
    reason: str = ""
    grace: float = 30.0
    """Seconds between TERM and KILL."""
    drain: float = DRAIN
    """Seconds that running requests have to end before TERM cuts them off."""
    confirm: str = ""
    breaking: Breaking = NOT_BREAKING
    unmanaged: tuple[str, ...] = ()
    """Ranks that may be stopped although they were started by hand: named, or confirmed after a preview."""


@dataclass(frozen=True, slots=True)
class RestartRanks:
    """Stop what runs of these ranks, then start them all."""

    ids: tuple[str, ...]
    whole_group: bool = True
    """With a MoE group, one rank means its group; False restarts these only."""
    reason: str = ""
    grace: float = 30.0
    drain: float = DRAIN
    rolling: bool = False
    """One group after the other, the next only when the one before serves again."""
    override: tuple[str, ...] = ()
    confirm: str = ""
    breaking: Breaking = NOT_BREAKING
    unmanaged: tuple[str, ...] = ()
    """Ranks that may be taken over although they were started by hand: named, or confirmed after a preview."""


ContainerVerb = Literal["container up", "container down", "container recreate"]


@dataclass(frozen=True, slots=True)
class ChangeContainers:
    """Make and start the container of these nodes, stop and remove it, or both in turn."""

    verb: ContainerVerb
    nodes: tuple[str, ...]
    pull: bool = False
    """Fetch an image that a node lacks."""
    reason: str = ""
    override: tuple[str, ...] = ()
    """Who may die with the container, by `Blocker.id`; then `reason` is needed."""
    confirm: str = ""
    breaking: Breaking = NOT_BREAKING


RankIntent = StartRanks | StopRanks | RestartRanks
Intent = RankIntent | ChangeContainers


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell a trouble no longer for a while: it is known."""

    key: str
    """As in `snapshot.Acknowledgement`."""
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Unacknowledge:
    """Tell a trouble again."""

    key: str
    """Of the acknowledgement, as it was given."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """Something that stands against a start, or against the end of a container."""

    id: str
    """Stable: `port:node3:7100`."""
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an intent would do, before it is submitted."""

    verb: Literal["start", "stop", "restart"] | ContainerVerb
    title: str
    """`restart group decode`."""
    ids: tuple[str, ...]
    """All ranks that it touches; for containers their nodes."""
    consequence: str
    """What follows for the service, and how long the last start took."""
    steps: tuple[str, ...]
    blockers: tuple[Blocker, ...] = ()
    warnings: tuple[str, ...] = ()
    """What will hurt what is started, though nothing stands against it; with the remedy, a line each."""
    leases: tuple[LeaseStatus, ...] = ()
    """Other consoles that work on the same ranks; refused unless their leases are broken."""
    needs_name: bool = False
    """A protected cluster wants its name typed."""
    dangerous: bool = True
    """False for what cannot hurt (starting stopped ranks): no dialog needed."""
    commands: tuple[str, ...] = ()
    """What would run on the nodes, as shell lines, secrets removed."""
    note: str = ""
    """Why more ranks are touched than were named."""
    unmanaged: tuple[str, ...] = ()
    """Of the ranks, those that were started by hand and would be stopped: the intent must name them."""
    processes: tuple[str, ...] = ()
    """A line for each of those: the processes that are told to end."""
