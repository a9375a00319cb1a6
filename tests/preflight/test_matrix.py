"""Pings between NPUs: who pings whom, and never two on one NPU at the same time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.fleet.preflight.matrix import Allowed, Npu, Pair, blame, every_round, follow_up, reach, rounds_of


def npus(prefix: str, nodes: int, devices: int) -> list[Npu]:
    return [Npu(f"{prefix}{node}", device) for node in range(nodes) for device in range(devices)]


def anywhere(_one: Npu, _other: Npu) -> bool:
    return True


def not_in_card(one: Npu, other: Npu) -> bool:
    return one.node != other.node or one.device // 2 != other.device // 2


def assert_apart(rounds: tuple[tuple[Pair, ...], ...]) -> None:
    for pings in rounds:
        busy = Counter(npu for pair in pings for npu in (pair.source, pair.target))
        assert not busy or max(busy.values()) == 1


sizes = st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 5, 8, 16]))


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, st.sampled_from([anywhere, not_in_card]))
def test_every_npu_is_source_and_target_and_meets_the_other_role(
    p: tuple[int, int], d: tuple[int, int], allowed: Allowed
) -> None:
    prefill, decode = npus("p", *p), npus("d", *d)
    everyone = {*prefill, *decode}
    pairs = reach(prefill, decode, allowed)
    rounds = rounds_of(pairs)
    assert sorted(map(str, pairs)) == sorted(str(pair) for pings in rounds for pair in pings)
    assert_apart(rounds)
    assert all(allowed(pair.source, pair.target) and pair.source != pair.target for pair in pairs)
    partners = {npu for npu in everyone if any(other != npu and allowed(npu, other) for other in everyone)}
    assert {pair.source for pair in pairs} == partners
    assert {pair.target for pair in pairs} == partners
    if prefill and decode:
        both = [{pair.source, pair.target} for pair in pairs]
        for one in (*prefill, *decode):
            role = set(prefill) if one in set(prefill) else set(decode)
            assert any(one in ends and not ends <= role for ends in both)
        few, many = sorted((len(prefill), len(decode)))
        assert len(rounds) <= -(-many // few) + 2


def test_two_nodes_of_each_role_are_done_in_two_rounds_and_every_prefill_node_meets_both_decode_nodes() -> None:
    pairs = reach(npus("p", 2, 16), npus("d", 2, 16), not_in_card)
    assert len(rounds_of(pairs)) == 2
    assert {(pair.source.node, pair.target.node) for pair in pairs if pair.source.node.startswith("p")} == {
        (p, d) for p in ("p0", "p1") for d in ("d0", "d1")
    }


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 3), st.sampled_from([1, 2, 5, 8]), st.sampled_from([anywhere, not_in_card]))
def test_the_full_matrix_has_every_pair_once(nodes: int, devices: int, allowed: Allowed) -> None:
    everyone = npus("n", nodes, devices)
    rounds = tuple(every_round(everyone, allowed))
    pairs = [pair for pings in rounds for pair in pings]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {Pair(a, b) for a in everyone for b in everyone if a != b and allowed(a, b)}
    assert_apart(rounds)
    assert len(rounds) <= 2 * (len(everyone) + 1)


def test_a_failed_ping_is_followed_up_from_npus_that_work() -> None:
    a, b, c, d = Npu("n1", 0), Npu("n2", 0), Npu("n3", 0), Npu("n4", 0)
    pairs = follow_up([Pair(a, b), Pair(b, a)], [Pair(c, d), Pair(d, c)], anywhere)
    assert {pair.target for pair in pairs} == {a, b}
    assert {pair.source for pair in pairs} <= {c, d}
    assert follow_up([Pair(a, b)], [], anywhere) == ()


def test_blame_falls_on_the_npu_or_node_that_the_failed_pings_have_in_common() -> None:
    left, right, third = npus("l", 1, 4), npus("r", 1, 4), npus("t", 1, 4)
    around = [*zip(left, right, strict=True), *zip(right, third, strict=True), *zip(third, left, strict=True)]
    pairs = [Pair(one, other) for one, other in around]
    bad = [pair for pair in pairs if right[2] in (pair.source, pair.target)]
    found = blame(bad, [pair for pair in pairs if pair not in bad])
    assert [(one.subject, set(one.pairs)) for one in found] == [("r0/2", set(bad))]
    bad = [pair for pair in pairs if "t0" in (pair.source.node, pair.target.node)]
    assert [one.subject for one in blame(bad, [pair for pair in pairs if pair not in bad])] == ["t0"]
    lone = Pair(left[0], right[0])
    assert [one.subject for one in blame([lone], [])] == ["l0/0 -> r0/0"]
    assert blame([], pairs) == ()
