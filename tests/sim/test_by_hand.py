"""The guides' launcher really run on simulated nodes: seen, followed, stopped by tree, taken over."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from pdtui.proxy.interface import Ask
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.plan import Plan
from pdtui.topology.planner import make_plan
from tests.fleet.cluster import ALL, DECODE, write_file
from tests.sim.support import run, until
from tests.support.by_hand import launch_line
from tests.support.processes import carrying
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

SPEED = 10.0


class Rack:
    """A simulated cluster on which operators type."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation = simulation
        self.folder = folder
        self.topology = load_checked(simulation.topology_path)
        self.plan: Plan = make_plan(self.topology)

    def fleet(self) -> Fleet:
        return Fleet(
            self.topology,
            self.plan,
            clock=SystemClock(),
            read_only=False,
            by="test@here",
            journal_dir=self.folder / "journal",
        )

    async def launch(self, group: str, node: str, *changes: str, output: str = "> serve.log 2>&1") -> None:
        """Start a group's ranks of a node as the guide says."""
        line = launch_line(self.simulation, self.plan, node, group, *changes, output=output)
        done = await run(self.simulation, line, node)
        assert done.exit_status == 0, done.stderr

    async def pids(self, node: str, pattern: str) -> list[int]:
        """Return the pids, as the node counts, of processes with a pattern in their command line."""
        found = await run(self.simulation, f"pgrep -f -- '{pattern}'", node)
        return [int(word) for word in str(found.stdout).split()]

    async def command(self, *words: str) -> tuple[int, str, str]:
        """Run a pdtui command."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pdtui",
            words[0],
            str(self.simulation.topology_path),
            *words[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def no_launcher(self) -> bool:
        """Return whether node3's launcher has ended."""
        return not await self.pids("node3", "python3 launch_online_dp.py")

    def left(self) -> list[str]:
        """Return the command lines of vLLM processes that live."""
        words = str(self.folder)
        return [p.command for p in carrying(words) if "vllm serve" in p.command]


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    async with Simulation(write_file(tmp_path), tmp_path / "sim", speed=SPEED) as simulation:
        if not simulation.isolated:
            pytest.skip("without pid namespaces a node's tools see the processes of all nodes")
        yield Rack(simulation, tmp_path)


def states(fleet: Fleet) -> Mapping[str, RankState]:
    return {rank.id: rank.state for rank in fleet.store.ranks.values()}


async def test_a_cluster_of_the_guides_scripts_is_watched_used_stopped_and_taken_over(rack: Rack) -> None:
    async with rack.fleet() as fleet:
        assert await fleet.settled(60)
        assert set(states(fleet).values()) == {RankState.STOPPED}
        await rack.launch("p1", "node1")
        await rack.launch("p2", "node2", "--max-num-seqs", "3", output="2>&1 | cat > /dev/null")
        await rack.launch("decode", "node3")
        await rack.launch("decode", "node4")

        # While they start: by their command lines, before anything listens.
        await eventually(lambda: fleet.store.ranks["p1/0"].state is RankState.UNMANAGED, within=60)
        await eventually(lambda: fleet.snapshot.serving.word == "SERVING", within=120)
        ranks = fleet.store.ranks
        assert set(states(fleet).values()) == {RankState.UNMANAGED}
        assert all(rank.health == "200" and rank.pid and rank.by and rank.started for rank in ranks.values())
        assert "--max-num-seqs: 3 -> absent (plan)" in ranks["p2/0"].difference
        assert ranks["decode/0"].difference == ()
        assert ranks["decode/1"].log.endswith("/deploy/decode/serve.log")
        assert ranks["decode/1"].log_note.startswith("shared by 2 ranks")
        assert (ranks["p2/0"].log, "pipe" in ranks["p2/0"].log_note) == ("", True)
        await eventually(lambda: all(rank.metrics is not None for rank in fleet.store.ranks.values()))
        answer = await fleet.ask(Ask("Who are you?", max_tokens=4), lambda _: None)
        assert (answer.error, answer.tokens) == ("", 4)
        assert not any(node.foreign or node.ownerless for node in fleet.snapshot.nodes)

        await _reads(rack, fleet.store.ranks["decode/1"].pid)

        # One of two children of one launcher, by its tree: engine and worker go, the other rank stays its own.
        pid = fleet.store.ranks["decode/1"].pid
        preview = await fleet.preview(StopRanks(("decode/1",)))
        assert f"pid {pid} " in preview.processes[0]
        assert any("VLLM::Worker" in line for line in preview.commands)
        launchers = await rack.pids("node3", "python3 launch_online_dp.py")
        other = fleet.store.ranks["decode/0"].pid
        done = await fleet.wait(await fleet.submit(StopRanks(("decode/1",), unmanaged=("decode/1",), drain=0)))
        assert done.state == "done", done
        assert pid not in await rack.pids("node3", "vllm serve")
        assert other in await rack.pids("node3", "vllm serve")
        assert set(await rack.pids("node3", "launch_online_dp.py")) & set(launchers)

        # The whole group under our keepers; the launchers end by themselves.
        meant = RestartRanks(("decode/0",), unmanaged=DECODE, drain=0)
        taken = await fleet.wait(await fleet.submit(meant))
        assert taken.state == "done", taken
        assert {states(fleet)[rank] for rank in DECODE} == {RankState.READY}
        assert states(fleet)["p1/0"] is RankState.UNMANAGED
        await until(rack.no_launcher, "the launcher's end")
        stopped = await fleet.wait(await fleet.submit(StopRanks(ALL, unmanaged=ALL, drain=0)))
        assert stopped.state == "done", stopped
        assert set(states(fleet).values()) == {RankState.STOPPED}
    assert rack.left() == []


async def _reads(rack: Rack, pid: int | None) -> None:
    """See the same from the command line."""
    code, out, err = await rack.command("status", "--json")
    assert code == 0, err
    status: dict[str, Any] = json.loads(out)
    rank = next(rank for rank in status["ranks"] if rank["id"] == "decode/1")
    assert (rank["state"], rank["pid"], status["serving"]["word"]) == ("unmanaged", pid, "SERVING")
    code, out, err = await rack.command("logs", "decode/1", "-n", "200")
    assert code == 0, err
    assert "shared by 2 ranks" in err
    assert f"(APIServer pid={pid})" in out
    assert "EngineCore_DP1" in out
    assert "EngineCore_DP0" not in out
    code, out, err = await rack.command("stop", "all")
    assert (code, out) == (1, "")
    assert "--unmanaged" in err
    code, out, err = await rack.command("start", "p1")
    assert code == 1
    assert "restart p1 takes it over" in err
