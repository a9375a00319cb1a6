"""Ranks in a container: own processes, files and name behind `docker exec`, the host's network, and its engine."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.errors import SimulationError
from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, FAST, Server, run, until
from tests.support.required import skip_unless

INSIDE = "docker exec -i vllm-ascend "


@pytest.fixture
async def contained(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A simulation of the small cluster whose ranks run in a container."""
    path = tmp_path / "contained.yaml"
    text = CLUSTER.read_text(encoding="utf-8").replace("runtime:\n", "runtime:\n  container: vllm-ascend\n")
    path.write_text(text.replace("platform: a3", "platform: a2"), encoding="utf-8")
    async with Simulation(path, tmp_path / "sim", speed=FAST) as simulation:
        yield simulation


@pytest.fixture
def own_container(contained: Simulation) -> None:
    """Skip where the kernel gives containers nothing of their own."""
    refused = {node.container_refused for node in contained.nodes.values()} - {""}
    skip_unless(not refused, f"no container of its own: {', '.join(refused)}")


async def test_commands_run_inside(contained: Simulation) -> None:
    done = await run(contained, INSIDE + "bash -ic 'echo $HOME $ASCEND_TOOLKIT_HOME; vllm --version'")
    home, toolkit, version = str(done.stdout).split()
    assert home.endswith("/root")
    assert toolkit.endswith("ascend-toolkit/latest")
    assert version == "0.23.0"
    done = await run(contained, INSIDE + "sh -c 'cat; exit 4'", input="through\n")
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
    done = await run(contained, INSIDE + "python3 -u -c pass")
    assert done.exit_status == 127


@pytest.mark.usefixtures("own_container")
async def test_host_and_container_cannot_be_mixed_up(contained: Simulation) -> None:
    node = contained.node("node1")
    script = (
        "for tool in npu-smi hccn_tool docker; do command -v $tool; done;"
        f"ls {node.folder}/root {node.folder}/usr {node.folder}/etc; "
        "hostname; cat /etc/hostname; echo $$ > ~/pid; sleep 1000 >/dev/null 2>&1 & echo $! > ~/sleep; "
        "readlink /proc/1/exe; echo kept > " + f"{contained.state_dir}/kept; echo lost > /tmp/lost"
    )
    done = await run(contained, f"{INSIDE}sh -c '{script}'")
    hostname, again, program = str(done.stdout).split()
    assert str(done.stderr).count("No such file") == 3  # of the three folders of the host
    assert hostname == again == node.machine.container_hostname != node.name
    assert program.endswith("sleep")
    # Its files and pids are not the host's, but for what is mounted.
    done = await run(contained, f"ls ~/sleep /tmp/lost; cat {contained.state_dir}/kept; hostname")
    assert str(done.stdout).split() == ["kept", "node1"]
    inner = (node.folder / "containers" / "vllm-ascend" / "root" / "sleep").read_text().strip()
    outer = str((await run(contained, "pgrep -fx 'sleep 1000'")).stdout).strip()
    assert outer != inner
    done = await run(contained, f"grep NSpid /proc/{outer}/status")
    assert str(done.stdout).split()[-2:] == [outer, inner]
    done = await run(contained, f"{INSIDE}sh -c 'kill -0 {outer}'")
    assert done.exit_status != 0
    # The machine's programs are lent, not given.
    done = await run(contained, f"{INSIDE}touch /usr/bin/pdtui-was-here")
    assert "Read-only file system" in str(done.stderr)
    # One network.
    done = await run(contained, f"{INSIDE}readlink /proc/self/ns/net; readlink /proc/self/ns/net")
    assert len(set(str(done.stdout).split())) == 1


@pytest.mark.usefixtures("own_container")
async def test_the_engine_stops_freezes_and_replaces_it(contained: Simulation) -> None:
    async def status() -> str:
        done = await run(contained, "docker inspect -f '{{.State.Status}}' vllm-ascend")
        return str(done.stdout).strip()

    async def refusal() -> str:
        return str((await run(contained, INSIDE + "true")).stderr)

    await run(contained, INSIDE + "sh -c 'touch ~/layer; sleep 1000 >/dev/null 2>&1 & exit 0'")
    assert "Up 2 hours" in str((await run(contained, "docker ps")).stdout)
    await contained.fault("container node1 pause")
    assert await status() == "paused"
    assert "is paused" in await refusal()
    done = await run(contained, "ps -o stat= -p $(pgrep -fx 'sleep 1000')")
    assert str(done.stdout).startswith("T")
    await run(contained, "docker unpause vllm-ascend")
    assert await status() == "running"
    # Every process goes with it; its files stay until it is removed.
    await run(contained, "docker stop -t 0 vllm-ascend")
    assert await status() == "exited"
    assert "is not running" in await refusal()
    assert (await run(contained, "pgrep -fx 'sleep 1000'")).exit_status == 1
    await run(contained, "docker start vllm-ascend")
    assert (await run(contained, INSIDE + "sh -c 'cat ~/layer'")).exit_status == 0
    await contained.fault("container node1 remove")
    assert "No such container" in await refusal()
    await contained.fault("container node1 create no-state")
    assert (await run(contained, INSIDE + "sh -c 'cat ~/layer'")).exit_status == 1
    await run(contained, f"{INSIDE}sh -c 'mkdir -p {contained.state_dir}; touch {contained.state_dir}/inside'")
    assert (await run(contained, f"ls {contained.state_dir}/inside")).exit_status != 0
    await contained.fault("heal node1")
    assert (await run(contained, f"{INSIDE}ls {contained.state_dir}")).exit_status == 0
    await contained.fault("engine-down node1")
    assert "Is the docker daemon running?" in await refusal()
    with pytest.raises(SimulationError, match="already in use"):
        await contained.fault("container node1 create")


@pytest.mark.usefixtures("own_container")
@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("podman exec -i", "no such container"),
        ("nerdctl exec -i", "no such container"),
        ("ctr -n k8s.io tasks exec --exec-id one", "not found"),
    ],
)
async def test_other_engines(contained: Simulation, prefix: str, words: str) -> None:
    done = await run(contained, f"{prefix} vllm-ascend sh -c 'cat; hostname'", input="through\n")
    assert str(done.stdout).split() == ["through", contained.node("node1").machine.container_hostname]
    done = await run(contained, f"{prefix} other true")
    assert done.exit_status == 1
    assert words in str(done.stderr)


@pytest.mark.usefixtures("own_container")
async def test_the_host_knows_a_rank_inside_by_its_own_pids(contained: Simulation) -> None:
    """npu-smi lists the host's pids, the API is on the host's network, and a crash hits the right processes."""
    node = contained.node("node1")
    server = Server(contained, "node1", 7100, prefix=INSIDE)
    await server.start("--tensor-parallel-size", "2", devices="0,1")
    await server.ready()
    done = await run(contained, "npu-smi info -t proc-mem -i 0; npu-smi info -t proc-mem -i 1")
    outer = re.findall(r"Process id:(\d+)", str(done.stdout))
    assert len(outer) == 2
    for pid in outer:
        title = str((await run(contained, f"cat /proc/{pid}/comm")).stdout).strip()
        assert title.startswith("VLLM::Worker")
    (record,) = (node.folder / "run" / "vllm").iterdir()
    assert set(map(int, outer)) <= set(json.loads(record.read_text())["pids"])
    await contained.fault("crash node1:7100")

    async def gone() -> bool:
        # Nobody reaps the orphans of a container whose pid 1 does not.
        done = await run(contained, "ps -eo stat=,comm= | grep -v ^Z | grep '[V]LLM::'")
        return done.exit_status == 1

    await until(gone, "end of the rank in the container")
