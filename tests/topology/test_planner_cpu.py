"""Ranks of vLLM itself, without NPUs: the ports that it binds, and what it is told."""

from __future__ import annotations

import json

from pdtui.topology.planner import make_plan
from tests.topology.examples import cpu_topology
from tests.topology.test_planner import flag, kv_config

DENSE = ("path: ~/m, served_name: m", "path: ~/m, served_name: m, kind: dense")


def test_a_rank_binds_one_side_channel_whatever_its_size() -> None:
    """VLLM_NIXL_SIDE_CHANNEL_PORT is one for a group; vLLM adds the data parallel index and no tensor rank."""
    cluster = cpu_topology()
    plan = make_plan(cluster)
    assert [rank.kv_ports for rank in plan.of_group("p")] == [(14000,), (14001,)]
    assert {rank.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for rank in plan.of_group("p")} == {"14000"}
    assert [rank.kv_ports for rank in plan.of_group("d")] == [(14200,), (14201,), (14202,), (14203,)]
    assert [rank.node for rank in plan.of_group("d")] == ["n1", "n1", "n2", "n2"]
    assert {rank.devices for rank in plan.ranks} == {()}
    assert (cluster.has_npus, cluster.npus_per_node, cluster.engine) == (False, 0, "vllm 0.32.0")
    assert (cluster.vllm, cluster.vllm_ascend, cluster.flow.value) == ("0.32.0", "", "pull")
    p1 = plan.by_id["p/1"]
    assert (flag(p1, "data-parallel-size"), flag(p1, "data-parallel-rank")) == ("2", "1")
    assert (flag(p1, "data-parallel-address"), flag(p1, "data-parallel-rpc-port")) == ("192.0.2.1", "12321")


def test_independent_instances_have_a_side_channel_each() -> None:
    plan = make_plan(cpu_topology(DENSE))
    for number, rank in enumerate(plan.of_group("d")):
        assert rank.kv_ports == (14200 + number,)
        assert rank.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(14200 + number)
        assert not [word for word in rank.argv if word.startswith("--data-parallel")]
    assert not [use for use in plan.ports if use.use == "rpc"]


def test_environment_and_transfer_of_a_rank() -> None:
    rank = make_plan(cpu_topology()).by_id["d/3"]
    assert rank.env == {
        "VLLM_HOST_IP": "192.0.2.2",
        "GLOO_SOCKET_IFNAME": "eth0",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "192.0.2.2",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "14200",
        "OMP_NUM_THREADS": "1",
    }
    assert kv_config(rank) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_consumer",
        "kv_buffer_device": "cpu",
    }
    assert rank.argv[:3] == ("vllm", "serve", "~/m")
    assert flag(rank, "host") == "0.0.0.0"


def test_keys_of_the_file_reach_the_connector() -> None:
    kv = "{connector: NixlConnector, config: {engine_id: e1}, extra: {kv_lease_duration: 60}}"
    config = kv_config(make_plan(cpu_topology(("{connector: NixlConnector}", kv))).by_id["p/0"])
    assert (config["engine_id"], config["kv_role"]) == ("e1", "kv_producer")
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 60}


def test_port_map_has_only_ports_that_are_bound() -> None:
    plan = make_plan(cpu_topology())
    uses = [(use.host, use.first, use.last, use.use, use.owner) for use in plan.ports]
    assert uses == [
        ("192.0.2.1", 1999, 1999, "proxy", "proxy"),
        ("192.0.2.1", 7100, 7100, "api", "p/0"),
        ("192.0.2.1", 7101, 7101, "api", "p/1"),
        ("192.0.2.1", 7200, 7200, "api", "d/0"),
        ("192.0.2.1", 7201, 7201, "api", "d/1"),
        ("192.0.2.1", 12321, 12321, "rpc", "p"),
        ("192.0.2.1", 12322, 12322, "rpc", "d"),
        ("192.0.2.1", 14000, 14000, "kv", "p/0"),
        ("192.0.2.1", 14001, 14001, "kv", "p/1"),
        ("192.0.2.1", 14200, 14200, "kv", "d/0"),
        ("192.0.2.1", 14201, 14201, "kv", "d/1"),
        ("192.0.2.2", 7200, 7200, "api", "d/2"),
        ("192.0.2.2", 7201, 7201, "api", "d/3"),
        ("192.0.2.2", 14202, 14202, "kv", "d/2"),
        ("192.0.2.2", 14203, 14203, "kv", "d/3"),
    ]


def test_servers_of_a_laptop_listen_on_loopback_only() -> None:
    laptop = (
        ("n1: {host: 192.0.2.1, nic: eth0}", "n1: {host: local, address: 127.0.0.1, nic: lo}"),
        ("n2: {host: 192.0.2.2, nic: eth0}", "n2: {host: local, address: '::1', nic: lo}"),
    )
    plan = make_plan(cpu_topology(*laptop))
    assert [flag(plan.by_id[name], "host") for name in ("p/0", "d/3")] == ["127.0.0.1", "::1"]
    said = make_plan(cpu_topology(*laptop, ("seed: 1024", "host: 0.0.0.0"))).by_id["p/0"]
    assert flag(said, "host") == "0.0.0.0"
    assert said.argv.count("--host") == 1
    assert json.loads(flag(said, "kv-transfer-config"))["kv_connector"] == "NixlConnector"
