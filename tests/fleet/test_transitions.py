"""What is told of two pictures of the cluster, and what is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdtui.fleet.snapshot import (
    Acknowledgement,
    Alarm,
    Condition,
    Diagnosis,
    NodeState,
    RankState,
    Snapshot,
)
from pdtui.fleet.transitions import LEARNING, SETTLING, Follower, Transition, transitions
from pdtui.readings.verdict import Reason, Verdict
from tests.support.fake_fleet import NOW, FakeFleet, with_node, with_npu, with_rank

LINK = Reason(Verdict.FAILED, "link DOWN", id="link-down")
HOT = Reason(Verdict.DEGRADED, "84 °C", id="hot")
FLAPS = Reason(Verdict.DEGRADED, "flaps", id="flapping")
SILENT = Reason(Verdict.UNKNOWN, "no answer", id="no-answer-link")

Short = tuple[str, str, str, str, bool]


@pytest.fixture(scope="module")
def well() -> Snapshot:
    return FakeFleet.healthy().snapshot


def short(found: Sequence[Transition]) -> list[Short]:
    return [(one.kind, one.subject, one.before, one.after, one.worse) for one in found]


def npu(snapshot: Snapshot, *reasons: Reason) -> Snapshot:
    verdict = reasons[0].verdict if reasons else Verdict.HEALTHY
    return with_npu(snapshot, "node3", 9, verdict=verdict, reasons=reasons)


def known(snapshot: Snapshot, *keys: str) -> Snapshot:
    given = tuple(Acknowledgement(key, "known", "ann@desk", NOW, NOW + 60) for key in keys)
    return replace(snapshot, acknowledgements=given)


@pytest.mark.parametrize(
    ("old", "new", "told", "key"),
    [
        ((), (LINK,), ("healthy", "failed", True), "link-down"),
        ((LINK,), (), ("failed", "healthy", False), "link-down"),
        ((HOT,), (LINK, HOT), ("degraded", "failed", True), "link-down"),
        ((LINK,), (HOT,), ("failed", "degraded", False), "hot"),
        ((HOT,), (HOT, FLAPS), ("degraded", "degraded", True), "flapping"),
        ((HOT, FLAPS), (HOT,), None, ""),
        ((HOT,), (FLAPS,), ("degraded", "degraded", True), "flapping"),
        ((LINK,), (LINK, HOT), None, ""),  # no worse than what it has
        ((), (SILENT,), ("healthy", "unknown", True), "no-answer-link"),
        ((SILENT,), (replace(SILENT, id="no-answer-vnic"),), None, ""),
        ((SILENT,), (LINK,), ("unknown", "failed", True), "link-down"),
        ((HOT,), (replace(HOT, summary="85 °C"),), None, ""),
    ],
)
def test_an_npu(
    well: Snapshot,
    old: tuple[Reason, ...],
    new: tuple[Reason, ...],
    told: tuple[str, str, bool] | None,
    key: str,
) -> None:
    found = transitions(npu(well, *old), npu(well, *new))
    assert short(found) == ([] if told is None else [("npu", "node3/9", *told)])
    if found:
        assert found[0].key == f"node3/9:{key}"
        assert found[0].summary.startswith(f"NPU {found[0].before} -> {found[0].after}")
        assert (", carries decode/9" in found[0].summary) == bool(new)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("READY", "FAILED", True),
        ("READY", "UNHEALTHY", True),
        ("STALLED", "UNHEALTHY", True),
        ("UNHEALTHY", "STALLED", False),
        ("UNHEALTHY", "READY", False),
        ("READY", "STOPPING", False),
        ("STOPPING", "STOPPED", False),
        ("STOPPED", "STARTING", False),
        ("STARTING", "FAILED", True),
        ("FAILED", "STARTING", False),
        ("READY", "UNKEPT", True),
        ("STOPPED", "UNMANAGED", False),
        ("UNKNOWN", "FAILED", True),
        ("UNKNOWN", "READY", None),
        ("UNKNOWN", "STOPPED", None),
        ("READY", "LOST", None),
    ],
)
def test_a_rank(well: Snapshot, before: str, after: str, worse: bool | None) -> None:
    old = with_rank(well, "decode/9", state=RankState[before], exit_status=None)
    new = with_rank(well, "decode/9", state=RankState[after], exit_status=1)
    told = short(transitions(old, new))
    assert told == ([] if worse is None else [("rank", "decode/9", before.lower(), after.lower(), worse)])


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("SERVING", "DEGRADED", True),
        ("DEGRADED", "DOWN", True),
        ("DOWN", "STARTING", False),
        ("STARTING", "SERVING", False),
        ("SERVING", "UNKNOWN", True),
        ("SERVING", "STOPPED", True),
    ],
)
def test_the_service(well: Snapshot, before: str, after: str, worse: bool) -> None:
    def word(value: str) -> Snapshot:
        return replace(well, serving=replace(well.serving, word=value))  # type: ignore[arg-type]

    assert short(transitions(word(before), word(after))) == [("service", "service", before, after, worse)]
    assert transitions(word(before), word(before)) == ()


def test_alarms_begin_grow_and_end(well: Snapshot) -> None:
    alarm = Alarm("kv-held", "warning", "holds prompts", "look", NOW)
    grown = replace(alarm, severity="error", message="holds prompts, 3 requests wait")
    steps = [with_rank(well, "p1/0", alarms=given) for given in ((), (alarm,), (grown,), (alarm,), ())]
    told = [short(transitions(old, new)) for old, new in itertools.pairwise(steps)]
    assert told == [
        [("alarm", "p1/0", "", "warning", True)],
        [("alarm", "p1/0", "warning", "error", True)],
        [],
        [("alarm", "p1/0", "warning", "", False)],
    ]
    assert transitions(steps[0], steps[1])[0].key == "p1/0:kv-held"


def test_conditions_tools_and_the_file(well: Snapshot) -> None:
    ends = with_node(well, "node2", conditions=(Condition("logout", "ranks end with the last login"),))
    assert [(one.key, one.worse) for one in transitions(well, ends)] == [("node2:logout", True)]
    assert [one.summary for one in transitions(ends, well)] == ["no longer: ranks end with the last login"]
    tools = with_node(well, "node2", tool_error="npu-smi hangs")
    assert [(one.key, one.worse) for one in transitions(well, tools)] == [("node2:tools", True)]
    broken = replace(well, file_changed=True, file_broken="line 3: what")
    assert short(transitions(well, broken)) == [("file", "file", "loaded", "broken", True)]
    assert short(transitions(broken, replace(well, file_changed=True))) == [
        ("file", "file", "broken", "changed", False)
    ]
    assert short(transitions(well, replace(well, file_removed=True))) == [
        ("file", "file", "loaded", "removed", True)
    ]


def away(snapshot: Snapshot) -> Snapshot:
    """Take node3 away, and what is known of it."""
    made = with_node(snapshot, "node3", state=NodeState.RECONNECTING, error="connection lost\nmore", since=NOW)
    for rank in snapshot.ranks:
        if rank.node == "node3":
            made = with_rank(made, rank.id, state=RankState.LOST, last_state=rank.state)
    node = made.node("node3")
    assert node is not None
    gone = tuple(replace(one, verdict=Verdict.UNKNOWN, reasons=(SILENT,)) for one in node.npus)
    return with_node(made, "node3", npus=gone)


def back(snapshot: Snapshot, *, unread: bool) -> Snapshot:
    """Bring it back a little later, its NPUs unread or read."""
    made = with_node(snapshot, "node3", state=NodeState.CONNECTED, error="", since=NOW + 30)
    node = made.node("node3")
    assert node is not None
    if unread:
        npus = tuple(replace(one, verdict=Verdict.UNKNOWN, observed_at=NOW - 9) for one in node.npus)
    else:
        npus = tuple(replace(one, observed_at=NOW + 31) for one in node.npus)
    return replace(with_node(made, "node3", npus=npus), made_at=NOW + 32)


def test_a_node_that_goes_and_comes_is_told_once_and_what_is_on_it_not_at_all(well: Snapshot) -> None:
    follower = Follower(well)
    assert short(follower.take(away(well))) == [("node", "node3", "connected", "reconnecting", True)]
    assert follower.take(replace(away(well), made_at=NOW + 20)) == ()
    assert short(follower.take(back(well, unread=True))) == [("node", "node3", "reconnecting", "connected", False)]
    assert follower.take(back(well, unread=False)) == ()
    # What has happened meanwhile is told when it is seen.
    follower = Follower(well)
    follower.take(away(well))
    died = npu(with_rank(back(well, unread=False), "decode/3", state=RankState.FAILED), LINK)
    assert short(follower.take(died))[:2] == [
        ("npu", "node3/9", "healthy", "failed", True),
        ("rank", "decode/3", "ready", "failed", True),
    ]


def test_what_stays_unread_after_a_return_is_told(well: Snapshot) -> None:
    follower = Follower(well)
    follower.take(away(well))
    follower.take(back(well, unread=True))
    late = replace(back(well, unread=True), made_at=NOW + 31 + SETTLING)
    assert {(one.before, one.after) for one in follower.take(late)} == {("healthy", "unknown")}


def test_who_begins_while_a_node_is_away_is_not_told_of_good_readings(well: Snapshot) -> None:
    follower = Follower(away(well))
    assert [one.subject for one in follower.take(back(well, unread=False))] == ["node3"]


def test_what_is_known_is_marked_and_another_reason_is_told(well: Snapshot) -> None:
    keys = ("node3/9:link-down", "decode/9:failed", "p1/0:kv-held", "node2:unreachable")
    before = known(well, *keys)
    alarm = Alarm("kv-held", "error", "holds prompts", "look", NOW)
    after = npu(before, LINK)
    after = with_rank(with_rank(after, "decode/9", state=RankState.FAILED), "p1/0", alarms=(alarm,))
    after = with_node(after, "node2", state=NodeState.FAILED, error="no route")
    found = transitions(before, after)
    assert len(found) == 4
    assert all(one.worse and one.acknowledged and not one.calls for one in found)
    assert all(one.acknowledged for one in transitions(after, before)), "nor is its end"
    worse = replace(LINK, id="tls-mixed")
    (told,) = transitions(after, npu(after, worse, LINK))
    assert (told.key, told.calls) == ("node3/9:tls-mixed", True)
    # One that is told comes first.
    many = with_rank(after, "decode/8", state=RankState.FAILED)
    assert transitions(before, many)[0].subject == "decode/8"


def test_what_is_no_longer_known_is_told_again(well: Snapshot) -> None:
    failed = with_rank(npu(well, LINK), "decode/9", state=RankState.FAILED)
    before = known(failed, "node3/*:link-down", "decode/9:failed", "node1:unreachable")
    assert transitions(failed, before) == ()
    found = transitions(before, failed)
    assert short(found) == [
        ("npu", "node3/9", "failed", "failed", True),
        ("rank", "decode/9", "failed", "failed", True),
    ]
    assert all(one.calls and one.summary.startswith("no longer acknowledged: ") for one in found)


def test_a_rank_that_has_just_failed_awaits_its_cause(well: Snapshot) -> None:
    follower = Follower(well)
    failed = with_rank(well, "decode/9", state=RankState.FAILED)
    assert follower.awaits_cause(failed)
    assert not follower.awaits_cause(with_rank(failed, "decode/9", diagnosis=Diagnosis("HCCL timeout")))
    follower.take(failed)
    assert not follower.awaits_cause(failed)


def test_of_a_group_that_dies_the_first_one_calls(well: Snapshot) -> None:
    died = with_rank(well, "decode/9", state=RankState.FAILED, diagnosis=Diagnosis("link", first_cause="decode/9"))
    for rank in ("decode/8", "decode/10"):
        lost = Diagnosis("lost its group", first_cause="decode/9")
        died = with_rank(died, rank, state=RankState.FAILED, diagnosis=lost)
    found = transitions(well, died)
    assert [(one.subject, one.calls, one.because) for one in found] == [
        ("decode/9", True, ""),
        ("decode/8", False, "decode/9"),
        ("decode/10", False, "decode/9"),
    ]


def test_a_rank_that_the_file_does_not_have_is_told_when_it_is_wrong(well: Snapshot) -> None:
    rank = well.rank("decode/9")
    assert rank is not None
    stray = replace(rank, id="old/0", state=RankState.FAILED)
    more = replace(well, ranks=(*well.ranks, stray))
    assert short(transitions(well, more)) == [("rank", "old/0", "unknown", "failed", True)]
    assert transitions(more, well) == ()


def test_what_is_read_for_the_first_time_after_the_start_calls_nobody(well: Snapshot) -> None:
    follower = Follower(well)
    (found,) = follower.take(replace(npu(well, FLAPS), made_at=NOW + 40))
    assert (found.worse, found.calls) == (False, False)
    assert "found at the first look" in found.summary
    (failed,) = follower.take(replace(npu(well, LINK, FLAPS), made_at=NOW + 50))
    assert failed.calls
    follower.take(replace(well, made_at=NOW + 60))
    (told,) = follower.take(replace(npu(well, FLAPS), made_at=NOW + LEARNING + 1))
    assert told.calls
