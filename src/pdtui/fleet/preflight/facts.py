"""What was gathered about the nodes: readings by what was asked, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pdtui.errors import ConnectKind
from pdtui.readings.answer import Failure, Reading

Item = int | str | None
"""Of what: an NPU's id, or a probe's own word (a path, a port); None for the node."""

Key = tuple[str, Item]
"""What was asked (a `Query`, or the id of a probe), and of what."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How far a node was reached."""

    host: bool = False
    """The agent on the host has answered."""
    ranks: bool = False
    """The agent where ranks run has answered: in the container, if there is one."""
    seconds: float | None = None
    """Until the first answer."""
    user: str = ""
    hostname: str = ""
    python: str = ""
    error: str = ""
    """Why the node, or its container, is not reached."""
    kind: ConnectKind | None = None
    remedy: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that was gathered about one node."""

    node: str
    connection: Connection = Connection()
    readings: Mapping[Key, Reading[Any]] = field(default_factory=dict)
    missing: Mapping[str, Reading[Any]] = field(default_factory=dict)
    """For a need that was not gathered, or not all of it: a reading without value that says why."""
    lost: str = ""
    """Why gathering ended early: the connection broke, or the node's time was over."""

    def get(self, need: str, item: Item = None) -> Reading[Any]:
        """Return a reading; for what was not gathered, one without value that says why."""
        found = self.readings.get((need, item)) or self.missing.get(need)
        return found or Reading(need, self.connection.at, NOT_GATHERED, failure=Failure.EMPTY)

    def items(self, need: str) -> Mapping[Item, Reading[Any]]:
        """Return what was gathered for a need, by item."""
        return {item: reading for (name, item), reading in self.readings.items() if name == need}


NOT_GATHERED = "not gathered"
