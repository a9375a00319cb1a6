"""From what was seen to a topology file in which nothing is said twice, and a report."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.topology.importing.observed import Observed, Wanted
from pdtui.topology.importing.report import Draft, Kind, Note, note


def assemble(seen: Observed, wanted: Wanted | None = None, notes: Sequence[Note] = ()) -> Draft:
    """Return the topology of what was seen; `notes` of the readers come first in its report. Never raises."""
    nothing = note(Kind.UNREAD, "no vllm serve command was found")
    return Draft("", (*notes, *(() if seen.commands else (nothing,))), ())
