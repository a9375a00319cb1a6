"""What a row of the fault table is: an event, what must be shown of it, and until when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.bench import Bench

Document = Mapping[str, Any]
"""A snapshot as `pdtui status --json` prints it, with headline, events and operations where they are known."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an operator must see of one subject."""

    subject: str
    """A rank, node, `node/npu`, or `serving`, `headline`, `event`, `operation`, `command`, `file`."""
    state: str = ""
    """Alternatives, `failed|stalled`; empty: any."""
    says: tuple[str, ...] = ()
    """Words that must be there, in any case."""

    def __str__(self) -> str:
        words = ", ".join(f"«{word}»" for word in self.says)
        return f"{self.subject} {self.state}{' ' if self.state and words else ''}{words}".strip()

    def missing(self, document: Document) -> str:
        """Return what is not as it must be; empty when all is shown."""
        found = told(document, self.subject)
        for state, text in found:
            right = not self.state or state in self.state.split("|")
            if right and all(word.lower() in text.lower() for word in self.says):
                return ""
        return f"wanted {self}; shown: {'; '.join(f'{state} {text}' for state, text in found[-4:]) or 'nothing'}"


def told(document: Document, subject: str) -> Sequence[tuple[str, str]]:
    """Return (state, words) of each thing that goes by a subject's name."""
    if subject == "serving":
        return [(document["serving"]["word"], "")]
    if subject == "file":
        return [("changed" if document.get("file_changed") else "as loaded", "")]
    if subject == "headline":
        headline = document.get("headline") or {}
        return [("", headline.get("message", ""))]
    if subject == "event":
        return [(event["severity"], f"{event['subject']} {event['message']}") for event in document["events"]]
    if subject == "command":
        return [(str(said["status"]), said["output"]) for said in document.get("said", ())]
    if subject == "operation":
        return [(operation["state"], _strings(operation)) for operation in document["operations"]]
    node, slash, number = subject.partition("/")
    for found in document["nodes"]:
        if found["name"] == subject:
            return [(found["state"], _strings({k: v for k, v in found.items() if k != "npus"}))]
        if slash and found["name"] == node:
            return [(npu["verdict"], _strings(npu)) for npu in found["npus"] if str(npu["id"]) == number]
    return [
        (rank["state"], _strings(rank))
        for rank in document["ranks"]
        if rank["id"] == subject or (not slash and rank["group"] == subject)
    ]


def _strings(value: object) -> str:
    if isinstance(value, Mapping):
        return " | ".join(filter(None, map(_strings, value.values())))
    if isinstance(value, list | tuple):
        return " | ".join(filter(None, map(_strings, value)))
    return "" if value is None or isinstance(value, float) else str(value)


Event = Callable[["Bench"], AbstractContextManager[None]]
"""Makes something happen to real processes; leaving the context puts it right."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    id: str
    happens: str
    """In an operator's words."""
    made: str
    """How, on a real process."""
    event: Event
    shows: tuple[Shown, ...]
    within: float
    """Seconds until everything is shown: generous."""
    aside: frozenset[str] = frozenset()
    """What is slow to show goes on from the start beside all other rows, on these nodes and ranks of its own."""
    late: bool = False
    """Aside, but not before all others are done: commands that look at the whole cluster would wait for it."""
    in_status: bool = False
    """Also `pdtui status --json`, a process of its own, must show it."""


@dataclass(slots=True)
class Outcome:
    """What became of a row."""

    row: Row
    seconds: float | None = None
    """From the event until everything was shown."""
    missing: str = "it did not happen"
    """What was not shown."""
    told: Sequence[str] = ()
    """What was shown, in full."""
