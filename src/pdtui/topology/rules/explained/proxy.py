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
        Explanation(
            "R75",
            "IPv6 addresses have brackets in URLs",
            "The reference proxy writes its address into a URL as it is given: decode ranks cannot call "
            "it, and requests wait without end.",
            "Use an IPv4 address for the proxy, or `kind: pdtui`.",
            "vLLM-Ascend: load_balance_proxy_layerwise_server_example.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "X9",
            "The proxy knows requests that decode gives back",
            "With the recompute scheduler a decode rank short of memory ends a request with stop_reason "
            '"recomputed". A proxy that does not send it again hands a cut answer to the client, with '
            "status 200.",
            "Use `kind: pdtui` or `reference`, or take recompute_scheduler_enable out of decode.",
            "vLLM-Ascend: recompute_scheduler.py",
            (Severity.INFO,),
        ),
        Explanation(
            "X10",
            "The layerwise reference proxy gets no requests back",
            "Its second turn sends prefill the first prompt without what was generated (0.22.1, 0.23), or "
            "does not send it at all (newer): wrong text, or a request that waits without end.",
            "Take recompute_scheduler_enable out of decode, or use `kind: pdtui`.",
            "vLLM-Ascend: load_balance_proxy_layerwise_server_example.py, run against stand-ins",
            (Severity.WARNING,),
        ),
        Explanation(
            "X11",
            "vLLM's development endpoints stay closed",
            "With VLLM_SERVER_DEV_MODE everyone who reaches a rank's port can put it to sleep or empty "
            "its prefix cache.",
            "Delete the variable, unless something needs /reset_prefix_cache or /sleep.",
            "vllm/entrypoints/openai: VLLM_SERVER_DEV_MODE",
            (Severity.INFO,),
        ),
        Explanation(
            "X8",
            "A request with one API key is taken by both roles",
            "A request carries one key to prefill and to decode: a rank with another one answers 401, and one "
            "without lets everybody in.",
            "Write the key once, in `defaults`.",
            "vllm/entrypoints/openai: --api-key, VLLM_API_KEY",
            (Severity.WARNING,),
        ),
    )
)
