"""What runs held against a file: ranks of ours, of somebody's hand, none, too many, and nodes that are silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.cli.difference_text import as_dict, as_lines
from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.remote.messages.processes import Listener
from pdtui.topology.differences import Differences, GroupDifference
from tests.fleet.cluster import ALL, DECODE, Cluster, write_file
from tests.fleet.test_unmanaged import put, server


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def group(found: Differences, name: str) -> GroupDifference:
    return next(one for one in found.groups if one.name == name)


async def test_what_runs_as_planned_is_the_same_and_an_edited_file_is_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert fleet.differences() == Differences()
    path = write_file(tmp_path, max_model_len=8000)
    path.write_text(path.read_text().replace("very-secret", "other-secret").replace("dp_size: 4", "dp_size: 2"))
    cluster.load(path)
    async with cluster.fleet() as fleet:
        found = fleet.differences()
        decode = group(found, "decode")
        # One rank a node now: decode/1 moves, 2 and 3 are too many.
        assert decode.of("changed", "down") == ("decode/0", "decode/1")
        assert decode.of("unplanned") == ("decode/1@node3", "decode/2", "decode/3")
        text = "\n".join(as_lines(found, same="", head="from what runs to cluster.yaml"))
        assert "groups p1, p2\n  --kv-transfer-config.kv_connector_extra_config.decode.dp_size: 4 -> 2\n" in text
        assert "  --max-model-len: 40000 -> 8000\n  HF_TOKEN: *** -> ***\n" in text
        assert "secret" not in text + str(as_dict(found))
        steps = [(step.action, step.ranks) for step in found.steps]
        assert steps == [
            ("stop", ("decode/1@node3", "decode/2", "decode/3")),
            ("restart", ("p1/0",)),
            ("restart", ("p2/0",)),
            ("restart", ("decode/0", "decode/1")),
        ]


async def test_another_order_is_told_as_such(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(("p1/0",)))))
    path = write_file(tmp_path)
    path.write_text(
        path.read_text().replace(
            "OMP_NUM_THREADS: 10, HF_TOKEN: very-secret", "HF_TOKEN: very-secret, OMP_NUM_THREADS: 10"
        )
    )
    cluster.load(path)
    async with cluster.fleet() as fleet:
        status = fleet.store.ranks["p1/0"]
        assert (status.flags, status.difference) == (
            ("outdated",),
            ("the same flags and variables in another order",),
        )
        found = fleet.differences()
        assert found.reordered == ("p1/0",)
        assert not any(one.name == "p1" for one in found.groups)


async def test_ranks_of_somebody_s_hand_ranks_that_do_not_run_and_other_servers(cluster: Cluster) -> None:
    put(cluster, "p1/0", "--max-num-seqs", "3", "--api-key", "hunter2")
    hidden = put(cluster, "p2/0")
    node2 = cluster.nodes["node2"]
    node2.strangers[:] = [
        replace(one, env={}, env_known=False) if one is hidden else one for one in node2.strangers
    ]
    cluster.nodes["node3"].strangers.append(
        server(cluster.plan.by_id["decode/0"], "--port", "9999", "-dpn", "9", pid=900)
    )
    cluster.nodes["node4"].listeners.append(Listener("0.0.0.0", 7100, None, ""))
    async with cluster.fleet() as fleet:
        found = fleet.differences()
        p1 = group(found, "p1")
        assert p1.ranks[0].note == "started by hand, pid 100"
        assert [change.words() for change in p1.ranks[0].changes] == [
            "--api-key: *** -> absent",
            "--max-num-seqs: 3 -> absent",
        ]
        (unread,) = group(found, "p2").ranks
        assert (unread.fate, unread.note) == (
            "unknown",
            "started by hand, pid 100; its environment cannot be read",
        )
        decode = group(found, "decode")
        assert decode.of("down") == ("decode/0", "decode/1", "decode/3")
        assert decode.of("unknown") == ("decode/2",)
        (other,) = group(found, "other servers").ranks
        assert (other.id, other.node, other.fate) == ("pid 900", "node3", "unplanned")
        assert other.note.startswith("vllm serve")
        text = "\n".join(as_lines(found, same=""))
        assert "  not known: decode/2 (node4): something holds its port, and cannot be read" in text
        assert "  not running: decode/0-1 (node3)" in text
        assert "hunter2" not in text + str(as_dict(found))


async def test_a_silent_node_is_not_known_and_not_the_same(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        await cluster.drive(fleet.wait(await fleet.submit(StopRanks(("p2/0",)))))
        cluster.nodes["node3"].cut()
        await cluster.until(lambda: not fleet.differences().groups[-1].of("down") and fleet.differences().nodes)
        found = fleet.differences()
        assert [(node.name, node.fate) for node in found.nodes] == [("node3", "unknown")]
        assert found.nodes[0].note
        decode = group(found, "decode")
        assert decode.of("unknown") == DECODE[:2]
        assert {rank.note for rank in decode.ranks} == {"last known: ready"}
        assert [(step.action, step.ranks) for step in found.steps] == [("start", ("p2/0",))]
        assert not found.is_empty
        assert any(line.startswith("  node3 is not known: ") for line in as_lines(found, same=""))
