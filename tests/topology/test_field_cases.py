"""Configurations from the field, as topologies: no false alarm for what runs, no miss for what does not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pdtui.topology.findings import Severity
from tests.topology.examples import loaded


@dataclass(frozen=True)
class Cluster:
    """What differs between the cases."""

    groups: str
    nodes: int = 4
    platform: str = "a3"
    connector: str = "MooncakeConnectorV1"
    kv: str = ""
    kind: str = "moe"
    version: str = "0.22.1rc1"
    roles: dict[str, str] = field(default_factory=dict)
    proxy_port: int = 1999

    def text(self) -> str:
        kv = f", {self.kv}" if self.kv else ""
        return "\n".join(
            [
                f"pdtui: 1\nname: case\nplatform: {self.platform}\nvllm_ascend: '{self.version}'",
                f"model: {{path: /m, served_name: m, kind: {self.kind}}}",
                f"kv: {{connector: {self.connector}{kv}}}\nnodes:",
                *(f"  n{number}: {{host: 192.0.2.{10 + number}, nic: eth0}}" for number in range(self.nodes)),
                "roles:" if self.roles else "",
                *(f"  {role}: {text}" for role, text in self.roles.items()),
                "groups:",
                self.groups,
                f"proxy: {{node: n0, listen: 0.0.0.0, port: {self.proxy_port}}}",
            ]
        )


def group(name: str, role: str, nodes: str, dp_size: int, tp_size: int, ports: str, more: str = "") -> str:
    return (
        f"  {name}: {{role: {role}, nodes: [{nodes}], dp_size: {dp_size}, tp_size: {tp_size}, {ports}"
        f"{', ' if more else ''}{more}}}\n"
    )


API = "api_port: 7100, rpc_port: 13321"

VALID = {
    "glm-two-nodes-a-group": (
        Cluster(
            group("p", "prefill", "n0, n1", 4, 8, f"{API}, kv_port: 30000")
            + group("d", "decode", "n2, n3", 8, 4, f"{API}, kv_port: 30200"),
            version="main",
            kv="extra: {use_ascend_direct: true}",
            roles={
                "prefill": "{env: {HCCL_BUFFSIZE: 400, VLLM_ASCEND_ENABLE_FUSED_MC2: 1}}",
                "decode": "{env: {HCCL_BUFFSIZE: 256}}",
            },
        ),
        {"R15"},
    ),
    "kimi-one-node-a-role": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 30000")
            + group("d", "decode", "n1", 4, 4, f"{API}, kv_port: 30100"),
            nodes=2,
            roles={"decode": "{args: {additional-config: {recompute_scheduler_enable: true}}}"},
        ),
        {"R15"},
    ),
    "deepseek-v4-one-rank-a-node": (
        Cluster(
            group("p", "prefill", "n0, n1", 2, 16, f"{API}, kv_port: 30100", "kv: {config: {engine_id: '1'}}")
            + group("d", "decode", "n2, n3", 2, 16, f"{API}, kv_port: 30800", "kv: {config: {engine_id: '8'}}"),
            connector="MooncakeHybridConnector",
            version="0.23.0",
        ),
        {"R15"},
    ),
    "dense-1p1d-on-one-server": (
        Cluster(
            group("p", "prefill", "n0", 1, 1, "api_port: 13700, kv_port: 30000", "devices: [0]")
            + group("d", "decode", "n0", 1, 1, "api_port: 13701, kv_port: 30100", "devices: [1]"),
            nodes=1,
            platform="a2",
            kind="dense",
            proxy_port=8080,
        ),
        set[str](),
    ),
    "a2-two-servers": (
        Cluster(
            group("p", "prefill", "n0", 2, 4, f"{API}, kv_port: 28000")
            + group("d", "decode", "n1", 8, 1, f"{API}, kv_port: 28100"),
            nodes=2,
            platform="a2",
            version="0.13.0",
        ),
        set[str](),
    ),
    "pipeline-on-prefill": (
        Cluster(
            group("p", "prefill", "n0", 1, 8, f"{API}, kv_port: 14000", "pp_size: 2")
            + group("d", "decode", "n1", 16, 1, f"{API}, kv_port: 14100"),
            nodes=2,
            roles={"decode": "{args: {enable-expert-parallel: true}, env: {HCCL_BUFFSIZE: 512}}"},
        ),
        set[str](),
    ),
}

INVALID = {
    "dense-with-data-parallel-flags": (
        Cluster(
            group("p", "prefill", "n0", 2, 2, "api_port: 7100, kv_port: 14000", "args: {data-parallel-size: 2}")
            + group("d", "decode", "n1", 2, 2, "api_port: 7100, kv_port: 14100"),
            nodes=2,
            kind="dense",
        ),
        "T11",
    ),
    "decode-told-another-tp": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000")
            + group(
                "d",
                "decode",
                "n1",
                4,
                4,
                f"{API}, kv_port: 14100",
                "kv: {extra: {decode: {dp_size: 4, tp_size: 8}}}",
            ),
            nodes=2,
        ),
        "R26",
    ),
    "kv-port-in-the-transfer-engine": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 20002")
            + group("d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"),
            nodes=2,
        ),
        "R14",
    ),
    "kv-role-mistyped": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000", "kv: {config: {kv_producer: kv_role}}")
            + group("d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"),
            nodes=2,
        ),
        "R23",
    ),
    "layerwise-with-a-hybrid-prefill": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000", "kv: {connector: MooncakeHybridConnector}")
            + group("d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"),
            nodes=2,
            connector="MooncakeLayerwiseConnector",
        ),
        "R31",
    ),
    "balance-scheduling-in-pd": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000")
            + group("d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"),
            nodes=2,
            roles={
                "prefill": "{args: {additional-config: {scheduler_config: {enable_balance_scheduling: true}}}}"
            },
        ),
        "R35",
    ),
    "both-roles-on-the-same-ports": (
        Cluster(
            group("p", "prefill", "n0", 1, 8, f"{API}, kv_port: 14000", "devices: 0-7")
            + group("d", "decode", "n0", 1, 8, f"{API}, kv_port: 14000", "devices: 8-15"),
            nodes=1,
        ),
        "R33",
    ),
    "dp-size-left-at-one-node": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000")
            + group("d", "decode", "n1, n2", 16, 1, f"{API}, kv_port: 14100", "ranks: {n1: 16, n2: 16}"),
            nodes=3,
        ),
        "R02",
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_what_runs_in_the_field_has_no_errors(name: str) -> None:
    cluster, expected = VALID[name]
    findings = loaded(cluster.text()).findings
    assert {finding.rule for finding in findings} == expected, findings
    assert all(finding.severity is not Severity.ERROR for finding in findings)


@pytest.mark.parametrize("name", INVALID)
def test_what_failed_in_the_field_is_found(name: str) -> None:
    cluster, rule = INVALID[name]
    assert rule in {finding.rule for finding in loaded(cluster.text()).errors}
