"""Ranks that were started by hand, foreign processes, ownerless HBM: what is shown, and what may be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdtui.cli.status import as_text
from pdtui.console.describe import describe_node
from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.messages.commands import HttpReply
from pdtui.remote.messages.processes import Listener, Output, ProcessInfo
from pdtui.topology.plan import RankPlan
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.fleet.npu_tools import Tools
from tests.support.memory_node import MemoryAgent

PYTHON = "/usr/bin/python3"
PIDS = {"p1/0": 100, "p2/0": 100, "decode/0": 200, "decode/1": 210, "decode/2": 200, "decode/3": 210}
STARTED = 1_800_000_000.0 - 3600


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def server(rank: RankPlan, *words: str, pid: int = 0, output: str = "serve.log") -> ProcessInfo:
    """Return the process of a rank that was started by hand as the plan has it, but for `words`."""
    pid = pid or PIDS[rank.id]
    argv = (PYTHON, "/usr/local/bin/vllm", *rank.argv[1:], *words)
    path = f"/home/op/{output}"
    return ProcessInfo(
        pid,
        9,
        9,
        STARTED,
        argv,
        rank.env,
        "alice",
        start=pid * 7,
        tree=(pid + 1, pid + 2),
        output=Output("file", path, path, path),
    )


def below(root: ProcessInfo) -> list[ProcessInfo]:
    """Return the engine and a worker of a server, which have no command line any more."""
    return [
        replace(root, pid=pid, ppid=root.pid, argv=(title,), env={}, tree=(), start=pid * 7, env_known=False)
        for pid, title in zip(root.tree, ("VLLM::EngineCore", "VLLM::Worker"), strict=True)
    ]


def put(
    cluster: Cluster, rank_id: str, *words: str, serving: bool = True, output: str = "serve.log"
) -> ProcessInfo:
    """Start a rank by hand on its node."""
    node, rank = cluster.node_of(rank_id), cluster.plan.by_id[rank_id]
    info = server(rank, *words, output=output)
    node.strangers += [info, *below(info)]
    if serving:
        node.listeners.append(Listener("0.0.0.0", rank.api_port, info.pid, " ".join(info.argv)))
        node.http_replies[rank.api_port, "/health"] = HttpReply(200)
    return info


def detail(operation: OperationStatus, rank: str) -> tuple[str, str]:
    return next((step.state, step.detail) for step in operation.steps if step.label == rank)


async def act(cluster: Cluster, fleet: Fleet, intent: StartRanks | StopRanks | RestartRanks) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(intent))))


async def test_cluster_that_was_started_by_hand_serves_and_the_way_to_take_it_over_is_told(
    cluster: Cluster,
) -> None:
    for rank_id in ALL:
        put(cluster, rank_id)
    async with cluster.fleet() as fleet:
        assert set(cluster.states(fleet).values()) == {RankState.UNMANAGED}
        assert fleet.snapshot.serving.word == "SERVING"
        assert fleet.snapshot.serving.since == STARTED
        assert (fleet.snapshot.serving.prefill_ready, fleet.snapshot.serving.decode_ready) == (2, 4)
        rank = fleet.store.ranks["decode/3"]
        assert (rank.pid, rank.by, rank.started, rank.health) == (210, "alice", STARTED, "200")
        assert (rank.difference, rank.log) == ((), "/home/op/serve.log")
        assert rank.log_note.startswith("shared by 2 ranks")
        assert rank.log_pids == (210, 211, 212)
        assert fleet.store.ranks["p1/0"].log_pids == ()
        headline = fleet.snapshot.headline
        assert headline is not None
        assert "all 6 ranks were started by hand" in headline.message
        assert "restart takes a group over" in headline.message
        assert not any(node.foreign for node in fleet.snapshot.nodes)
        for node in cluster.nodes.values():
            node.http_replies.clear()
        await cluster.until(lambda: fleet.snapshot.serving.word != "SERVING")


async def test_rank_is_seen_before_it_listens_with_its_stage_from_a_shared_log(cluster: Cluster) -> None:
    node = cluster.nodes["node3"]
    put(cluster, "decode/0", serving=False)
    put(cluster, "decode/1", serving=False)
    node.append("/home/op/serve.log", b"(Worker pid=212) INFO 11-30 12:00:00 [m.py:1] Starting to load model\n")
    async with cluster.fleet() as fleet:
        assert cluster.states(fleet)["decode/0"] is RankState.UNMANAGED
        assert fleet.snapshot.serving.word == "STARTING"
        assert await cluster.until(lambda: fleet.store.ranks["decode/1"].stage == "weights") <= 10
        assert fleet.store.ranks["decode/0"].stage == "starting"
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(("decode/0",))))
        assert "unmanaged:node3:decode/0" in refused.value.message
        assert "pid 200 of alice" in refused.value.message
        assert "restart decode takes it over" in refused.value.remedy


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (("--port", "7999"), "--port: 7999 -> 7100 (plan)"),
        (("--max_model_len", "1000"), "--max-model-len: 1000 -> 40000 (plan)"),
        (("-tp", "4"), "--tensor-parallel-size: 4 -> 8 (plan)"),
    ],
)
async def test_flags_that_differ_are_named_whatever_their_spelling(
    cluster: Cluster, changes: tuple[str, ...], difference: str
) -> None:
    put(cluster, "p1/0", *changes, serving="--port" not in changes)
    if "--port" in changes:  # Known by who listens.
        cluster.nodes["node1"].listeners.append(Listener("192.0.0.1", 7100, 101, ""))
    async with cluster.fleet() as fleet:
        assert cluster.states(fleet)["p1/0"] is RankState.UNMANAGED
        assert difference in fleet.store.ranks["p1/0"].difference


async def test_rank_on_another_port_is_known_by_its_place_in_the_group(cluster: Cluster) -> None:
    put(cluster, "decode/1", "--port", "7555", serving=False)
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["decode/1"]
        assert (status.state, status.pid, status.api_port) == (RankState.UNMANAGED, 210, 7555)
        assert "--port: 7555 -> 7101 (plan)" in status.difference


@pytest.mark.parametrize(
    ("path", "difference"),
    [
        ("/home/alice/models/r1", ()),
        (
            "/home/bob/models/r1",
            ("command: vllm serve /home/bob/models/r1 -> vllm serve /home/alice/models/r1 (plan)",),
        ),
    ],
)
async def test_model_in_the_home_is_the_one_of_the_file(
    cluster: Cluster, path: str, difference: tuple[str, ...]
) -> None:
    file = cluster.folder / "cluster.yaml"
    file.write_text(file.read_text().replace("/models/r1", "~/models/r1"))
    cluster.load(file)
    rank = cluster.plan.by_id["p1/0"]
    assert rank.argv[2] == "~/models/r1"
    info = server(rank)
    argv = (*info.argv[:3], path, *info.argv[4:])
    cluster.node_of(rank.id).strangers.append(replace(info, argv=argv, env={**rank.env, "HOME": "/home/alice"}))
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks[rank.id]
        assert (status.state, status.difference) == (RankState.UNMANAGED, difference)


async def test_only_a_listener_is_known(cluster: Cluster) -> None:
    node = cluster.nodes["node1"]
    node.listeners.append(Listener("0.0.0.0", 7100, None, ""))
    node.http_replies[7100, "/health"] = HttpReply(200)
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["p1/0"]
        assert (status.state, status.pid, status.health) == (RankState.UNMANAGED, None, "200")
        assert status.log_note == "its process cannot be seen, and so not where it writes"
        done = await act(cluster, fleet, StopRanks(("p1/0",), unmanaged=("p1/0",)))
        assert detail(done, "p1/0")[0] == "failed"
        assert "cannot be seen" in detail(done, "p1/0")[1]
        # What answers as no server does is none.
        node.http_replies[7100, "/health"] = HttpReply(404)
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.STOPPED)
        (foreign,) = fleet.store.nodes["node1"].foreign
        assert (foreign.pid, foreign.ports, foreign.hits) == (None, (7100,), ("p1/0",))


@pytest.mark.parametrize(
    ("output", "words", "path"),
    [
        (
            Output("deleted", "/proc/100/fd/1", "/home/op/a.log (deleted)", "1:2"),
            "/home/op/a.log was deleted",
            "/proc",
        ),
        (Output("pipe", "", "pipe:[5]", "0:5"), "a pipe", ""),
        (Output("tty", "", "/dev/pts/3", "0:6"), "a terminal (/dev/pts/3)", ""),
        (Output("null", "", "/dev/null", "0:7"), "/dev/null", ""),
        (Output(), "it belongs to alice", ""),
    ],
)
async def test_where_the_output_goes_is_said(cluster: Cluster, output: Output, words: str, path: str) -> None:
    info = put(cluster, "p1/0")
    node = cluster.nodes["node1"]
    node.strangers[0] = replace(info, output=output)
    node.append("/proc/100/fd/1", b"still read\n")
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["p1/0"]
        assert words in status.log_note
        assert status.log.startswith(path) == bool(path or not status.log)
        fleet.log("p1/0")
        await cluster.clock.advance(2)
        view = fleet.log("p1/0")
        shown = [line.text for line in fleet.log_lines("p1/0", view.first_seq, 10)]
        assert ("still read" in shown) if path else (words in view.error)


async def test_shared_log_is_filtered_as_far_as_its_lines_say_whose_they_are(cluster: Cluster) -> None:
    put(cluster, "decode/0")
    put(cluster, "decode/1")
    cluster.nodes["node3"].append(
        "/home/op/serve.log",
        b"(APIServer pid=200) INFO 11-30 12:00:00 [a.py:1] zero\n"
        b"(APIServer pid=210) INFO 11-30 12:00:00 [a.py:1] one\n"
        b"(EngineCore_DP1 pid=77) ERROR 11-30 12:00:00 [a.py:1] one's dead engine\n"
        b"Capturing graphs:  87%(Worker_DP0_EP0 pid=78) INFO 11-30 12:00:00 [a.py:1] zero's worker\n"
        b"INFO:     anybody's\n",
    )
    async with cluster.fleet() as fleet:
        fleet.log("decode/1")
        await cluster.clock.advance(2)
        view = fleet.log("decode/1")
        text = "\n".join(line.text for line in fleet.log_lines("decode/1", view.first_seq, 10))
        assert "shared by 2 ranks" in text
        assert "zero" not in text
        assert all(words in text for words in ("] one\n", "dead engine", "anybody's"))


async def test_wide_targets_leave_out_what_nobody_named(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await act(cluster, fleet, StartRanks(DECODE))
        put(cluster, "p1/0")
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.UNMANAGED)
        done = await act(cluster, fleet, StopRanks(ALL))
        assert detail(done, "p1/0") == ("failed", "unmanaged (pid 100): left as it is, since nobody named it")
        assert {detail(done, rank)[0] for rank in DECODE} == {"done"}
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StopRanks(("p1/0",))))
        assert refused.value.kind == "unmanaged"
        with pytest.raises(ActionRefused, match="p1/0"):
            await cluster.drive(fleet.submit(RestartRanks(("p1/0", "p2/0"))))
        assert cluster.nodes["node1"].strangers


async def test_preview_lists_who_is_told_and_a_stop_ends_the_tree(cluster: Cluster) -> None:
    put(cluster, "p1/0", "--api-key", "sk-secret")
    async with cluster.fleet() as fleet:
        preview = await cluster.drive(fleet.preview(StopRanks(("p1/0",))))
        assert preview.unmanaged == ("p1/0",)
        (line,) = preview.processes
        assert line.startswith("p1/0 on node1: pid 100 of alice  vllm serve")
        assert line.endswith("and 2 below it: 101, 102")
        told = [command for command in preview.commands if ": pid " in command]
        assert [command.split("pid ")[1].split()[0] for command in told] == ["100", "101", "102"]
        assert "VLLM::Worker" in told[2]
        assert "sk-secret" not in str(preview)
        done = await act(cluster, fleet, StopRanks(("p1/0",), unmanaged=preview.unmanaged))
        assert (done.state, detail(done, "p1/0")[1]) == ("done", "stopped, HBM not verified")
        assert not cluster.nodes["node1"].strangers
        assert cluster.states(fleet)["p1/0"] is RankState.STOPPED


async def test_another_process_under_the_same_number_is_not_told(cluster: Cluster) -> None:
    info = put(cluster, "p1/0")
    node = cluster.nodes["node1"]
    async with cluster.fleet() as fleet:
        node.strangers = [replace(info, start=999_999, argv=("bash",), tree=())]
        done = await act(cluster, fleet, StopRanks(("p1/0",), unmanaged=("p1/0",)))
        assert detail(done, "p1/0") == ("done", "not running")
        assert [left.argv for left in node.strangers] == [("bash",)]


async def test_what_is_started_again_by_something_else_is_a_failed_stop_and_is_not_started_twice(
    cluster: Cluster,
) -> None:
    info = put(cluster, "p1/0")
    node = cluster.nodes["node1"]
    node.revives[100] = replace(info, pid=300, start=3000, tree=(), ppid=55)
    async with cluster.fleet() as fleet:
        done = await act(cluster, fleet, RestartRanks(("p1/0",), unmanaged=("p1/0",)))
        state, words = detail(done, "p1/0")
        assert state == "failed"
        assert "runs again as pid 300: its parent, pid 55," in words
        assert not node.starts


async def test_restart_takes_a_group_over(cluster: Cluster) -> None:
    for rank_id in ALL:
        put(cluster, rank_id)
    cluster.nodes["node3"].stubborn.add(200)
    async with cluster.fleet() as fleet:
        done = await act(cluster, fleet, RestartRanks(("decode/1",), unmanaged=DECODE, grace=5))
        assert done.state == "done", done
        assert {cluster.states(fleet)[rank] for rank in DECODE} == {RankState.READY}
        assert not cluster.nodes["node3"].strangers
        assert {spec.rank for spec in cluster.nodes["node3"].starts} == {"decode/0", "decode/1"}
        assert cluster.states(fleet)["p1/0"] is RankState.UNMANAGED
        assert fleet.snapshot.serving.word == "SERVING"


async def test_other_programs_and_other_clusters_are_foreign_and_never_stopped(cluster: Cluster) -> None:
    node = cluster.nodes["node1"]
    tools = Tools(cluster.clock)
    node.handler = tools.handle
    tools.processes = [(3, 500, "python3", 20_000), (4, 500, "python3", 10_000), (9, 700, "VLLM::Worker", 30_000)]
    tools.hbm.update({3: 25_000, 4: 15_000, 9: 33_000, 12: 30_000})
    other = cluster.plan.by_id["p2/0"]
    node.strangers += [
        ProcessInfo(500, 1, 500, STARTED, ("python3", "train.py"), {}, "bob", start=5),
        replace(server(other, pid=600), rank="rival:decode/7", tree=(700,), user="carol"),
        ProcessInfo(700, 600, 600, STARTED, ("VLLM::Worker",), {}, "carol", start=7),
        ProcessInfo(800, 1, 800, STARTED, ("nginx", "-g"), {}, "www", start=8),
    ]
    node.listeners += [
        Listener("0.0.0.0", 14_000, 800, "nginx -g"),
        Listener("0.0.0.0", 7100, 600, "vllm serve", "rival:decode/7"),
    ]
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.poll_now())
        await cluster.clock.advance(8)
        assert cluster.states(fleet)["p1/0"] is RankState.STOPPED
        found = {one.pid: one for one in fleet.store.nodes["node1"].foreign}
        assert set(found) == {500, 600, 800}
        assert (found[500].user, found[500].npus, found[500].hbm_mb) == ("bob", (3, 4), 30_000)
        assert (found[500].command, found[500].since, found[500].hits) == ("python3 train.py", STARTED, ("p1/0",))
        assert (found[600].rank, found[600].npus, found[600].ports) == ("rival:decode/7", (9,), (7100,))
        assert found[800].ports == (14_000,)
        (left,) = fleet.store.nodes["node1"].ownerless
        assert (left.npu, left.used_mb, left.rank) == (12, 30_000, "")
        assert fleet.snapshot.headline is not None
        assert fleet.snapshot.headline.subject == "node1"
        text = "\n".join(as_text(fleet.snapshot))
        assert "NOT OF THIS CLUSTER" in text
        assert all(
            word in text for word in ("pid 500", "bob", "29.3 GB", "14000", "rival:decode/7", "without an owner")
        )
        shown = "\n".join(row.text for row in describe_node(fleet.store.nodes["node1"], cluster.clock.wall()))
        assert all(word in shown for word in ("pid 500, of bob", "train.py", "rival:decode/7", "NPU 12: 29.3 GB"))
        with pytest.raises(ActionRefused) as refused:
            await cluster.drive(fleet.submit(StartRanks(("p1/0",))))
        assert "decode/7 of cluster rival" in refused.value.message
        await act(cluster, fleet, StopRanks(ALL, unmanaged=ALL))
        assert {info.pid for info in node.strangers} == {500, 600, 700, 800}


async def test_workers_whose_server_has_ended_are_listed_apart(cluster: Cluster) -> None:
    node = cluster.nodes["node3"]
    tools = Tools(cluster.clock)
    node.handler = tools.handle
    tools.processes = [(0, 202, "VLLM::Worker", 30_000)]
    node.strangers.append(
        ProcessInfo(202, 1, 9, STARTED, ("VLLM::Worker_DP0",), {}, "alice", start=2, env_known=False)
    )
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.poll_now())
        await cluster.clock.advance(8)
        (orphan,) = fleet.store.nodes["node3"].foreign
        assert (orphan.pid, orphan.hits) == (202, ("decode/0",))
        assert orphan.note == "left behind by a server that has ended"


async def test_known_processes_are_not_described_again(cluster: Cluster) -> None:
    asked: list[int] = []
    put(cluster, "p1/0")
    async with cluster.fleet() as fleet:
        agent = fleet._links["node1"].rank_agent
        assert agent is not None
        real = agent.processes

        async def counting(**arguments: object) -> object:
            found = await real(**arguments)  # type: ignore[arg-type]
            asked.append(sum(not info.brief for info in found))
            return found

        agent.processes = counting  # type: ignore[method-assign, assignment]
        await cluster.clock.advance(9)
        assert asked
        assert set(asked) == {0}
        assert fleet.store.ranks["p1/0"].by == "alice"


async def test_what_a_file_only_refers_to_is_not_asked_of_a_server_and_no_difference(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = cluster.topology.path.read_text().replace("args: {enable", "args: {api-key: {file: /run/key}, enable")
    cluster.topology.path.write_text(text)
    cluster.load(cluster.topology.path)
    asked: set[str] = set()
    processes = MemoryAgent.processes

    async def noted(agent: MemoryAgent, *, env: Sequence[str] = (), **options: Any) -> Sequence[ProcessInfo]:
        asked.update(env)
        found = await processes(agent, env=env, **options)
        return [replace(one, env={name: one.env[name] for name in env if name in one.env}) for one in found]

    monkeypatch.setattr(MemoryAgent, "processes", noted)
    put(cluster, "p1/0")
    async with cluster.fleet() as fleet:
        rank = fleet.store.ranks["p1/0"]
        assert (rank.state, rank.difference) == (RankState.UNMANAGED, ())
    assert "HCCL_IF_IP" in asked
    assert "VLLM_API_KEY" not in asked
