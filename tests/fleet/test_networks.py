"""A cluster behind real networks and OpenSSH's sshd while both fail: states, ages, logs and what comes back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks
from pdtui.fleet.snapshot import NodeState, RankState
from pdtui.proxy.interface import Ask
from pdtui.topology.planner import make_plan
from tests.fleet.cluster import ALL, DECODE, write_file
from tests.support.netns import Rack, serving
from tests.support.processes import carrying
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sshd,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("networks"),
]

NODES = ("node1", "node2", "node3", "node4")


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """The small cluster, all its ranks ready."""
    folder = tmp_path_factory.mktemp("networks")
    with serving(write_file(folder), folder / "sim", speed=10.0) as rack:
        done = subprocess.run(
            [sys.executable, "-m", "pdtui", "start", str(rack.file), "all"],
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield rack


@asynccontextmanager
async def console(rack: Rack, folder: Path) -> AsyncIterator[Fleet]:
    """Run a fleet that has seen every node."""
    topology = rack.topology
    fleet = Fleet(
        topology, make_plan(topology), clock=SystemClock(), read_only=False, by="ann@desk", journal_dir=folder
    )
    async with fleet:
        assert await fleet.settled(90)
        yield fleet


@pytest.fixture
async def fleet(rack: Rack, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with console(rack, tmp_path / "journal") as fleet:
        yield fleet


def states(fleet: Fleet) -> set[RankState]:
    return {rank.state for rank in fleet.store.ranks.values()}


async def all_ready(fleet: Fleet) -> None:
    """Wait until all is well; nobody waits out a back-off that no test is about."""
    await fleet.poll_now(hanging=False)
    await eventually(lambda: states(fleet) == {RankState.READY}, within=90, what="all ranks are ready")


def servers(rack: Rack) -> dict[str, int]:
    """Return the pid, as this machine counts, of every rank's server."""
    found = carrying("PDTUI_RANK=tiny:", str(rack.root))
    return {
        rank: process.pid
        for rank in ALL
        for process in found
        if "vllm serve" in process.command and f"PDTUI_RANK=tiny:{rank}\n" in process.environment + "\n"
    }


async def test_four_ways_to_lose_a_node_at_once_and_to_have_it_back(rack: Rack, fleet: Fleet) -> None:
    await all_ready(fleet)
    before = {rank.id: (rank.pid, rank.run) for rank in fleet.store.ranks.values()}
    path = Path(fleet.store.ranks["decode/0"].log)
    log = rack.root / "nodes" / "node3" / "state" / path.relative_to(rack.root / "state")
    written = [f"line {number} of the test" for number in range(300)]

    def say(first: int, last: int) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in written[first:last])

    def seen() -> list[str]:
        view = fleet.log("decode/0")
        lines = fleet.log_lines("decode/0", view.first_seq, view.next_seq - view.first_seq)
        return [line.text for line in lines if line.text.endswith(" of the test")]

    fleet.log("decode/0")
    say(0, 100)
    await eventually(lambda: seen() == written[:100], what="the log is followed")

    await rack.fault("rekey node1")
    await rack.fault("sshd-kill node2")
    await rack.fault("cut node3")
    await rack.fault("sshd-freeze node4")
    say(100, 200)
    cut_at = SystemClock().wall()
    await eventually(lambda: states(fleet) == {RankState.LOST}, within=60, what="all ranks are lost")
    assert {rank.last_state for rank in fleet.store.ranks.values()} == {RankState.READY}
    assert seen() == written[:100]

    nodes = fleet.store.nodes
    await eventually(lambda: nodes["node1"].state is NodeState.FAILED, what="the changed key is refused")
    assert "CHANGED" in nodes["node1"].error
    known = f"{rack.root}/ssh/known_hosts"
    assert f"{known} line 1 has another" in nodes["node1"].remedy
    assert f"ssh-keygen -R 192.0.0.1 -f {known}" in nodes["node1"].remedy
    await eventually(lambda: "refused" in nodes["node2"].error, what="the dead sshd refuses")
    assert nodes["node2"].state is NodeState.RECONNECTING
    assert {nodes[name].state for name in ("node3", "node4")} == {NodeState.RECONNECTING}
    # What was read last is still there, and as old as it is.
    for name in NODES:
        assert {npu.verdict.value for npu in nodes[name].npus} == {"healthy"}
        assert (nodes[name].observed_at or 0) <= cut_at + 2
    assert fleet.snapshot.serving.word != "SERVING"

    await rack.fault("heal node2")
    await fleet.poll_now(["node2"], hanging=False)
    await eventually(lambda: fleet.store.ranks["p2/0"].state is RankState.READY, what="the others hinder nobody")
    assert nodes["node1"].state is NodeState.FAILED

    await rack.fault("rekey node1 off")
    await rack.fault("heal node3")
    await rack.fault("heal node4")
    say(200, 300)
    await all_ready(fleet)
    assert {rank.id: (rank.pid, rank.run) for rank in fleet.store.ranks.values()} == before
    await eventually(lambda: len(seen()) >= 300, what="the log goes on")
    assert seen() == written


async def test_bad_line_makes_everything_slower_and_nothing_wrong(rack: Rack, tmp_path: Path) -> None:
    for spec in ("slow node2 300ms", "lossy node2 10%", "slow node3 300ms"):
        await rack.fault(spec)
    try:
        async with console(rack, tmp_path / "journal") as fleet:
            await all_ready(fleet)
            answer = await asyncio.wait_for(fleet.ask(Ask("Who are you?", max_tokens=8), lambda _: None), 90)
            assert not answer.error
            assert answer.text
            view = fleet.log("p2/0")
            await eventually(lambda: fleet.log("p2/0").next_seq > view.first_seq, what="the log comes")
            done = await fleet.wait(await fleet.submit(RestartRanks(("p2/0",))))
            assert done.state == "done", done
            await all_ready(fleet)
    finally:
        for node in ("node2", "node3"):
            await rack.fault(f"heal {node}")


async def test_sshd_without_tcp_forwarding_stops_requests_only(rack: Rack, tmp_path: Path) -> None:
    for node in ("node1", "node2"):
        await rack.fault(f"no-forwarding {node}")
    try:
        async with console(rack, tmp_path / "journal") as fleet:
            await all_ready(fleet)
            answer = await asyncio.wait_for(fleet.ask(Ask("Who are you?"), lambda _: None), 60)
            assert "sshd there forbids TCP forwarding" in answer.error
            assert "AllowTcpForwarding" in answer.error
            await all_ready(fleet)
    finally:
        for node in ("node1", "node2"):
            await rack.fault(f"heal {node}")


async def test_after_a_reboot_nothing_runs_and_can_be_started(rack: Rack, fleet: Fleet) -> None:
    await all_ready(fleet)
    died = {"decode/2", "decode/3"}
    old = servers(rack)
    await rack.fault("reboot node4")
    await eventually(
        lambda: {fleet.store.ranks[rank].state for rank in died} == {RankState.FAILED},
        within=60,
        what="the ranks of the node are failed",
    )
    await eventually(
        lambda: {fleet.store.ranks[rank].state for rank in DECODE} == {RankState.FAILED},
        within=60,
        what="their group goes with them",
    )
    assert {fleet.store.ranks[rank].pid for rank in died} == {None}
    await eventually(
        lambda: all("its node was restarted" in str(fleet.store.ranks[rank].diagnosis) for rank in died),
        what="the reason is found",
    )
    assert {fleet.store.ranks[rank].state for rank in ("p1/0", "p2/0")} == {RankState.READY}
    done = await fleet.wait(await fleet.submit(StartRanks(DECODE)))
    assert done.state == "done", done
    await all_ready(fleet)
    new = servers(rack)
    assert {rank for rank in ALL if new[rank] != old.get(rank)} == set(DECODE)
