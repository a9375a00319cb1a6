"""Targets, differences, headline, serving, journal and metering: the pure parts of the fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import UsageError
from pdtui.fleet.headline import clock_time, make_headline
from pdtui.fleet.intents import StartRanks
from pdtui.fleet.journal import Journal, default_dir
from pdtui.fleet.metering import STALLED_AFTER
from pdtui.fleet.scope import duration, in_words
from pdtui.fleet.serving import backend_states, serving_status
from pdtui.fleet.snapshot import (
    Alarm,
    Diagnosis,
    Headline,
    NodeState,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
)
from pdtui.fleet.store import Store, blank_rank
from pdtui.fleet.targets import nodes_of, resolve
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology.model import Role
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.manual_clock import ManualClock
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def ranks_of(cluster: Cluster, **states: RankState) -> list[RankStatus]:
    """Return all ranks, ready but for the ones that are named (`decode_3=...`)."""
    return [
        replace(blank_rank(rank, 1000.0), state=states.get(rank.id.replace("/", "_"), RankState.READY))
        for rank in cluster.plan.ranks
    ]


@pytest.mark.parametrize(
    ("targets", "ids"),
    [
        (("all",), ALL),
        (("decode",), DECODE),
        (("decode/1",), ("decode/1",)),
        (("decode/1-2", "decode/2"), ("decode/1", "decode/2")),
        (("@node3",), ("decode/0", "decode/1")),
        (("role:prefill",), ("p1/0", "p2/0")),
        (("decode/3", "p2", "p2/0"), ("p2/0", "decode/3")),
        (("failed",), ("decode/2",)),
    ],
)
def test_targets_are_united_in_the_order_of_the_plan(
    cluster: Cluster, targets: tuple[str, ...], ids: tuple[str, ...]
) -> None:
    ranks = ranks_of(cluster, decode_2=RankState.FAILED)
    assert resolve(targets, cluster.topology, cluster.plan, ranks) == ids


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("decod", "'decode'"),
        ("decode/9", "decode/"),
        ("decode/2-9", "decode/"),
        ("decode/1-999999", "decode/"),
        ("node3", "'@node3'"),
        ("prefill", "'role:prefill'"),
        ("@node33", "'@node3'"),
        ("role:decoder", "'role:decode'"),
        ("zzzzzz", "failed and all"),
        ("proxy", "comes later"),
        ("", "there are"),
    ],
)
def test_target_that_names_nothing_is_answered_with_the_nearest(cluster: Cluster, target: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve((target,), cluster.topology, cluster.plan)
    assert said in error.value.message


@pytest.mark.parametrize(
    ("targets", "groups", "nodes"),
    [
        (("all",), False, {"node1", "node2", "node3", "node4"}),
        (("p2",), True, {"node2"}),
        (("decode/0", "p1"), False, {"node1", "node3"}),
        (("decode/0", "p1"), True, {"node1", "node3", "node4"}),
        (("@node4",), False, {"node4"}),
    ],
)
def test_nodes_of_targets_are_those_that_have_to_answer(
    cluster: Cluster, targets: tuple[str, ...], groups: bool, nodes: set[str]
) -> None:
    assert nodes_of(targets, cluster.topology, cluster.plan, groups=groups) == frozenset(nodes)


@pytest.mark.parametrize("targets", [(), ("p1", "failed"), ("old/0@node2",)])
def test_targets_that_only_nodes_can_name_need_all_of_them(cluster: Cluster, targets: tuple[str, ...]) -> None:
    assert nodes_of(targets, cluster.topology, cluster.plan, groups=True) is None


@pytest.mark.parametrize("target", ["nosuch", "@node9", "role:nosuch"])
def test_a_target_that_no_node_can_have_is_refused_before_one_is_asked(cluster: Cluster, target: str) -> None:
    with pytest.raises(UsageError, match=f"no target '{target}'"):
        nodes_of(["decode/0", target], cluster.topology, cluster.plan, groups=True)


def test_prefixes_are_no_targets(cluster: Cluster) -> None:
    with pytest.raises(UsageError):
        resolve(("p",), cluster.topology, cluster.plan)


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ({}, "SERVING"),
        ({"p1_0": RankState.FAILED}, "DEGRADED"),
        ({"p1_0": RankState.FAILED, "p2_0": RankState.STARTING}, "DOWN"),
        ({"decode_2": RankState.STALLED}, "DOWN"),
        ({"decode_2": RankState.STARTING}, "STARTING"),
        ({rank.replace("/", "_"): RankState.STOPPED for rank in ALL}, "STOPPED"),
        ({rank.replace("/", "_"): RankState.UNKNOWN for rank in ALL}, "UNKNOWN"),
        ({rank.replace("/", "_"): RankState.STOPPED for rank in DECODE}, "DOWN"),
    ],
)
def test_serving_needs_a_prefill_rank_and_a_whole_decode_group(
    cluster: Cluster, states: dict[str, RankState], word: str
) -> None:
    assert serving_status(cluster.topology, ranks_of(cluster, **states), None, 2000.0).word == word


def test_dead_member_takes_its_whole_moe_group_out_of_the_rotation(cluster: Cluster) -> None:
    usable = {
        state.rank: state.usable
        for state in backend_states(cluster.topology, ranks_of(cluster, decode_3=RankState.FAILED))
    }
    assert usable == {"p1/0": True, "p2/0": True, **dict.fromkeys(DECODE, False)}


def test_dense_ranks_stand_alone(cluster: Cluster) -> None:
    dense = replace(cluster.topology, model=replace(cluster.topology.model, kind="dense"))
    states = backend_states(dense, ranks_of(cluster, decode_3=RankState.FAILED))
    assert [state.rank for state in states if not state.usable] == ["decode/3"]


def test_lost_rank_counts_for_its_group_but_cannot_be_used_from_here(cluster: Cluster) -> None:
    ranks = [
        replace(rank, state=RankState.LOST, last_state=RankState.READY) if rank.node == "node4" else rank
        for rank in ranks_of(cluster)
    ]
    assert serving_status(cluster.topology, ranks, None, 1.0).word == "DEGRADED"
    usable = {state.rank: state.usable for state in backend_states(cluster.topology, ranks)}
    assert (usable["decode/0"], usable["decode/2"]) == (True, False)


def test_ranks_that_nobody_can_see_any_more_are_no_word_on_the_service(cluster: Cluster) -> None:
    ready = ranks_of(cluster)
    served = serving_status(cluster.topology, ready, None, 2000.0)
    lost = [replace(rank, state=RankState.LOST, last_state=RankState.READY) for rank in ready]
    blind = serving_status(cluster.topology, lost, served, 3000.0)
    assert (blind.word, blind.since) == ("UNKNOWN", None)
    assert (blind.prefill_ready, blind.decode_ready) == (0, 0)
    half = serving_status(cluster.topology, [*ready[:1], *lost[1:]], blind, 3001.0)
    assert half.word == "DEGRADED", "one is seen: the others count as they were"


def test_since_is_kept_while_the_word_is(cluster: Cluster) -> None:
    first = serving_status(cluster.topology, ranks_of(cluster), None, 2000.0)
    assert first.since == 1000.0  # When the last rank became ready, not when the console came.
    assert serving_status(cluster.topology, ranks_of(cluster), first, 3000.0).since == 1000.0
    down = serving_status(cluster.topology, ranks_of(cluster, decode_0=RankState.FAILED), first, 3000.0)
    assert down.since == 3000.0


def test_since_of_a_cluster_that_nobody_watched_is_what_its_ranks_say(cluster: Cluster) -> None:
    def since(times: Mapping[str, float] | None = None, **states: RankState) -> tuple[str, float | None]:
        ranks = [
            replace(rank, since=(times or {}).get(rank.id, rank.since)) for rank in ranks_of(cluster, **states)
        ]
        status = serving_status(cluster.topology, ranks, None, 9000.0)
        return status.word, status.since

    stopped = {rank.replace("/", "_"): RankState.STOPPED for rank in ALL}
    failed = RankState.FAILED
    assert since({"decode/2": 1500.0}) == ("SERVING", 1500.0)
    assert since({"decode/2": 0.0}) == ("SERVING", None)
    assert since(dict.fromkeys(ALL, 0.0), **stopped) == ("STOPPED", None)  # Never started.
    assert since({**dict.fromkeys(ALL, 0.0), "p1/0": 1600.0}, **stopped) == ("STOPPED", 1600.0)
    assert since({"decode/2": 1700.0, "decode/1": 1600.0}, decode_1=failed, decode_2=failed) == ("DOWN", 1600.0)
    assert since({"p1/0": 1600.0, "p2/0": 1800.0}, p1_0=failed, p2_0=failed) == ("DOWN", 1800.0)
    assert since(dict.fromkeys(DECODE, 0.0), **{key: stopped[key] for key in stopped if key[0] == "d"}) == (
        "DOWN", None,
    )  # fmt: skip
    assert since({"p1/0": 1600.0}, p1_0=failed) == ("DEGRADED", 1600.0)
    assert since({"decode/1": 1600.0}, decode_1=RankState.STARTING) == ("STARTING", 1600.0)
    assert since(p1_0=RankState.UNKNOWN) == ("DEGRADED", None)


def test_since_is_found_when_the_last_node_has_answered(cluster: Cluster) -> None:
    part = serving_status(cluster.topology, ranks_of(cluster, p1_0=RankState.UNKNOWN), None, 2000.0)
    assert (part.word, part.since) == ("DEGRADED", None)
    assert serving_status(cluster.topology, ranks_of(cluster), part, 2001.0).since == 1000.0


def test_headline_is_the_worst_thing_with_its_first_cause(cluster: Cluster) -> None:
    nodes = [
        NodeStatus("node3", "h", (Role.DECODE,), NodeState.CONNECTED, 0.0, npus=(failed_npu(),)),
        NodeStatus("node4", "h", (Role.DECODE,), NodeState.RECONNECTING, 50.0, error="timed out\nmore"),
    ]
    ranks = ranks_of(cluster)
    npu = make_headline(nodes[:1], ranks)
    assert npu is not None
    assert (npu.message, npu.subject) == (
        "node3 NPU 9 failed: vnic link DOWN, carries decode/1",
        "node3/9",
    )
    gone = make_headline(nodes, ranks)
    assert gone is not None
    assert gone.subject == "node4"
    assert ": timed out; 2 ranks not seen since" in gone.message
    idle = replace(nodes[1], name="node5")
    assert make_headline([nodes[0], idle], ranks) == npu, "a node without ranks hides no trouble of ranks"
    alone = make_headline([idle], ranks)
    assert alone is not None
    assert alone.message.startswith("node5 unreachable since ")
    first = Diagnosis("HCCL link to decode/1 lost", first_cause="decode/1")
    later, earlier = ranks_of(cluster)[-1], ranks_of(cluster)[-2]
    failed = [
        replace(later, state=RankState.FAILED, since=2000.0, exit_status=1),
        replace(earlier, state=RankState.FAILED, since=1500.0, exit_status=1, diagnosis=first),
    ]
    worst = make_headline(nodes, failed)
    assert worst is not None
    assert worst.message.startswith("decode/2 failed at ")
    assert worst.message.endswith(", and 1 more: HCCL link to decode/1 lost. First cause: decode/1.")
    assert worst.subject == "decode/1"
    assert make_headline((), ranks) is None


def test_headline_names_alarms_when_nothing_worse_is_there(cluster: Cluster) -> None:
    held = Alarm("kv-held", "warning", "its KV cache is 97 % full and nothing runs", "look", 1500.0)
    computes = Alarm("computes-prompts", "error", "computes prompts itself", "look", 1600.0)
    alarms = {"p1/0": (held,), "decode/1": (computes,), "decode/2": (replace(computes, since=1700.0),)}
    ranks = [replace(rank, alarms=alarms.get(rank.id, ())) for rank in ranks_of(cluster)]
    headline = make_headline((), ranks)
    assert headline == Headline("decode/1 computes prompts itself; also decode/2", "decode/1", "warning")
    only_held = [replace(rank, alarms=alarms["p1/0"] if rank.id == "p1/0" else ()) for rank in ranks]
    headline = make_headline((), only_held)
    assert headline == Headline(f"p1/0 {held.message}", "p1/0", "warning")
    idle = NodeStatus("node5", "h", (), NodeState.RECONNECTING, 50.0, error="timed out")
    assert (found := make_headline([idle], only_held)) is not None
    assert found.subject == "node5", "what passes by itself does not hide a node that is gone"
    failed = [replace(rank, state=RankState.FAILED) if rank.id == "decode/2" else rank for rank in ranks]
    assert (found := make_headline((), failed)) is not None
    assert (found.subject, found.severity) == ("decode/2", "error")


def test_headline_gives_each_unreachable_node_its_own_reason() -> None:
    def gone(name: str, host: str, error: str) -> NodeStatus:
        return NodeStatus(name, host, (), NodeState.CONNECTING, 50.0, error=f"{host}{error}")

    pre1 = gone("pre1", "127.0.0.1", ":2201: connection refused")
    pre2 = gone("pre2", "127.0.0.1", ":2202: connection refused")
    dec1 = gone("dec1", "192.0.0.9", ": no answer within 10 s")
    fine = NodeStatus("dec2", "192.0.0.10", (), NodeState.CONNECTED, 50.0)
    for nodes, said in (
        ([pre1], f"pre1 unreachable since {clock_time(50.0)}: 127.0.0.1:2201: connection refused"),
        ([pre1, pre2, fine], f"pre1, pre2 unreachable since {clock_time(50.0)}: connection refused"),
        (
            [pre1, pre2],
            f"no node answers: pre1, pre2 unreachable since {clock_time(50.0)}: connection refused",
        ),
        (
            [pre1, dec1, pre2, fine],
            f"pre1, pre2 unreachable since {clock_time(50.0)}: connection refused; dec1: no answer within 10 s",
        ),
    ):
        headline = make_headline(nodes, ())
        assert headline is not None
        assert headline.message == said


def failed_npu() -> NpuStatus:
    return NpuStatus(9, Verdict.FAILED, (Reason(Verdict.FAILED, "vnic link DOWN"),), rank="decode/1")


async def test_first_good_readings_are_no_events_but_changes_are(cluster: Cluster) -> None:
    store = Store(cluster.topology, cluster.plan, clock=cluster.clock)
    unknown, good, bad = (
        NpuStatus(9, Verdict.UNKNOWN),
        NpuStatus(9, Verdict.HEALTHY, observed_at=1.0),
        replace(failed_npu(), observed_at=2.0),
    )
    for npu in (unknown, good):
        store.set_npus("node3", (npu,), 1.0, "")
    store.publish()
    assert not store.snapshot.events
    for npu in (bad, good):
        store.set_npus("node3", (npu,), 2.0, "")
    store.publish()
    events = store.snapshot.events
    assert [(event.severity, event.subject, event.message) for event in events] == [
        ("error", "node3/9", "NPU healthy -> failed: vnic link DOWN"),
        ("good", "node3/9", "NPU failed -> healthy"),
    ]


def test_journal_is_private_and_a_cut_line_hurts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SSH_CLIENT", raising=False)
    journal = Journal(default_dir("tiny"), clock=ManualClock(), by="ann@desk")
    journal.write("ready", rank="p1/0", seconds=12.5)
    journal.write("ready", rank="p1/0", seconds=13.5, reason="")
    path = tmp_path / "pdtui" / "tiny" / "journal.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    entry = json.loads(path.read_text().splitlines()[1])
    assert entry.pop("id")
    assert entry == {
        "at": 1_800_000_000.0,
        "who": "ann@desk",
        "from": "local",
        "event": "ready",
        "rank": "p1/0",
        "seconds": 13.5,
    }
    with path.open("a") as file:
        file.write('{"event": "ready", "rank": 3, "seconds": "x"}\n[1]\n{"cut')
    assert journal.last_starts() == {"p1/0": 13.5}


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.4, "4 s"), (99.0, "99 s"), (840.0, "14 min"), (7500.0, "2 h 5 min")]
)
def test_durations_are_said_as_people_do(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_ranks_in_words(cluster: Cluster) -> None:
    plan = cluster.plan
    assert in_words(DECODE, plan) == "group decode"
    assert in_words(ALL, plan) == "all 6 ranks"
    assert in_words(("p1/0", "decode/1"), plan) == "group p1, decode/1"


METRICS = """
vllm:num_requests_running{{engine="0",model_name="ds_r1"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="ds_r1"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="ds_r1"}} 0.41
vllm:generation_tokens_total{{engine="0",model_name="ds_r1"}} {tokens}
vllm:prompt_tokens_total{{engine="0",model_name="ds_r1"}} 100.0
"""


async def test_rank_that_runs_requests_without_tokens_is_stalled(cluster: Cluster) -> None:
    node = cluster.nodes["node3"]
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))

        def say(running: float, tokens: float) -> None:
            metrics = METRICS.format(running=running, tokens=tokens)
            node.set_behaviour("tiny", "decode/0", Behaviour(ready_after=0, metrics=metrics))

        for tokens in range(0, 500, 50):
            say(7.0, float(tokens))
            await cluster.clock.advance(5)
        metrics = fleet.store.ranks["decode/0"].metrics
        assert metrics is not None
        assert (metrics.running, metrics.waiting, metrics.kv_usage) == (7, 2, 0.41)
        assert metrics.generation_tokens_per_s == pytest.approx(10.0, rel=0.5)
        await cluster.clock.advance(STALLED_AFTER / 2)
        assert cluster.states(fleet)["decode/0"] is RankState.READY
        await cluster.clock.advance(STALLED_AFTER)
        assert cluster.states(fleet)["decode/0"] is RankState.STALLED
        await cluster.clock.advance(1)
        assert fleet.snapshot.serving.word == "DOWN"
        assert fleet.snapshot.headline is not None
        assert "no tokens come" in fleet.snapshot.headline.message
        say(0.0, 500.0)
        await cluster.clock.advance(10)
        assert cluster.states(fleet)["decode/0"] is RankState.READY


async def test_an_alarm_of_a_rank_is_shown_and_its_begin_and_end_are_events(cluster: Cluster) -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'
        'vllm:kv_cache_usage_perc{engine="0"} '
    )

    def events() -> list[tuple[str, str]]:
        return [
            (e.severity, e.message)
            for e in fleet.snapshot.events
            if e.subject == "p1/0" and "nobody fetches" in e.message
        ]

    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        node = cluster.nodes[fleet.store.ranks["p1/0"].node]
        node.set_behaviour("tiny", "p1/0", Behaviour(ready_after=0, metrics=f"{text} 0.75\n"))
        await cluster.clock.advance(24)
        (alarm,) = fleet.store.ranks["p1/0"].alarms
        assert alarm.id == "kv-held"
        assert events() == [("warning", alarm.message)]
        node.set_behaviour("tiny", "p1/0", Behaviour(ready_after=0, metrics=f"{text} 0.01\n"))
        await cluster.clock.advance(8)
        assert fleet.store.ranks["p1/0"].alarms == ()
        assert events()[1:] == [("good", "no longer holds prompts that nobody fetches")]
        node.set_behaviour("tiny", "p1/0", Behaviour(ready_after=0, metrics=f"{text} 0.75\n"))
        await cluster.clock.advance(24)
        assert fleet.store.ranks["p1/0"].alarms
        node.set_behaviour("tiny", "p1/0", Behaviour(ready_after=0, health=503))
        await cluster.clock.advance(8)
        assert fleet.store.ranks["p1/0"].alarms == ()  # It answers no more; its state says so.
        assert len(events()) == 3
