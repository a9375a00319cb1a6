"""Order and filter of the list of ranks; no widgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pdtui.console.strings import S
from pdtui.errors import UsageError
from pdtui.fleet.snapshot import WRONG_STATES, RankState, RankStatus, Snapshot

_MOVING = frozenset({RankState.STARTING, RankState.STOPPING})
_ODD = frozenset({RankState.UNMANAGED, RankState.UNKEPT})
_NUMBER = re.compile(r"(\d+)")


@lru_cache(maxsize=4096)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts `decode/2` before `decode/10`."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(text) if part)


def without_group(snapshot: Snapshot) -> frozenset[str]:
    """Return the ranks that still run although their group is lost: they serve nobody, whatever /health says."""
    return frozenset(rank for group in snapshot.groups for rank in group.must_restart)


def state_word(rank: RankStatus, *, lone: bool = False) -> str:
    """Return a rank's state in a word; `lone`: its group is lost, so that `ready` would be wrong."""
    return S.no_group if lone and rank.state is RankState.READY else S.rank_states[rank.state]


def order(ranks: Iterable[RankStatus], lone: Container[str] = ()) -> list[RankStatus]:
    """Return the wrong ones first, then what starts or stops, then what is odd, then the rest; each by id.

    `lone`: ranks whose group is lost.
    """

    def key(rank: RankStatus) -> tuple[int, tuple[tuple[int, int, str], ...]]:
        odd = rank.state in _ODD or bool(rank.alarms) or rank.id in lone
        place = 0 if rank.state in WRONG_STATES else 1 if rank.state in _MOVING else 2 if odd else 3
        return place, natural(rank.id)

    return sorted(ranks, key=key)


def device_list(devices: tuple[int, ...]) -> str:
    """Return `0-7` for a run of NPU ids, `0,2,4` otherwise; empty without devices."""
    if not devices:
        return ""
    if len(devices) > 1 and devices == tuple(range(devices[0], devices[-1] + 1)):
        return f"{devices[0]}-{devices[-1]}"
    return ",".join(str(device) for device in devices)


def _words(rank: RankStatus) -> str:
    state = S.rank_states[rank.state]
    why = " ".join([alarm.message for alarm in rank.alarms] + ([rank.diagnosis.summary] if rank.diagnosis else []))
    return " ".join((rank.id, rank.node, state, rank.role, rank.stage, *rank.flags, why)).lower()


_FIELDS: Mapping[str, Callable[[RankStatus, str], bool]] = {
    "state": lambda rank, value: rank.state.value.startswith(value) or S.rank_states[rank.state].startswith(value),
    "node": lambda rank, value: rank.node == value,
    "role": lambda rank, value: rank.role.value.startswith(value),
    "group": lambda rank, value: rank.group == value,
    "id": lambda rank, value: rank.id == value,
    "npu": lambda rank, value: value.isdigit() and int(value) in rank.devices,
    "flag": lambda rank, value: any(flag.startswith(value) for flag in rank.flags),
}


def filter_fields(*, npus: bool) -> tuple[str, ...]:
    """Return the fields that a filter can name."""
    return tuple(name for name in _FIELDS if npus or name != "npu")


@dataclass(frozen=True, slots=True)
class RankFilter:
    """Terms that must all hold: words, `!word`, `field:value`, `!field:value`."""

    text: str = ""
    terms: tuple[tuple[bool, str, str], ...] = ()
    """Wanted or not, field or empty, value."""

    @classmethod
    def parse(cls, text: str, *, npus: bool = True) -> RankFilter:
        """Read what was typed; `npus`: ranks have any. Raises `UsageError` for an unknown field."""
        fields = filter_fields(npus=npus)
        terms = []
        for word in text.lower().split():
            wanted = not word.startswith("!")
            field, colon, value = word.lstrip("!").partition(":")
            if not colon:
                field, value = "", field
            elif field not in fields:
                raise UsageError(S.filter_unknown_field.format(name=field, fields=" ".join(fields)))
            if value:
                terms.append((wanted, field, value))
        return cls(text.strip(), tuple(terms))

    def matches(self, rank: RankStatus) -> bool:
        """Return whether every term holds."""
        for wanted, field, value in self.terms:
            found = _FIELDS[field](rank, value) if field else value in _words(rank)
            if found is not wanted:
                return False
        return True
