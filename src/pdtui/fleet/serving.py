"""Is it serving? From the ranks' states: which backends may be used, and one word for the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from pdtui.fleet.snapshot import UNSEEN_STATES, RankState, RankStatus, ServingStatus
from pdtui.proxy.interface import BackendState
from pdtui.proxy.settings import ProxySettings
from pdtui.topology.lease import shortest_kv_lease
from pdtui.topology.model import Role, Topology
from pdtui.topology.versions import VLLM_KNOWN, release_of

N = TypeVar("N", int, float)

_BY_HEALTH = (RankState.UNKEPT, RankState.UNMANAGED)
"""States that say who looks after a rank, not how it is."""

_RECENT = 60.0
"""Seconds for which the time of the last requests says how requests fare now."""

_RENEWED = (0, 32, 0)
"""The vLLM from which on a decode rank is known to renew the lease of what waits in its queue: NixlConnector's
heartbeats, read in its source."""

ServingWord = Literal["SERVING", "DEGRADED", "DOWN", "STARTING", "STOPPED", "UNKNOWN"]


def is_serving(rank: RankStatus) -> bool:
    """Return whether a rank answers, or did when its node was last reached."""
    state = rank.last_state if rank.state is RankState.LOST else rank.state
    return state is RankState.READY or (state in _BY_HEALTH and rank.health == "200")


def usable_ranks(topology: Topology, ranks: Iterable[RankStatus]) -> frozenset[str]:
    """Return the ids of ranks that can take requests: serving, and in a MoE group all members serve."""
    groups: dict[str, list[RankStatus]] = {}
    for rank in ranks:
        if rank.group in topology.groups and "not-in-file" not in rank.flags:
            groups.setdefault(rank.group, []).append(rank)
    usable: set[str] = set()
    for members in groups.values():
        serving = [rank.id for rank in members if is_serving(rank)]
        if topology.model.kind == "dense" or len(serving) == len(members):
            usable.update(serving)
    return frozenset(usable)


def backend_states(topology: Topology, ranks: Iterable[RankStatus]) -> tuple[BackendState, ...]:
    """Return the ranks as the embedded proxy should treat them; a lost one cannot be reached from here."""
    listed = [rank for rank in ranks if rank.group in topology.groups and "not-in-file" not in rank.flags]
    usable = usable_ranks(topology, listed)
    return tuple(
        BackendState(
            rank=rank.id,
            group=rank.group,
            role="prefill" if rank.role is Role.PREFILL else "decode",
            usable=rank.id in usable and rank.state is not RankState.LOST,
        )
        for rank in listed
    )


def proxy_settings(topology: Topology) -> ProxySettings:
    """Return the settings of a proxy before this cluster: above all, how long prefill ranks keep KV blocks."""
    release = None if topology.has_npus else release_of(topology.vllm, VLLM_KNOWN)
    return ProxySettings(
        lease_s=shortest_kv_lease(topology), lease_renewed=release is not None and release >= _RENEWED
    )


def serving_status(
    topology: Topology, ranks: Sequence[RankStatus], previous: ServingStatus | None, now: float
) -> ServingStatus:
    """Return whether the cluster serves: that needs a usable prefill rank and a usable decode group."""
    prefill = [rank for rank in ranks if rank.role is Role.PREFILL]
    decode = [rank for rank in ranks if rank.role is Role.DECODE]
    usable = usable_ranks(topology, ranks)
    word = _word(prefill, decode, usable)
    since: float | None
    if previous is None or previous.since is None:
        since = _derived(word, prefill, decode, usable)  # Nobody watched: what the ranks' own times say.
    else:
        since = previous.since if previous.word == word else now if word != "UNKNOWN" else None
    busy = [rank.metrics for rank in decode if rank.metrics is not None]
    return ServingStatus(
        word=word,
        since=since,
        prefill_ready=sum(is_serving(rank) and rank.state is not RankState.LOST for rank in prefill),
        prefill_total=len(prefill),
        decode_ready=sum(is_serving(rank) and rank.state is not RankState.LOST for rank in decode),
        decode_total=len(decode),
        running=_total([m.running for m in busy]),
        tokens_per_s=_total([m.generation_tokens_per_s for m in busy]),
        ttft_s=_mean([m.ttft_s for m in busy if m.observed_at - (m.ttft_at or 0.0) < _RECENT]),
    )


def _derived(
    word: ServingWord, prefill: Sequence[RankStatus], decode: Sequence[RankStatus], usable: frozenset[str]
) -> float | None:
    """Return since when the ranks' own times say that the word is true; None when they do not say it."""
    ranks = [*prefill, *decode]
    if word == "UNKNOWN" or any(rank.state is RankState.UNKNOWN for rank in ranks):
        return None
    if word == "STARTING":
        return min(r.since for r in ranks if r.state is RankState.STARTING or _starts_by_hand(r)) or None
    if word == "DOWN":
        ends = [_end_of(role) for role in (prefill, decode) if not any(rank.id in usable for rank in role)]
        return min(ends, default=0.0) or None
    if word == "DEGRADED":
        begun = [min(_usable_since(role, usable)) for role in (prefill, decode)]
        hurt = min(r.since for r in ranks if r.state is not RankState.READY and not _serves_by_hand(r))
        return max(hurt, *begun) if hurt and all(begun) else None
    times = [rank.since for rank in ranks]  # SERVING or STOPPED: with the last rank.
    return max(times, default=0.0) if all(times) or (word == "STOPPED" and any(times)) else None


def _groups(ranks: Iterable[RankStatus]) -> Iterable[list[RankStatus]]:
    groups: dict[str, list[RankStatus]] = {}
    for rank in ranks:
        groups.setdefault(rank.group, []).append(rank)
    return groups.values()


def _usable_since(ranks: Iterable[RankStatus], usable: frozenset[str]) -> Sequence[float]:
    """Return for each group with usable ranks when the last of them became ready."""
    return [
        max(rank.since for rank in members if rank.id in usable)
        for members in _groups(ranks)
        if any(rank.id in usable for rank in members)
    ]


def _end_of(ranks: Iterable[RankStatus]) -> float:
    """Return when the last group of a role without usable ranks was lost; 0: never whole, or not known."""
    return max((min(rank.since for rank in m if not is_serving(rank)) for m in _groups(ranks)), default=0.0)


def _word(prefill: Sequence[RankStatus], decode: Sequence[RankStatus], usable: frozenset[str]) -> ServingWord:
    ranks = [*prefill, *decode]
    states = {rank.state for rank in ranks}
    if states <= UNSEEN_STATES:
        return "UNKNOWN"  # Nobody answers: how it was when last seen is no word on how it is.
    if any(rank.id in usable for rank in prefill) and any(rank.id in usable for rank in decode):
        fine = all(rank.state is RankState.READY or _serves_by_hand(rank) for rank in ranks)
        return "SERVING" if fine else "DEGRADED"
    if RankState.UNKNOWN in states:
        return "UNKNOWN"
    if states == {RankState.STOPPED}:
        return "STOPPED"
    wrong = states & {RankState.FAILED, RankState.UNHEALTHY, RankState.STALLED}
    starting = any(rank.state is RankState.STARTING or _starts_by_hand(rank) for rank in ranks)
    return "STARTING" if starting and not wrong else "DOWN"


def _serves_by_hand(rank: RankStatus) -> bool:
    return rank.state is RankState.UNMANAGED and is_serving(rank)


def _starts_by_hand(rank: RankStatus) -> bool:
    return rank.state is RankState.UNMANAGED and bool(rank.stage)


def _total(values: Sequence[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
