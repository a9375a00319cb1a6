"""Rules of groups, ranks and NPUs: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

AUTO = ("env: {OMP_NUM_THREADS: 10}", "env: {OMP_NUM_THREADS: 10, HCCL_NPU_SOCKET_PORT_RANGE: auto}")

BOTH: Edits = (
    ("nodes: [n2, n3], dp_size: 8,", "nodes: [n1], dp_size: 4, devices: 6-13,"),
    ("dp_size: 2, tp_size: 8", "dp_size: 2, tp_size: 4, devices: 0-7, env: {HCCL_IF_BASE_PORT: 61000}"),
    ("api_port: 7100, rpc_port: 12321, kv_port: 14200", "api_port: 7200, rpc_port: 12322, kv_port: 14200"),
)
"""Two groups of one server that both name NPU 6 and 7."""


def env(text: str) -> Edits:
    return (("env: {OMP_NUM_THREADS: 10}", f"env: {{OMP_NUM_THREADS: 10, {text}}}"),)


ALONE = (
    ("dp_size: 2, tp_size: 8, api_port: 7100, rpc_port: 12321,", "dp_size: 1, tp_size: 8, api_port: 7100,"),
    ("nodes: [n2, n3], dp_size: 8,", "nodes: [n2], dp_size: 1,"),
)
"""Groups of one rank, which run without data parallel flags."""

CASES: tuple[Case, ...] = (
    Case("R19", ERROR, BOTH, "groups.d.devices", "if that is meant, both need", (*BOTH, AUTO)),
    Case("R06", WARNING, (*BOTH, AUTO), "groups.d.devices", "NPU 6-7 of n1 is taken by p and by d, which share"),
    Case(
        "R19",
        ERROR,
        (*BOTH[:2], (BOTH[2][0], f"{BOTH[2][1]}, env: {{HCCL_NPU_SOCKET_PORT_RANGE: auto}}")),
        "groups.d.devices",
        "such as auto: p has none",
    ),
    Case(
        "T13", INFO, env("VLLM_DP_SIZE: 2"), "defaults.env.VLLM_DP_SIZE", "no effect beside", env("VLLM_PORT: 1")
    ),
    Case(
        "T13", WARNING, (*ALONE, *env("VLLM_DP_RANK: 1")), "defaults.env.VLLM_DP_RANK", "offline data parallelism"
    ),
    Case(
        "T16",
        WARNING,
        (
            ("{host: 192.0.2.3,", "{host: gate, address: 192.0.2.3,"),
            ("{host: 192.0.2.2,", "{host: gate, address: 192.0.2.2,"),
        ),
        "nodes.n3",
        "n3 and n2 are reached at",
        (
            ("{host: 192.0.2.3,", "{host: gate, ssh: {port: 23}, address: 192.0.2.3,"),
            ("{host: 192.0.2.2,", "{host: gate, address: 192.0.2.2,"),
        ),
    ),
    Case(
        "T17",
        WARNING,
        env("HCCL_LOGIC_SUPERPOD_ID: 0"),
        "defaults.env.HCCL_LOGIC_SUPERPOD_ID",
        "one value for n1, n2, n3",
        env("HCCL_LOGIC_SUPERPOD_ID: $POD"),
    ),
    Case(
        "T17",
        WARNING,
        (("{args: {max-num-seqs: 40}}", "{args: {max-num-seqs: 40}, env: {HCCL_LOGIC_SUPERPOD_ID: 7}}"),),
        "roles.decode.env.HCCL_LOGIC_SUPERPOD_ID",
        "one value for n2, n3",
        (("{args: {enforce-eager: true}}", "{args: {enforce-eager: true}, env: {HCCL_LOGIC_SUPERPOD_ID: 7}}"),),
    ),
)
