"""Rules of KV transfer: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

CONNECTOR = "kv: {connector: MooncakeConnectorV1}"
GROUP_P = "rpc_port: 12321, kv_port: 14000"
GROUP_D = "rpc_port: 12321, kv_port: 14200"
LAYERWISE = (CONNECTOR, "kv: {connector: MooncakeLayerwiseConnector}")
HYBRID = (CONNECTOR, "kv: {connector: MooncakeHybridConnector}")
QWEN = ("path: /models/m", "path: /models/Qwen3-Next-80B")


def kv(text: str, connector: str = "MooncakeConnectorV1") -> Edits:
    return ((CONNECTOR, f"kv: {{connector: {connector}, {text}}}"),)


def version(text: str) -> Edits:
    return (('"0.22.1rc1"', f'"{text}"'),)


def args(text: str) -> Edits:
    return (("seed: 1024, max-model-len: 4000", f"seed: 1024, max-model-len: 4000, {text}"),)


def prefill(text: str) -> Edits:
    return (("enforce-eager: true", f"enforce-eager: true, {text}"),)


def decode(text: str) -> Edits:
    return (("max-num-seqs: 40", f"max-num-seqs: 40, {text}"),)


def engines(one: str, other: str) -> Edits:
    return (
        (GROUP_P, f"{GROUP_P}, kv: {{config: {{engine_id: {one}}}}}"),
        (GROUP_D, f"{GROUP_D}, kv: {{config: {{engine_id: {other}}}}}"),
    )


DENSE: Edits = (("served_name: m}", "served_name: m, kind: dense}"),)
STAGES = ("tp_size: 8", "tp_size: 4, pp_size: 2")
TOLD = "prefill: {dp_size: 2, tp_size: 4, pp_size: 2, pp_layer_partition: "

CASES: tuple[Case, ...] = (
    Case(
        "R23",
        ERROR,
        kv("config: {kv_load_failure_policy: retry}"),
        "kv.config.kv_load_failure_policy",
        "fail or recompute",
        kv("config: {kv_load_failure_policy: recompute}"),
    ),
    Case(
        "R27",
        ERROR,
        (*DENSE, *kv("extra: {decode: {dp_size: 8, tp_size: 2}}")),
        "kv.extra.decode.dp_size",
        "dense model",
        (*DENSE, *kv("extra: {decode: {dp_size: 1, tp_size: 2}}")),
    ),
    Case(
        "R30",
        ERROR,
        (*version("0.11.0"), *engines("e", "e")),
        "groups.d.kv.config.engine_id",
        "Conflict engine id",
        (*version("0.11.0"), *engines("e", "f")),
    ),
    Case(
        "R30",
        INFO,
        kv("config: {engine_id: 1}"),
        "kv.config.engine_id",
        "adds a part of its own",
        engines("1", "8"),
    ),
    Case(
        "R32",
        WARNING,
        version("0.11.0"),
        "kv",
        "use_ascend_direct",
        (*version("0.11.0"), *kv("extra: {use_ascend_direct: true}")),
    ),
    Case(
        "K8",
        ERROR,
        (STAGES, *kv(f"extra: {{{TOLD}'61'}}}}")),
        "kv.extra.prefill.pp_layer_partition",
        "1 stages, but pp_size of p is 2",
        (STAGES, *kv(f"extra: {{{TOLD}'31,30'}}}}")),
    ),
    Case(
        "K13",
        ERROR,
        (*version("0.23.0"), *kv("config: {kv_load_failure_policy: recompute}", "MooncakeHybridConnector")),
        "kv.config.kv_load_failure_policy",
        "`fail` is the default",
        (*version("0.23.0"), *kv("config: {kv_load_failure_policy: fail}", "MooncakeHybridConnector")),
    ),
    Case(
        "K16",
        ERROR,
        (LAYERWISE, *args("additional-config: {enable_sparse_sfa_c8: true}")),
        "defaults.args.additional-config.enable_sparse_sfa_c8",
        "cannot push",
        args("additional-config: {enable_sparse_sfa_c8: true}"),
    ),
    Case(
        "K16",
        ERROR,
        args("additional-config: {enable_sparse_sfa_c8: true, sparse_kv_offload_config: {enabled: true}}"),
        "defaults.args.additional-config.enable_sparse_sfa_c8",
        "exclude each other",
        args("additional-config: {enable_sparse_sfa_c8: true, sparse_kv_offload_config: {enabled: false}}"),
    ),
    Case(
        "K17",
        WARNING,
        (("path: /models/m", "path: /models/DeepSeek-V4-Flash"),),
        "kv.connector",
        "MooncakeHybridConnector",
        (("path: /models/m", "path: /models/DeepSeek-V4-Flash"), HYBRID),
    ),
    Case(
        "K18",
        ERROR,
        (QWEN, HYBRID),
        "groups.d.tp_size",
        "needs them equal",
        (QWEN, HYBRID, ("tp_size: 2", "tp_size: 8"), ("dp_size: 8", "dp_size: 2")),
    ),
    Case(
        "K19",
        ERROR,
        (*prefill("decode-context-parallel-size: 3"), *args("cp-kv-cache-interleave-size: 128")),
        "roles.prefill.args.decode-context-parallel-size",
        "must divide its tp_size 8",
        (*prefill("decode-context-parallel-size: 4"), *args("cp-kv-cache-interleave-size: 128")),
    ),
    Case(
        "K19",
        ERROR,
        (*decode("decode-context-parallel-size: 2"), *args("cp-kv-cache-interleave-size: 128")),
        "roles.decode.args.decode-context-parallel-size",
        "p splits a context 1 ways, d 2",
        args("decode-context-parallel-size: 2, cp-kv-cache-interleave-size: 128"),
    ),
    Case(
        "K21",
        ERROR,
        args("decode-context-parallel-size: 2, cp-kv-cache-interleave-size: 64"),
        "defaults.args.cp-kv-cache-interleave-size",
        "must be block-size, 128, not 64",
        args("decode-context-parallel-size: 2, cp-kv-cache-interleave-size: 64, block-size: 64"),
    ),
    Case(
        "K21",
        ERROR,
        args("decode-context-parallel-size: 2"),
        "defaults.args.decode-context-parallel-size",
        "must be block-size, 128, not 1",
        args("decode-context-parallel-size: 2, dcp-kv-cache-interleave-size: 128"),
    ),
    Case(
        "K21",
        ERROR,
        (*version("0.12.0"), *args("decode-context-parallel-size: 2")),
        "defaults.args.decode-context-parallel-size",
        "must be block-size",
        (*version("0.11.0"), *args("decode-context-parallel-size: 2")),
    ),
    Case(
        "K22",
        ERROR,
        (*version("0.23.0"), LAYERWISE, *prefill("block-size: 128"), *decode("block-size: 64")),
        "roles.decode.args.block-size",
        "may not be the larger one",
        (*version("0.23.0"), LAYERWISE, *prefill("block-size: 64"), *decode("block-size: 128")),
    ),
    Case(
        "K22",
        WARNING,
        decode("block-size: 64"),
        "roles.decode.args.block-size",
        "takes them for equal",
        args("block-size: 64"),
    ),
    Case(
        "K23",
        ERROR,
        (LAYERWISE, ("OMP_NUM_THREADS: 10", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION: 1")),
        "defaults.env.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",
        "waits without end",
        (("OMP_NUM_THREADS: 10", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION: 1"),),
    ),
    Case(
        "K27",
        WARNING,
        (("platform: a3", "platform: a5"), *version("0.25.1")),
        "kv",
        "ascend_local_comm_res_path: /etc/hixlep",
        (
            ("platform: a3", "platform: a5"),
            *version("0.25.1"),
            *kv("extra: {ascend_local_comm_res_path: /etc/hixlep}"),
        ),
    ),
    Case(
        "K30",
        WARNING,
        kv("extra: {prefil: {dp_size: 2, tp_size: 8}}"),
        "kv.extra.prefil",
        "did you mean `prefill`",
        kv("extra: {prefill: {dp_size: 2, tp_size: 8}}"),
    ),
)
