"""Plans of KV pools, of connectors that go through host memory, and of pipelines: commands and ports by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdtui.topology.compare import ranks_compared
from pdtui.topology.model import Flow
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan
from tests.topology.examples import changed, loaded, of_rule, topology

KV = "kv: {connector: MooncakeConnectorV1}"
POOL = "kv: {connector: MooncakeConnectorV1, stores: {AscendStoreConnector: {extra: {backend: memcache}}}}"
DENSE = ("served_name: m}", "served_name: m, kind: dense}")


def kv_config(rank: RankPlan) -> dict[str, Any]:
    found = json.loads(rank.argv[rank.argv.index("--kv-transfer-config") + 1])
    assert isinstance(found, dict)
    return found


def child(rank: RankPlan, index: int) -> dict[str, Any]:
    found = kv_config(rank)["kv_connector_extra_config"]["connectors"][index]
    assert isinstance(found, dict)
    return found


def test_a_pool_beside_the_connector_is_a_multi_connector() -> None:
    edits = (KV, POOL.replace("stores", "config: {kv_load_failure_policy: recompute, engine_id: e}, stores"))
    model = topology(edits)
    plan = make_plan(model)
    assert kv_config(plan.by_id["d/5"]) == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
        "engine_id": "e",
        "kv_connector_extra_config": {
            "connectors": [
                {
                    "kv_connector": "MooncakeConnectorV1",
                    "kv_role": "kv_consumer",
                    "kv_port": "14200",
                    "kv_connector_extra_config": {
                        "prefill": {"dp_size": 2, "tp_size": 8},
                        "decode": {"dp_size": 8, "tp_size": 2},
                    },
                },
                {
                    "kv_connector": "AscendStoreConnector",
                    "kv_role": "kv_consumer",
                    "kv_connector_extra_config": {"lookup_rpc_port": "14200", "backend": "memcache"},
                },
            ]
        },
    }
    assert model.flow is Flow.PULL
    assert model.connector == "MooncakeConnectorV1"
    assert model.transfer == "MooncakeConnectorV1 + AscendStoreConnector"
    assert plan.by_id["d/5"].kv_ports == (14210, 14211)
    assert {rank.env["PYTHONHASHSEED"] for rank in plan.ranks} == {"0"}


def test_without_a_pool_there_is_no_hash_seed() -> None:
    assert all("PYTHONHASHSEED" not in rank.env for rank in make_plan(topology()).ranks)


def test_the_flow_is_that_of_the_connector_not_of_the_pool() -> None:
    model = topology((KV, POOL.replace("MooncakeConnectorV1", "MooncakeLayerwiseConnector")))
    assert model.flow is Flow.LAYERWISE
    assert child(make_plan(model).by_id["p/0"], 0)["kv_connector"] == "MooncakeLayerwiseConnector"


def test_stores_merge_by_name_over_the_levels_and_null_leaves_one_out() -> None:
    model = topology(
        (KV, POOL),
        ("prefill: {args", "prefill: {kv: {stores: {AscendStoreConnector: {extra: {load_async: true}}}}, args"),
        ("decode: {args", "decode: {kv: {stores: {AscendStoreConnector: null}}, args"),
        ("tp_size: 8,", "tp_size: 8, kv: {stores: {UCMConnector: {config: {kv_role: kv_both}}}},"),
    )
    plan = make_plan(model)
    assert child(plan.by_id["p/1"], 1)["kv_connector_extra_config"] == {
        "lookup_rpc_port": "14000",
        "backend": "memcache",
        "load_async": True,
    }
    assert child(plan.by_id["p/1"], 2) == {"kv_connector": "UCMConnector", "kv_role": "kv_both"}
    assert kv_config(plan.by_id["d/0"])["kv_connector"] == "MooncakeConnectorV1"
    assert model.transfer == ("MooncakeConnectorV1 + AscendStoreConnector + UCMConnector, MooncakeConnectorV1")


def test_null_where_nothing_is_inherited_is_an_error() -> None:
    text = changed((KV, POOL.replace("{extra: {backend: memcache}}", "null")))
    (found,) = of_rule(loaded(text).findings, "F06")
    assert "write {}" in found.message
    assert found.path == "kv.stores.AscendStoreConnector"


def test_independent_instances_look_up_by_sockets_and_ports_of_their_own() -> None:
    plan = make_plan(topology((KV, POOL), DENSE))
    told = [child(rank, 1)["kv_connector_extra_config"]["lookup_rpc_port"] for rank in plan.of_group("d")]
    assert told == ["14200", "14202", "14204", "14206", "14208", "14210", "14212", "14214"]
    assert [child(rank, 0)["kv_port"] for rank in plan.of_group("d")] == told
    assert [rank.kv_ports for rank in plan.of_group("d")][:2] == [(14200, 14201), (14202, 14203)]


def test_the_old_name_of_the_lookup_port_is_not_joined_by_the_new_one() -> None:
    rank = make_plan(topology((KV, POOL.replace("backend: memcache", "mooncake_rpc_port: 3")))).ranks[0]
    assert child(rank, 1)["kv_connector_extra_config"] == {"mooncake_rpc_port": 3}


def test_what_follows_from_the_place_is_told_apart_from_what_is_written() -> None:
    model = topology((KV, POOL))
    plan = make_plan(model)
    changes = {change.name: change for change in ranks_compared(model, plan.by_id["p/0"], plan.by_id["d/0"])}
    lookup = [change for name, change in changes.items() if name.endswith("lookup_rpc_port")]
    assert all(change.by_position for change in lookup)


def test_through_host_memory() -> None:
    model = topology((KV, "kv: {connector: SfaRemoteD2HConnector}"), ("0.22.1rc1", "main"))
    assert model.flow is Flow.LAYERWISE
    rank = make_plan(model).by_id["d/3"]
    assert rank.kv_ports == (14206, 14207)
    assert kv_config(rank) == {
        "kv_connector": "SfaRemoteD2HConnector",
        "kv_role": "kv_consumer",
        "kv_port": "14200",
        "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 8, "tp_size": 2},
            "transfer_backend": "memfabric",
        },
    }


@pytest.mark.parametrize("layers", ["[31, 30]", '"31,30"', '"31, 30"'])
def test_a_pipeline_on_prefill_says_its_layers_once(layers: str) -> None:
    model = topology((KV, POOL), ("tp_size: 8,", f"tp_size: 4, pp_size: 2, pp_layer_partition: {layers},"))
    plan = make_plan(model)
    prefill = {"dp_size": 2, "tp_size": 4, "pp_size": 2, "pp_layer_partition": "31,30"}
    for name in ("p/1", "d/0"):
        assert child(plan.by_id[name], 0)["kv_connector_extra_config"]["prefill"] == prefill
        store = child(plan.by_id[name], 1)["kv_connector_extra_config"]
        assert (store["prefill_pp_size"], store["prefill_pp_layer_partition"]) == (2, "31,30")
    first = plan.by_id["p/1"]
    assert first.argv[first.argv.index("--pipeline-parallel-size") + 1] == "2"
    assert first.env["VLLM_PP_LAYER_PARTITION"] == "31,30"
    assert first.devices == tuple(range(8, 16))
    assert first.kv_ports == tuple(range(14008, 14016))
    assert "VLLM_PP_LAYER_PARTITION" not in plan.by_id["d/0"].env


@pytest.mark.parametrize("layers", ["0", "[1, x]", '"a"', "[]", "-1", "31.5", "[100000, 1]"])
def test_no_layers(layers: str) -> None:
    text = changed(("tp_size: 8,", f"tp_size: 4, pp_size: 2, pp_layer_partition: {layers},"))
    assert [finding.path for finding in of_rule(loaded(text).findings, "F06")] == ["groups.p.pp_layer_partition"]


def test_contexts_split_by_decode_take_no_npus_and_by_prefill_do() -> None:
    decode = make_plan(topology(("max-num-seqs: 40", "decode-context-parallel-size: 2"))).by_id["d/1"]
    assert (decode.devices, decode.kv_ports) == ((2, 3), (14202, 14203))
    edits = (("tp_size: 8,", "tp_size: 4,"), ("enforce-eager: true", "prefill-context-parallel-size: 2"))
    prefill = make_plan(topology(*edits, ("0.22.1rc1", "0.23.0"))).by_id["p/1"]
    assert (prefill.devices, prefill.kv_ports) == (tuple(range(8, 16)), tuple(range(14008, 14016)))


def test_a5_has_eight_npus_and_says_its_links_in_the_child() -> None:
    links = "extra: {ascend_local_comm_res_path: /etc/hixlep}"
    model = topology(
        ('platform: a3\nvllm_ascend: "0.22.1rc1"', 'platform: a5\nvllm_ascend: "0.23.0"'),
        (KV, POOL.replace("stores", f"{links}, stores")),
        ("tp_size: 8,", "tp_size: 4,"),
    )
    plan = make_plan(model)
    assert plan.by_id["p/1"].devices == (4, 5, 6, 7)
    assert [rank.node for rank in plan.of_group("d")] == ["n2"] * 4 + ["n3"] * 4
    extra = child(plan.by_id["p/0"], 0)["kv_connector_extra_config"]
    assert extra["ascend_local_comm_res_path"] == "/etc/hixlep"


def test_groups_that_share_a_node_have_npus_and_ports_of_their_own() -> None:
    model = topology(
        ("nodes: [n2, n3], dp_size: 8", "nodes: [n1, n3], dp_size: 8, ranks: {n1: 3, n3: 5}, devices: {n1: 8-13}"),
        ("tp_size: 8, api_port: 7100", "tp_size: 4, devices: 0-7, api_port: 7200"),
        ("rpc_port: 12321, kv_port: 14200", "rpc_port: 12322, kv_port: 14200"),
    )
    plan = make_plan(model)
    here = plan.on_node("n1")
    assert [rank.devices for rank in here] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9), (10, 11), (12, 13)]
    assert [rank.api_port for rank in here] == [7200, 7201, 7100, 7101, 7102]
    assert [rank.kv_ports[0] for rank in here] == [14000, 14004, 14200, 14202, 14204]
    assert [rank.devices for rank in plan.on_node("n3")][-1] == (8, 9)
    assert plan.by_id["d/3"].argv[plan.by_id["d/3"].argv.index("--data-parallel-address") + 1] == "192.0.2.1"
