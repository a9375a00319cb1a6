"""Actions over nodes in memory: what happens, what is refused and in which words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from pdtui.errors import ActionRefused, AgentError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.messages.processes import Listener
from pdtui.remote.messages.ranks import RankRecord, RankSpec
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour, MemoryAgent


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def start(cluster: Cluster, fleet: Fleet, ids: tuple[str, ...] = ALL) -> OperationStatus:
    return await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ids))))


def steps(operation: OperationStatus) -> dict[str, tuple[str, str]]:
    return {step.label: (step.state, step.detail) for step in operation.steps}


async def test_starting_again_is_no_second_start(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        said: set[str] = set()
        fleet.store.on_publish(
            lambda: said.update(
                step.detail
                for one in fleet.store.snapshot.operations[1:]
                for step in one.steps
                if step.label in ALL
            )
        )
        for node in cluster.nodes.values():
            node.delay = 0.5  # So that what is said before the answer can be seen.
        again = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(StartRanks(ALL)))))
        assert again.state == "done"
        for node in cluster.nodes.values():
            node.delay = 0.0
        assert {words.partition(" (")[0] for words in said} == {"", "already running"}
        assert "already running" in steps(again)["decode/0"][1]
    assert all(len(node.starts) in (1, 2) for node in cluster.nodes.values())
    assert sum(len(node.starts) for node in cluster.nodes.values()) == len(ALL)


async def test_twenty_consoles_starting_at_once_start_once(cluster: Cluster) -> None:
    async def console(number: int) -> OperationStatus | ActionRefused:
        async with cluster.fleet(by=f"user{number}@desk", settled=False) as fleet:
            assert await fleet.settled(10)
            try:
                return await fleet.wait(await fleet.submit(StartRanks(ALL)))
            except ActionRefused as refusal:
                return refusal

    ends = await cluster.drive(asyncio.gather(*(console(number) for number in range(20))))
    done = [one for one in ends if isinstance(one, OperationStatus)]
    assert [one.state for one in done] == ["done"]
    others = {str(one).partition(" starts ")[0] for one in ends if isinstance(one, ActionRefused)}
    assert others == {f"all 6 ranks are in another operator's hands: {done[0].by}"}
    assert sum(len(node.starts) for node in cluster.nodes.values()) == len(ALL)


async def test_restarting_a_failed_rank_of_a_moe_group_means_its_group(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        await cluster.until(lambda: cluster.states(fleet)["decode/3"] is RankState.FAILED)
        preview = await cluster.drive(fleet.preview(RestartRanks(("decode/3",))))
        assert preview.ids == DECODE
        assert preview.title == "restart group decode"
        assert "cannot rejoin" in preview.note
        done = await cluster.drive(fleet.wait(await fleet.submit(RestartRanks(("decode/3",)))))
        assert done.state == "done", done.error
        assert {fleet.store.ranks[rank].run for rank in DECODE} == {2}
        assert fleet.store.ranks["p1/0"].run == 1
        assert set(cluster.states(fleet).values()) == {RankState.READY}


async def test_restart_says_what_the_service_loses(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        decode = await cluster.drive(fleet.preview(RestartRanks(DECODE)))
        assert "4 ranks on node3, node4 stop and start." in decode.consequence
        assert "decode is the only decode group: no requests are served meanwhile." in decode.consequence
        assert "Last start took" in decode.consequence
        assert any("rank 0" in step for step in decode.steps)
        assert any("7100-7101" in step for step in decode.steps)
        prefill = await cluster.drive(fleet.preview(StopRanks(("p1/0",))))
        assert "p2 keeps serving prefill (1 of 2 ranks)." in prefill.consequence
        assert prefill.dangerous


async def test_restart_of_this_rank_only_is_a_second_choice(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        preview = await cluster.drive(fleet.preview(RestartRanks(("decode/1",), whole_group=False)))
        assert preview.ids == ("decode/1",)
        assert "will not take them back" in preview.note
        done = await cluster.drive(fleet.wait(await fleet.submit(RestartRanks(("decode/1",), whole_group=False))))
        assert done.state == "done"
        assert [fleet.store.ranks[rank].run for rank in DECODE] == [1, 2, 1, 1]


async def test_stop_frees_everything_and_a_second_stop_says_so(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
        assert done.state == "done", done.error
        assert set(cluster.states(fleet).values()) == {RankState.STOPPED}
        assert not any(node.ports() for node in cluster.nodes.values())
        again = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
        assert {steps(again)[rank] for rank in ALL} == {("done", "not running")}


async def test_rank_that_ignores_term_is_killed_after_the_grace_period(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=1, ignores_term=True)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, ("p1/0",))
        stopping = asyncio.ensure_future(fleet.wait(await fleet.submit(StopRanks(("p1/0",), grace=20))))
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.STOPPING)
        done = await cluster.drive(stopping)
        assert done.state == "done"
        assert steps(done)["p1/0"][1].startswith("killed")


async def test_taken_port_blocks_with_its_owner_and_can_be_overridden(cluster: Cluster) -> None:
    cluster.nodes["node3"].listeners.append(Listener("0.0.0.0", 7101, 4711, "nginx: master"))
    async with cluster.fleet() as fleet:
        preview = await cluster.drive(fleet.preview(StartRanks(ALL)))
        assert [blocker.id for blocker in preview.blockers] == ["port:node3:7101"]
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(ALL)))
        assert refused.value.kind == "blocked"
        assert "pid 4711" in refused.value.message
        assert "decode/1" in refused.value.message
        with pytest.raises(ActionRefused, match="needs a reason"):
            await cluster.drive(fleet.submit(StartRanks(ALL, override=("port:node3:7101",))))
        assert not any(node.starts for node in cluster.nodes.values())
        intent = StartRanks(ALL, override=("port:node3:7101",), reason="it is a false alarm")
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(intent))))
        assert done.state == "done"
    entries = [
        json.loads(line) for line in (cluster.folder / "journal" / "journal.jsonl").read_text().splitlines()
    ]
    began = next(entry for entry in entries if entry["event"] == "start")
    assert (began["override"], began["reason"]) == (["port:node3:7101"], "it is a false alarm")


@pytest.mark.parametrize("losing", ["request", "answer"])
async def test_stop_goes_on_when_a_connection_that_broke_is_back(
    cluster: Cluster, losing: Literal["request", "answer"]
) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        node = cluster.node_of("p1/0")
        node.losing = losing
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(("p1/0",)))))
        assert done.state == "done", done.error
        assert steps(done)["p1/0"][1].startswith("stopped")
        assert not node.processes_of("demo").get("p1/0")


async def test_stop_on_a_node_that_stays_away_fails_in_the_end_and_says_so(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        operation = await fleet.submit(StopRanks(("p1/0",), grace=5.0))
        cluster.node_of("p1/0").cut()
        done = await cluster.drive(fleet.wait(operation))
        assert done.state == "failed"
        assert "is unreachable" in steps(done)["p1/0"][1]


@pytest.mark.parametrize("losing", ["request", "answer"])
async def test_start_goes_on_when_a_connection_that_broke_is_back(
    cluster: Cluster, losing: Literal["request", "answer"]
) -> None:
    async with cluster.fleet() as fleet:
        node = cluster.node_of("p1/0")
        node.losing = losing
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.until(
            lambda: "goes on when node1 is back" in steps(fleet.store.operations[operation])["p1/0"][1]
        )
        done = await cluster.drive(fleet.wait(operation))
        assert done.state == "done", done.error
        assert steps(done)["p1/0"][1].startswith("ready after")
        assert len(node.starts) == 1


async def test_rank_that_died_while_its_node_was_away_is_not_started_twice(cluster: Cluster) -> None:
    node = cluster.node_of("p1/0")
    node.behaviour = lambda _spec: Behaviour(dies_after=0.5)
    async with cluster.fleet() as fleet:
        node.losing = "answer"
        done = await start(cluster, fleet, ("p1/0",))
        assert done.state == "failed"
        assert steps(done)["p1/0"][1].startswith("exit 1")
        assert len(node.starts) == 1


async def test_start_on_a_node_that_stays_away_fails_in_the_end_and_says_so(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        node = cluster.node_of("p1/0")
        node.launch_takes = 3.0
        operation = await fleet.submit(StartRanks(("p1/0",)))
        await cluster.clock.advance(1)
        node.cut()
        took = await cluster.until(lambda: fleet.store.operations[operation].state != "running", limit=100)
        assert took >= 55
        words = steps(fleet.store.operations[operation])["p1/0"][1]
        assert "is unreachable" in words
        assert "it may have been started" in words


async def test_start_does_not_go_on_where_another_console_has_taken_over_meanwhile(cluster: Cluster) -> None:
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        node = cluster.node_of("p1/0")
        node.losing = "request"
        begun = await ann.submit(StartRanks(("p1/0",)))
        await cluster.until(lambda: node.links[0].host_agent is None)
        node.links[0].block(True)
        await cluster.clock.advance(1.5)
        node.reboot()  # Leases of the boot before do not count: nothing there tells ann's console any more.
        node.behaviour = lambda _spec: Behaviour(ready_after=40.0)
        other = await cluster.drive(bob.submit(StartRanks(("p1/0",))))
        node.links[0].block(False)
        done = await cluster.drive(ann.wait(begun))
        assert "bob@home starts group p1 on node1" in steps(done)["p1/0"][1]
        assert (await cluster.drive(bob.wait(other))).state == "done"


async def test_unmanaged_rank_is_neither_started_nor_stopped(cluster: Cluster) -> None:
    cluster.nodes["node1"].listeners.append(Listener("192.0.0.1", 7100, 99, "vllm serve"))
    async with cluster.fleet() as fleet:
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(("p1/0",))))
        assert refused.value.kind == "blocked"
        with pytest.raises(ActionRefused) as stop:
            await fleet.submit(StopRanks(("p1/0",)))
        assert stop.value.kind == "unmanaged"
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
        assert done.state == "failed"
        assert "unmanaged (pid 99)" in steps(done)["p1/0"][1]


async def test_read_only_refuses_everything(cluster: Cluster) -> None:
    async with cluster.fleet(read_only=True) as fleet:
        for intent in (StartRanks(ALL), StopRanks(ALL), RestartRanks(ALL)):
            with pytest.raises(ActionRefused) as refused:
                await fleet.submit(intent)
            assert refused.value.kind == "read_only"
        assert (await cluster.drive(fleet.preview(StartRanks(ALL)))).ids == ALL


async def test_protected_cluster_wants_its_name_for_whole_groups(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, protected="true")
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)  # Starting hurts nobody.
        assert (await cluster.drive(fleet.preview(StopRanks(DECODE)))).needs_name
        with pytest.raises(ActionRefused) as refused:
            await fleet.submit(StopRanks(DECODE, confirm="tinny"))
        assert refused.value.kind == "protected"
        one = StopRanks(("decode/1",))  # One rank, but its group follows.
        assert (await cluster.drive(fleet.preview(one))).needs_name
        for intent in (one, RestartRanks(("decode/1",)), RestartRanks(("decode/1",), whole_group=False)):
            with pytest.raises(ActionRefused) as refused:
                await fleet.submit(intent)
            assert refused.value.kind == "protected"
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(DECODE, confirm="tiny"))))
        assert done.state == "done"
        assert not (await cluster.drive(fleet.preview(one))).needs_name  # Nothing is left that could follow.


@pytest.mark.parametrize("intent", [StopRanks(("decode/3",)), RestartRanks(("decode/3",), whole_group=False)])
async def test_stop_of_one_rank_of_a_moe_group_says_who_follows_and_they_say_why(
    cluster: Cluster, intent: StopRanks | RestartRanks
) -> None:
    async with cluster.fleet(by="root@vm") as fleet:
        await start(cluster, fleet)
        preview = await cluster.drive(fleet.preview(intent))
        assert preview.ids == ("decode/3",)
        assert preview.dangerous
        assert "The other 3 ranks of decode will fail: a MoE group lives and dies together." in preview.consequence
        await cluster.drive(fleet.wait(await fleet.submit(intent)))
        for rank in DECODE[:3]:
            cluster.node_of(rank).kill("tiny", rank, signal=6)
        failed: tuple[str, ...] = DECODE[:3]
        if isinstance(intent, RestartRanks):
            failed = DECODE  # Its group is gone: it cannot come up alone.
            cluster.node_of("decode/3").kill("tiny", "decode/3", signal=6)
        await cluster.until(lambda: all(fleet.store.ranks[rank].diagnosis for rank in failed))
        said = {fleet.store.ranks[rank].diagnosis for rank in failed}
        assert {one.summary for one in said if one} == {"lost its group: decode/3 was stopped by root@vm"}
        await cluster.clock.advance(1)  # A snapshot with all of that.
        headline = fleet.snapshot.headline
        assert headline is not None
        assert headline.subject == "decode/3"
        assert headline.message.endswith("lost its group: decode/3 was stopped by root@vm.")


async def test_rank_that_fails_long_after_a_mate_was_stopped_does_not_blame_it(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        await cluster.drive(fleet.wait(await fleet.submit(RestartRanks(DECODE))))
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        await cluster.until(lambda: fleet.store.ranks["decode/3"].diagnosis)
        diagnosis = fleet.store.ranks["decode/3"].diagnosis
        assert diagnosis is not None
        assert "killed by SIGKILL" in diagnosis.summary


async def test_unreachable_node_fails_its_group_and_others_go_on(cluster: Cluster) -> None:
    cluster.nodes["node4"].cut()
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        assert done.state == "failed"
        found = steps(done)
        assert found["p1/0"][0] == found["p2/0"][0] == "done"
        assert "node4 is unreachable" in found["decode/2"][1]
        assert "its group cannot be whole" in found["decode/0"][1]
        assert not cluster.nodes["node3"].starts
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(DECODE)))
        assert "node:node4" in refused.value.message


async def test_rank_that_dies_at_its_start_ends_the_start_at_once(cluster: Cluster) -> None:
    def behave(spec: RankSpec) -> Behaviour:
        if spec.rank == "decode/2":
            return Behaviour(dies_after=4, exit_status=2)
        return Behaviour(ready_after=9 if spec.rank.startswith("p") else 2000)

    for node in cluster.nodes.values():
        node.behaviour = behave
    async with cluster.fleet() as fleet:
        begin = cluster.clock.monotonic()
        done = await start(cluster, fleet)
        assert cluster.clock.monotonic() - begin < 60
        found = steps(done)
        assert done.state == "failed"
        assert found["p1/0"][0] == "done"
        assert found["decode/2"][0] == "failed"
        assert found["decode/2"][1].startswith("exit 2")
        assert done.error.startswith("decode/2: exit 2")
        assert found["decode/0"][0] == "skipped"
        assert found["decode/0"][1].startswith("decode/2 failed, and its group with it; left as it is")
        assert cluster.states(fleet)["decode/0"] is RankState.STARTING


async def test_no_rank_of_a_lost_moe_group_counts_as_started(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda spec: (
            Behaviour(ready_after=900, dies_after=20) if spec.rank == "decode/2" else Behaviour(ready_after=1)
        )
    async with cluster.fleet() as fleet:
        done = await start(cluster, fleet)
        found = steps(done)
        assert {found[rank][0] for rank in DECODE} == {"failed", "skipped"}
        assert found["p1/0"][0] == "done"
        assert found["start"] == ("failed", "2 of 6 ready")


async def test_start_of_a_part_of_a_stopped_moe_group_is_refused_and_can_be_overridden(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        (blocker,) = (await cluster.drive(fleet.preview(StartRanks(("decode/2",))))).blockers
        assert blocker.id == "group:decode"
        assert blocker.message.startswith("decode comes up only as a whole (MoE group)")
        assert "decode/0, decode/1, decode/3 do not run" in blocker.message
        assert blocker.remedy == "start decode"
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(("decode/2",))))
        assert refused.value.kind == "blocked"
        assert refused.value.remedy == "start decode"
        assert (await cluster.drive(fleet.preview(StartRanks(DECODE)))).blockers == ()
        for node in cluster.nodes.values():
            node.behaviour = lambda _: Behaviour(ready_after=100)
        begun = await cluster.drive(
            fleet.submit(StartRanks(("decode/0", "decode/1"), reason="debug", override=("group:decode",)))
        )
        # Starting or about to: not missing any more.
        rest = await cluster.drive(fleet.submit(StartRanks(("decode/2", "decode/3"))))
        assert (await cluster.drive(fleet.wait(begun))).state == "done"
        assert (await cluster.drive(fleet.wait(rest))).state == "done"


async def test_rank_that_runs_on_another_port_than_the_file_has_is_ready_and_outdated(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
    text = cluster.topology.path.read_text().replace("tp_size: 8, api_port: 7100", "tp_size: 8, api_port: 7150")
    changed = tmp_path / "changed.yaml"
    changed.write_text(text)
    cluster.load(changed)
    async with cluster.fleet() as fleet:
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.READY)
        running = fleet.store.ranks["p1/0"]
        assert (running.flags, running.api_port) == (("outdated",), 7100)
        assert "--port: 7100 -> 7150 (plan)" in running.difference
        again = await start(cluster, fleet, ("p1/0",))
        assert again.state == "done"
        assert "not as in the file" in steps(again)["p1/0"][1]


async def test_start_that_takes_too_long_leaves_ranks_as_they_are(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=5000)
    async with cluster.fleet(ready_deadline=120) as fleet:
        done = await start(cluster, fleet)
        assert done.state == "failed"
        words = "not ready within 2 min, stage: no line of its log says how far it is; left as it is"
        assert steps(done)["p1/0"][1] == words
        assert set(cluster.states(fleet).values()) == {RankState.STARTING}


async def test_cancelled_start_leaves_ranks_as_they_are(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=100)
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(ALL))
        await cluster.clock.advance(5)
        await cluster.drive(fleet.cancel(operation))
        assert (await fleet.wait(operation)).state == "cancelled"
        assert set(cluster.states(fleet).values()) == {RankState.STARTING}
        with pytest.raises(ActionRefused, match="no rank decode/77"):
            await fleet.submit(StartRanks(("decode/77",)))


async def test_stop_takes_over_from_a_running_start(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=100)
    async with cluster.fleet() as fleet:
        starting = await fleet.submit(StartRanks(ALL))
        await cluster.clock.advance(5)
        with pytest.raises(ActionRefused) as refused:
            await fleet.submit(StartRanks(("p1/0",)))
        assert refused.value.kind == "conflict"
        done = await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
        assert done.state == "done", done.error
        assert (await cluster.drive(fleet.wait(starting))).state == "cancelled"
        assert set(cluster.states(fleet).values()) == {RankState.STOPPED}


async def test_rank_alone_cannot_join_a_group_that_serves(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        cluster.node_of("decode/3").kill("tiny", "decode/3")
        await cluster.until(lambda: cluster.states(fleet)["decode/3"] is RankState.FAILED)
        preview = await cluster.drive(fleet.preview(StartRanks(("decode/3",))))
        assert [blocker.id for blocker in preview.blockers] == ["group:decode"]
        assert "restart decode" in preview.blockers[0].remedy


async def test_state_folder_that_cannot_be_written_is_a_blocker(cluster: Cluster) -> None:
    cluster.nodes["node1"].state_dir_error = "/var/lib/pdtui: Permission denied"
    async with cluster.fleet() as fleet:
        preview = await cluster.drive(fleet.preview(StartRanks(("p1/0",))))
        assert preview.blockers[0].id == "state:node1"
        assert "state_dir" in preview.blockers[0].remedy


async def test_full_disk_is_a_blocker_with_what_to_do(cluster: Cluster) -> None:
    cluster.nodes["node1"].disk_error = AgentError(
        "/var/lib/pdtui: No space left on device", code="disk_full", remedy="free space there (df -h)"
    )
    async with cluster.fleet() as fleet:
        preview = await cluster.drive(fleet.preview(StartRanks(("p1/0",))))
        assert [blocker.id for blocker in preview.blockers] == ["state:node1"]
        assert "No space left" in preview.blockers[0].message
        assert "free space" in preview.blockers[0].remedy


async def test_journal_names_who_what_and_result_and_no_secret(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CLIENT", "198.51.100.7 50000 22")
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        preview = await cluster.drive(fleet.preview(RestartRanks(ALL)))
        assert "export OMP_NUM_THREADS=" in "\n".join(preview.commands)
        assert "very-secret" not in "\n".join(preview.commands)
    text = (cluster.folder / "journal" / "journal.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    began, ended = entries[0], entries[-1]
    assert (began["who"], began["from"], began["event"]) == ("ann@desk", "198.51.100.7", "start")
    assert began["ranks"] == list(ALL)
    assert (ended["event"], ended["state"]) == ("start ended", "done")
    assert ended["result"]["decode/0"].startswith("done")
    assert "very-secret" not in text
    for node in cluster.nodes.values():
        assert [entry["event"] for entry in node.journal] == ["start", "start ended"]


async def test_an_action_has_ended_when_slow_nodes_have_noted_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = MemoryAgent.journal

    async def slowly(agent: MemoryAgent, name: str, entry: Mapping[str, object]) -> None:
        await cluster.clock.sleep(2.0)
        await at_once(agent, name, entry)

    monkeypatch.setattr(MemoryAgent, "journal", slowly)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
    for node in cluster.nodes.values():
        assert [entry["event"] for entry in node.journal] == ["start", "start ended"]


async def test_journal_that_cannot_be_written_stops_nothing(cluster: Cluster) -> None:
    (cluster.folder / "journal").write_text("a file where a folder should be")
    async with cluster.fleet() as fleet:
        assert (await start(cluster, fleet)).state == "done"


async def test_connection_lost_during_a_start_is_waited_for_then_named(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=30)
    async with cluster.fleet() as fleet:
        waiting = asyncio.ensure_future(fleet.wait(await fleet.submit(StartRanks(ALL))))
        await cluster.clock.advance(5)
        cluster.nodes["node1"].cut()
        await cluster.clock.advance(20)
        cluster.nodes["node1"].restore()
        cluster.nodes["node2"].cut()
        done = await cluster.drive(waiting)
        assert steps(done)["p1/0"][0] == "done"
        assert steps(done)["p2/0"][0] == "failed"
        assert "node2 is unreachable" in steps(done)["p2/0"][1]


async def test_leftovers_of_a_dead_rank_block_a_start_and_a_stop_ends_them(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await start(cluster, fleet, ("p1/0",))
        cluster.nodes["node1"].kill("tiny", "p1/0", leaving=(1234, 1235))
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.FAILED)
        assert fleet.store.ranks["p1/0"].difference == ("processes left of its last run: pid 1234, 1235",)
        preview = await cluster.drive(fleet.preview(StartRanks(("p1/0",))))
        assert [blocker.id for blocker in preview.blockers] == ["leftover:node1:p1/0"]
        done = await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(RestartRanks(("p1/0",))))))
        assert done.state == "done", done
        assert fleet.store.ranks["p1/0"].run == 2


async def test_ranks_that_cannot_be_read_are_said_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster.fleet() as fleet:
        agent = fleet.agent("node1")

        async def refuse(_cluster: str) -> list[RankRecord]:
            raise AgentError("disk error", code="system")

        monkeypatch.setattr(agent, "ranks", refuse)
        await cluster.clock.advance(30)
        said = [event.message for event in fleet.snapshot.events if event.subject == "node1"]
        assert said.count("ranks cannot be read: disk error") == 1


async def test_port_that_another_rank_of_ours_took_is_named(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        alone = StartRanks(("decode/0",), reason="test", override=("group:decode",))
        await cluster.drive(fleet.wait(await fleet.submit(alone)))
        pid = fleet.store.ranks["decode/0"].pid
        kv_port = cluster.plan.by_id["decode/1"].kv_ports[0]
        cluster.nodes["node3"].listeners.append(Listener("0.0.0.0", kv_port, pid, "vllm", "tiny:decode/0"))
        preview = await cluster.drive(fleet.preview(StartRanks(("decode/1",), override=("group:decode",))))
        found = {blocker.id: blocker for blocker in preview.blockers}
        assert f"is held by decode/0, pid {pid}" in found[f"port:node3:{kv_port}"].message
        restart = await cluster.drive(fleet.preview(RestartRanks(DECODE)))
        assert restart.blockers == ()


async def test_hung_node_does_not_hold_up_a_start_on_the_others(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        operation = await fleet.submit(StartRanks(ALL))
        cluster.nodes["node1"].stuck = True
        await cluster.clock.advance(4)
        assert cluster.states(fleet)["p2/0"] in (RankState.STARTING, RankState.READY)
        cluster.nodes["node1"].stuck = False
        cluster.nodes["node1"].cut()
        cluster.nodes["node1"].restore()
        await cluster.drive(fleet.wait(operation))
        assert cluster.states(fleet)["decode/3"] is RankState.READY


async def test_all_ranks_are_told_at_once_and_leave_the_rotation_before(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.behaviour = lambda _: Behaviour(ready_after=1, ignores_term=True)
    async with cluster.fleet() as fleet:
        await start(cluster, fleet)
        begin = cluster.clock.monotonic()
        operation = await fleet.submit(StopRanks(ALL, grace=30))
        await cluster.clock.advance(0)
        assert fleet.snapshot.serving.word == "DOWN"
        assert {rank.state for rank in fleet.snapshot.ranks} == {RankState.STOPPING}
        done = await cluster.drive(fleet.wait(operation))
        assert done.state == "done", done
        assert cluster.clock.monotonic() - begin < 40
