"""Ranks -> DP groups: who meets whom, on which nodes, with which first ports and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pdtui.topology.findings import Severity
from pdtui.topology.importing.ranks import DENSE, NIXL, Rank
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Role

_LETTERS = {Role.PREFILL: "p", Role.DECODE: "d"}


@dataclass(eq=False)
class Formed:
    """One group, its ranks by their number."""

    role: Role
    ranks: list[Rank]
    name: str = ""
    notes: list[Note] = field(default_factory=list)

    @property
    def first(self) -> Rank:
        """The rank with the lowest number."""
        return self.ranks[0]

    @property
    def hosts(self) -> list[str]:
        """Hosts in the order of the ranks."""
        return list(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def dp_size(self) -> int:
        """Ranks that the group has, those included that were not seen."""
        return max(self.first.dp_size if self.first.external else len(self.ranks), 1)

    def on(self, host: str) -> list[Rank]:
        """Return the ranks of one host."""
        return [rank for rank in self.ranks if rank.host == host]


def model_kind(ranks: Sequence[Rank]) -> Literal["moe", "dense"]:
    """Return what the model must be: dense by its name, unless experts are spoken of."""
    experts = any(
        rank.args.get("enable-expert-parallel") is not None and rank.args["enable-expert-parallel"].value is True
        for rank in ranks
    )
    names = {rank.model.text.rstrip("/").rsplit("/", 1)[-1] for rank in ranks if rank.model is not None}
    return "dense" if not experts and names and all(DENSE.search(name[:200]) for name in names) else "moe"


def form(ranks: Sequence[Rank], *, dense: bool) -> list[Formed]:
    """Return the groups, prefill first; ranks must have a role by now."""
    met: dict[tuple[object, ...], list[Rank]] = {}
    for number, rank in enumerate(ranks):
        role = rank.role or Role.PREFILL
        alone = number if not rank.external else ""
        met.setdefault((role, rank.external, rank.dp_address, rank.rpc_port, alone), []).append(rank)
    groups = [_in_order(key[0], found) for key, found in met.items()]
    if dense:
        groups = _joined(groups)
    groups.sort(key=lambda group: group.role is not Role.PREFILL)
    _name(groups)
    return groups


def _in_order(role: object, found: list[Rank]) -> Formed:
    """Return one group; a number that is there twice is told and kept once."""
    notes: list[Note] = []
    by_number: dict[int, Rank] = {}
    for rank in sorted(found, key=lambda rank: rank.dp_rank):
        before = by_number.setdefault(rank.dp_rank, rank)
        if before is not rank:
            where = f"on {before.host} and {rank.host}"
            message = f"rank {rank.dp_rank} of {rank.dp_address or rank.host} is there twice, {where}"
            places = (before.place("data-parallel-rank"), rank.place("data-parallel-rank"))
            notes.append(note(Kind.CONTRADICTION, message, *places, rule="R01", severity=Severity.ERROR))
    return Formed(Role.PREFILL if role is Role.PREFILL else Role.DECODE, list(by_number.values()), notes=notes)


def _joined(groups: list[Formed]) -> list[Formed]:
    """Put independent instances of a dense model into one group where their ports count up on each node."""
    result = [group for group in groups if group.first.external or len(group.ranks) > 1]
    for role in Role:
        single = [group.first for group in groups if not group.first.external and group.role is role]
        hosts = list(dict.fromkeys(rank.host for rank in single))
        single.sort(key=lambda rank: (hosts.index(rank.host), rank.api_port))
        if len(single) > 1 and _counts_up(single):
            for number, rank in enumerate(single):
                rank.dp_rank = number
            first = single[0]
            for rank in single[1:]:
                rank.kv_port = first.kv_port
            result.append(Formed(role, single))
        else:
            result += [Formed(role, [rank]) for rank in single]
    return result


def _counts_up(ranks: Sequence[Rank]) -> bool:
    first = ranks[0]
    # Mooncake takes a port for each NPU, NIXL one for each rank.
    nixl = first.connector is not None and first.connector.value == NIXL
    size = 1 if nixl else first.tp_size * first.pp_size
    local: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        index = local.get(rank.host, 0)
        local[rank.host] = index + 1
        if (rank.tp_size, rank.pp_size) != (
            first.tp_size,
            first.pp_size,
        ) or rank.api_port != first.api_port + index:
            return False
        if first.kv_port is None or rank.kv_port != first.kv_port + number * size:
            return False
        if {name: said.value for name, said in rank.args.items()} != {
            name: said.value for name, said in first.args.items()
        }:
            return False
    return True


def _name(groups: Sequence[Formed]) -> None:
    for role in Role:
        mine = [group for group in groups if group.role is role]
        for number, group in enumerate(mine, 1):
            group.name = role.value if len(mine) == 1 else f"{_LETTERS[role]}{number}"
    known = [_known_name(group) for group in groups]
    if all(known) and len(set(known)) == len(known):
        for group, name in zip(groups, known, strict=True):
            group.name = name


def _known_name(group: Formed) -> str:
    """Return the name under which pdtui started all of a group's ranks; empty when it did not."""
    names = {rank.command.rank.partition("/")[0] for rank in group.ranks}
    return names.pop() if len(names) == 1 else ""
