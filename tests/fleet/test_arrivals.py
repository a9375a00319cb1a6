"""The table of stages of a group that comes up: who is there, who is not, who is last."""

from __future__ import annotations

import time
from dataclasses import replace

from pdtui.console.progress_rows import progress_rows
from pdtui.fleet.arrivals import coming_up, in_one_line
from pdtui.fleet.snapshot import OperationStatus, OperationStep, RankState, RankStatus, Snapshot
from pdtui.topology.planner import make_plan
from tests.support.fake_fleet import NOW, healthy, make_topology


def big() -> Snapshot:
    """Return four decode nodes: one group of 64 ranks."""
    topology = make_topology(prefill_nodes=1, decode_nodes=4)
    return healthy(topology, make_plan(topology))


def starting(snapshot: Snapshot, stages: dict[int, str], rest: str) -> Snapshot:
    """Return the decode group as it starts: rank numbers with their stage, the others at `rest`."""

    def at(rank: RankStatus) -> RankStatus:
        if rank.group != "decode":
            return rank
        stage = stages.get(int(rank.id.rpartition("/")[2]), rest)
        if stage == "ready":
            return rank
        if stage == "stopped":
            return replace(rank, state=RankState.STOPPED, since=NOW - 900, health="")
        since = NOW - 240 if stage == "coordinator" else NOW - 10
        state = RankState.STARTING
        return replace(rank, state=state, stage=stage, stage_since=since, started=NOW - 300, health="")

    return replace(snapshot, ranks=tuple(at(rank) for rank in snapshot.ranks))


def test_each_stage_counts_who_is_there_and_names_who_is_not() -> None:
    snapshot = starting(big(), {3: "weights 31 %", 7: "coordinator", 63: "coordinator"}, "KV cache")
    (group,) = coming_up(snapshot.ranks)
    found = {stage.stage: (stage.arrived, stage.missing) for stage in group.stages}
    assert found["process"] == (64, ())
    assert found["configuration"] == (64, ())
    assert found["rendezvous"] == (62, ("decode/7", "decode/63"))
    assert found["weights"] == (61, ("decode/3", "decode/7", "decode/63"))
    assert found["KV cache"][0] == 61
    assert found["ready"][0] == 0
    assert group.last is not None
    assert group.last.id == "decode/7"
    since = time.strftime("%H:%M:%S", time.localtime(NOW - 240))
    line = in_one_line(group)
    assert line.startswith("0 of 64 ready; process 64, configuration 64, rendezvous 62, weights 61, KV cache 61;")
    assert line.endswith(f"last decode/7 on node2: coordinator since {since}")


def test_group_that_serves_is_no_group_that_comes_up() -> None:
    assert coming_up(big().ranks) == ()
    late = starting(big(), {5: "API server"}, "ready")
    (group,) = coming_up(late.ranks)
    assert group.ready == 63


def test_rank_that_does_not_run_is_last_of_all() -> None:
    snapshot = starting(big(), {9: "stopped", 7: "coordinator"}, "KV cache")
    (group,) = coming_up(snapshot.ranks)
    assert group.last is not None
    assert group.last.id == "decode/9"
    assert group.stages[0].missing == ("decode/9",)


def test_progress_names_a_set_of_ranks_once_and_ranks_with_the_same_news_together() -> None:
    snapshot = starting(big(), {3: "weights 31 %", 7: "coordinator"}, "KV cache")
    steps = [OperationStep("start", "running", "0 of 64 ready")]
    steps += [OperationStep(rank.id, "running", rank.stage) for rank in snapshot.ranks if rank.group == "decode"]
    operation = OperationStatus(
        "op-1", "start", tuple(step.label for step in steps[1:]), "ann@desk", NOW - 300, "running", tuple(steps)
    )
    rows = progress_rows(replace(snapshot, operations=(operation,)), NOW)
    text = [f"{row.label} {row.text}" for row in rows]
    assert "met its group 63/64  without 7" in text
    assert "weights loaded 62/64  without 3, 7" in text
    assert "KV cache 62/64" in text  # The same two: named once.
    assert " decode/0-2, decode/4-6, decode/8-63  KV cache" in text
    assert any(line.startswith("last decode/7 on node2: coordinator since") for line in text)
    assert len(rows) < 20


def test_progress_of_what_is_done_spans_its_numbers_and_a_whole_group_takes_one_line() -> None:
    steps = [OperationStep("start", "done", "3 of 3 ready")]
    took = {"decode/0": "9 s", "decode/1": "11 s", "p1/0": "2 min"}
    steps += [OperationStep(rank, "done", f"ready after {words}") for rank, words in took.items()]
    operation = OperationStatus(
        "op-1", "start", tuple(took), "ann@desk", NOW - 99, "done", tuple(steps), ended=NOW
    )
    snapshot = replace(big(), operations=(operation,))
    text = [row.text for row in progress_rows(snapshot, NOW)]
    assert text[-2:] == ["decode/0-1  ready after 9-11 s", "p1/0  ready after 2 min"]
    running = replace(snapshot, operations=(replace(operation, state="running", ended=None),))
    assert "decode  64 of 64 ready" in [row.text for row in progress_rows(running, NOW)]
    assert not any("met its group" in row.label for row in progress_rows(running, NOW))
