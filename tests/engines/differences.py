"""Where the stand-in is knowingly another than real vLLM, each with its reason. An excuse that is none fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.engines import normal

ABSENT = "(absent)"
PROPERTY = "difference"
"""Name under which a test's report carries a known difference."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One place at which a fact is another than expected."""

    fact: str
    path: str
    """Keys from the fact down, with slashes; empty: the whole fact."""
    real: Any
    found: Any

    def __str__(self) -> str:
        where = f"{self.fact} / {self.path}" if self.path else self.fact
        return f"{where}\n    real   {self.real!r}\n    found  {self.found!r}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A known departure of one house."""

    house: str
    fact: str
    """With `*` for any text, as in file names."""
    path: str
    """Likewise."""
    reason: str
    """Why it stays."""

    def __str__(self) -> str:
        where = f"{self.fact} / {self.path}" if self.path else self.fact
        return f"{self.house}: {where}: {self.reason}"

    def covers(self, house: str, departure: Departure) -> bool:
        """Say whether this is that departure."""
        return (
            house == self.house
            and fnmatchcase(departure.fact, self.fact)
            and fnmatchcase(departure.path, self.path)
        )


DIFFERENCES: tuple[Difference, ...] = ()


def departures(fact: str, real: Any, found: Any, path: str = "") -> Iterator[Departure]:
    """Yield where two facts differ, key by key."""
    if isinstance(real, Mapping) and isinstance(found, Mapping):
        for key in [*real, *(key for key in found if key not in real)]:
            below = f"{path}/{key}" if path else str(key)
            yield from departures(fact, real.get(key, ABSENT), found.get(key, ABSENT), below)
    elif real != found and not normal.merged(real, found):
        yield Departure(fact, path, real, found)


def unexplained(house: str, found: Iterable[Departure]) -> list[Departure]:
    """Return the departures for which there is no reason."""
    return [each for each in found if not any(known.covers(house, each) for known in DIFFERENCES)]


def lines_of(reports: Iterable[Any]) -> list[str]:
    """Return the known differences that pytest's reports carry."""
    return [
        str(value)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
