"""KV pools and host memory beside the connector (K, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

_POOL = "vllm-ascend, user_guide/feature_guide/kv_pool"

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R52",
            "All that share a KV pool name its entries alike, and look them up by sockets of their own",
            "With another hash seed no rank finds what others have kept; two instances with one lookup_rpc_port "
            "open the same socket file, and one of them dies or answers for the other.",
            "Delete PYTHONHASHSEED and lookup_rpc_port: both are derived wherever there are stores.",
            _POOL,
        ),
        Explanation(
            "K14",
            "kv_load_failure_policy stands at the top, not in a store",
            "MultiConnector reads only its own; a store's is ignored, and requests fail instead of recomputing.",
            "Write it under `kv: {config: ...}`.",
            _POOL,
            (Severity.WARNING,),
        ),
        Explanation(
            "K24",
            "A KV pool has its configuration, and the same backend on both sides",
            "Without the file a rank ends at start; with two backends neither side finds what the other has kept.",
            "Set MOONCAKE_CONFIG_PATH, one backend for all groups, and use_layerwise on prefill only.",
            _POOL,
            (Severity.ERROR, Severity.WARNING),
        ),
        Explanation(
            "K25",
            "SfaRemoteD2HConnector moves KV by memfabric into host memory of decode",
            "vLLM-Ascend refuses to start with another backend, a pipeline or split contexts, and without "
            "sparse_kv_offload_config on decode; on prefill it refuses that.",
            "Enable sparse_kv_offload_config in additional-config of decode only.",
            "vllm_ascend/distributed/kv_transfer, sfa_pd_rd2h; vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "K26",
            "RecomputeCPUOffloadConnector stands on decode, with the recompute scheduler",
            "It keeps what that scheduler gives back; anywhere else it refuses to start.",
            "Write it under `roles: {decode: {kv: ...}}`, and enable recompute_scheduler_enable there.",
            "vllm_ascend/distributed/kv_transfer, recompute_cpu_offload",
        ),
    )
)
