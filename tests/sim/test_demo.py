"""`pdtui demo --serve`: the nodes are there at once, the ranks follow, and Ctrl-C leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.sim.support import CLUSTER, FAST
from tests.support.processes import carrying
from tests.support.waiting import eventually


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TMPDIR": str(tmp_path),
    }


@contextlib.asynccontextmanager
async def demo(
    tmp_path: Path, *words: str, through: str = 'exec "$@"'
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command by a line of shell; it is killed if the test did not end it."""
    process = await asyncio.create_subprocess_exec(
        *["sh", "-c", through, "sh", sys.executable, "-m", "pdtui", "demo", *words],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(tmp_path),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await eventually(lambda: not carrying(str(tmp_path)), what="the end of everything")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_serve_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    async with demo(tmp_path, str(CLUSTER), "--serve", "--stopped") as process:
        assert process.stdout
        assert process.stderr
        path = Path((await process.stdout.readline()).decode().strip())
        assert load_checked(path).name == "small"
        assert b"pdtui status" in await process.stderr.readline()
        process.send_signal(number)
        # A terminal that goes tells so again and again, also in the very moment of leaving; once all is clean,
        # a signal may end the process as it likes.
        while path.exists() and process.returncode is None and number is signal.SIGHUP:
            process.send_signal(number)
            await asyncio.sleep(0.02)
        assert await process.wait() == 0
        assert not path.exists()
    assert not list(tmp_path.glob("pdtui-*"))


async def test_an_interrupt_counts_though_the_shell_had_it_ignored(tmp_path: Path) -> None:
    async with demo(tmp_path, str(CLUSTER), "--serve", "--stopped", through="trap '' INT; exec \"$@\"") as process:
        assert process.stdout
        assert await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    async with demo(tmp_path, str(CLUSTER), "--serve", "--stopped") as process:
        assert process.stdout
        assert await process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await eventually(lambda: not carrying(str(tmp_path)), what="the end of everything")


@pytest.mark.slow
@pytest.mark.xdist_group("demos")
async def test_ranks_come_up_and_can_be_broken(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with demo(tmp_path, "--serve", "--speed", "20", "--root", str(root)) as process:
        assert process.stderr
        told = b""
        while b"it ends with Ctrl-C" not in told:
            line = await process.stderr.readline()
            assert line, told.decode()
            told += line
        assert b"ranks: 12 ready" in told
        fault = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pdtui", "demo", "--fault", "crash decode/3"],
            stderr=asyncio.subprocess.PIPE,
            env=environment(tmp_path),
        )
        _, said = await fault.communicate()
        assert b"decode/3: SIGKILL to " in said
        assert fault.returncode == 0
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert root.is_dir()


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["no-such.yaml", "--serve"], 2, b"no-such.yaml"),
        (["--fault", "link node1/0 down"], 2, b"no simulated cluster runs here"),
        (["--fault", "x", "--serve"], 2, b"leave FILE and --serve out"),
        ([], 2, b"pdtui demo --serve"),
    ],
)
async def test_what_cannot_be(tmp_path: Path, words: list[str], status: int, text: bytes) -> None:
    async with demo(tmp_path, *words) as process:
        _, said = await process.communicate()
        assert process.returncode == status
        assert text in said


async def test_the_faults_are_listed(tmp_path: Path) -> None:
    async with demo(tmp_path, "--faults") as process:
        out, _ = await process.communicate()
        assert process.returncode == 0
        assert b"die-at-start RANK [on|off]" in out


@pytest.mark.slow
@pytest.mark.xdist_group("demos")
async def test_without_namespaces_ranks_are_known_by_their_node(tmp_path: Path) -> None:
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST, isolate=False) as simulation:
        topology = load_checked(simulation.topology_path)
        plan = make_plan(topology)
        async with Fleet(
            topology,
            plan,
            clock=SystemClock(),
            read_only=False,
            by="test",
            journal_dir=tmp_path / "journal",
        ) as fleet:
            assert await fleet.settled(30, npus=False)
            operation = await fleet.submit(StartRanks(tuple(rank.id for rank in plan.ranks)))
            assert (await fleet.wait(operation)).state == "done"
            fleet.store.publish()
            # No rank shows on a node that is not its own.
            assert {rank.id: str(rank.state) for rank in fleet.snapshot.ranks} == {
                rank.id: "ready" for rank in plan.ranks
            }
