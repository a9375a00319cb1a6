"""Targets of commands: `decode/17`, `decode/0-7`, `decode`, `@node3`, `role:prefill`, `failed`, `all`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from pdtui.errors import UsageError
from pdtui.fleet.snapshot import RankState, RankStatus
from pdtui.topology.model import Role, Topology
from pdtui.topology.plan import Plan

_SPAN = re.compile(r"(?P<group>[^/]+)/(?P<first>[0-9]{1,6})-(?P<last>[0-9]{1,6})")
"""Ranks as `in_short` writes them: what a screen or the journal says can be given back."""


def resolve(
    targets: Sequence[str], topology: Topology, plan: Plan, ranks: Iterable[RankStatus] = ()
) -> tuple[str, ...]:
    """Return the ids that the targets name together, each once, in the order of the plan.

    `ranks` says which have failed, and which exist that the file does not have (those come last). Raises
    `UsageError` for a target that names nothing, with the nearest name that does.
    """
    known = list(ranks)
    wanted: set[str] = set()
    for target in targets:
        wanted.update(_one(target, topology, plan, known))
    planned = [rank.id for rank in plan.ranks if rank.id in wanted]
    return (*planned, *sorted(wanted - plan.by_id.keys()))


def _one(target: str, topology: Topology, plan: Plan, ranks: Sequence[RankStatus]) -> Iterable[str]:
    if target == "all":
        return [rank.id for rank in plan.ranks]
    if target == "failed":
        return [rank.id for rank in ranks if rank.state is RankState.FAILED]
    if target == "proxy":
        raise UsageError("the proxy is not supervised yet: it comes later; `ask` uses an embedded one")
    if target in topology.groups:
        return [rank.id for rank in plan.of_group(target)]
    if target in plan.by_id or any(rank.id == target for rank in ranks):
        return [target]
    if span := _SPAN.fullmatch(target):
        group, first, last = span["group"], int(span["first"]), int(span["last"])
        ids = [f"{group}/{number}" for number in range(first, last + 1)] if last - first < len(plan.ranks) else []
        if ids and plan.by_id.keys() >= set(ids):
            return ids
    if target.startswith("@") and target[1:] in topology.nodes:
        return [rank.id for rank in plan.on_node(target[1:])]
    if target.startswith("role:") and target[5:] in tuple(Role):
        return [rank.id for rank in plan.ranks if rank.role == target[5:]]
    raise UsageError(f"no target {target!r}{_guess(target, topology, plan)}")


def nodes_of(targets: Sequence[str], topology: Topology, plan: Plan, *, groups: bool) -> frozenset[str] | None:
    """Return the nodes of the ranks that the targets name; with `groups`, of all of a MoE group that is touched.

    None when nodes have to be asked first which ranks these are: those that have failed, and those that the file
    does not have. Raises `UsageError` for what can be no such rank either.
    """
    for target in targets:
        if "/" not in target:
            _one(target, topology, plan, ())
    try:
        ids = [] if "failed" in targets else resolve(targets, topology, plan)
    except UsageError:
        ids = []
    if not ids:
        return None
    named = [plan.by_id[rank_id] for rank_id in ids]
    whole = {rank.group for rank in named} if groups and topology.model.kind == "moe" else set[str]()
    return frozenset(rank.node for rank in (*named, *(mate for mate in plan.ranks if mate.group in whole)))


def _guess(target: str, topology: Topology, plan: Plan) -> str:
    if target in topology.nodes:
        return f"; did you mean '@{target}' (the ranks on that node)?"
    if target in tuple(Role):
        return f"; did you mean 'role:{target}'?"
    names = [
        "all",
        "failed",
        *topology.groups,
        *(f"@{node}" for node in topology.nodes),
        *(f"role:{role}" for role in Role),
        *plan.by_id,
    ]
    near = difflib.get_close_matches(target, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join(topology.groups)}, their ranks, @NODE, role:ROLE, failed and all"


def in_short(ids: Sequence[str]) -> str:
    """Return rank ids in few words: `decode/0-7, p1/1`."""
    spans: list[tuple[str, int, int]] = []
    for rank_id in ids:
        group, _, number = rank_id.partition("/")
        if not number.isdigit():
            spans.append((rank_id, -1, -1))
        elif spans and spans[-1][0] == group and spans[-1][2] == int(number) - 1:
            spans[-1] = (group, spans[-1][1], int(number))
        else:
            spans.append((group, int(number), int(number)))
    return ", ".join(
        group if first < 0 else f"{group}/{first}" if first == last else f"{group}/{first}-{last}"
        for group, first, last in spans
    )
