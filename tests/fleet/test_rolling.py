"""Rolling restarts of groups, and draining before a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.serving import usable_ranks
from pdtui.fleet.snapshot import OperationStatus, RankState
from tests.fleet.cluster import ALL, Cluster
from tests.support.memory_node import Behaviour

PREFILL = ("p1/0", "p2/0")
ROLL = RestartRanks(PREFILL, rolling=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def start(cluster: Cluster, fleet: Fleet) -> None:
    done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(StartRanks(ALL)))))
    assert done.state == "done", done.error


def steps(operation: OperationStatus) -> dict[str, tuple[str, str]]:
    return {step.label: (step.state, step.detail) for step in operation.steps}


def serving(fleet: Fleet) -> frozenset[str]:
    return usable_ranks(fleet.topology, fleet.store.ranks.values())


async def test_one_group_after_the_other_and_prefill_never_stops_to_serve(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=20.0, warm_up_takes=5.0)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        preview = await cluster.drive(fleet.preview(ROLL))
        assert [step.split()[0] for step in preview.steps] == ["p1", "p2", "end"]
        assert "the others of its role keep serving" in preview.consequence
        operation = await cluster.drive(fleet.submit(ROLL))
        waiting, least = asyncio.ensure_future(fleet.wait(operation)), 2
        while not waiting.done():
            await cluster.clock.advance(0.5)
            least = min(least, len(serving(fleet) & set(PREFILL)))
        done = await waiting
        assert (done.state, least) == ("done", 1), done.error
        assert steps(done)["rolling"] == ("done", "2 of 2")
        first, second = (fleet.store.ranks[rank].started or 0.0 for rank in PREFILL)
        assert second - first >= 25  # The second was stopped when the first served again, warm-up included.
        assert {fleet.store.ranks[rank].run for rank in PREFILL} == {2}
        assert fleet.store.ranks["decode/0"].run == 1


async def test_group_that_does_not_come_back_ends_it_and_the_rest_is_untouched(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.nodes["node1"].behaviour = lambda _: Behaviour(dies_after=2.0, ready_after=99.0)
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(ROLL))))
        assert done.state == "failed"
        assert steps(done)["p2/0"] == ("skipped", "left untouched: p1 did not come back")
        assert steps(done)["rolling"] == ("failed", "p1 did not come back; left untouched: p2")
        assert fleet.store.ranks["p2/0"].run == 1
        assert cluster.states(fleet)["p2/0"] is RankState.READY


async def test_only_group_that_serves_is_left_alone_and_one_that_does_not_goes_first(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.node_of("p2/0").kill("tiny", "p2/0")
        await cluster.until(lambda: cluster.states(fleet)["p2/0"] is RankState.FAILED)
        preview = await cluster.drive(fleet.preview(ROLL))
        assert preview.steps[0].startswith("p2 on node2, which does not serve now")
        alone = RestartRanks(("p1/0",), rolling=True)
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(alone))))
        assert steps(done)["p1/0"] == ("skipped", "left untouched: p1 is the only prefill group that serves")
        assert cluster.states(fleet)["p1/0"] is RankState.READY
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(ROLL))))
        assert done.state == "done", done.error


async def test_single_group_of_its_role_has_nothing_to_roll(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        with pytest.raises(ActionRefused, match="decode is the only decode group: there is nothing to roll"):
            await fleet.preview(RestartRanks(("decode/0", "p1/0"), rolling=True))


def requests(running: int) -> str:
    return f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'


async def test_running_requests_end_before_the_stop(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(metrics=requests(3))
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        operation = await cluster.drive(fleet.submit(StopRanks(("p1/0",), drain=60)))
        await cluster.clock.advance(10)
        said = steps(fleet.store.operations[operation])
        assert said["p1/0"] == ("running", "draining, 3 requests run")
        assert said["drain"][0] == "running"
        assert "p1/0" not in serving(fleet)
        assert cluster.nodes["node1"].processes_of("tiny")
        cluster.nodes["node1"].set_behaviour("tiny", "p1/0", Behaviour(metrics=requests(0)))
        begin = cluster.clock.monotonic()
        await cluster.until(lambda: not cluster.nodes["node1"].processes_of("tiny"))
        assert cluster.clock.monotonic() - begin < 10
        await cluster.drive(fleet.wait(operation))
        assert steps(fleet.store.operations[operation])["drain"] == ("done", "no request runs")


async def test_requests_that_do_not_end_are_cut_off_and_counted(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(metrics=requests(4))
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(StopRanks(("p1/0",), drain=20)))))
        assert steps(done)["drain"] == ("done", "4 requests cut off after 20 s")
        assert done.state == "done"


async def test_stop_that_is_cancelled_while_requests_end_stops_nothing_and_serves_again(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(metrics=requests(4))
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        operation = await cluster.drive(fleet.submit(StopRanks(("p1/0", "p2/0"))))
        await cluster.clock.advance(5)
        await cluster.drive(fleet.cancel(operation))
        done = await cluster.drive(fleet.wait(operation))
        assert steps(done)["p1/0"] == ("skipped", "not stopped: cancelled while its requests ended")
        assert steps(done)["p2/0"] == ("skipped", "not begun")
        await cluster.clock.advance(5)
        assert set(PREFILL) <= serving(fleet)
