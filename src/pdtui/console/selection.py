"""What the operator points at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Area = Literal["grid", "ranks", "detail"]
Tab = Literal["log", "describe", "metrics", "reasons", "events", "ports", "progress", "test"]
TABS: tuple[Tab, ...] = ("log", "describe", "metrics", "reasons", "events", "ports", "progress", "test")


@dataclass(frozen=True, slots=True)
class Selection:
    """Cursor and marks over all areas: one NPU, one rank, a set of marked ranks."""

    area: Area = "ranks"
    rank: str = ""
    node: str = ""
    npu: int | None = None
    marks: tuple[str, ...] = ()
    """Marked rank ids in the order of the list."""
    tab: Tab = "log"

    @property
    def targets(self) -> tuple[str, ...]:
        """The ranks that an action is about: the marked ones, else the one under the cursor."""
        return self.marks or ((self.rank,) if self.rank else ())
