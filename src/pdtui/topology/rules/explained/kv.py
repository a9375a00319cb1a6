"""KV transfer (K, R) and that of platform cpu (C)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

_CONFIG = "vllm/config/kv_transfer.py"
_PULL = "vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_connector.py"
_LAYERWISE = "vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_layerwise_connector.py"
_CHECKS = "vllm_ascend/utils.py, check_kv_extra_config"
_PLATFORM = "vllm_ascend/platform.py"
_NIXL = "vllm/distributed/kv_transfer/kv_connector/v1/nixl"
_DESIGN = "vllm-ascend, Design_Documents/disaggregated_prefill"

_RULES = (
    Explanation(
        "R22",
        "Every value that is JSON is strict JSON",
        "vLLM ends at once with a message of its argument parser; a trailing comma is enough.",
        "Write the value as a YAML mapping: pdtui makes the JSON.",
        "vllm serve, type of the *-config flags",
    ),
    Explanation(
        "R23",
        "`kv: {config: ...}` has only keys that --kv-transfer-config knows",
        "vLLM refuses an unknown key, or, in older releases, runs without what was meant.",
        "Correct or delete the key.",
        _CONFIG,
    ),
    Explanation(
        "R24",
        "kv_role is kv_producer in prefill groups and kv_consumer in decode groups",
        "Another role hands out no KV, or starts the wrong half of the connector: requests wait or fail.",
        "Delete the key; it follows from the group's role.",
        _PULL,
    ),
    Explanation(
        "R25",
        "The connector is told dp_size and tp_size of both roles, as numbers",
        "The rank dies right after the connector begins, with an AssertionError or KeyError without words.",
        "Delete `prefill` and `decode` under `kv: {extra: ...}`; pdtui derives both.",
        _PULL,
    ),
    Explanation(
        "R26",
        "The sizes that the connector is told are those of the groups",
        "A rank checks its own side at start and dies; nobody checks the other side: ports are miscounted.",
        "Delete the entry; pdtui derives it.",
        _CHECKS,
    ),
    Explanation(
        "R28",
        "Prefill's tp_size is decode's or a multiple of it (on platform cpu one divides the other)",
        "The connector cannot map heads to ranks: it raises at start, or at the first request.",
        "Change tp_size of one side.",
        f"{_PULL}; {_NIXL}",
    ),
    Explanation(
        "R29",
        "Decode has no pipeline, and pipeline and prefill context parallelism are not mixed",
        "The connector asserts it at start.",
        "Set pp_size 1 on decode; use only one of the two on prefill.",
        _PULL,
    ),
    Explanation(
        "R31",
        "Both roles use connectors of one flow",
        "A decode rank that waits to be pushed to never pulls: it computes prompts itself or waits without end.",
        "Give both roles the same connector; write it once under `kv`.",
        _DESIGN,
    ),
    Explanation(
        "R33",
        "KV ports of a prefill and a decode group on one server do not overlap",
        'One of them ends with zmq.error.ZMQError: "Address already in use".',
        "Move one kv_port by as many ports as the message says.",
        _PULL,
    ),
    Explanation(
        "R89",
        "The version is one whose ports and rules are known",
        "Port formulas changed between releases; with those of another release the port map would be wrong.",
        "Nothing to do where the newest rules hold; otherwise write the version that is installed.",
        "pdtui: table of versions",
        (WARNING,),
    ),
    Explanation(
        "K2",
        "No keys of old releases stand in `kv: {config: ...}`",
        "No Ascend connector reads them, and newer vLLM refuses to start with them.",
        "Delete kv_rank, kv_parallel_size, kv_buffer_size and kv_ip.",
        _CONFIG,
        (WARNING,),
    ),
    Explanation(
        "K6",
        "All groups of a role have one shape",
        "The other role is told only one size and computes wrong ports and blocks for the groups that differ.",
        "Give all groups of the role the same dp_size, tp_size and pp_size.",
        _PULL,
    ),
    Explanation(
        "K10",
        "The connector exists in the version",
        "vLLM ends at start: the connector is not registered.",
        "Use one that the message names.",
        "vllm_ascend/distributed/kv_transfer/__init__.py",
    ),
    Explanation(
        "K11",
        "Nothing stands in `kv: {config: ...}` that is needed no longer",
        "It does no harm; it only hides what matters.",
        "Delete it.",
        _CONFIG,
        (INFO,),
    ),
    Explanation(
        "K20",
        "No prefill context parallelism where it was removed",
        "vLLM-Ascend refuses to start.",
        "Delete prefill-context-parallel-size.",
        f"{_PLATFORM}; removed in 0.25.1",
    ),
    Explanation(
        "C1",
        "Platform cpu has no flags of vLLM-Ascend",
        "Quantization `ascend` is refused; additional-config is read by nobody.",
        "Delete them, or change the platform.",
        "vLLM",
        (WARNING,),
    ),
    Explanation(
        "C2",
        "Platform cpu has no variables of CANN, HCCL, vLLM-Ascend and Mooncake",
        "Nobody reads them: what they were for does not happen.",
        "Delete them.",
        "vLLM",
        (WARNING,),
    ),
    Explanation(
        "C3",
        "NixlConnector's lease is a positive number of seconds",
        "A request fails at prefill, or its blocks are freed before decode has pulled them.",
        "Write seconds, or leave it out: 30.",
        _NIXL,
    ),
    Explanation(
        "C4",
        "NixlConnector keeps its buffers in host memory on platform cpu",
        "It refuses all but cpu.",
        "Delete kv_buffer_device.",
        _NIXL,
    ),
    Explanation(
        "C5",
        "Nothing is told to NixlConnector that it does not read",
        "It is ignored in silence.",
        "Delete it.",
        _NIXL,
        (WARNING,),
    ),
    Explanation(
        "R27",
        "A dense model's connector is told dp_size 1",
        "vLLM makes every rank of a dense model an instance of its own; with another number it dies at start.",
        "Delete the entry; pdtui derives it.",
        f"{_CHECKS}; vllm-ascend #8344",
    ),
    Explanation(
        "R30",
        "Groups that name themselves by engine_id have each a name of its own",
        'Old releases end the first transfer with "Conflict engine id"; since 0.12 a part of its own is added.',
        "Delete engine_id; it is made at start.",
        f"{_PULL}; vllm-ascend 41fbc5ebc9",
        (ERROR, INFO),
        since=(((0, 12, 0), INFO),),
    ),
    Explanation(
        "R32",
        "use_ascend_direct is true for vllm-ascend 0.11",
        "That release transfers KV over another transport otherwise, slowly or not at all.",
        "Write `use_ascend_direct: true` under `kv: {extra: ...}`; later releases ignore it.",
        _PULL,
        (WARNING,),
    ),
    Explanation(
        "K8",
        "pp_layer_partition has one number for each stage of prefill's pipeline",
        "The connector asserts it at start.",
        "Give as many numbers as pp_size; they add up to the model's layers.",
        _PULL,
    ),
    Explanation(
        "K13",
        "Hybrid models do not recompute what did not arrive",
        "vLLM-Ascend ends with an AssertionError at start.",
        "Delete kv_load_failure_policy.",
        _PLATFORM,
    ),
    Explanation(
        "K16",
        "enable_sparse_sfa_c8 goes neither with the layerwise connector nor with sparse_kv_offload_config",
        "vLLM-Ascend refuses to start, or the connector cannot push the packed blocks.",
        "Keep one of the two.",
        f"{_LAYERWISE}; vllm_ascend/ascend_config.py",
    ),
    Explanation(
        "K17",
        "DeepSeek-V4 uses MooncakeHybridConnector",
        "Its layers keep several kinds of KV; other connectors transfer wrong blocks.",
        "Write `kv: {connector: MooncakeHybridConnector}` and no-disable-hybrid-kv-cache-manager.",
        "vllm-ascend, tutorial of DeepSeek-V4",
        (WARNING,),
    ),
    Explanation(
        "K18",
        "Mamba hybrids with MooncakeHybridConnector have one tp_size on both sides",
        "The connector asserts it at start.",
        "Make tp_size equal.",
        "vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_hybrid_connector.py",
    ),
    Explanation(
        "K19",
        "Context parallel sizes divide tp_size, and prefill's is decode's or a multiple of it",
        "vLLM refuses to start, or the connector cannot map blocks.",
        "Change decode-context-parallel-size.",
        f"{_PLATFORM}; {_PULL}",
    ),
    Explanation(
        "K21",
        "With context parallelism and KV transfer cp-kv-cache-interleave-size is block-size",
        "vLLM-Ascend ends with an AssertionError at start.",
        "Write cp-kv-cache-interleave-size as large as block-size.",
        _PLATFORM,
    ),
    Explanation(
        "K22",
        "Blocks of both sides map onto each other",
        "The connector refuses at the first request; before 0.23 blocks are taken for others.",
        "Give both roles the same block-size, best in `defaults`.",
        f"{_PULL}; {_LAYERWISE}",
        (ERROR, WARNING),
    ),
    Explanation(
        "K23",
        "Request ids stay random at their end with a layerwise connector",
        "The connector cuts the id short, the proxy does not know it: 404, and decode waits without end.",
        "Delete VLLM_DISABLE_REQUEST_ID_RANDOMIZATION.",
        f"{_LAYERWISE}, get_external_request_id",
    ),
    Explanation(
        "K27",
        "On A5 the connector is told where the server's links are described",
        "It cannot set up a link: transfers fail.",
        "Write ascend_local_comm_res_path under `kv: {extra: ...}`, and mount that folder; or accept it where "
        "ranks get a description of their links from their login environment.",
        "vllm-ascend, installation and tutorials for the 950 series",
        (WARNING,),
    ),
    Explanation(
        "K30",
        "No key under `kv: {extra: ...}` is misspelt",
        "Connectors read what they know and say nothing about the rest.",
        "Write the key that is proposed.",
        "vllm_ascend/distributed/kv_transfer",
        (WARNING,),
    ),
)

RULES: Mapping[str, Explanation] = table(_RULES)
