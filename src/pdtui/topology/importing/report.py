"""What an import says besides the topology: origins, translations, contradictions, what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pdtui.text import clean_line
from pdtui.topology.findings import Finding, Severity
from pdtui.topology.importing.observed import Origin
from pdtui.topology.redact import redacted_text


class Kind(StrEnum):
    """What a note is about."""

    UNREAD = "unread"
    """Something could not be read, or its value is only known where it runs."""
    ASKED = "asked"
    """The topology needs a value that nothing says: the user writes it."""
    CONTRADICTION = "contradiction"
    """Two places disagree."""
    FINDING = "finding"
    """A rule that only scripts can break."""
    TRANSLATION = "translation"
    """Something is said in another way now."""
    ASSUMPTION = "assumption"
    """Something was concluded that nothing says outright."""
    ORIGIN = "origin"
    """Where a value of the topology comes from."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the report."""

    kind: Kind
    message: str
    origins: tuple[Origin, ...] = ()
    """The places that it is about, both of a contradiction."""
    rule: str = ""
    severity: Severity = Severity.INFO
    path: str = ""
    """Keys in the topology, joined by dots, where it is about one."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What an import comes to."""

    text: str
    """The topology file; empty when nothing was found that could be one."""
    notes: tuple[Note, ...]
    findings: tuple[Finding, ...]
    """What `check` says of the text."""

    @property
    def complete(self) -> bool:
        """Whether everything could be read and nothing is left for the user to write."""
        return bool(self.text) and not any(note.kind in (Kind.UNREAD, Kind.ASKED) for note in self.notes)


def note(
    kind: Kind,
    message: str,
    *origins: Origin,
    rule: str = "",
    severity: Severity = Severity.INFO,
    path: str = "",
) -> Note:
    """Return a note, its text made safe to show; what could not be read is quoted without its secrets."""
    message = redacted_text(message) if kind is Kind.UNREAD else message
    return Note(kind, clean_line(message), tuple(dict.fromkeys(origins)), rule, severity, path)


def merged(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes of the same words as one, about all their places."""
    places: dict[Note, dict[Origin, None]] = {}
    for one in notes:
        places.setdefault(replace(one, origins=()), {}).update(dict.fromkeys(one.origins))
    return tuple(replace(one, origins=tuple(found)) for one, found in places.items())
