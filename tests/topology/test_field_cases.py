"""Configurations from the field, as topologies: no false alarm for what runs, no miss for what does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    model: str = "/m"

    def text(self) -> str:
        kv = f", {self.kv}" if self.kv else ""
        return "\n".join(
            [
                f"pdtui: 1\nname: case\nplatform: {self.platform}\nvllm_ascend: '{self.version}'",
                f"model: {{path: {self.model}, served_name: m, kind: {self.kind}}}",
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

SPECULATION = "speculative-config: {{method: mtp, num_speculative_tokens: {}}}"


def speculating(prefill: int, decode: int, *, prefill_more: str = "", decode_more: str = "") -> dict[str, str]:
    return {
        "prefill": f"{{args: {{{SPECULATION.format(prefill)}}}{prefill_more}}}",
        "decode": f"{{args: {{{SPECULATION.format(decode)}}}{decode_more}}}",
    }


VALID = {
    "rc03-glm-two-nodes-a-group": (
        Cluster(
            group("p", "prefill", "n0, n1", 4, 8, f"{API}, kv_port: 30000")
            + group("d", "decode", "n2, n3", 8, 4, f"{API}, kv_port: 30200"),
            version="main",
            kv="extra: {use_ascend_direct: true}",
            roles=speculating(
                3,
                3,
                prefill_more=", env: {HCCL_BUFFSIZE: 400, VLLM_ASCEND_ENABLE_FUSED_MC2: 1}",
                decode_more=", env: {HCCL_BUFFSIZE: 256}",
            ),
        ),
        {"R15", "R41"},
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
    "rc05-kimi-misplaced-key": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 30000", "kv: {config: {engine_id: '0'}}")
            + group("d", "decode", "n1", 4, 4, f"{API}, kv_port: 30100", "kv: {config: {engine_id: '1'}}"),
            nodes=2,
            kv="extra: {use_ascend_direct: true}",
            roles={
                "prefill": f"{{args: {{{SPECULATION.format(1)}}}}}",
                "decode": f"{{args: {{{SPECULATION.format(15)}, "
                "additional-config: {recompute_scheduler_enable: true, lmhead_tensor_parallel_size: 16}}}",
            },
        ),
        {"R15", "R39"},
    ),
    "rc06-deepseek-v4-one-rank-a-node": (
        Cluster(
            group("p", "prefill", "n0, n1", 2, 16, f"{API}, kv_port: 30100", "kv: {config: {engine_id: '1'}}")
            + group("d", "decode", "n2, n3", 2, 16, f"{API}, kv_port: 30800", "kv: {config: {engine_id: '8'}}"),
            connector="MooncakeHybridConnector",
            version="0.23.0",
            roles=speculating(1, 1),
        ),
        {"R15"},
    ),
    "rc22-misspelt-variable": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000")
            + group("d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"),
            nodes=2,
            roles={"decode": "{args: {gpu-memory-utilization: 0.96}, env: {HCCL_INTTRA_ROCE_ENABLE: 0}}"},
        ),
        {"R51", "R58"},
    ),
    "rc25-dense-1p1d-on-one-server": (
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
"""Name, with the sample's number where it is one -> the cluster, and all that is found."""

PAIR = group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000") + group(
    "d", "decode", "n1", 2, 8, f"{API}, kv_port: 14100"
)

INVALID = {
    "rc05-nested-where-it-does-not-divide": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 30000")
            + group("d", "decode", "n1", 4, 4, f"{API}, kv_port: 30100"),
            nodes=2,
            roles={
                "decode": "{args: {additional-config: {finegrained_tp_config: {lmhead_tensor_parallel_size: 16}}}}"
            },
        ),
        {"R38"},
    ),
    "rc08-dense-told-its-data-parallel-size": (
        Cluster(
            group("p", "prefill", "n0", 2, 2, "api_port: 7100, kv_port: 14000", "args: {data-parallel-size: 2}")
            + group("d", "decode", "n1", 2, 2, "api_port: 7100, kv_port: 14100"),
            nodes=2,
            kind="dense",
            version="0.18.0",
            kv="extra: {prefill: {dp_size: 2, tp_size: 2}}",
        ),
        {"T11", "R27"},
    ),
    "rc09-decode-told-another-tp": (
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
        {"R26"},
    ),
    "rc12-kv-port-in-the-transfer-engine": (
        Cluster(PAIR.replace("14000", "20002"), nodes=2),
        {"R14"},
    ),
    "rc13-kv-role-mistyped": (
        Cluster(PAIR.replace("14000", "14000, kv: {config: {kv_producer: kv_role}}"), nodes=2),
        {"R23"},
    ),
    "rc20-layerwise-with-a-hybrid-prefill": (
        Cluster(
            PAIR.replace("14000", "14000, kv: {connector: MooncakeHybridConnector}"),
            nodes=2,
            connector="MooncakeLayerwiseConnector",
        ),
        {"R31"},
    ),
    "rc21-balance-scheduling-in-pd": (
        Cluster(
            PAIR,
            nodes=2,
            version="0.18.0",
            roles={
                "prefill": "{env: {VLLM_ASCEND_BALANCE_SCHEDULING: 1, "
                "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT: 300000, HCCL_INTRA_ROCE_ENABLE: 1, HCCL_BUFFSIZE: 200}}"
            },
        ),
        {"R35", "R47", "R57"},
    ),
    "rc26-hybrid-model-guesses-unequally": (
        replace(Cluster(PAIR, nodes=2, roles=speculating(1, 3)), model="/m/Qwen3.5-397B"),
        {"R40"},
    ),
    "rc28-shared-npus": (
        Cluster(
            group("p", "prefill", "n0", 1, 2, "api_port: 9002, kv_port: 14000", "devices: [4, 5]")
            + group("d", "decode", "n0", 1, 2, "api_port: 9003, kv_port: 14100", "devices: [4, 5]"),
            nodes=1,
        ),
        {"R19", "R18"},
    ),
    "rc34-both-roles-on-the-same-ports": (
        Cluster(
            group("p", "prefill", "n0", 1, 8, f"{API}, kv_port: 14000", "devices: 0-7")
            + group("d", "decode", "n0", 1, 8, f"{API}, kv_port: 14000", "devices: 8-15"),
            nodes=1,
        ),
        {"R33", "R11", "R18"},
    ),
    "dp-size-left-at-one-node": (
        Cluster(
            group("p", "prefill", "n0", 2, 8, f"{API}, kv_port: 14000")
            + group("d", "decode", "n1, n2", 16, 1, f"{API}, kv_port: 14100", "ranks: {n1: 16, n2: 16}"),
            nodes=3,
        ),
        {"R02", "S24"},
    ),
}

ELSEWHERE = {
    "rc01": "test_guides.py: the sample file of the guide",
    "rc02": "importing/test_guides.py",
    **dict.fromkeys(("rc11", "rc15", "rc16", "rc17", "rc23", "rc30", "rc32", "rc36", "rc37"), "importing"),
}
"""Samples that a topology cannot show: scripts and raw JSON."""

SAMPLES = frozenset(
    [
        "rc01",
        "rc02",
        "rc03",
        "rc05",
        "rc06",
        "rc08",
        "rc09",
        "rc11",
        "rc12",
        "rc13",
        "rc15",
        "rc16",
        "rc17",
        "rc20",
        "rc21",
        "rc22",
        "rc23",
        "rc25",
        "rc26",
        "rc28",
        "rc30",
        "rc32",
        "rc34",
        "rc36",
        "rc37",
    ]
)
"""The collected configurations."""


@pytest.mark.parametrize("name", VALID)
def test_what_runs_in_the_field_has_no_errors(name: str) -> None:
    cluster, expected = VALID[name]
    findings = loaded(cluster.text()).findings
    assert {finding.rule for finding in findings} == expected, findings
    assert all(finding.severity is not Severity.ERROR for finding in findings)


@pytest.mark.parametrize("name", INVALID)
def test_what_failed_in_the_field_is_found_and_nothing_else(name: str) -> None:
    cluster, expected = INVALID[name]
    result = loaded(cluster.text())
    assert {finding.rule for finding in result.findings if finding.severity is not Severity.INFO} == expected
    assert result.errors


def test_no_sample_is_forgotten() -> None:
    here = {name.partition("-")[0] for name in (*VALID, *INVALID) if name.startswith("rc")}
    assert here | ELSEWHERE.keys() == SAMPLES
