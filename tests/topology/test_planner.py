"""Ranks, devices, ports, commands: arithmetic that can be checked by hand."""

from __future__ import annotations

import argparse
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.plan import PortUse, RankPlan
from pdtui.topology.planner import flag_words, make_plan
from pdtui.topology.ports import kv_ports
from pdtui.topology.versions import known_release, mooncake_of, release_of
from tests.topology.examples import changed, loaded, topology


def rank(name: str, *edits: tuple[str, str]) -> RankPlan:
    return make_plan(topology(*edits)).by_id[name]


def flag(rank: RankPlan, name: str) -> str:
    return rank.argv[rank.argv.index(f"--{name}") + 1]


def kv_config(rank: RankPlan) -> dict[str, object]:
    config: dict[str, object] = json.loads(flag(rank, "kv-transfer-config"))
    return config


def test_ranks_are_blocks_in_the_order_of_the_nodes() -> None:
    plan = make_plan(topology())
    assert [rank.id for rank in plan.ranks] == ["p/0", "p/1", *(f"d/{number}" for number in range(8))]
    assert [rank.node for rank in plan.of_group("d")] == ["n2"] * 4 + ["n3"] * 4
    assert [rank.local_rank for rank in plan.of_group("d")] == [0, 1, 2, 3] * 2
    assert [rank.api_port for rank in plan.of_group("d")] == [7100, 7101, 7102, 7103] * 2
    assert [rank.devices for rank in plan.on_node("n3")] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_uneven_ranks_and_chosen_devices() -> None:
    edits = (("kv_port: 14200", "kv_port: 14200, ranks: {n2: 2, n3: 6}, devices: {n2: [9, 3, 1, 15], n3: 2-13}"),)
    plan = make_plan(topology(*edits))
    assert [rank.node for rank in plan.of_group("d")] == ["n2"] * 2 + ["n3"] * 6
    assert plan.by_id["d/1"].devices == (1, 15)
    assert plan.by_id["d/2"].devices == (2, 3)
    assert plan.by_id["d/7"].env["ASCEND_RT_VISIBLE_DEVICES"] == "12,13"
    assert plan.by_id["d/7"].api_port == 7105


@pytest.mark.parametrize(
    ("connector", "version", "sizes", "expected"),
    [
        ("MooncakeConnectorV1", "0.22.1rc1", {}, range(14100 + 3 * 4, 14100 + 4 * 4)),
        ("MooncakeConnectorV1", "0.23.0", {"pp": 2}, range(14100 + 3 * 8, 14100 + 4 * 8)),
        ("MooncakeConnectorV1", "0.25.1rc1", {"pcp": 2}, range(14124, 14132)),
        ("MooncakeConnectorV1", "0.13.0", {"pp": 2}, range(14100 + 3 * 8, 14100 + 3 * 8 + 8)),
        ("MooncakeConnectorV1", "0.22.1", {"pp": 2, "pcp": 2}, range(14100 + 3 * 16, 14100 + 3 * 16 + 12)),
        ("MooncakeConnectorV1", "0.11.0", {"pp": 2}, range(14112, 14116)),
        ("MooncakeConnectorV1", "0.10.2rc1", {}, range(14104, 14108)),
        ("MooncakeHybridConnector", "0.22.1rc1", {}, range(14112, 14116)),
        ("MooncakeLayerwiseConnector", "0.22.1rc1", {}, range(14112, 14116)),
        ("MooncakeLayerwiseConnector", "0.11.0", {"pcp": 2}, range(14124, 14132)),
    ],
)
def test_kv_ports_by_connector_and_version(
    connector: str, version: str, sizes: dict[str, int], expected: range
) -> None:
    both = {"pp": 1, "pcp": 1, **sizes}
    ports = kv_ports(connector, known_release(version), 14100, dp_rank=3, local_rank=1, tp=4, **both)
    assert ports == tuple(expected)


@pytest.mark.parametrize(
    ("version", "mooncake"),
    [
        ("0.11.0", (0, 3, 7)),
        ("0.13.0", (0, 3, 7)),
        ("0.18.0", (0, 3, 9)),
        ("0.20.2rc1", (0, 3, 8)),
        ("0.22.1rc1", (0, 3, 9)),
        ("v0.23.0", (0, 3, 11)),
        ("main", (0, 3, 11)),
        ("7.0", (0, 3, 11)),
    ],
)
def test_mooncake_by_version(version: str, mooncake: tuple[int, int, int]) -> None:
    assert mooncake_of(known_release(version)) == mooncake


@pytest.mark.parametrize("text", ["", "0", "x", "0.22.x", "0.22.1.1.1.1", "9" * 5000, "0.22.1 ", "０.1.1x"])
def test_no_version(text: str) -> None:
    assert release_of(text) is None


def test_versions_in_every_form() -> None:
    assert release_of("0.22.1rc1") == release_of("v0.22.1") == release_of("0.22.1.post2+abc") == (0, 22, 1)
    assert release_of("0.23") == (0, 23, 0)


def test_both_sides_sizes_are_one_groups_not_the_sum() -> None:
    second = (
        "  d: {",
        "  q: {role: prefill, nodes: [n3], dp_size: 2, tp_size: 8, api_port: 1, rpc_port: 2, kv_port: 3}\n  d: {",
    )
    for name in ("p/0", "q/1", "d/7"):
        config = kv_config(rank(name, second))
        assert config["kv_connector_extra_config"] == {
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 8, "tp_size": 2},
        }


def test_kv_config_is_derived_and_extended() -> None:
    given = rank(
        "p/0",
        ("tp_size: 8", "tp_size: 4, pp_size: 2"),
        (
            "{connector: MooncakeConnectorV1}",
            "{connector: MooncakeConnectorV1, config: {kv_load_failure_policy: fail}, extra: {a: [1, {b: 2}]}}",
        ),
    )
    assert kv_config(given) == {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": "14000",
        "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 4, "pp_size": 2},
            "decode": {"dp_size": 8, "tp_size": 2},
            "a": [1, {"b": 2}],
        },
        "kv_load_failure_policy": "fail",
    }
    assert flag(given, "pipeline-parallel-size") == "2"
    assert given.devices == tuple(range(8))
    assert given.kv_ports == tuple(range(14000, 14008))


def test_dense_ranks_are_independent_instances() -> None:
    plan = make_plan(topology(("served_name: m", "served_name: m, kind: dense")))
    for number, one in enumerate(plan.of_group("d")):
        assert not [word for word in one.argv if word.startswith("--data-parallel")]
        assert kv_config(one)["kv_port"] == str(14200 + 2 * number)
        assert one.kv_ports == (14200 + 2 * number, 14201 + 2 * number)
        assert kv_config(one)["kv_connector_extra_config"] == {
            "prefill": {"dp_size": 1, "tp_size": 8},
            "decode": {"dp_size": 1, "tp_size": 2},
        }
    assert not [use for use in plan.ports if use.use == "rpc"]


def test_arguments_in_every_form() -> None:
    given = rank(
        "p/0",
        (
            "{enforce-eager: true}",
            """{a: true, b: false, c: {x: [1, true, null], "é": 1.50}, d: [one, 2, {y: 1}], e: {json: [1, 2]},
               f: 0.90, g: text with space, h: null, i: '{"z": 1}', j: -x, k: -1, l: -0.5, seed: 7}""",
        ),
    )
    words = list(given.argv[given.argv.index("--served-model-name") + 2 :])
    assert words[:-2] == [
        "--seed",
        "7",
        "--max-model-len",
        "4000",
        "--a",
        "--no-b",
        "--c",
        '{"x": [1, true, null], "é": 1.5}',
        "--d",
        "one",
        "2",
        '{"y": 1}',
        "--e",
        "[1, 2]",
        "--f",
        "0.90",
        "--g",
        "text with space",
        "--i",
        '{"z": 1}',
        "--j=-x",
        "--k",
        "-1",
        "--l",
        "-0.5",
    ]


@given(st.text(max_size=8))
def test_any_text_is_the_flags_value_for_argparse(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--chat-template")
    assert parser.parse_args(flag_words({"chat-template": text})).chat_template == text


def test_derived_values_can_be_overridden_and_removed() -> None:
    given = rank(
        "p/1",
        (
            "kv_port: 14000",
            "kv_port: 14000, args: {host: '::', port: null, tensor-parallel-size: 4}, dp_address: h",
        ),
        ("OMP_NUM_THREADS: 10", "HCCL_IF_IP: null, VLLM_HOST_IP: $POD_IP"),
    )
    assert flag(given, "host") == "::"
    assert "--port" not in given.argv
    assert flag(given, "tensor-parallel-size") == "4"
    assert given.argv.count("--tensor-parallel-size") == 1
    assert flag(given, "data-parallel-address") == "h"
    assert "HCCL_IF_IP" not in given.env
    assert given.env["VLLM_HOST_IP"] == "$POD_IP"


def test_secrets_by_reference_are_references_in_the_plan() -> None:
    assert rank("p/0", ("OMP_NUM_THREADS: 10", "A_TOKEN: {from_env: B}")).env["A_TOKEN"] == "${B}"


def test_digest_changes_with_command_and_environment_only() -> None:
    base = make_plan(topology()).by_id
    other = make_plan(topology(("seed: 1024", "seed: 1025"), ("port: 1999", "port: 2000"))).by_id
    env = make_plan(topology(("OMP_NUM_THREADS: 10", "OMP_NUM_THREADS: 11"))).by_id
    proxy = make_plan(topology(("port: 1999", "port: 2000"), ("name: small", "name: big"))).by_id
    assert len({rank.digest for rank in base.values()}) == len(base)
    assert all(base[name].digest != other[name].digest != env[name].digest for name in base)
    assert all(base[name].digest == proxy[name].digest for name in base)


def test_port_map_of_a_host() -> None:
    plan = make_plan(topology())
    assert [use for use in plan.ports if use.host == "192.0.2.1"] == [
        PortUse("192.0.2.1", 1999, 1999, "proxy", "proxy"),
        PortUse("192.0.2.1", 7100, 7100, "api", "p/0"),
        PortUse("192.0.2.1", 7101, 7101, "api", "p/1"),
        PortUse("192.0.2.1", 12321, 12321, "rpc", "p"),
        PortUse("192.0.2.1", 14000, 14007, "kv", "p/0"),
        PortUse("192.0.2.1", 14008, 14015, "kv", "p/1"),
        PortUse("192.0.2.1", 15000, 17000, "transfer-engine-rpc", "n1"),
        PortUse("192.0.2.1", 20000, 21599, "transfer-engine", "n1"),
        PortUse("192.0.2.1", 60000, 60016, "hccl", "n1"),
    ]
    assert [use.owner for use in plan.ports if use.use == "rpc"] == ["p", "d"]


@pytest.mark.parametrize("rpc_port", ["", "rpc_port: 12321, "])
def test_a_group_of_one_rank_has_no_data_parallel_flags(rpc_port: str) -> None:
    """vLLM refuses `--data-parallel-rank 0` with a size of 1: external load balancing needs more than one rank."""
    cluster = topology(
        (
            "dp_size: 2, tp_size: 8, api_port: 7100, rpc_port: 12321, ",
            f"dp_size: 1, tp_size: 8, api_port: 7100, {rpc_port}",
        )
    )
    plan = make_plan(cluster)
    assert not [word for word in plan.by_id["p/0"].argv if word.startswith("--data-parallel")]
    assert plan.by_id["p/0"].kv_ports == tuple(range(14000, 14008))
    assert [use.owner for use in plan.ports if use.use == "rpc"] == ["d"]
    assert kv_config(plan.by_id["d/0"])["kv_connector_extra_config"] == {
        "prefill": {"dp_size": 1, "tp_size": 8},
        "decode": {"dp_size": 8, "tp_size": 2},
    }


CLUSTERS = st.tuples(
    st.sampled_from(["a2", "a3", "cpu"]),
    st.sampled_from(["0.11.0", "0.13.0", "0.22.1rc1", "0.23.0"]),
    st.sampled_from(["MooncakeConnectorV1", "MooncakeLayerwiseConnector"]),
    st.sampled_from(["moe", "dense"]),
    st.lists(
        st.tuples(
            st.booleans(), st.integers(1, 3), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(1, 2)
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 3),
)


@settings(max_examples=120)
@given(CLUSTERS)
def test_any_plan_without_error_findings_shares_nothing(
    cluster: tuple[str, str, str, str, list[tuple[bool, int, int, int, int]], int],
) -> None:
    """All ranks once, no device and no exact port twice on a host, for whatever the rules let pass."""
    platform, version, connector, kind, groups, nodes = cluster
    engine = f"vllm_ascend: '{version}'"
    if platform == "cpu":
        engine, connector = "vllm: '0.32.0'", "NixlConnector"
    lines = [
        f"pdtui: 1\nname: any\nplatform: {platform}\n{engine}",
        f"model: {{path: /m, served_name: m, kind: {kind}}}\nkv: {{connector: {connector}}}\nnodes:",
        *(f"  n{number}: {{host: 192.0.2.{number}, nic: e}}" for number in range(1, nodes + 1)),
        "groups:",
    ]
    for index, (prefill, spread, dp_size, tp_size, pp_size) in enumerate(groups):
        on = [f"n{(index + offset) % nodes + 1}" for offset in range(min(spread, nodes))]
        lines.append(
            f"  g{index}: {{role: {'prefill' if prefill else 'decode'}, nodes: [{', '.join(on)}], "
            f"dp_size: {dp_size}, tp_size: {tp_size}, pp_size: {pp_size}, "
            f"api_port: {7000 + 8 * index}, rpc_port: {6000 + index}, kv_port: {14000 + 20 * index}}}"
        )
    result = loaded("\n".join(lines))
    assert result.topology is not None
    plan = make_plan(result.topology)
    assert len({rank.id for rank in plan.ranks}) == len(plan.ranks) == sum(group[2] for group in groups)
    if {finding.rule for finding in result.errors} & {"R05", "R06", "R11", "R13", "R33"}:
        return
    devices = [(rank.host, device) for rank in plan.ranks for device in rank.devices]
    assert len(devices) == len(set(devices))
    sizes = {name: group.npus_per_rank for name, group in result.topology.groups.items()}
    assert all(len(rank.devices) == (sizes[rank.group] if platform != "cpu" else 0) for rank in plan.ranks)
    ports = [
        (use.host, port)
        for use in plan.ports
        if use.use in {"api", "rpc", "kv", "proxy"}
        for port in range(use.first, use.last + 1)
    ]
    assert len(ports) == len(set(ports))
    if platform == "cpu":
        assert [rank.kv_ports for rank in plan.ranks] == [bound_side_channel(rank) for rank in plan.ranks]


def bound_side_channel(rank: RankPlan) -> tuple[int]:
    """Return the port that NixlConnector of vLLM 0.32 listens on: from the rank's own command and environment."""
    index = int(flag(rank, "data-parallel-rank")) if "--data-parallel-rank" in rank.argv else 0
    return (int(rank.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) + index,)


def test_plan_has_no_secret_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_THING", "hunter2")
    text = repr(
        make_plan(topology(("OMP_NUM_THREADS: 10", "A: {from_env: MY_SECRET_THING}, B: $MY_SECRET_THING")))
    )
    assert "hunter2" not in text
    assert re.search(r"\$\{MY_SECRET_THING\}", text)


def test_changed_refuses_edits_that_do_not_apply() -> None:
    with pytest.raises(AssertionError):
        changed(("not there", "x"))
