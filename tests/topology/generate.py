"""Make the text of a large cluster: what `check` must stay quick on."""

from __future__ import annotations


def large(nodes: int = 64) -> str:
    """Return a file with half of its servers for prefill, one group each, and one decode group over the others."""
    half = nodes // 2
    lines = [
        'pdtui: 1\nname: large\nplatform: a3\nvllm_ascend: "0.22.1rc1"',
        "model: {path: /models/m, served_name: m}\nkv: {connector: MooncakeConnectorV1}",
        "defaults:\n  env: {OMP_NUM_THREADS: 10, LD_LIBRARY_PATH: {prepend: /x}}\n  args: {seed: 1024}",
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
