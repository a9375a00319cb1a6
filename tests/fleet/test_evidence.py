"""What is kept before a broken rank is restarted, and that nothing holds the restart up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdtui.console.describe import describe_rank
from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.remote.messages.commands import Command, Completed
from pdtui.remote.messages.ranks import Evidence
from tests.fleet.cluster import ALL, Cluster
from tests.support.memory_node import MemoryAgent

P1 = ("p1/0",)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def act(cluster: Cluster, fleet: Fleet, intent: StartRanks | RestartRanks) -> OperationStatus:
    return await cluster.drive(fleet.wait(await cluster.drive(fleet.submit(intent))))


def phase(operation: OperationStatus, label: str) -> tuple[str, str]:
    return next(((step.state, step.detail) for step in operation.steps if step.label == label), ("", ""))


async def crashed(cluster: Cluster, fleet: Fleet, *ranks: str) -> None:
    assert (await act(cluster, fleet, StartRanks(ALL))).state == "done"
    for rank in ranks:
        cluster.node_of(rank).kill("tiny", rank)
        await cluster.clock.advance(2)
    await cluster.until(lambda: all(cluster.states(fleet)[rank] is RankState.FAILED for rank in ranks))


async def test_restart_of_what_failed_keeps_its_evidence_first_and_says_where(cluster: Cluster) -> None:
    def answer(command: Command) -> Completed:
        return Completed(command.argv, 0, f"{command.argv[0]} says so".encode(), b"")

    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet, "decode/3", "decode/0")
        node3 = cluster.nodes["node3"]
        node3.handler = answer
        intent = RestartRanks(("decode/0",))
        preview = await cluster.drive(fleet.preview(intent))
        assert preview.steps[0] == "keep the evidence of decode/0, decode/3 on the nodes"
        done = await act(cluster, fleet, intent)
        assert done.state == "done", done.error
        state, words = phase(done, "evidence")
        assert state == "done"
        assert words.startswith("of 2 ranks; decode/3: /state/tiny/decode.3/runs/1/evidence/")
        await cluster.clock.advance(3)
        folder = fleet.store.ranks["decode/0"].evidence
        assert folder.startswith("/state/tiny/decode.0/runs/1/evidence/")
        files = {path: bytes(data).decode() for path, data in node3.files.items() if folder in path}
        kept = {path.rpartition("/")[2]: text for path, text in files.items()}
        assert {"command.txt", "deaths.txt", "dmesg.txt", "processes.txt", "npu-smi.txt", "hccn.txt"} == set(kept)
        assert "very-secret" not in "".join(kept.values())
        assert [line.split()[1] for line in kept["deaths.txt"].splitlines()] == ["decode/3", "decode/0"]
        assert kept["dmesg.txt"] == "$ dmesg -T\ndmesg says so"
        assert "$ hccn_tool -i 0 -link -g" in kept["hccn.txt"]
        rows = describe_rank(fleet.store.ranks["decode/0"], fleet.plan, cluster.clock.wall())
        assert folder in [row.text for row in rows]
        entries = [
            json.loads(line) for line in (cluster.folder / "journal" / "journal.jsonl").read_text().splitlines()
        ]
        (entry,) = [entry for entry in entries if entry["event"] == "evidence"]
        assert entry["folders"]["decode/0"] == folder


async def test_evidence_is_kept_on_demand_but_not_by_who_only_looks(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet)
        saved = await cluster.drive(fleet.save_evidence(P1))
        assert saved["p1/0"].folder.startswith("/state/tiny/p1.0/runs/1/evidence/")
    async with cluster.fleet(read_only=True) as other:
        with pytest.raises(ActionRefused, match="read-only"):
            await other.save_evidence(P1)


async def test_what_cannot_be_reached_is_neither_said_to_be_idle_nor_left_out(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet)
    cluster.nodes["node3"].cut()
    async with cluster.fleet(settled=False) as other:
        await cluster.clock.advance(5)
        saved = await cluster.drive(other.save_evidence(("p1/0", "decode/0")))
        assert (saved["p1/0"].error, saved["decode/0"].folder) == ("", "")
        assert "node3 is unreachable" in saved["decode/0"].error
        preview = await cluster.drive(other.preview(StopRanks(("decode/0", "decode/1"))))
        assert "Whether decode/0-1 serve is not known." in preview.consequence


async def test_nothing_is_kept_of_ranks_that_are_well(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet)
        done = await act(cluster, fleet, RestartRanks(P1))
        assert (done.state, phase(done, "evidence")) == ("done", ("", ""))


async def test_full_disk_is_told_and_does_not_hold_up_the_restart(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet, "p1/0")
        cluster.nodes["node1"].disk_full = True
        done = await act(cluster, fleet, RestartRanks(P1))
        assert done.state == "done", done.error
        assert phase(done, "evidence") == ("failed", "nothing was saved; p1/0: less than 256 MiB are free")


async def test_hung_node_has_its_time_and_the_restart_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: MemoryAgent, *args: object, **more: object) -> Evidence:
        await cluster.clock.sleep(10_000)
        raise AssertionError

    monkeypatch.setattr(MemoryAgent, "save_evidence", hangs)
    async with cluster.fleet() as fleet:
        await crashed(cluster, fleet, "p1/0")
        done = await act(cluster, fleet, RestartRanks(P1))
        assert done.state == "done", done.error
        assert phase(done, "evidence")[1].endswith("p1/0: not all of it within 40 s")
