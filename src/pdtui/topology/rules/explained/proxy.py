"""The proxy (X, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R72",
            "The proxy's port is nobody else's on its host",
            "The second of the two cannot start; or clients, and benchmarks, talk to one rank instead of "
            "the proxy.",
            "Change proxy.port or the group's port.",
            "pdtui: the port map",
        ),
        Explanation(
            "R73",
            "The proxy's address is one that decode ranks and clients can connect to",
            "In the layerwise flow decode ranks report to the proxy. At 0.0.0.0 or 127.0.0.1 they reach "
            "themselves: every request waits without end.",
            "Leave `advertise` out (it is the address of `proxy.node`), and listen on 0.0.0.0.",
            "vLLM-Ascend: load_balance_proxy_layerwise_server_example.py, metaserver",
        ),
        Explanation(
            "R79",
            "No node has a loopback address when others have not",
            "127.x leads every other server to itself: ranks never meet, and KV cache is fetched from the "
            "wrong machine.",
            "Write the address of the interface `nic`.",
            "scripts posted with vLLM-Ascend issues: HCCL_IF_IP=127.0.0.1 on eight nodes",
        ),
        Explanation(
            "X1",
            "Something brings requests to the ranks",
            "Each rank alone answers without the other role: prefill one token, decode everything, "
            "without a KV transfer.",
            "Add `proxy: {node: NODE, port: 1999}`.",
            "vLLM-Ascend: examples/disaggregated_prefill_v1",
            (Severity.INFO,),
        ),
        Explanation(
            "X5",
            "Ranks listen where the proxy can reach them",
            "The proxy, and every check from another node, is refused.",
            "Delete `host`: ranks listen on all addresses of their node.",
            "vLLM-Ascend: load_balance_proxy_layerwise_server_example.py, check of host names",
        ),
    )
)
