"""What an intent touches, in words and ids: pure functions, before anything is done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pdtui.errors import ActionRefused
from pdtui.fleet.intents import Blocker, Preview, RankIntent, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.serving import is_serving, usable_ranks
from pdtui.fleet.snapshot import ALIVE_STATES, BROKEN_STATES, UNSEEN_STATES, LeaseStatus, RankState, RankStatus
from pdtui.fleet.targets import in_short
from pdtui.topology.model import Role, Topology
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.redact import redacted
from pdtui.topology.script import run_script


@dataclass(frozen=True, slots=True)
class Scope:
    """What an intent touches."""

    verb: Literal["start", "stop", "restart"]
    ids: tuple[str, ...]
    """In the order of the plan; ranks that the file does not have last."""
    added: tuple[str, ...]
    """Of these, the ones that were not named."""
    note: str
    needs_name: bool
    doomed: Mapping[str, int] = field(default_factory=dict)
    """MoE groups that lose some ranks to this -> how many others of them run, and will fail."""


def make_scope(intent: RankIntent, topology: Topology, plan: Plan, ranks: Mapping[str, RankStatus]) -> Scope:
    """Return what an intent touches. Raises `ActionRefused` for ranks that do not exist."""
    unknown = [rank_id for rank_id in intent.ids if rank_id not in ranks]
    if unknown:
        raise ActionRefused(f"no rank {', '.join(unknown)}", kind="unknown_target")
    verb: Literal["start", "stop", "restart"] = "stop"
    if isinstance(intent, StartRanks):
        verb = "start"
    elif isinstance(intent, RestartRanks):
        verb = "restart"
    strays = [rank_id for rank_id in dict.fromkeys(intent.ids) if rank_id not in plan.by_id]
    if strays and verb != "stop":
        raise ActionRefused(
            f"{', '.join(strays)} is not in the file: it can be stopped, not started", kind="unknown_target"
        )
    named = [rank.id for rank in plan.ranks if rank.id in intent.ids]
    touched, note = _with_groups(intent, named, topology, plan)
    added = tuple(rank_id for rank_id in touched if rank_id not in named)
    doomed = _doomed(touched, topology, plan, ranks) if verb != "start" else {}
    groups = whole_groups(touched, plan)
    needs_name = topology.safety.protected and verb != "start" and bool(groups or doomed)
    return Scope(verb, (*touched, *strays), added, note, needs_name, doomed)


def restarted_with(
    named: Collection[str], ranks: Sequence[RankPlan] | Sequence[RankStatus], *, moe: bool
) -> tuple[str, ...]:
    """Return the ids, of these ranks, that a restart of the named ones touches: in a MoE model whole groups."""
    groups = {rank.group for rank in ranks if rank.id in named} if moe else set[str]()
    return tuple(rank.id for rank in ranks if rank.id in named or rank.group in groups)


def _with_groups(
    intent: RankIntent, named: Sequence[str], topology: Topology, plan: Plan
) -> tuple[tuple[str, ...], str]:
    if isinstance(intent, RestartRanks) and intent.rolling:
        return _rolled(intent, named, topology, plan)
    if not isinstance(intent, RestartRanks) or topology.model.kind != "moe":
        return tuple(named), ""
    groups = {plan.by_id[rank_id].group for rank_id in named}
    partial = [group for group in topology.groups if group in groups and not _covers(group, named, plan)]
    if not partial:
        return tuple(named), ""
    names = ", ".join(partial)
    if not intent.whole_group:
        return tuple(named), f"only these ranks: the rest of {names} will not take them back (MoE group)"
    touched = restarted_with(named, plan.ranks, moe=True)
    return touched, f"{names}: a rank of a MoE group cannot rejoin alone, so the whole group restarts"


def _rolled(
    intent: RestartRanks, named: Sequence[str], topology: Topology, plan: Plan
) -> tuple[tuple[str, ...], str]:
    """Return the whole groups of a rolling restart. Raises `ActionRefused` where no other group could serve."""
    groups = [group for group in topology.groups.values() if any(plan.by_id[i].group == group.name for i in named)]
    for group in groups:
        if sum(other.role is group.role for other in topology.groups.values()) < 2:
            raise ActionRefused(
                f"{group.name} is the only {group.role} group: there is nothing to roll",
                kind="unknown_target",
                remedy=f"without rolling, a restart of {group.name} interrupts the service",
            )
    if not intent.whole_group:
        raise ActionRefused("a rolling restart takes whole groups", kind="unknown_target")
    touched = tuple(rank.id for rank in plan.ranks if rank.group in {group.name for group in groups})
    more = "" if set(touched) == set(named) else "; whole groups restart"
    return touched, f"one group after the other, the next only when the one before serves again{more}"


def _doomed(
    touched: Sequence[str], topology: Topology, plan: Plan, ranks: Mapping[str, RankStatus]
) -> Mapping[str, int]:
    """Return the MoE groups that run and lose some ranks, with the number of their ranks that are left."""
    if topology.model.kind != "moe":
        return {}
    running = [rank_id for rank_id in touched if ranks[rank_id].state in ALIVE_STATES]
    groups = dict.fromkeys(plan.by_id[rank_id].group for rank_id in running)
    left = {
        group: sum(rank.id not in touched and _would_fail(ranks[rank.id]) for rank in plan.of_group(group))
        for group in groups
    }
    return {group: count for group, count in left.items() if count}


def _would_fail(rank: RankStatus) -> bool:
    state = rank.last_state if rank.state is RankState.LOST else rank.state
    return state in ALIVE_STATES and state is not RankState.STOPPING


def _covers(group: str, ids: Sequence[str], plan: Plan) -> bool:
    return {rank.id for rank in plan.of_group(group)} <= set(ids)


def whole_groups(ids: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """Return the groups of which every rank is among `ids`."""
    groups = dict.fromkeys(plan.by_id[rank_id].group for rank_id in ids if rank_id in plan.by_id)
    return tuple(group for group in groups if _covers(group, ids, plan))


def describe(
    intent: RankIntent,
    scope: Scope,
    blockers: Sequence[Blocker],
    leases: Sequence[LeaseStatus],
    topology: Topology,
    plan: Plan,
    ranks: Mapping[str, RankStatus],
) -> Preview:
    """Return what an intent would do, in the operator's words."""
    alive = [rank_id for rank_id in scope.ids if ranks[rank_id].state in ALIVE_STATES]
    grace = intent.grace if isinstance(intent, StopRanks | RestartRanks) else 0.0
    rolling = isinstance(intent, RestartRanks) and intent.rolling
    broken = [rank_id for rank_id in scope.ids if ranks[rank_id].state in BROKEN_STATES]
    return Preview(
        verb=scope.verb,
        title=f"{scope.verb} {in_words(scope.ids, plan)}",
        ids=scope.ids,
        consequence=_consequence(scope, topology, plan, ranks, rolling=rolling),
        steps=_rolling_steps(scope, topology, plan, ranks, intent)
        if isinstance(intent, RestartRanks) and rolling
        else _steps(scope, topology, plan, alive, intent, broken),
        blockers=tuple(blockers),
        leases=tuple(leases),
        needs_name=scope.needs_name,
        dangerous=scope.verb != "start",
        commands=_commands(scope, topology, plan, ranks, alive, grace),
        note=scope.note,
    )


def in_words(ids: Sequence[str], plan: Plan) -> str:
    """Return ranks in words: `group decode`, `decode/17`, `p1, p2 and 3 more ranks`."""
    if set(plan.by_id) <= set(ids) and len(plan.by_id) > 1:
        return f"all {len(ids)} ranks"
    groups = whole_groups(ids, plan)
    rest = [rank_id for rank_id in ids if rank_id not in plan.by_id or plan.by_id[rank_id].group not in groups]
    words: list[str] = []
    if groups:
        words.append(f"group{'s' if len(groups) > 1 else ''} {', '.join(groups)}")
    if len(rest) <= 4:
        words.extend(rest)
    else:
        words.append(f"{len(rest)} {'more ' if groups else ''}ranks")
    return ", ".join(words) if words else "nothing"


def _nodes(ids: Sequence[str], ranks: Mapping[str, RankStatus]) -> str:
    return ", ".join(dict.fromkeys(ranks[rank_id].node for rank_id in ids))


def _count(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _consequence(
    scope: Scope, topology: Topology, plan: Plan, ranks: Mapping[str, RankStatus], *, rolling: bool
) -> str:
    does = {"start": "start", "stop": "stop", "restart": "stop and start"}[scope.verb]
    if scope.verb == "restart" and _none_runs(scope, ranks):
        does = "start"
    if len(scope.ids) == 1:
        does = does.replace("stop", "stops").replace("start", "starts")
    sentences = [f"{_count(len(scope.ids))} on {_nodes(scope.ids, ranks)} {does}."]
    for group, left in scope.doomed.items():
        others = "other rank" if left == 1 else f"other {left} ranks"
        sentences.append(f"The {others} of {group} will fail: a MoE group lives and dies together.")
    if rolling:
        sentences.append("One group at a time: the others of its role keep serving.")
    elif scope.verb != "start":
        sentences.extend(_service_loss(scope, topology, plan, ranks))
    known = [s for s in (ranks[rank_id].last_start_s for rank_id in scope.ids) if s is not None]
    if known and scope.verb != "stop":
        sentences.append(f"Last start took {duration(max(known))}.")
    return " ".join(sentences)


def _service_loss(scope: Scope, topology: Topology, plan: Plan, ranks: Mapping[str, RankStatus]) -> Sequence[str]:
    usable = usable_ranks(topology, (ranks[rank.id] for rank in plan.ranks))
    touched = set(scope.ids)
    if topology.model.kind == "moe":
        hit = {plan.by_id[rank_id].group for rank_id in touched if rank_id in plan.by_id}
        touched |= {rank.id for rank in plan.ranks if rank.group in hit}
    when = "meanwhile" if scope.verb == "restart" and not scope.doomed else "until it runs again"
    sentences: list[str] = []
    for role in Role:
        before = [rank for rank in plan.ranks if rank.role is role and rank.id in usable]
        left = [rank for rank in before if rank.id not in touched]
        if len(left) == len(before):
            continue
        if left:
            groups = ", ".join(dict.fromkeys(rank.group for rank in left))
            sentences.append(f"{groups} keeps serving {role} ({len(left)} of {len(before)} ranks).")
        else:
            names = list(dict.fromkeys(rank.group for rank in before))
            total = [group for group in topology.groups.values() if group.role is role]
            only = f"{names[0]} is the only {role} group" if len(total) == 1 else f"No {role} group is left"
            sentences.append(f"{only}: no requests are served {when}.")
    if not sentences and not any(is_serving(ranks[rank_id]) for rank_id in scope.ids):
        unseen = [rank_id for rank_id in scope.ids if ranks[rank_id].state in UNSEEN_STATES]
        do = "run" if _none_runs(scope, ranks) else "serve"
        known = f"Whether {in_short(unseen)} serve{'s' if len(unseen) == 1 else ''} is not known."
        none = f"It does not {do} now." if len(scope.ids) == 1 else f"None of them {do}s now."
        sentences.append(known if unseen else none)
    return sentences


def _none_runs(scope: Scope, ranks: Mapping[str, RankStatus]) -> bool:
    """Return whether it is seen of every rank that it does not run."""
    return not any(ranks[rank_id].state in ALIVE_STATES | UNSEEN_STATES for rank_id in scope.ids)


def duration(seconds: float) -> str:
    """Return a duration as people say it: `42 s`, `14 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _rolling_steps(
    scope: Scope, topology: Topology, plan: Plan, ranks: Mapping[str, RankStatus], intent: RestartRanks
) -> tuple[str, ...]:
    usable = usable_ranks(topology, (ranks[rank.id] for rank in plan.ranks))
    serving = {plan.by_id[rank_id].group for rank_id in usable}
    steps = []
    for group in rolling_order(whole_groups(scope.ids, plan), serving):
        nodes = _nodes([rank.id for rank in plan.of_group(group)], ranks)
        down = "" if group in serving else ", which does not serve now"
        steps.append(f"{group} on {nodes}{down}: drain up to {intent.drain:.0f} s, stop, check, start, warm up")
    return (*steps, "end at the first group that does not come back, and leave the others untouched")


def rolling_order(groups: Sequence[str], serving: Iterable[str]) -> tuple[str, ...]:
    """Return groups in the order of a rolling restart: first those that do not serve, which take nothing away."""
    known = frozenset(serving)
    return tuple(sorted(groups, key=lambda group: group in known))


def _steps(
    scope: Scope, topology: Topology, plan: Plan, alive: Sequence[str], intent: RankIntent, broken: Sequence[str]
) -> tuple[str, ...]:
    steps: list[str] = []
    if isinstance(intent, StopRanks | RestartRanks):
        grace, drain = intent.grace, intent.drain
        if broken and isinstance(intent, RestartRanks):
            steps.append(f"keep the evidence of {in_short(broken)} on the nodes")
        if alive:
            steps.append("take them out of the embedded proxy's rotation")
            if drain:
                steps.append(f"wait up to {drain:.0f} s for running requests to end")
            steps.append(
                f"TERM to {_count(len(alive))} that run{'s' if len(alive) == 1 else ''}, KILL after {grace:.0f} s"
            )
        ports = _ports(scope.ids, plan)
        freed = f"processes, {ports} and HBM" if topology.has_npus else f"processes and {ports}"
        steps.append(f"check that {freed} are free")
    if scope.verb != "stop":
        if scope.verb == "start":
            steps.append(f"check ports{', devices' if topology.has_npus else ''} and leftovers")
        first = ", rank 0 of a group first" if len(scope.ids) > 1 else ""
        steps.append(f"start {_count(len(scope.ids))}{first}")
        warm = ", then send each a short completion" if topology.start.warm_up else ""
        steps.append(f"wait until /health answers 200{warm}")
    return tuple(steps)


def _ports(ids: Sequence[str], plan: Plan) -> str:
    numbers = sorted({plan.by_id[rank_id].api_port for rank_id in ids if rank_id in plan.by_id})
    if not numbers:
        return "ports"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"port{'s' if len(numbers) > 1 else ''} {words}"


def _commands(
    scope: Scope,
    topology: Topology,
    plan: Plan,
    ranks: Mapping[str, RankStatus],
    alive: Sequence[str],
    grace: float,
) -> tuple[str, ...]:
    lines: list[str] = []
    if scope.verb != "start":
        for rank_id in alive:
            rank = ranks[rank_id]
            lines.append(
                f"# {rank_id} on {rank.node}: TERM to pid {rank.pid} and all its processes, "
                f"KILL after {grace:.0f} s"
            )
    if scope.verb != "stop":
        lines.extend(shown_script(plan.by_id[rank_id], topology) for rank_id in scope.ids)
    return tuple(lines)


def shown_script(rank: RankPlan, topology: Topology) -> str:
    """Return the script that a rank runs from, secrets hidden."""
    argv, env = redacted(rank.argv, rank.env)
    return run_script(replace(rank, argv=argv, env=env), topology.runtime).rstrip("\n")
