"""Make the text of a large cluster: what `check` must stay quick on."""

from __future__ import annotations


def large(nodes: int = 64) -> str:
    """Return a file with half of its servers for prefill, one group each, and one decode group over the others."""
    half = nodes // 2
    lines = [
        'pdtui: 1\nname: large\nplatform: a3\nvllm_ascend: "0.22.1rc1"',
        "model: {path: /models/m, served_name: m}\nkv: {connector: MooncakeConnectorV1}",
        "defaults:\n  env: {OMP_NUM_THREADS: 10, HCCL_BUFFSIZE: 512, LD_LIBRARY_PATH: {prepend: /x}}",
        "  args: {seed: 1024, enable-expert-parallel: true}",
        "nodes:",
        *(f"  node{number}: {{host: 10.0.{number}.1, nic: eth0}}" for number in range(nodes)),
        "groups:",
        *(
            f"  p{number}:\n    role: prefill\n    nodes: [node{number}]\n    dp_size: 2\n    tp_size: 8\n"
            f"    api_port: 7100\n    rpc_port: 12321\n    kv_port: 14000\n    args: {{max-num-seqs: 8}}"
            for number in range(half)
        ),
        f"  decode:\n    role: decode\n    nodes: [{', '.join(f'node{number}' for number in range(half, nodes))}]",
        f"    dp_size: {16 * (nodes - half)}\n    tp_size: 1\n    api_port: 7100\n    rpc_port: 12321",
        "    kv_port: 1000",
        "proxy: {node: node0, port: 1999}",
    ]
    return "\n".join(lines) + "\n"


_ENV = """\
    HCCL_BUFFSIZE: 256
    OMP_PROC_BIND: false
    OMP_NUM_THREADS: 10
    PYTORCH_NPU_ALLOC_CONF: expandable_segments:True
    TASK_QUEUE_ENABLE: 1
    HCCL_OP_EXPANSION_MODE: AIV
    LD_LIBRARY_PATH: {prepend: /usr/local/lib64/python3.12/site-packages/mooncake}
"""
_ARGS = """\
    enable-expert-parallel: true
    seed: 1024
    max-model-len: 40000
    trust-remote-code: true
    quantization: ascend
    enable-prefix-caching: false
    speculative-config: {num_speculative_tokens: 1, method: mtp}
"""


def crowded(nodes: int = 64) -> str:
    """Return a file whose servers all serve both roles, half of the NPUs each, with the guides' settings.

    Every group says its own arguments, environment and devices: more than anybody writes.
    """
    lines = [
        'pdtui: 1\nname: crowded\nplatform: a3\nvllm_ascend: "0.22.1rc1"',
        "model: {path: /models/m, served_name: m}\nkv: {connector: MooncakeConnectorV1}",
        f"defaults:\n  env:\n{_ENV}  args:\n{_ARGS}nodes:",
        *(f"  node{number}: {{host: 10.0.{number}.1, nic: eth0}}" for number in range(nodes)),
        "groups:",
    ]
    for number in range(nodes):
        for role, devices, base, more in (
            ("prefill", "0-7", 14000, "enforce-eager: true, max-num-batched-tokens: 16384, max-num-seqs: 8"),
            ("decode", "8-15", 14100, "max-num-batched-tokens: 256, max-num-seqs: 40"),
        ):
            port = 7100 if role == "prefill" else 7200
            size = "dp_size: 2, tp_size: 4" if role == "prefill" else "dp_size: 8, tp_size: 1"
            lines.append(
                f"  {role[0]}{number}:\n    {{role: {role}, nodes: [node{number}], {size}, devices: {devices},\n"
                f"    api_port: {port}, rpc_port: {port + 5000}, kv_port: {base},\n"
                f"    env: {{HCCL_IF_BASE_PORT: {61000 if role == 'prefill' else 62000}}}, args: {{{more}}}}}"
            )
    return "\n".join([*lines, "proxy: {node: node0, port: 1999}"]) + "\n"
