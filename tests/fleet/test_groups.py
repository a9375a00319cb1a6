"""Groups that come up, hang, lack a rank or die: what is shown and what an operation does with them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.console.describe import describe_rank
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import GroupStatus, OperationStatus, RankState
from pdtui.remote.messages.ranks import RankSpec, StartResult
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour, MemoryAgent


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def start(cluster: Cluster, fleet: Fleet, ids: tuple[str, ...] = ALL) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(StartRanks(ids)))))


def steps(operation: OperationStatus) -> dict[str, tuple[str, str]]:
    return {step.label: (step.state, step.detail) for step in operation.steps}


def group_of(fleet: Fleet, name: str) -> GroupStatus:
    group = fleet.snapshot.group(name)
    assert group is not None
    return group


def headline(fleet: Fleet) -> str:
    return fleet.snapshot.headline.message if fleet.snapshot.headline is not None else ""


def log_line(cluster: Cluster, seconds: float, words: str) -> str:
    """Return a line of vLLM's log that was written `seconds` after now."""
    at = time.strftime("%m-%d %H:%M:%S", time.gmtime(cluster.clock.wall() + seconds))
    return f"INFO {at} [core.py:1] {words}\n"


async def test_ranks_of_one_node_start_one_after_the_other(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 3s}")
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "done", done.error
        started = {rank: fleet.store.ranks[rank].started or 0.0 for rank in ALL}
    first, second, third, fourth = (started[rank] for rank in DECODE)
    assert second - first >= 3
    assert fourth - third >= 3
    assert abs(started["p1/0"] - first) < 3  # Nodes wait for nobody.


async def test_start_that_hangs_says_at_which_stage_and_since_when(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{deadline: 2min}")
    text = log_line(cluster, 2, "Initializing a V1 LLM engine") + log_line(cluster, 30, "Starting to load model x")
    bar = "Loading safetensors checkpoint shards:  63% Completed | 5/8\n"
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=5000, log=text + bar)
    since = time.strftime("%H:%M:%S", time.localtime(cluster.clock.wall() + 30))
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "failed"
        words = f"not ready within 2 min, stage: weights 63 % since {since}; left as it is"
        assert steps(done)["p1/0"] == ("failed", words)


async def cancelled(cluster: Cluster, fleet: Fleet, operation: str) -> OperationStatus:
    """Cancel an operation as a console does and return how it ended."""
    await cluster.drive(fleet.cancel(operation))
    return await cluster.drive(fleet.wait(operation))


async def test_cancelled_start_begins_nothing_more_and_says_how_each_rank_is_left(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 20s, warm_up: false}")
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(DECODE))
        await cluster.until(lambda: steps(fleet.store.operations[operation])["decode/2"][0] == "done")
        done = await cancelled(cluster, fleet, operation)
        assert done.state == "cancelled"
        assert steps(done)["decode/0"][1].startswith("ready")
        assert steps(done)["decode/1"] == ("skipped", "not begun")
        assert done.error == "decode/1, decode/3: not begun"
        await cluster.clock.advance(60)
        assert cluster.states(fleet)["decode/1"] is RankState.STOPPED
        assert len(cluster.nodes["node3"].starts) == 1
    for node in ("node3", "node4"):  # Also where others look.
        assert cluster.nodes[node].journal[-1]["event"] == "start ended"
        assert cluster.nodes[node].journal[-1]["state"] == "cancelled"


async def test_start_that_is_cancelled_while_ranks_load_leaves_them_loading(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=100, log="Available KV cache memory: 20 GiB\n")
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(5)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"] == ("skipped", "left as it is: KV cache")
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.READY, limit=120)


async def test_stop_that_is_cancelled_in_its_grace_period_says_that_no_kill_follows(cluster: Cluster) -> None:
    cluster.nodes["node1"].behaviour = lambda _: Behaviour(ignores_term=True)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, ("p1/0", "p2/0"))
        operation = await fleet.submit(StopRanks(("p1/0", "p2/0")))
        await cluster.clock.advance(10)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"][1].startswith("TERM was sent and no KILL follows")
        assert steps(done)["p2/0"] == ("done", "stopped, ports and HBM not verified")
        await cluster.clock.advance(60)
        assert len(cluster.nodes["node1"].processes_of("tiny")) == 1


async def test_restart_that_is_cancelled_after_its_stop_says_that_ranks_are_stopped(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, start="{stagger: 20s}")
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, DECODE)
        operation = await fleet.submit(RestartRanks(DECODE))
        await cluster.until(lambda: len(cluster.nodes["node3"].starts) == 3)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["decode/1"] == ("skipped", "stopped, HBM not verified, not started again")
        assert "decode/1, decode/3: stopped, HBM not verified, not started again" in done.error
        assert cluster.states(fleet)["decode/1"] is RankState.STOPPED


async def test_start_is_seen_through_on_its_node_when_it_is_cancelled_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was told answers a moment later: what it did is known, not guessed."""
    started = MemoryAgent.start_rank

    async def slow(self: MemoryAgent, spec: RankSpec) -> StartResult:
        await cluster.clock.sleep(4)
        return await started(self, spec)

    monkeypatch.setattr(MemoryAgent, "start_rank", slow)
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(1)
        done = await cancelled(cluster, fleet, operation)
        assert steps(done)["p1/0"] == ("skipped", "left as it is: starting")
        assert fleet.store.ranks["p1/0"].state is RankState.STARTING or await cluster.until(
            lambda: fleet.store.ranks["p1/0"].state in (RankState.STARTING, RankState.READY)
        )


async def test_half_started_group_says_who_is_missing_also_to_a_console_that_did_not_start_it(
    cluster: Cluster,
) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(
            ready_after=5000, log="Waiting for READY message from DP Coordinator\n"
        )
    begun = cluster.clock.wall()
    async with cluster.fleet() as fleet:
        half = StartRanks(DECODE[:2], override=("group:decode",), reason="try")
        operation = await cluster.drive(fleet.submit(half))
        await cluster.until(lambda: cluster.states(fleet)["decode/1"] is RankState.STARTING)
        await cluster.clock.advance(5)
        assert group_of(fleet, "decode").waits_for == ()  # Others may be about to come.
        await cluster.drive(fleet.cancel(operation))
    async with cluster.fleet(by="bob@desk") as other:
        await cluster.until(lambda: other.snapshot.headline is not None)
        group = group_of(other, "decode")
        assert (group.waiting, group.waits_for, group.waits_on) == (DECODE[:2], DECODE[2:], ("node4",))
        assert begun <= (group.waiting_since or 0.0) <= begun + 2
        assert headline(other).startswith("decode waits for decode/2-3 on node4 since ")
        done = await cluster.drive(other.submit(StartRanks(DECODE)))
        await cluster.clock.advance(5)
        assert group_of(other, "decode").waits_for == ()
        await cluster.drive(other.cancel(done))


async def test_deaths_of_a_group_keep_their_order_and_survivors_are_named(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.nodes["node4"].skew = 40.0  # Its clock is ahead: the order is that of one clock.
        await cluster.clock.advance(70)
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        await cluster.clock.advance(3)
        cluster.node_of("decode/0").kill("tiny", "decode/0", signal=6)
        await cluster.until(lambda: cluster.states(fleet)["decode/0"] is RankState.FAILED)
        await cluster.clock.advance(15)
        group = group_of(fleet, "decode")
        assert [(death.rank, death.exit_status) for death in group.deaths] == [("decode/3", -9), ("decode/0", -6)]
        first, second = (death.at or 0.0 for death in group.deaths)
        assert abs(second - first - 3) < 0.5
        assert group.must_restart == ("decode/1", "decode/2")
        assert headline(fleet).startswith("decode/3 failed at ")
        assert "decode/1-2 still run, without a group: restart decode." in headline(fleet)
        rows = describe_rank(fleet.store.ranks["decode/1"], fleet.plan, cluster.clock.wall(), group)
        text = "\n".join(row.text for row in rows)
        assert "lost: this rank still runs, but never gets its group back; restart decode" in text
        assert "1. decode/3" in text
        assert "2. decode/0  +3.0 s  signal 6" in text
        preview = await cluster.drive(fleet.preview(RestartRanks(("decode/0", "decode/3"))))
        assert preview.ids == DECODE  # And no prefill rank with them.
        healed = await cluster.drive(fleet.wait(await fleet.submit(RestartRanks(("decode/0",)))))
        assert healed.state == "done", healed.error
        await cluster.clock.advance(1)
        assert group_of(fleet, "decode") == replace(group, deaths=(), must_restart=())


async def test_rank_that_was_started_anew_without_its_group_waits_in_vain(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        await cluster.clock.advance(100)
        cluster.nodes["node3"].behaviour = lambda _: Behaviour(ready_after=5000)
        alone = RestartRanks(("decode/0",), whole_group=False, override=("group:decode",), reason="try")
        await fleet.submit(alone)
        await cluster.until(lambda: group_of(fleet, "decode").late == ("decode/0",))
        assert "decode/0 waits in vain" in headline(fleet)


async def test_prefill_that_breaks_soon_after_decode_is_told_as_a_possible_consequence(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.node_of("decode/2").kill("tiny", "decode/2")
        await cluster.clock.advance(12)
        assert group_of(fleet, "p1").after == ""
        cluster.node_of("p1/0").kill("tiny", "p1/0", signal=6)
        await cluster.until(lambda: group_of(fleet, "p1").after == "decode/2")
        assert abs(group_of(fleet, "p1").after_s - 12) < 1
        assert group_of(fleet, "p2").after == ""
