"""MultiConnector in scripts: what carries KV, what keeps it, and what follows from both."""

from __future__ import annotations

from typing import Any

import pytest

from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source
from pdtui.topology.planner import make_plan
from tests.topology.examples import loaded, topology
from tests.topology.test_planner_stores import DENSE, KV, POOL, child, kv_config
from tests.topology.test_roundtrip import imported, same_plan

SCRIPT = """\
#!/bin/bash
export PYTHONHASHSEED=0
export MOONCAKE_CONFIG_PATH="/etc/mooncake.json"
export HCCL_IF_IP=HOST
export GLOO_SOCKET_IFNAME=eth0
export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
KV_CONFIG='{
  "kv_connector": "MultiConnector",
  "kv_role": "ROLE",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {
    "connectors": [
      {"kv_connector": "AscendStoreConnector", "kv_role": "ROLE",
       "kv_connector_extra_config": {"backend": "mooncake", "lookup_rpc_port": "LOOKUP"}},
      {"kv_connector": "MooncakeConnectorV1", "kv_role": "ROLE", "kv_port": "PORT",
       "kv_load_failure_policy": "fail",
       "kv_connector_extra_config": {
         "prefill": {"dp_size": 1, "tp_size": 8}, "decode": {"dp_size": 1, "tp_size": 8}}}
    ]
  }
}'
vllm serve /models/Qwen3-32B --host 0.0.0.0 --port 8100 --served-model-name q --tensor-parallel-size 8 \\
  --kv-transfer-config "$KV_CONFIG"
"""


def script(role: str, host: str, port: str, lookup: str) -> Source:
    text = SCRIPT
    for name, value in (("ROLE", role), ("HOST", host), ("PORT", port), ("LOOKUP", lookup)):
        text = text.replace(name, value)
    return Source(f"{host}.sh", text.encode(), host)


def draft_of(*sources: Source) -> Draft:
    wanted = Wanted(name="pool", platform="a2", vllm_ascend="0.23.0")
    seen, notes = read(sources, wanted)
    return assemble(seen, wanted, notes)


def test_the_documents_own_scripts() -> None:
    draft = draft_of(
        script("kv_producer", "192.0.2.1", "14000", "0"), script("kv_consumer", "192.0.2.2", "14100", "14100")
    )
    result = loaded(draft.text)
    assert result.topology is not None, (draft.text, result.findings)
    assert not result.errors, (draft.text, result.errors)
    first, second = make_plan(result.topology).ranks
    assert (first.kv_ports[0], second.kv_ports[0]) == (14000, 14100)
    assert kv_config(first)["kv_load_failure_policy"] == "recompute"
    store: dict[str, Any] = {"lookup_rpc_port": "0", "backend": "mooncake"}
    assert child(first, 1)["kv_connector_extra_config"] == store
    assert child(second, 1)["kv_connector_extra_config"] == store | {"lookup_rpc_port": "14100"}
    assert "PYTHONHASHSEED" not in draft.text
    assert draft.text.count("MooncakeConnectorV1") == draft.text.count("backend") == 1, draft.text


@pytest.mark.parametrize(
    "edits",
    [
        ((KV, POOL),),
        ((KV, POOL), DENSE),
        ((KV, POOL), ("tp_size: 8,", "tp_size: 4, pp_size: 2, pp_layer_partition: [31, 30],")),
        ((KV, POOL.replace("{extra: {backend: memcache}}", "{config: {kv_role: kv_both}}, UCMConnector: {}")),),
        ((KV, "kv: {connector: SfaRemoteD2HConnector}"), ("0.22.1rc1", "main"),
         ("max-num-seqs: 40", "additional-config: {sparse_kv_offload_config: {enabled: true}}")),
        (("decode: {args", f"decode: {{{POOL.replace('connector: MooncakeConnectorV1, ', '')}, args"),),
    ],
)  # fmt: skip
def test_what_is_rendered_comes_back(edits: tuple[tuple[str, str], ...]) -> None:
    before = topology(*edits)
    after, draft = imported(before)
    same_plan(before, after)
    assert "lookup_rpc_port" not in draft.text
    assert "PYTHONHASHSEED" not in draft.text
    assert "{dp_size: 2, tp_size" not in draft.text


def test_instances_of_a_group_get_lookup_ports_of_their_own() -> None:
    first = script("kv_producer", "192.0.2.1", "14000", "0")
    both = first.data.decode().replace("DEVICES=0,1,2,3,4,5,6,7", "DEVICES=0,1,2,3")
    both = both.replace('"tp_size": 8', '"tp_size": 4').replace("parallel-size 8", "parallel-size 4")
    other = both.replace("DEVICES=0,1,2,3", "DEVICES=4,5,6,7").replace("--port 8100", "--port 8101")
    other = other.replace('"lookup_rpc_port": "0"', '"lookup_rpc_port": "1"').replace('"14000"', '"14004"')
    draft = draft_of(
        Source("a.sh", both.encode(), "192.0.2.1"),
        Source("b.sh", other.encode(), "192.0.2.1"),
        script("kv_consumer", "192.0.2.2", "14100", "2"),
    )
    assert draft.text.count("lookup_rpc_port") == 1, draft.text
    assert any("lookup_rpc_port differs between ranks" in note.message for note in draft.notes), draft.notes
