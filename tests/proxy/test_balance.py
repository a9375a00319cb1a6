"""The reference's scores, and what the pool makes of a policy."""

from __future__ import annotations

import random

import pytest

from pdtui.proxy.balance import Cost, Load, ReferencePolicy, Role
from pdtui.proxy.errors import NoBackend
from pdtui.proxy.interface import BackendState
from pdtui.proxy.pool import Pool, Reservation
from pdtui.proxy.settings import ProxySettings


class Now:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def states(role: Role, count: int, *, out: tuple[int, ...] = ()) -> list[BackendState]:
    return [BackendState(f"{role}/{i}", role, role, i not in out) for i in range(count)]


def make(*groups: list[BackendState], now: Now | None = None) -> Pool:
    pool = Pool(ReferencePolicy(), ProxySettings(), now or Now())
    pool.update([s for group in groups for s in group])
    return pool


def test_reference_scores_by_hand() -> None:
    policy = ReferencePolicy()
    prefill = policy.cost("prefill", 4000)
    assert prefill.tokens == 0
    assert prefill.kv == pytest.approx(154.5745)
    assert policy.cost("decode", 4000) == Cost(tokens=4000, kv=0)
    assert policy.priority("prefill", Load(tokens=10, kv=100)) == pytest.approx(40)
    assert policy.priority("decode", Load(tokens=10, kv=100)) == 10


def test_the_least_loaded_rank_wins_and_the_first_of_equals() -> None:
    pool = make(states("decode", 3))
    assert [pool.reserve("decode", size).rank for size in (500, 100, 100)] == ["decode/0", "decode/1", "decode/2"]
    assert [pool.reserve("decode", 150).rank for _ in range(3)] == ["decode/1", "decode/2", "decode/1"]


def test_prefillers_share_out_by_what_is_not_yet_fetched() -> None:
    pool = make(states("prefill", 2))
    first = pool.reserve("prefill", 100_000)
    # A short one costs 121, the long one 983: the second prefiller takes eight before the first is level.
    ranks = [pool.reserve("prefill", 40).rank for _ in range(9)]
    assert (first.rank, ranks.count("prefill/1")) == ("prefill/0", 9)
    first.release()
    assert pool.reserve("prefill", 40).rank == "prefill/0"


def test_unusable_ranks_are_left_out_and_nothing_left_is_said_at_once() -> None:
    pool = make(states("decode", 2, out=(0,)))
    assert pool.reserve("decode", 10).rank == "decode/1"
    pool.update(states("decode", 2, out=(0, 1)))
    with pytest.raises(NoBackend, match="no decode rank is usable: 0 of 2 ready") as caught:
        pool.reserve("decode", 10)
    assert (caught.value.status, caught.value.retry_after) == (503, 5)
    with pytest.raises(NoBackend, match="the cluster has no prefill rank"):
        pool.require("prefill")


def test_a_rank_to_avoid_is_used_when_it_is_the_only_one() -> None:
    pool = make(states("decode", 2))
    assert pool.reserve("decode", 10, avoid={"decode/0"}).rank == "decode/1"
    assert pool.reserve("decode", 10, avoid={"decode/0", "decode/1"}).rank == "decode/0"
    assert pool.reserve("decode", 10, avoid={"decode/0"}, exclude={"decode/1"}).rank == "decode/0"
    with pytest.raises(NoBackend, match="no other decode rank"):
        pool.reserve("decode", 10, exclude={"decode/0", "decode/1"})


def test_a_rank_that_cannot_be_connected_is_out_until_a_probe_succeeds() -> None:
    now = Now()
    pool = make(states("decode", 1), now=now)
    pool.failed("decode/0", "decode/0 could not be connected: Connection refused", connected=False)
    with pytest.raises(NoBackend, match="Connection refused") as caught:
        pool.reserve("decode", 10)
    assert caught.value.retry_after == 1
    assert pool.probes() == [(1.0, "decode/0")]
    now.time = 1.0
    pool.probe_failed("decode/0", "still refused")
    assert pool.probes() == [(3.0, "decode/0")]
    for _ in range(10):
        pool.probe_failed("decode/0", "still refused")
    assert pool.probes() == [(31.0, "decode/0")]
    pool.succeeded("decode/0")
    assert pool.reserve("decode", 10).rank == "decode/0"


def test_a_rank_that_answers_with_errors_is_out_after_three_in_a_row() -> None:
    pool = make(states("decode", 1))
    for _ in range(2):
        pool.failed("decode/0", "500", connected=True)
    pool.succeeded("decode/0")
    for _ in range(2):
        pool.failed("decode/0", "500", connected=True)
    assert pool.usable("decode") == ["decode/0"]
    pool.failed("decode/0", "500", connected=True)
    assert pool.usable("decode") == []


def test_a_rank_that_the_fleet_finds_ready_again_is_back_without_a_probe() -> None:
    pool = make(states("decode", 1))
    pool.failed("decode/0", "refused", connected=False)
    pool.update(states("decode", 1, out=(0,)))
    assert pool.probes() == []
    pool.update(states("decode", 1))
    assert pool.usable("decode") == ["decode/0"]


def test_load_stays_with_a_rank_that_leaves_the_list_and_comes_back() -> None:
    pool = make(states("decode", 2))
    held = pool.reserve("decode", 100)
    pool.update([s for s in states("decode", 2) if s.rank != held.rank])
    pool.update(states("decode", 2))
    assert {v.rank: v.load.requests for v in pool.views()} == {"decode/0": 1, "decode/1": 0}
    held.release()
    held.release()
    assert all(v.load == Load() for v in pool.views())


def test_no_sequence_of_reservations_leaves_a_trace() -> None:
    rng = random.Random(7)
    pool = make(states("prefill", 3), states("decode", 5))
    held: list[tuple[Reservation, float]] = []
    for step in range(5000):
        if held and rng.random() < 0.5:
            held.pop(rng.randrange(len(held)))[0].release()
        elif len(held) < 40:
            role: Role = "prefill" if step % 2 else "decode"
            size = rng.randrange(1, 10**6)
            cost = ReferencePolicy().cost(role, size)
            held.append((pool.reserve(role, size), cost.kv + cost.tokens))
        if step % 500 == 0:
            pool.update([*states("prefill", 3, out=(step % 3,)), *states("decode", 5)])
        carried = sum(v.load.kv + v.load.tokens for v in pool.views())
        assert carried == pytest.approx(sum(cost for _, cost in held), abs=1e-3)
    for reservation, _ in held:
        reservation.release()
    assert all(v.load == Load() for v in pool.views())
