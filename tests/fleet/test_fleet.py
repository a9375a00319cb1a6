"""A fleet over nodes in memory: what a console shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import ConnectError
from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.fleet.snapshot import NodeState, RankState
from pdtui.remote.messages.commands import HttpReply
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.fleet.cluster import ALL, Cluster, write_file
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_start_all_makes_everything_ready(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        assert set(cluster.states(fleet).values()) == {RankState.STOPPED}
        assert fleet.snapshot.serving.word == "STOPPED"
        operation = await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert operation.state == "done", operation.error
        await cluster.clock.advance(1)
        snapshot = fleet.snapshot
        assert {rank.state for rank in snapshot.ranks} == {RankState.READY}
        assert snapshot.serving.word == "SERVING"
        assert (snapshot.serving.prefill_ready, snapshot.serving.decode_ready) == (2, 4)
        assert snapshot.headline is None
        assert all(rank.by == "ann@desk" and rank.run == 1 and rank.pid for rank in snapshot.ranks)
        assert [step.state for step in operation.steps if step.label in ALL] == ["done"] * 6
    first = [spec.rank for spec in cluster.nodes["node3"].starts]
    assert first[0] == "decode/0"


async def test_rank_killed_from_outside_is_failed_within_five_seconds(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        took = await cluster.until(lambda: cluster.states(fleet)["decode/3"] is RankState.FAILED)
        assert took <= 5
        await cluster.clock.advance(0.5)
        snapshot = fleet.snapshot
        rank = snapshot.rank("decode/3")
        assert rank is not None
        assert rank.exit_status == -9
        assert snapshot.headline is not None
        assert "decode/3 failed at" in snapshot.headline.message
        assert snapshot.serving.word == "DOWN"  # The only decode group is not whole.
        assert any(event.subject == "decode/3" and event.severity == "error" for event in snapshot.events)


async def test_unreachable_node_is_lost_and_comes_back(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        cluster.nodes["node4"].cut()
        await cluster.until(lambda: cluster.states(fleet)["decode/2"] is RankState.LOST)
        await cluster.clock.advance(0.5)
        snapshot = fleet.snapshot
        rank, node = snapshot.rank("decode/2"), snapshot.node("node4")
        assert rank is not None
        assert node is not None
        assert rank.last_state is RankState.READY
        assert node.state is NodeState.RECONNECTING
        assert snapshot.headline is not None
        assert "node4 unreachable" in snapshot.headline.message
        assert "2 ranks" in snapshot.headline.message
        assert snapshot.serving.word == "DEGRADED"
        assert snapshot.serving.decode_ready == 2
        others = [r for r in snapshot.ranks if r.node != "node4"]
        assert {r.state for r in others} == {RankState.READY}
        cluster.nodes["node4"].restore()
        await cluster.until(lambda: cluster.states(fleet)["decode/2"] is RankState.READY)


async def test_looking_now_tries_an_unreachable_node_at_once(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        node = cluster.nodes["node4"]
        node.cut()
        await cluster.clock.advance(1)
        assert fleet.store.nodes["node4"].state is NodeState.RECONNECTING
        node.reachable = True
        await cluster.drive(fleet.poll_now(("node4",)))
        await cluster.until(lambda: fleet.store.nodes["node4"].state is NodeState.CONNECTED)


async def test_log_that_cannot_be_rotated_is_said(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        node = cluster.node_of("decode/1")
        record = next(record for record in node.records("tiny") if record.rank == "decode/1")
        node.add_record(replace(record, log_note="refused: Operation not supported"))
        said = "its log is not rotated and grows: refused: Operation not supported"
        await cluster.until(lambda: said in fleet.store.ranks["decode/1"].difference)
        assert cluster.states(fleet)["decode/1"] is RankState.READY


async def test_node_that_fails_for_good_says_what_to_do(cluster: Cluster) -> None:
    cluster.nodes["node2"].cut(ConnectError("host key unknown", kind="unknown_host_key", remedy="ssh-keyscan it"))
    async with cluster.fleet() as fleet:
        node = fleet.snapshot.node("node2")
        assert node is not None
        assert (node.state, node.error, node.remedy) == (NodeState.FAILED, "host key unknown", "ssh-keyscan it")
        assert cluster.states(fleet)["p2/0"] is RankState.UNKNOWN
        assert cluster.states(fleet)["p1/0"] is RankState.STOPPED


async def test_console_killed_during_a_start_leaves_ranks_for_the_next(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=20)
    async with cluster.fleet() as fleet:
        await fleet.submit(StartRanks(ALL))
        await cluster.clock.advance(5)
        assert cluster.states(fleet)["decode/0"] is RankState.STARTING
    async with cluster.fleet(by="bob@laptop") as second:
        assert set(cluster.states(second).values()) == {RankState.STARTING}
        rank = second.store.ranks["decode/0"]
        assert rank.by == "ann@desk"
        await cluster.until(lambda: set(cluster.states(second).values()) == {RankState.READY})
        stopped = await cluster.drive(second.wait(await second.submit(StopRanks(ALL))))
        assert stopped.state == "done", stopped.error
    assert not any(node.processes_of("tiny") for node in cluster.nodes.values())


async def test_process_that_was_not_started_here_is_unmanaged(cluster: Cluster) -> None:
    node, rank = cluster.node_of("p1/0"), cluster.plan.by_id["p1/0"]
    argv = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", rank.argv[2], "--max-model-len", "1000", "--odd")
    node.listeners.append(Listener("0.0.0.0", 7100, 4711, " ".join(argv)))
    node.strangers.append(ProcessInfo(4711, 1, 4711, 0.0, argv, {"OMP_NUM_THREADS": "1"}, "root", start=5))
    node.http_replies[7100, "/health"] = HttpReply(200)
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["p1/0"]
        assert status.state is RankState.UNMANAGED
        assert (status.pid, status.health) == (4711, "200")
        assert "--max-model-len: 1000 -> 40000 (plan)" in status.difference
        assert "--odd: set -> absent (plan)" in status.difference
        assert "OMP_NUM_THREADS: 1 -> 10 (plan)" in status.difference
        assert fleet.snapshot.headline is not None
        assert "4711" in fleet.snapshot.headline.message
        node.listeners.clear()
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.STOPPED)


async def test_rank_whose_keeper_is_gone_is_unkept_and_can_be_stopped(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        cluster.node_of("p1/0").kill_keeper("tiny", "p1/0")
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.UNKEPT)
        again = await cluster.drive(fleet.wait(await fleet.submit(StartRanks(("p1/0",)))))
        assert again.state == "done"
        assert len(cluster.nodes["node1"].starts) == 1
        assert (await cluster.drive(fleet.wait(await fleet.submit(StopRanks(("p1/0",)))))).state == "done"
        assert cluster.states(fleet)["p1/0"] is RankState.STOPPED


async def test_changed_file_marks_running_ranks_outdated_and_hides_secrets(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
    path = write_file(tmp_path, max_model_len=8000)
    path.write_text(path.read_text().replace("very-secret", "other-secret"))
    cluster.load(path)
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["decode/0"]
        assert status.state is RankState.READY
        assert status.flags == ("outdated",)
        assert "--max-model-len: 40000 -> 8000 (plan)" in status.difference
        assert "HF_TOKEN: *** -> *** (plan)" in status.difference
        assert "secret" not in " ".join(status.difference)


async def test_running_rank_that_the_file_does_not_have(cluster: Cluster) -> None:
    record = RankRecord(
        cluster="tiny",
        rank="decode/9",
        state=ProcessState.RUNNING,
        pid=5,
        run=3,
        argv=("vllm", "serve", "x", "--kv-transfer-config", '{"kv_role": "kv_consumer"}'),
        api_port=7109,
        address="192.0.0.3",
        processes=(5,),
    )
    cluster.nodes["node3"].add_record(record)
    cluster.nodes["node4"].add_record(replace(record, rank="decode/0", api_port=7120))
    async with cluster.fleet() as fleet:
        await cluster.clock.advance(1)
        stray = fleet.snapshot.rank("decode/9")
        moved = fleet.snapshot.rank("decode/0@node4")
        assert stray is not None
        assert moved is not None
        assert (stray.state, stray.flags, stray.node) == (RankState.READY, ("not-in-file",), "node3")
        assert cluster.states(fleet)["decode/0"] is RankState.STOPPED
        assert fleet.snapshot.serving.decode_total == 4
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(("decode/9", "decode/0@node4")))))
        assert done.state == "done", done.error
        await cluster.until(lambda: "decode/9" not in fleet.store.ranks)


async def test_health_lost_and_dead_engine(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        cluster.node_of("p1/0").set_behaviour("tiny", "p1/0", Behaviour(ready_after=0, health=503))
        cluster.node_of("p2/0").set_behaviour("tiny", "p2/0", Behaviour(ready_after=0, health=None))
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.UNHEALTHY, limit=6)
        await cluster.until(lambda: cluster.states(fleet)["p2/0"] is RankState.UNHEALTHY, limit=10)
        assert fleet.store.ranks["p1/0"].health == "503"
        assert fleet.store.ranks["p2/0"].health == "timeout"


async def test_times_are_on_our_clock(cluster: Cluster) -> None:
    cluster.nodes["node1"].skew = 3600.0
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(("p1/0",)))))
        now = cluster.clock.wall()
        started = fleet.store.ranks["p1/0"].started
        assert started is not None
        assert now - 30 < started <= now
        assert fleet.store.nodes["node1"].clock_offset == 3600.0
        cluster.nodes["node1"].kill("tiny", "p1/0")
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.FAILED)
        assert fleet.store.ranks["p1/0"].since <= cluster.clock.wall()


async def test_how_long_the_last_start_took_is_known_to_the_next_console(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=100)
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        took = fleet.store.ranks["p1/0"].last_start_s
        assert took is not None
        assert 100 <= took <= 103
    async with cluster.fleet() as second:
        assert second.store.ranks["p1/0"].last_start_s == took


async def test_since_is_the_same_for_a_console_that_comes_later(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        assert {rank.since for rank in fleet.store.ranks.values()} == {0.0}  # Never started.
        assert fleet.snapshot.serving.since is None
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        ready = fleet.snapshot.serving.since
    await cluster.clock.advance(500)
    async with cluster.fleet() as fleet:
        serving = fleet.snapshot.serving
        assert serving.word == "SERVING"
        assert serving.since == pytest.approx(ready, abs=5)
        ended = cluster.clock.wall()
        await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
    await cluster.clock.advance(500)
    async with cluster.fleet() as fleet:
        serving = fleet.snapshot.serving
        assert serving.word == "STOPPED"
        assert serving.since == pytest.approx(ended, abs=5)


async def test_unchanged_parts_keep_their_objects_and_snapshots_are_ten_a_second(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        before = fleet.snapshot
        fleet.store.event("info", "x", "something else")
        await cluster.clock.advance(0.2)
        after = fleet.snapshot
        assert after.revision > before.revision
        assert all(a is b for a, b in zip(before.ranks, after.ranks, strict=True))
        assert all(a is b for a, b in zip(before.nodes, after.nodes, strict=True))
        first = after.revision
        for number in range(100):
            fleet.store.event("info", "x", str(number))
            await cluster.clock.advance(0.01)
        assert fleet.snapshot.revision - first <= 12


async def test_one_wake_up_is_outstanding_at_most(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        wakes: list[int] = []
        end = fleet.subscribe(lambda: wakes.append(1))
        for number in range(5):
            fleet.store.event("info", "x", str(number))
            await cluster.clock.advance(0.3)
        assert len(wakes) == 1
        assert fleet.snapshot.events[-1].message == "4"
        fleet.store.event("info", "x", "5")
        await cluster.clock.advance(0.3)
        assert len(wakes) == 2
        end()
        assert fleet.snapshot is not None
        fleet.store.event("info", "x", "6")
        await cluster.clock.advance(0.3)
        assert len(wakes) == 2


async def test_file_that_changes_on_disk_is_announced_not_loaded(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.fleet() as fleet:
        await cluster.clock.advance(3)
        assert not fleet.snapshot.file_changed
        before = (tmp_path / "cluster.yaml").read_text()
        write_file(tmp_path, max_model_len=1234)
        await seen(cluster, lambda: fleet.snapshot.file_changed)
        assert fleet.plan is cluster.plan
        (tmp_path / "cluster.yaml").write_text(before)
        await seen(cluster, lambda: not fleet.snapshot.file_changed)
        assert [event.message for event in fleet.snapshot.events if event.subject == "cluster.yaml"] == [
            "changed on disk; not loaded",
            "on disk as it was loaded",
        ]


async def seen(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """Let time pass until a look at the file says so: it is read in a thread, which knows nothing of our clock."""
    for _ in range(300):
        await cluster.clock.advance(1)
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never seen")


async def test_file_that_is_removed_while_it_is_broken_is_called_removed(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        before = path.read_text()
        path.write_text(before.replace("groups:", "groups: [", 1))
        await seen(cluster, lambda: fleet.snapshot.file_broken != "")
        path.unlink()
        await seen(cluster, lambda: fleet.snapshot.file_removed)
        assert fleet.snapshot.file_broken == ""
        assert fleet.snapshot.headline is not None
        assert fleet.snapshot.headline.message == "cluster.yaml was removed from disk; what was loaded stays"
        path.write_text(before)
        await seen(cluster, lambda: not fleet.snapshot.file_removed)
        assert fleet.snapshot.headline is None


async def test_file_that_an_editor_replaces_is_not_called_removed(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    before = path.read_text()
    async with cluster.fleet() as fleet:
        path.unlink()
        await cluster.clock.advance(2.5)
        await asyncio.sleep(0.1)  # One look may have missed it.
        path.write_text(before + "# edited\n")
        await seen(cluster, lambda: fleet.snapshot.file_changed)
        assert not [event for event in fleet.snapshot.events if "removed" in event.message]


async def test_journal_that_cannot_be_written_is_shown_once_and_when_it_is_written_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    where = tmp_path / "no-folder"
    where.write_text("")
    async with cluster.fleet(journal_dir=where / "journal") as fleet:
        await cluster.clock.advance(1)
        assert [event.message for event in fleet.snapshot.events if event.subject == "journal"] == [
            f"cannot be written here: {where} is no folder"
        ]
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert fleet.snapshot.headline is not None
        assert "not in the journal of this machine" in fleet.snapshot.headline.message
        where.unlink()
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert fleet.snapshot.headline is None
        assert [event.severity for event in fleet.snapshot.events if event.subject == "journal"] == [
            "warning",
            "good",
        ]
    async with cluster.fleet(journal_dir=tmp_path / "cluster.yaml" / "journal", read_only=True) as fleet:
        await cluster.clock.advance(1)
        assert not [event for event in fleet.snapshot.events if event.subject == "journal"]


async def test_file_that_is_broken_on_disk_is_announced_with_the_line(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        before = path.read_text()

        async def shown(text: str, error: str) -> None:
            path.write_text(text)
            for _ in range(200):  # The file is read in a thread, which knows nothing of our clock.
                await cluster.clock.advance(1)
                if error in fleet.snapshot.file_broken and bool(error) == bool(fleet.snapshot.file_broken):
                    return
                await asyncio.sleep(0.02)
            raise AssertionError((error, fleet.snapshot.file_broken))

        await shown(before.replace("groups:", "groups: [", 1), "line 2")
        assert fleet.snapshot.file_changed
        assert fleet.plan is cluster.plan
        assert fleet.snapshot.headline is not None
        assert fleet.snapshot.headline.message.startswith("cluster.yaml is broken on disk: line 2")
        assert [e.message[:22] for e in fleet.snapshot.events if e.severity == "error"] == [
            "broken on disk: line 2"
        ]
        await shown(before.replace("dp_size: 4", "dp_size: 5"), "5 ranks cannot be spread")
        await shown(before.replace("40000", "30000"), "")
        assert fleet.snapshot.file_changed
        assert fleet.snapshot.headline is None
        assert fleet.snapshot.events[-1].message == "no longer broken on disk"


async def test_hung_agent_delays_no_other_node(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        cluster.nodes["node1"].stuck = True
        await cluster.clock.advance(3)
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        assert await cluster.until(lambda: cluster.states(fleet)["decode/3"] is RankState.FAILED) <= 5
        cluster.nodes["node1"].stuck = False
        cluster.nodes["node1"].cut()


async def test_part_that_breaks_is_reported_and_begins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.fleet() as fleet:
        agent = fleet._links["node1"].rank_agent
        assert agent is not None
        calls: list[int] = []

        async def broken(_cluster: str) -> list[RankRecord]:
            calls.append(1)
            raise ZeroDivisionError

        monkeypatch.setattr(agent, "ranks", broken)
        await cluster.clock.advance(4)
        assert any("internal error" in event.message for event in fleet.snapshot.events)
        monkeypatch.undo()
        cluster.nodes["node1"].listeners.append(Listener("0.0.0.0", 7100, 1, "vllm serve"))
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.UNMANAGED)
