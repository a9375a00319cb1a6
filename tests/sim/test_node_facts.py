"""What is installed on a simulated node and where its ranks run, and how that can be made to go wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.assets import asset_dir
from pdtui.errors import UsageError
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.sim.support import CLUSTER, FAST, run
from tests.support.required import skip_unless

INSIDE = "docker exec -i vllm-ascend "
RUNTIME = """\
runtime:
  container: vllm-ascend
  image: quay.io/ascend/vllm-ascend:v0.23.0
  shm_size: 2g
  mounts:
    - /etc/hccn.conf:/etc/hccn.conf
    - /usr/local/bin/npu-smi:/usr/local/bin/npu-smi
    - /usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info
"""


@pytest.fixture
async def contained(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A simulation whose ranks run in containers with the mounts of the guides."""
    path = tmp_path / "contained.yaml"
    path.write_text(CLUSTER.read_text(encoding="utf-8").replace("runtime:\n", RUNTIME), encoding="utf-8")
    async with Simulation(path, tmp_path / "sim", speed=FAST) as simulation:
        refused = {node.container_refused for node in simulation.nodes.values()} - {""}
        skip_unless(not refused, f"no container of its own: {', '.join(refused)}")
        yield simulation


async def inside(simulation: Simulation, command: str) -> list[str]:
    """Return the lines that a command prints where ranks of node1 run, stderr among them."""
    done = await run(simulation, f"{INSIDE}bash -ic '{command}' 2>&1 | grep -v 'job control\\|process group'")
    return [line.strip() for line in str(done.stdout).splitlines()]


PYTHON = 'python3 -c "import importlib.metadata as m, {0}; print(*(m.version(n) for n in ({1},)))"'
FACTS = "; ".join(
    (
        "head -1 /usr/local/Ascend/driver/version.info",
        "grep ^version= $ASCEND_HOME_PATH/*/ascend_toolkit_install.info",
        PYTHON.format("mooncake.engine", '\\"vllm\\", \\"vllm-ascend\\", \\"mooncake-transfer-engine-npu\\"'),
        "ls /dev | grep -c davinci",
        "test -c /dev/davinci15 && grep -c ^address_ /etc/hccn.conf",
        "df --output=size -B 1M /dev/shm | tail -1",
        "head -1 $(command -v vllm)",
        "cat /proc/sys/net/ipv4/ip_local_reserved_ports",
        "echo proxy $http_proxy",
    )
)
WELL = [
    "Version=25.5.1",
    "version=9.1.0",
    "0.23.0+empty 0.23.0 0.3.11.post1",
    "17",
    "16",
    "2048",
    "#!/usr/local/bin/python3 -ISB",
    "60000-60063",
    "proxy",
]


@pytest.mark.slow
async def test_a_container_holds_what_images_hold_and_all_of_it_can_go_wrong(contained: Simulation) -> None:
    assert await inside(contained, FACTS) == WELL
    (docker,) = json.loads(str((await run(contained, "docker inspect vllm-ascend")).stdout))
    assert docker["HostConfig"]["NetworkMode"] == "host"
    assert docker["HostConfig"]["ShmSize"] == 2 << 30
    assert docker["Config"]["Image"] == "quay.io/ascend/vllm-ascend:v0.23.0"
    assert {"/etc/hccn.conf", str(contained.state_dir)} <= {mount["Destination"] for mount in docker["Mounts"]}
    for spec in (
        "version node1 driver 24.1.0",
        "version node1 cann 8.5.1",
        "version node1 vllm 0.22.1",
        "no-mooncake node1 broken",
        "device node1 davinci3 off",
        "unmounted node1 /etc/hccn.conf",
        "shm node1 64m",
        "proxy-env node1 http://10.0.0.1:3128",
        "ephemeral node1 7000-61000",
        "disk node1 5",
        "model node1 missing",
        "network node1 bridge",
        "conf node1 garble",
        "slow-tools node1 0.01",
    ):
        await contained.fault(spec)
    wrong = await inside(contained, FACTS)
    assert wrong[:2] == ["Version=24.1.0", "version=8.5.1"]
    assert (
        "ImportError: libascend_transport_mem.so: cannot open shared object file: No such file or directory"
        in wrong
    )
    assert wrong[-6:] == [
        "16",
        "grep: /etc/hccn.conf: No such file or directory",
        "64",
        "#!/usr/local/bin/python3 -ISB",
        "",
        "proxy http://10.0.0.1:3128",
    ]
    free = await inside(
        contained, f"df --output=avail -B 1M {contained.state_dir} | tail -1; ls {contained.root}/shared/models"
    )
    assert int(free[0]) <= 6
    assert len(free) == 1
    (docker,) = json.loads(str((await run(contained, "docker inspect vllm-ascend")).stdout))
    assert docker["HostConfig"]["NetworkMode"] == "bridge"
    assert "/etc/hccn.conf" not in {mount["Destination"] for mount in docker["Mounts"]}
    await contained.fault("heal all")
    assert await inside(contained, FACTS) == WELL
    assert await inside(contained, f"ls {contained.root}/shared/models") == ["DeepSeek-r1_w8a8_mtp"]


TRY = """python3 -S -c "import socket
try: socket.create_connection((\\"{0}\\", {1}), timeout=0.2); print(\\"reached\\")
except OSError as error: print(type(error).__name__)" """


@pytest.mark.slow
async def test_a_node_sees_its_own_clock_and_its_own_network(simulation: Simulation, namespaces: None) -> None:
    two = simulation.node("node2")
    reach = TRY.format(two.machine.address, two.ssh.port)
    seen = "date +%s; python3 -c 'import time; print(int(time.time()))'; ulimit -n; " + reach

    async def look() -> list[str]:
        return str((await run(simulation, seen)).stdout).split()

    began, own, files, reached = await look()
    assert abs(int(own) - int(began)) < 30
    assert reached == "reached"
    for spec in ("clock node1 -600", "ulimit node1 512", "unreachable node1 node2", "listen node1 7777"):
        await simulation.fault(spec)
    began, own, soft, reached = await look()
    assert 570 < int(began) - int(own) < 630
    assert (soft, reached) == ("512", "TimeoutError")
    taken = TRY.format(simulation.node("node1").machine.address, 7777)
    assert (await run(simulation, taken)).stdout == "reached\n"
    await simulation.fault("heal node1")
    began, own, soft, reached = await look()
    assert abs(int(own) - int(began)) < 30
    assert (soft, reached) == (files, "reached")
    assert (await run(simulation, taken)).stdout == "ConnectionRefusedError\n"


async def test_hosts_without_namespaces_have_their_files_below_the_view(tmp_path: Path) -> None:
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST, isolate=False) as simulation:
        await simulation.fault("version node2 driver 24.1.0")
        await simulation.fault("ephemeral node2 7000-61000")
        view = (
            'cd "$PDTUI_ROOT_VIEW" && head -1 usr/local/Ascend/driver/version.info && test -c dev/davinci15'
            " && cat proc/sys/net/ipv4/ip_local_port_range && head -1 etc/hccn.conf"
        )
        assert str((await run(simulation, view)).stdout).splitlines()[0] == "Version=25.5.1"
        first, second, third = str((await run(simulation, view, "node2")).stdout).splitlines()
        assert (first, second) == ("Version=24.1.0", "7000\t61000")
        assert third.startswith("address_0=")
        for spec in ("shm node1 64m", "disk node1 5", "model node1 missing"):
            with pytest.raises(UsageError, match="no namespaces"):
                await simulation.fault(spec)


async def test_an_a2_sample_has_eight_npus_a_server(tmp_path: Path) -> None:
    sample = asset_dir("sample_configs") / "a2-1p1d.yaml"
    async with Simulation(sample, tmp_path / "sim", speed=FAST) as simulation:
        assert [rank.node for rank in make_plan(load_checked(simulation.topology_path)).ranks] == [
            *("node1", "node1"),
            *("node2", "node2"),
        ]
        other = simulation.node("node2").npus.get(7, "ip")
        done = await run(simulation, f"npu-smi info | grep -c 910B3; hccn_tool -i 0 -ping -g address {other}")
        count, *_, statistics = str(done.stdout).splitlines()
        assert (count, statistics) == ("8", "3 packets transmitted, 3 received, 0.00% packet loss")
