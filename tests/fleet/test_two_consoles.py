"""Two operators at once, each a process of its own, on a simulated cluster over SSH."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.sim.simulation import Simulation
from tests.fleet.cluster import DECODE, write_file
from tests.fleet.test_over_ssh import Rack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("two-consoles")]

BRIEF_LEASE = """
import asyncio, sys
from pathlib import Path
from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan

async def main(file, home):
    topology = load_checked(Path(file))
    fleet = Fleet(topology, make_plan(topology), clock=SystemClock(), read_only=False, by="carl@train",
                  journal_dir=Path(home), lease_ttl=6.0)
    async with fleet:
        await fleet.settled(60)
        await fleet.submit(StartRanks(("p1/0",)))
        print("begun", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    source = write_file(tmp_path)
    async with Simulation(source, tmp_path / "sim", speed=4.0) as simulation:
        yield Rack(simulation, tmp_path / "home")


async def said(process: asyncio.subprocess.Process, words: str) -> str:
    """Read what a command narrates until it has said something; returns all of it."""
    assert process.stderr is not None
    heard = ""
    async with asyncio.timeout(60):
        while words not in heard:
            line = await process.stderr.readline()
            assert line, heard
            heard += line.decode()
    return heard


async def test_one_works_the_other_is_told_and_may_take_over(rack: Rack) -> None:
    # Two commands want the same: one does it, the other says who does.
    ends = await asyncio.gather(rack.run("start", "decode"), rack.run("start", "decode"))
    (done, refused) = sorted(ends)
    assert (done[0], refused[0]) == (0, 1), ends
    assert "group decode is in another operator's hands: " in refused[2]
    assert "starts group decode on node3" in refused[2]  # and on node4, if it has got so far
    assert [len(rack.pids(rank, "vllm serve")) for rank in DECODE] == [1, 1, 1, 1]

    # A restart is under way: a stop is refused, seen in `status`, and goes ahead where that is said.
    for pid in rack.pids("decode/3", "vllm serve"):
        os.kill(pid, signal.SIGSTOP)  # It hears no TERM: the restart waits for its grace period.
    restart = await rack.begin("restart", "decode", "--reason", "new weights", "--grace", "300")
    before = await said(restart, "TERM to 4")
    status, (code, _, err) = await asyncio.gather(rack.status(), rack.run("stop", "decode", "--dry-run"))
    assert (code, "refused: " in err) == (1, True)
    assert [(lease["verb"], lease["what"]) for lease in status["leases"]] == [("restart", "group decode")]
    stopped = await rack.run("stop", "decode", "--grace", "1", "--break-lease", "wrong weights")
    assert stopped[0] == 0, stopped
    _, rest = await asyncio.wait_for(restart.communicate(), 60)
    assert restart.returncode == 1, before
    assert "has taken over: wrong weights" in rest.decode()
    assert not any(rack.pids(rank) for rank in DECODE)  # Nothing was started over the stop.
    code, out, err = await rack.run("journal", "decode", "--nodes")
    told = [line.split("  ")[2] for line in out.splitlines() if "  ready  " not in line]
    assert told == [
        "start",
        "start ended: done",
        "restart",
        "lease broken",
        "stop",
        *(["restart ended: cancelled", "stop ended: done"] if told[5].startswith("restart") else []),
        *(["stop ended: done", "restart ended: cancelled"] if told[5].startswith("stop") else []),
    ], err


async def test_lease_of_a_killed_console_ends_by_itself(rack: Rack) -> None:
    console = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BRIEF_LEASE, str(rack.file), str(rack.home / "other"), stdout=asyncio.subprocess.PIPE
    )
    assert console.stdout is not None
    assert await asyncio.wait_for(console.stdout.readline(), 60) == b"begun\n"
    os.kill(console.pid, signal.SIGKILL)
    refused, other = await asyncio.gather(rack.run("stop", "p1"), rack.run("stop", "p2"))
    assert other[0] == 0  # Nobody works on that.
    if refused[0] != 0:  # Else the lease of six seconds was over before a slow machine had connected.
        assert "carl@train starts group p1 on node1" in refused[2]

    async def stopped() -> list[str]:
        code, out, _ = await rack.run("stop", "p1")
        return [out] if code == 0 else []

    ended: list[str] = await eventually(stopped, within=60)
    assert ended
    assert not rack.pids("p1/0")
