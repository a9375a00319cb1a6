"""Faults that are switched while the cluster runs, from a test and from the shell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pdtui.errors import SimulationError, UsageError
from pdtui.sim import faults
from pdtui.sim.control import Control, send_fault
from pdtui.sim.simulation import Simulation
from tests.sim.support import run


async def tool(simulation: Simulation, command: str) -> str:
    done = await run(simulation, command)
    return f"{done.exit_status} {done.stdout!s}"


async def test_npu_faults_show_in_the_tools(simulation: Simulation) -> None:
    assert await simulation.fault("link node1/9 down") == "link of node1/9 is DOWN"
    assert await tool(simulation, "hccn_tool -i 9 -link -g") == "0 link status: DOWN\n"
    assert await tool(simulation, "hccn_tool -i 8 -link -g") == "0 link status: UP\n"
    await simulation.fault("net_health node1/3 Receive timeout")
    assert await tool(simulation, "hccn_tool -i 3 -net_health -g") == "0 net health status: Receive timeout\n"
    await simulation.fault("vnic node1/4 down")
    assert (await tool(simulation, "hccn_tool -i 4 -vnic -g")).startswith("0 vnic link status: DOWN\n")
    await simulation.fault("npu node1/5 alarm")
    await simulation.fault("gone node1/6")
    table = await tool(simulation, "npu-smi info")
    assert table.count("Alarm") == 1
    assert "| 0     6 " not in table
    await simulation.fault("heal node1")
    table = await tool(simulation, "npu-smi info")
    assert table.count("| OK ") == 16
    assert await tool(simulation, "hccn_tool -i 9 -link -g") == "0 link status: UP\n"


async def test_tools_that_do_not_answer(simulation: Simulation) -> None:
    await simulation.fault("hang node1/9")
    assert await tool(simulation, "timeout -k 0.1 0.1 hccn_tool -i 9 -link -g; echo $?") == "0 137\n"
    assert (await tool(simulation, "hccn_tool -i 8 -link -g")).startswith("0 ")
    await simulation.fault("hang node1/9 off")
    assert (await tool(simulation, "hccn_tool -i 9 -link -g")).startswith("0 ")
    await simulation.fault("busy node1 hccn_tool")
    assert (await tool(simulation, "hccn_tool -i 0 -link -g")).startswith("11 hccn_tool is busy")
    await simulation.fault("empty node1 npu-smi")
    assert await tool(simulation, "npu-smi info") == "0 "
    await simulation.fault("heal node1")
    assert (await tool(simulation, "npu-smi info")).startswith("0 +---")


async def test_a_node_without_python(simulation: Simulation) -> None:
    await simulation.fault("no-python node1")
    done = await run(simulation, "exec python3 -u -c pass")
    assert done.exit_status == 127
    assert "python3: not found" in str(done.stderr)
    await simulation.fault("no-python node1 off")
    assert (await run(simulation, "exec python3 -u -c 'print(1)'")).stdout == "1\n"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "frob node1",
        "link node1/9 sideways",
        "link node1/16 down",
        "link node1",
        "npu node1/1 Fine",
        "crash d/3",
        "gone node1/3 maybe",
        "shm node1 big",
        "hang node1 npu-smi link",
        "device node1 sda off",
        "unreachable node1 : on",
    ],
)
async def test_what_is_no_fault_is_said(simulation: Simulation, spec: str) -> None:
    with pytest.raises(UsageError) as refused:
        await simulation.fault(spec)
    assert str(refused.value)


async def test_an_unknown_node_is_named(simulation: Simulation) -> None:
    with pytest.raises(SimulationError, match="no node node7; there are node1, node2"):
        await simulation.fault("cut node7")


def test_every_fault_is_described() -> None:
    text = faults.describe()
    for name in faults.FAULTS:
        assert f"\n{name} " in f"\n{text}"


async def test_faults_from_another_process(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with pytest.raises(UsageError, match="no simulated cluster runs here"):
        send_fault("link node1/0 down")
    async with Control(simulation):
        for root in (None, simulation.root):
            text = await asyncio.to_thread(send_fault, "link node1/0 down", root)
            assert text.splitlines() == [
                "link of node1/0 is DOWN",
                f"(the simulated cluster in {simulation.root})",
            ]
        with pytest.raises(UsageError, match="no fault 'frob'"):
            await asyncio.to_thread(send_fault, "frob")
        with pytest.raises(UsageError, match="no simulated cluster runs in"):
            await asyncio.to_thread(send_fault, "link node1/0 up", tmp_path)
    assert await tool(simulation, "hccn_tool -i 0 -link -g") == "0 link status: DOWN\n"
    with pytest.raises(UsageError, match="no simulated cluster runs here"):
        send_fault("link node1/0 down")
    assert not list((tmp_path / "run").rglob("*.json"))


async def test_fault_for_one_of_several_clusters_has_to_say_which(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    async with Control(simulation):
        (word,) = (tmp_path / "run").rglob("demo-*.json")
        other = word.with_name("demo-1.json")
        other.write_text(word.read_text())
        with pytest.raises(UsageError, match="several simulated clusters run here") as refused:
            await asyncio.to_thread(send_fault, "link node1/0 down")
        assert f"--root {simulation.root}" in refused.value.remedy
        other.unlink()
