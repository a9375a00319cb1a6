"""Ranks in a container: `docker exec` on the node, and CANN's variables only inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, FAST, run


@pytest.fixture
async def contained(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A simulation of the small cluster whose ranks run in a container."""
    path = tmp_path / "contained.yaml"
    text = CLUSTER.read_text(encoding="utf-8").replace("runtime:\n", "runtime:\n  container: vllm-ascend\n")
    path.write_text(text.replace("platform: a3", "platform: a2"), encoding="utf-8")
    async with Simulation(path, tmp_path / "sim", speed=FAST) as simulation:
        yield simulation


async def test_commands_run_inside(contained: Simulation) -> None:
    done = await run(
        contained, "docker exec -i vllm-ascend bash -ic 'echo $HOME $ASCEND_TOOLKIT_HOME; vllm --version'"
    )
    home, toolkit, version = str(done.stdout).split()
    assert home.endswith("/containers/vllm-ascend/root")
    assert toolkit.endswith("ascend-toolkit/latest")
    assert version == "0.23.0"
    done = await run(contained, "docker exec -i vllm-ascend sh -c 'cat; exit 4'", input="through\n")
    assert (done.stdout, done.exit_status) == ("through\n", 4)


async def test_the_host_has_the_tools_and_nothing_else(contained: Simulation) -> None:
    done = await run(
        contained, "bash -ic 'echo x$ASCEND_TOOLKIT_HOME; command -v vllm; npu-smi info | grep -c 910B3'"
    )
    assert str(done.stdout).split() == ["x", "8"]


async def test_an_unknown_container(contained: Simulation) -> None:
    done = await run(contained, "docker exec -i other true")
    assert done.exit_status == 1
    assert done.stderr == "Error response from daemon: No such container: other\n"


async def test_no_python_in_the_container(contained: Simulation) -> None:
    await contained.fault("no-python node1")
    done = await run(contained, "docker exec -i vllm-ascend python3 -u -c pass")
    assert done.exit_status == 127
