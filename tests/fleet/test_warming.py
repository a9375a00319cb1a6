"""The first completion of a rank that was started, before it takes requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.fleet.serving import usable_ranks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.messages.ranks import WarmUp
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def start(cluster: Cluster, fleet: Fleet, ids: tuple[str, ...] = ALL) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(StartRanks(ids)))))


def detail(operation: OperationStatus, rank: str) -> str:
    return next(step.detail for step in operation.steps if step.label == rank)


def sent(cluster: Cluster) -> list[str]:
    return [rank for node in cluster.nodes.values() for rank, _ in node.completions]


async def test_each_rank_gets_one_completion_once_its_group_is_up_and_serves_only_then(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda spec: Behaviour(
            ready_after=30.0 if spec.rank == "decode/3" else 3.0, warm_up_takes=6.0
        )
    async with cluster.fleet() as fleet:
        operation = await cluster.drive(fleet.submit(StartRanks(ALL)))
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.READY)
        await cluster.clock.advance(5)
        assert fleet.store.ranks["decode/0"].state is RankState.STARTING
        assert fleet.store.ranks["decode/0"].stage == "warm-up"
        assert sorted(sent(cluster)) == ["p1/0", "p2/0"]  # Decode waits for its last rank.
        await cluster.until(lambda: len(sent(cluster)) == 6)
        await cluster.clock.advance(2)
        assert usable_ranks(fleet.topology, fleet.store.ranks.values()) == {"p1/0", "p2/0"}
        async with cluster.fleet(by="bob@desk") as other:  # Another console shows the same.
            assert other.store.ranks["decode/0"].stage == "warm-up"
            assert other.store.ranks["decode/0"].state is RankState.STARTING
        done = await cluster.drive(fleet.wait(operation))
        assert done.state == "done", done.error
        assert usable_ranks(fleet.topology, fleet.store.ranks.values()) == set(ALL)
    assert sorted(sent(cluster)) == sorted(ALL)
    bodies = {rank: body for node in cluster.nodes.values() for rank, body in node.completions}
    assert (bodies["p1/0"]["max_tokens"], bodies["decode/1"]["model"]) == (1, "ds_r1")


async def test_ranks_that_were_ready_before_are_left_alone(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
    async with cluster.fleet(by="bob@desk") as other:
        await cluster.clock.advance(30)
        assert (await start(cluster, other)).state == "done"
    assert len(sent(cluster)) == len(ALL)


async def test_failed_warm_up_is_told_and_keeps_its_group_out_of_rotation_until_it_is_repeated(
    cluster: Cluster,
) -> None:
    broken = Behaviour(warm_up=WarmUp("failed", error="HTTP 500 EngineCore encountered an issue"))
    cluster.nodes["node4"].behaviour = lambda spec: broken if spec.rank == "decode/2" else Behaviour()
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "failed"
        assert "its warm-up request failed: HTTP 500 EngineCore" in detail(done, "decode/2")
    async with cluster.fleet(by="bob@desk") as other:  # The node knows, not the console.
        await cluster.clock.advance(10)
        rank = other.store.ranks["decode/2"]
        assert (rank.state, rank.health) == (RankState.UNHEALTHY, "200")
        assert rank.diagnosis is not None
        assert rank.diagnosis.summary.startswith("its warm-up request failed: HTTP 500")
        assert usable_ranks(other.topology, other.store.ranks.values()) == {"p1/0", "p2/0"}
        assert other.snapshot.headline is not None
        assert "answers on /health, but no request" in other.snapshot.headline.message
        cluster.nodes["node4"].set_behaviour("tiny", "decode/2", Behaviour())
        again = await start(cluster, other, DECODE)
        assert again.state == "done", again.error
        assert usable_ranks(other.topology, other.store.ranks.values()) == set(ALL)
    assert sent(cluster).count("decode/2") == 2
    assert sent(cluster).count("decode/1") == 1


async def test_server_that_does_not_take_the_request_is_ready_and_said_not_to_be_warmed_up(
    cluster: Cluster,
) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(warm_up=WarmUp("skipped", error="HTTP 401"))
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet, ("p1/0",))
        assert done.state == "done"
        assert detail(done, "p1/0").endswith("not warmed up: HTTP 401")
        assert cluster.states(fleet)["p1/0"] is RankState.READY


async def test_rank_that_was_started_alone_is_not_held_back_for_mates_that_nobody_starts(
    cluster: Cluster,
) -> None:
    async with cluster.fleet() as fleet:
        alone = StartRanks(("decode/0",), reason="test", override=("group:decode",))
        begin = cluster.clock.monotonic()
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(alone))))
        assert done.state == "done", done.error
        assert cluster.clock.monotonic() - begin < 60
    assert sent(cluster) == ["decode/0"]


async def test_warm_up_can_be_left_out_by_the_file(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{warm_up: false}")
    async with cluster.fleet() as fleet:
        assert (await start(cluster, fleet)).state == "done"
    assert sent(cluster) == []


async def test_start_that_is_cancelled_during_the_warm_up_leaves_ranks_to_end_it(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(warm_up_takes=20.0)
    async with cluster.fleet() as fleet:
        operation = await cluster.drive(fleet.submit(StartRanks(("p1/0",))))
        await cluster.until(lambda: sent(cluster) == ["p1/0"])
        await cluster.drive(fleet.cancel(operation))
        done = await cluster.drive(fleet.wait(operation))
        assert detail(done, "p1/0") == "left as it is: warm-up"
