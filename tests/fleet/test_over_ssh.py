"""The fleet and its commands over the simulated cluster: real processes, real ports, real SSH."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from pdtui.proxy.interface import Ask
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.fleet.cluster import ALL, DECODE, write_file
from tests.sim.support import run
from tests.support.netns import require_netns
from tests.support.processes import carrying
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("over-ssh")]

SPEED = 10.0


@dataclass
class Rack:
    """A simulated cluster and what tests do to it."""

    simulation: Simulation
    home: Path

    @property
    def file(self) -> Path:
        """The file that the simulation wrote."""
        return self.simulation.topology_path

    def fleet(self) -> Fleet:
        topology = load_checked(self.file)
        return Fleet(
            topology,
            make_plan(topology),
            clock=SystemClock(),
            read_only=False,
            by="test@here",
            journal_dir=self.home / "journal",
        )

    def pids(self, rank: str, word: str = "") -> Sequence[int]:
        """Return pids (as this machine sees them) of a rank's processes with a word in their command line."""
        found = carrying(f"PDTUI_RANK=tiny:{rank}\n", str(self.file.parent))
        return [process.pid for process in found if word in process.command]

    async def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Run a pdtui command on the cluster."""
        process = await self.begin(command, *arguments)
        out, err = await asyncio.wait_for(process.communicate(), 100)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def begin(self, command: str, *arguments: str) -> asyncio.subprocess.Process:
        """Start a pdtui command on the cluster."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pdtui",
            command,
            str(self.file),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "XDG_STATE_HOME": str(self.home)},
        )

    async def status(self) -> Mapping[str, Any]:
        """Return what `status --json` prints."""
        _, out, _ = await self.run("status", "--json")
        found: dict[str, Any] = json.loads(out)
        return found


NETNS = pytest.param("netns", marks=pytest.mark.sshd)


@pytest.fixture(params=["loopback", NETNS])
async def rack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rack]:
    if request.param == "netns":
        require_netns()
    source = write_file(tmp_path)
    async with Simulation(source, tmp_path / "sim", speed=SPEED, network=request.param) as simulation:
        yield Rack(simulation, tmp_path / "home")


def states(fleet: Fleet) -> set[RankState]:
    return {rank.state for rank in fleet.store.ranks.values()}


async def test_from_nothing_to_an_answer_and_back(rack: Rack) -> None:
    async with rack.fleet() as fleet:
        assert await fleet.settled(60)
        done = await fleet.wait(await fleet.submit(StartRanks(ALL)))
        assert done.state == "done", done
        assert fleet.store.ranks["decode/3"].last_start_s is not None
        answer = await fleet.ask(Ask("Who are you?", max_tokens=16), lambda _: None)
        assert not answer.error
        assert answer.text
        assert answer.prefill in ("p1/0", "p2/0")
        assert answer.decode in DECODE

        victim = rack.pids("decode/3", "vllm")[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: fleet.store.ranks["decode/3"].state is RankState.FAILED)
        await eventually(lambda: fleet.store.ranks["decode/3"].diagnosis)
        assert fleet.store.ranks["decode/3"].exit_status == -9
        await eventually(lambda: fleet.snapshot.serving.word == "DOWN")
        refused = await fleet.ask(Ask("Anybody?"), lambda _: None)
        assert refused.status == 503

        restarted = await fleet.wait(await fleet.submit(RestartRanks(("decode/3",))))
        assert restarted.state == "done", restarted
        assert {fleet.store.ranks[rank].run for rank in DECODE} == {2}
        again = await fleet.ask(Ask("And now?", max_tokens=4), lambda _: None)
        assert not again.error

        stopped = await fleet.wait(await fleet.submit(StopRanks(ALL)))
        assert stopped.state == "done", stopped
        assert {step.detail for step in stopped.steps if step.label in ALL} == {"stopped"}
        assert states(fleet) == {RankState.STOPPED}
    assert not any(rack.pids(rank) for rank in ALL)


@pytest.mark.parametrize("rack", [NETNS], indirect=True)  # Over loopback the acceptance tests do the same.
async def test_commands_from_start_to_stop(rack: Rack) -> None:
    code, out, err = await rack.run("start")
    assert code == 0, err
    assert out.splitlines()[0].split() == ["RANK", "NODE", "RESULT", "DETAIL"]
    assert "\x1b" not in out + err
    assert "decode/0" in err

    status = await rack.status()
    assert status["schema_version"] == 1
    assert {rank["state"] for rank in status["ranks"]} == {"ready"}
    assert {npu["verdict"] for node in status["nodes"] for npu in node["npus"]} == {"healthy"}
    pids = {rank["id"]: rank["pid"] for rank in status["ranks"]}
    assert (await rack.run("status"))[0] == 0

    code, out, _ = await rack.run("ask", "Who are you?", "--max-tokens", "8", "--json")
    assert code == 0
    assert json.loads(out)["tokens"] == 8

    keeper = rack.pids("decode/1", "keeper")
    for pid in keeper:
        os.kill(pid, signal.SIGKILL)
    code, out, err = await rack.run("start", "--json")
    assert code == 0, err
    assert all("already running" in rank["detail"] for rank in json.loads(out)["ranks"])
    assert {rank["id"]: rank["pid"] for rank in (await rack.status())["ranks"]} == pids

    code, out, err = await rack.run("logs", "decode", "-n", "3")
    assert code == 0, err
    assert {line.split()[0] for line in out.splitlines()} == set(DECODE)

    code, _, err = await rack.run("stop", "all", "--grace", "5")
    assert code == 0, err
    assert not any(rack.pids(rank) for rank in ALL)
    assert (await rack.run("status"))[0] == 1
    journals = list((rack.file.parent).glob("**/journal.jsonl"))
    assert len(journals) == 4
    for journal in journals:
        events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
        assert events == ["start", "start ended", "start", "start ended", "stop", "stop ended"]


async def test_command_killed_during_a_start_leaves_ranks_that_the_next_can_stop(rack: Rack) -> None:
    process = await rack.begin("start")
    await eventually(lambda: rack.pids("decode/3", "vllm"), within=60)
    process.kill()
    await process.communicate()
    async with rack.fleet() as fleet:
        assert await fleet.settled(60)
        await eventually(
            lambda: states(fleet) <= {RankState.STARTING, RankState.READY, RankState.STOPPED}, within=9
        )
        assert fleet.store.ranks["decode/3"].state in (RankState.STARTING, RankState.READY)
        with pytest.raises(ActionRefused, match=r"(?s)starts all 6 ranks on node1.*within 30 s"):
            await fleet.submit(StopRanks(ALL))  # Its lease has not run out yet.
        stopped = await fleet.wait(await fleet.submit(StopRanks(ALL, breaking=Breaking("that command is dead"))))
        assert stopped.state == "done", stopped
    assert not any(rack.pids(rank) for rank in ALL)


async def test_taken_port_names_its_owner_and_nothing_starts(rack: Rack) -> None:
    address = rack.simulation.node("node3").machine.address
    # It listens when its parent ends.
    program = (
        f"import os, socket, time; s = socket.create_server(('{address}', 7101)); os.fork() or time.sleep(999)"
    )
    await run(rack.simulation, f'python3 -c "{program}" < /dev/null > /dev/null 2>&1', "node3")
    code, out, err = await rack.run("start")
    assert code == 1
    assert "port:node3:7101" in err
    assert out == ""
    assert not any(rack.pids(rank) for rank in ALL)
