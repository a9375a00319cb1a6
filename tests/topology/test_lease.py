"""How long a prefill rank keeps blocks, as connector, version and file say it."""

from __future__ import annotations

import pytest

from pdtui.topology.lease import kv_lease, shortest_kv_lease
from tests.topology.examples import cpu_topology, topology

MOONCAKE = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
NIXL = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"


@pytest.mark.parametrize(
    ("version", "variable", "said", "seconds"),
    [
        ("0.22.1rc1", MOONCAKE, "120", 120.0),
        ("0.18.0", MOONCAKE, "120", 120.0),
        ("0.18.0", NIXL, "120", 480.0),
        ("0.17.0", NIXL, "120", 120.0),
        ("0.17.0", MOONCAKE, "120", 480.0),
        ("main", MOONCAKE, "0", 480.0),
        ("main", MOONCAKE, "$FROM_NODE", 480.0),
        ("main", MOONCAKE, "null", 480.0),
        ("main", "OTHER", "1", 480.0),
    ],
)
def test_mooncake_keeps_blocks_by_a_variable_whose_name_depends_on_the_version(
    version: str, variable: str, said: str, seconds: float
) -> None:
    cluster = topology(
        ('"0.22.1rc1"', f'"{version}"'), ("kv_port: 14000", f"kv_port: 14000, env: {{{variable}: {said}}}")
    )
    assert kv_lease(cluster, cluster.groups["p"]) == seconds
    assert shortest_kv_lease(cluster) == seconds


@pytest.mark.parametrize(
    ("said", "seconds"), [("12", 12.0), ("7.5", 7.5), ("-1", 30.0), ("true", 30.0), ("x", 30.0)]
)
def test_nixl_keeps_blocks_by_a_key_of_the_prefill_group(said: str, seconds: float) -> None:
    extra = f"kv: {{extra: {{kv_lease_duration: {said}}}}}"
    cluster = cpu_topology(("kv_port: 14000", f"kv_port: 14000, {extra}"))
    assert kv_lease(cluster, cluster.groups["p"]) == shortest_kv_lease(cluster) == seconds
    other = cpu_topology(("kv_port: 14200", f"kv_port: 14200, {extra}"))
    assert shortest_kv_lease(other) == 30.0, "decode ranks give no lease"


def test_variables_of_mooncake_do_not_count_without_npus() -> None:
    assert shortest_kv_lease(cpu_topology(("OMP_NUM_THREADS: 1", f"{MOONCAKE}: 5, {NIXL}: 6"))) == 30.0


def test_the_shortest_of_several_prefill_groups_counts() -> None:
    more = "{role: prefill, nodes: [n3], dp_size: 2, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000"
    cluster = topology(
        ("proxy:", f"  q: {more}, env: {{{MOONCAKE}: 90}}}}\nproxy:"), ("OMP_NUM_THREADS: 10", f"{MOONCAKE}: 600")
    )
    assert [kv_lease(cluster, cluster.groups[name]) for name in ("p", "q")] == [600.0, 90.0]
    assert shortest_kv_lease(cluster) == 90.0


def test_without_a_prefill_group_the_connectors_default_counts() -> None:
    assert shortest_kv_lease(topology(("{role: prefill", "{role: decode"))) == 480.0
