"""The file that the simulator writes in place of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pdtui.errors import FileError, SimulationError
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from tests.sim.support import CLUSTER


def changed(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "changed.yaml"
    text = CLUSTER.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


async def test_nodes_ssh_and_paths_are_replaced(simulation: Simulation) -> None:
    topology = load_checked(simulation.topology_path)
    for name, node in simulation.nodes.items():
        assert topology.nodes[name].host == topology.nodes[name].address == node.machine.address
        assert topology.nodes[name].ssh.port == node.ssh.port
        assert topology.nodes[name].ssh.jump is None
        assert topology.nodes[name].ssh.key == simulation.root / "ssh" / "id_ed25519"
        assert topology.nodes[name].nic == "lo"
    assert Path(topology.model.path).is_dir()
    assert Path(topology.model.path).name == "DeepSeek-r1_w8a8_mtp"
    assert all(Path(script).is_file() for script in topology.runtime.setup)
    assert topology.proxy is not None
    assert topology.proxy.advertise == simulation.node("node1").machine.address


async def test_text_of_the_environment_survives(simulation: Simulation) -> None:
    tree = yaml.compose(simulation.topology_path.read_text(encoding="utf-8"))
    env = load_checked(simulation.topology_path).groups["d"].env
    assert isinstance(tree, yaml.MappingNode)
    assert [env[name] for name in ("OMP_PROC_BIND", "UNTYPED", "WORD")] == ["false", "010", "True"]
    assert env["LD_LIBRARY_PATH"] == {"prepend": "/opt/mooncake"}
    assert env["HCCL_BUFFSIZE"] == "600"


async def test_what_else_was_written_stays(simulation: Simulation) -> None:
    before, after = load_checked(CLUSTER), load_checked(simulation.topology_path)
    for name, group in before.groups.items():
        new = after.groups[name]
        assert (new.dp_size, new.tp_size, new.api_port, new.rpc_port, new.kv_port, new.args) == (
            group.dp_size,
            group.tp_size,
            group.api_port,
            group.rpc_port,
            group.kv_port,
            group.args,
        )


@pytest.mark.parametrize("connector", ["MooncakeLayerwiseConnector", "SfaRemoteD2HConnector"])
def test_layerwise_comes_later(tmp_path: Path, connector: str) -> None:
    with pytest.raises(SimulationError, match=r"layerwise.*comes later"):
        Simulation(changed(tmp_path, "MooncakeConnectorV1", connector))


@pytest.mark.parametrize("platform", ["a5", "a9"])
def test_other_platforms_come_later(tmp_path: Path, platform: str) -> None:
    with pytest.raises(SimulationError, match=rf"{platform}.*comes later"):
        Simulation(changed(tmp_path, "platform: a3", f"platform: {platform}"))


@pytest.mark.parametrize("text", ["- a list\n", "nodes: [1\n", "name: x\n"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"bad\.yaml"):
        Simulation(path)


async def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(SimulationError, match="not empty"):
        async with Simulation(CLUSTER, tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


async def test_an_own_folder_is_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with Simulation(CLUSTER, tmp_path) as simulation:
            assert simulation.topology_path.is_file()
    assert simulation.topology_path.is_file()
