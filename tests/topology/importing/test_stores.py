"""MultiConnector taken apart: what carries KV, what keeps it, and what no topology can say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.topology.importing.stores import connector_of, take_apart

CARRIER = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer", "kv_port": "30000"}
STORE = {
    "kv_connector": "AscendStoreConnector",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"backend": "memcache", "lookup_rpc_port": 30000},
}


def multi(*children: Any, **top: Any) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        **top,
        "kv_connector_extra_config": {"connectors": list(children)},
    }


def test_one_carries_and_the_others_are_stores() -> None:
    extra = {"kv_connector_extra_config": {"prefill": {"dp_size": 1, "tp_size": 8}}}
    apart = take_apart(multi(CARRIER | extra, STORE, kv_load_failure_policy="recompute", kv_port="1"))
    assert apart.config == CARRIER | extra | {"kv_load_failure_policy": "recompute"}
    assert apart.stores == {"AscendStoreConnector": {"extra": {"backend": "memcache"}}}
    assert not apart.odd


def test_a_lookup_port_of_its_own_and_another_role_are_kept() -> None:
    own = STORE | {"kv_role": "kv_both", "kv_connector_extra_config": {"lookup_rpc_port": "0"}}
    apart = take_apart(multi(CARRIER, own | {"kv_connector": "MooncakeConnectorStoreV1"}))
    said = {"config": {"kv_role": "kv_both"}, "extra": {"lookup_rpc_port": "0"}}
    assert apart.stores == {"AscendStoreConnector": said}


def test_what_no_topology_can_say_is_named() -> None:
    odd = take_apart(multi(STORE, CARRIER | {"engine_id": "0"}, CARRIER, {"kv_connector": "Mine"})).odd
    assert odd == [
        "`engine_id` of MooncakeConnectorV1",
        "MooncakeConnectorV1",
        "Mine",
        "the order: MooncakeConnectorV1 comes first",
    ]


@pytest.mark.parametrize("found", [CARRIER, multi(STORE), multi(), {"kv_connector": "MultiConnector"}, {}])
def test_what_carries_nothing_is_left_as_it_is(found: dict[str, Any]) -> None:
    apart = take_apart(found)
    assert (apart.config, apart.stores, apart.odd) == (found, {}, ())
    assert connector_of(found) == found.get("kv_connector", "")


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*STORE, "kv_port", "x"]), ANY), ANY, ANY)
def test_no_value_is_too_strange(child: dict[str, Any], other: Any, extra: Any) -> None:
    take_apart(multi(CARRIER, child, other))
    take_apart(multi(child, other, kv_connector="MultiConnector") | {"kv_connector_extra_config": extra})
    assert connector_of(other) == (str(other.get("kv_connector") or "") if isinstance(other, dict) else "")
