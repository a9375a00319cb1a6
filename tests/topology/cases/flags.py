"""Rules of flags of `vllm serve`: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

MAIN = ('"0.22.1rc1"', "main")
A2: Edits = (("platform: a3", "platform: a2"), ("tp_size: 8", "tp_size: 4"))


def every(args: str) -> Edits:
    return (("{seed: 1024, max-model-len: 4000}", f"{{seed: 1024, max-model-len: 4000, {args}}}"),)


def prefill(args: str) -> Edits:
    return (("{enforce-eager: true}", f"{{enforce-eager: true, {args}}}"),)


def decode(args: str) -> Edits:
    return (("{max-num-seqs: 40}", f"{{max-num-seqs: 40, {args}}}"),)


def more(text: str) -> str:
    return f"additional-config: {{{text}}}"


P, D, ALL = "roles.prefill.args", "roles.decode.args", "defaults.args"
MTP = "speculative-config: {num_speculative_tokens: 1, method: mtp}"
EP = "enable-expert-parallel: true"
HYBRID = ("served_name: m", "served_name: Qwen3-Next-80B")
WIDE: Edits = (("dp_size: 8, tp_size: 2", "dp_size: 16, tp_size: 1"),)
RECOMPUTE = "scheduler_config: {recompute_scheduler_enable: true}"

SIDES = (
    Case(
        "R34",
        ERROR,
        prefill(more("recompute_scheduler_enable: true")),
        f"{P}.additional-config.recompute_scheduler_enable",
        "belongs to decode only; take it out of p",
        decode(more("recompute_scheduler_enable: true")),
    ),
    Case(
        "R34",
        WARNING,
        (*prefill("""additional-config: '{"scheduler_config": {"recompute_scheduler_enable": true}}'"""), MAIN),
        f"{P}.additional-config",
        "decode only",
    ),
    Case(
        "R34",
        ERROR,
        prefill("additional-config.scheduler_config.recompute_scheduler_enable: true"),
        f"{P}.additional-config.scheduler_config.recompute_scheduler_enable",
        "decode only",
    ),
    Case(
        "R35",
        ERROR,
        every(more("scheduler_config: {enable_balance_scheduling: true}")),
        f"{ALL}.additional-config.scheduler_config.enable_balance_scheduling",
        "both roles",
        every(more("scheduler_config: {enable_balance_scheduling: false}")),
    ),
    Case(
        "R36",
        ERROR,
        decode(more("layer_sharding: [o_proj]")),
        f"{D}.additional-config.layer_sharding",
        "take it out of d",
        prefill(more("layer_sharding: [o_proj]")),
    ),
    Case(
        "R37",
        WARNING,
        (*prefill(more("enable_fused_mc2: 1")), ('"0.22.1rc1"', '"0.18.0"')),
        f"{P}.additional-config.enable_fused_mc2",
        "newer vllm-ascend",
        (*prefill(more("enable_fused_mc2: 1")), MAIN),
    ),
)
FINEGRAINED = (
    Case(
        "R38",
        ERROR,
        decode(more("finegrained_tp_config: {lmhead_tensor_parallel_size: 16}")),
        f"{D}.additional-config.finegrained_tp_config.lmhead_tensor_parallel_size",
        "is 16, but dp_size of d is 8",
        decode(more("finegrained_tp_config: {lmhead_tensor_parallel_size: 4}")),
    ),
    Case(
        "R38",
        ERROR,
        decode(more(f"finegrained_tp_config: {{oproj_tensor_parallel_size: 4}}, {RECOMPUTE}")),
        f"{D}.additional-config.finegrained_tp_config.oproj_tensor_parallel_size",
        "needs tp_size 1, that of d is 2",
        (*decode(more(f"finegrained_tp_config: {{oproj_tensor_parallel_size: 4}}, {RECOMPUTE}")), *WIDE),
    ),
    Case(
        "R38",
        ERROR,
        (*decode(more("finegrained_tp_config: {oproj_tensor_parallel_size: 4}")), *WIDE),
        f"{D}.additional-config.finegrained_tp_config.oproj_tensor_parallel_size",
        "needs recompute_scheduler_enable",
    ),
    Case(
        "R38",
        ERROR,
        decode(f"enforce-eager: true, {more('finegrained_tp_config: {olora_tensor_parallel_size: 4}')}"),
        f"{D}.additional-config.finegrained_tp_config.olora_tensor_parallel_size",
        "needs graphs",
    ),
    Case(
        "R38",
        ERROR,
        prefill(more("finegrained_tp_config: {olora_tensor_parallel_size: 2}")),
        f"{P}.additional-config.finegrained_tp_config.olora_tensor_parallel_size",
        "decode only",
    ),
    Case(
        "R39",
        WARNING,
        decode(more("lmhead_tensor_parallel_size: 16")),
        f"{D}.additional-config.lmhead_tensor_parallel_size",
        "write it into `finegrained_tp_config`",
    ),
    Case(
        "R39",
        WARNING,
        every(more("enable_shared_experts_dp: true")),
        f"{ALL}.additional-config.enable_shared_experts_dp",
        "did you mean `enable_shared_expert_dp`",
        every(f"{EP}, {more('enable_shared_expert_dp: true')}"),
    ),
    Case(
        "R39",
        WARNING,
        every(more("enable_weight_nz_layout: true")),
        f"{ALL}.additional-config.enable_weight_nz_layout",
        "only 0.9.1",
        (*every(more("enable_weight_nz_layout: true")), ('"0.22.1rc1"', '"0.9.1"')),
    ),
    Case(
        "R39",
        WARNING,
        (*every(more("finegrained_tp_config: {}")), ('"0.22.1rc1"', '"0.11.0"')),
        f"{ALL}.additional-config.finegrained_tp_config",
        "since vllm-ascend 0.12.0",
    ),
    Case(
        "R39",
        WARNING,
        every(more("dynamic_eplb: true, gate_eplb: true")),
        f"{ALL}.additional-config.gate_eplb",
        "before 0.14.0 only; delete it",
        (*every(more("dynamic_eplb: true, gate_eplb: true")), ('"0.22.1rc1"', '"0.13.0"')),
    ),
    Case(
        "R39",
        WARNING,
        every(more("eplb_config: {dynamic_epbl: false}")),
        f"{ALL}.additional-config.eplb_config.dynamic_epbl",
        "did you mean `dynamic_eplb`",
    ),
    Case(
        "R39",
        WARNING,
        (*every(more("enable_flashcomm1: true")), MAIN),
        f"{ALL}.additional-config.enable_flashcomm1",
        "was removed",
        (*every(more("enable_flashcomm1: false")), MAIN),
    ),
    Case(
        "R39",
        WARNING,
        every(more("fuse_muls_add: true")),
        f"{ALL}.additional-config.fuse_muls_add",
        "into `ascend_compilation_config`",
        every(more("ascend_compilation_config: {fuse_muls_add: true}")),
    ),
    Case(
        "R39",
        INFO,
        (*every(more("qwertz: 1")), ('"0.22.1rc1"', '"0.13.0"')),
        f"{ALL}.additional-config.qwertz",
        "ignored in silence",
    ),
)
SPECULATION = (
    Case("R40", ERROR, decode(MTP), f"{D}.speculative-config", "stands in d and not in p", every(MTP)),
    Case(
        "R40",
        ERROR,
        (
            HYBRID,
            *prefill("speculative-config: {num_speculative_tokens: 1, method: mtp}"),
            *decode("speculative-config: {num_speculative_tokens: 3, method: mtp}"),
        ),
        f"{D}.speculative-config.num_speculative_tokens",
        "is 1 in p and 3 in d",
        (
            *prefill("speculative-config: {num_speculative_tokens: 1, method: mtp}"),
            *decode("speculative-config: {num_speculative_tokens: 3, method: mtp}"),
        ),
    ),
    Case(
        "R41",
        INFO,
        every("""speculative-config: '{"num_speculative_tokens": 3, "method": "mtp"}'"""),
        f"{ALL}.speculative-config",
        "prefill needs 1",
        every(MTP),
    ),
    Case(
        "R42",
        WARNING,
        (HYBRID, ('"0.22.1rc1"', '"0.18.0"')),
        "groups.p",
        "enable-prefix-caching: false",
        (HYBRID, ('"0.22.1rc1"', '"0.18.0"'), *every("enable-prefix-caching: false")),
    ),
    Case(
        "S4",
        INFO,
        every("speculative-config: {num_speculative_tokens: 1, method: deepseek_mtp}"),
        f"{ALL}.speculative-config.method",
        "takes it for `mtp`",
        every(MTP),
    ),
)
SIZES = (
    Case(
        "R51",
        WARNING,
        decode("gpu-memory-utilization: 0.96"),
        f"{D}.gpu-memory-utilization",
        "0.90-0.95",
        decode("gpu-memory-utilization: 0.95"),
    ),
    Case(
        "S26",
        ERROR,
        decode("gpu-memory-utilization: 90"),
        f"{D}.gpu-memory-utilization",
        "fraction",
        decode("gpu-memory-utilization: 0.9"),
    ),
    Case(
        "S2",
        WARNING,
        (*decode("max-num-batched-tokens: 64"), *every(MTP)),
        f"{D}.max-num-batched-tokens",
        "need 80",
        (*decode("max-num-batched-tokens: 80"), *every(MTP)),
    ),
    Case(
        "S2", ERROR, decode("max-num-batched-tokens: 32"), f"{D}.max-num-batched-tokens", "below max-num-seqs 40"
    ),
    Case(
        "S2",
        ERROR,
        prefill("enable-chunked-prefill: false, max-num-batched-tokens: 2048"),
        f"{P}.max-num-batched-tokens",
        "below max-model-len 4000",
        prefill("max-num-batched-tokens: 2048"),
    ),
    Case("S5", WARNING, decode("enforce-eager: true"), f"{D}.enforce-eager", "much slower"),
    Case(
        "S6",
        WARNING,
        decode("compilation-config: {cudagraph_capture_sizes: [8, 32]}"),
        f"{D}.compilation-config.cudagraph_capture_sizes",
        "is 32, but 40 sequences",
        decode("compilation-config: {cudagraph_capture_sizes: [8, 40]}"),
    ),
    Case(
        "S6",
        WARNING,
        decode(
            "compilation-config: {cudagraph_capture_sizes: [5, 40]}, "
            f"{EP}, {more('enable_shared_expert_dp: true')}"
        ),
        f"{D}.compilation-config.cudagraph_capture_sizes",
        "multiples of tp_size 2; 5 is none",
    ),
    Case("S27", INFO, every("block-size: 16"), f"{ALL}.block-size", "uses 128", every("block-size: 128")),
)
SCHEDULERS = (
    Case(
        "S9",
        ERROR,
        decode(more("scheduler_config: {short_request_first_config: {enabled: true}}")),
        f"{D}.additional-config.scheduler_config.short_request_first_config",
        "for prefill",
        prefill(more("scheduler_config: {short_request_first_config: {enabled: true}}")),
    ),
    Case(
        "S9",
        ERROR,
        prefill(
            "scheduling-policy: priority, "
            + more("scheduler_config: {short_request_first_config: {enabled: true}}")
        ),
        f"{P}.additional-config.scheduler_config.short_request_first_config",
        "p has priority",
    ),
    Case(
        "S10",
        ERROR,
        decode(more("scheduler_config: {dyntra_lb_config: {enabled: true}}")),
        f"{D}.additional-config.scheduler_config.dyntra_lb_config",
        "d has n2, n3",
        (
            *decode(more("scheduler_config: {dyntra_lb_config: {enabled: true}}")),
            ("nodes: [n2, n3]", "nodes: [n2]"),
        ),
    ),
    Case(
        "S19",
        ERROR,
        prefill(more("scheduler_config: {profiling_chunk_config: {enabled: true}}")),
        f"{P}.additional-config.scheduler_config.profiling_chunk_config",
        "pp_size of p is 1",
        (
            *prefill(more("scheduler_config: {profiling_chunk_config: {enabled: true}}")),
            ("dp_size: 2, tp_size: 8,", "dp_size: 2, tp_size: 4, pp_size: 2,"),
        ),
    ),
)
SWITCHES = (
    Case(
        "S13",
        ERROR,
        prefill(more("enable_reduce_sample: true")),
        f"{P}.additional-config.enable_reduce_sample",
        "for decode",
        decode(more("enable_reduce_sample: true")),
    ),
    Case(
        "S13",
        ERROR,
        decode(more("enable_reduce_sample: true, finegrained_tp_config: {lmhead_tensor_parallel_size: 8}")),
        f"{D}.additional-config.enable_reduce_sample",
        "exclude each other",
    ),
    Case(
        "S14",
        WARNING,
        prefill(more("enable_shared_expert_dp: true")),
        f"{P}.additional-config.enable_shared_expert_dp",
        "which p lacks",
        prefill(f"{EP}, {more('enable_shared_expert_dp: true')}"),
    ),
    Case(
        "S15",
        WARNING,
        decode(more("multistream_overlap_shared_expert: true, enable_fused_mc2: 1")),
        f"{D}.additional-config.multistream_overlap_shared_expert",
        "switched off",
        decode(more("multistream_overlap_shared_expert: true, enable_fused_mc2: 0")),
    ),
    Case(
        "S16",
        ERROR,
        decode(more("enable_fused_mc2: 2")),
        f"{D}.additional-config.enable_fused_mc2",
        "0 or 1",
        decode(more("enable_fused_mc2: 1")),
    ),
    Case(
        "S16",
        WARNING,
        (
            *decode(more("enable_fused_mc2: 1")),
            ("nodes: [n2, n3], dp_size: 8, tp_size: 2", "nodes: [n2, n3], dp_size: 80, tp_size: 1"),
        ),
        f"{D}.additional-config.enable_fused_mc2",
        "64 NPUs at most, those of d are 80",
    ),
    Case(
        "S16",
        ERROR,
        (*decode(more("enable_fused_mc2: 1")), ("path: /models/m,", "path: /models/MiniMax-M3-w8a8,")),
        f"{D}.additional-config.enable_fused_mc2",
        "MiniMax-M3 cannot",
    ),
    Case(
        "S17",
        ERROR,
        (*every(more("enable_mc2_hierarchy_comm: true")), ("platform: a3", "platform: a5")),
        f"{ALL}.additional-config.enable_mc2_hierarchy_comm",
        "the platform is a5",
        every(more("enable_mc2_hierarchy_comm: true")),
    ),
    Case(
        "S18",
        ERROR,
        every(more("enable_kv_nz: true")),
        f"{ALL}.additional-config.enable_kv_nz",
        "refuses it in p",
        decode(more("enable_kv_nz: true")),
    ),
    Case(
        "S20",
        ERROR,
        decode(more("mix_placement: true, multistream_overlap_shared_expert: true")),
        f"{D}.additional-config.mix_placement",
        "exclude each other",
        decode(more("mix_placement: true")),
    ),
    Case(
        "S21",
        ERROR,
        (*every(more("enable_sleep_mode_extra_cleanup: true")), MAIN),
        f"{ALL}.additional-config.enable_sleep_mode_extra_cleanup",
        "rl_config",
        every(more("enable_sleep_mode_extra_cleanup: true")),
    ),
    Case(
        "S21",
        ERROR,
        every(more("dump_config: {a: 1}, dump_config_path: /x")),
        f"{ALL}.additional-config.dump_config_path",
        "exclude each other",
        every(more("dump_config_path: /x")),
    ),
    Case(
        "S23",
        WARNING,
        decode(more("eplb_config: {dynamic_eplb: true}")),
        f"{D}.additional-config.eplb_config.dynamic_eplb",
        "DYNAMIC_EPLB=true",
        (
            *decode(more("eplb_config: {dynamic_eplb: true}")),
            ("OMP_NUM_THREADS: 10", "OMP_NUM_THREADS: 10, DYNAMIC_EPLB: true"),
        ),
    ),
)
PARALLEL = (
    Case("S24", WARNING, WIDE, "groups.d", "has 16 ranks", (*WIDE, *every(EP))),
    Case(
        "S25",
        WARNING,
        (
            ("platform: a3", "platform: a2"),
            ("nodes: [n1], dp_size: 2, tp_size: 8,", "nodes: [n1, n3], dp_size: 2, tp_size: 4, pp_size: 2,"),
            ("nodes: [n2, n3], dp_size: 8", "nodes: [n2], dp_size: 4"),
        ),
        "groups.p.pp_size",
        "pp_size 2 and dp_size 2 over 2 servers",
        (
            ("nodes: [n1], dp_size: 2, tp_size: 8,", "nodes: [n1, n3], dp_size: 2, tp_size: 4, pp_size: 2,"),
            ("nodes: [n2, n3], dp_size: 8", "nodes: [n2], dp_size: 4"),
        ),
    ),
    Case(
        "S28",
        INFO,
        (*A2, *every(EP), ("dp_size: 8, tp_size: 2", "dp_size: 4, tp_size: 2")),
        f"{ALL}.enable-expert-parallel",
        "of d is 8",
        (*A2, *every(EP)),
    ),
    Case(
        "S1",
        WARNING,
        decode("enable-auto-tool-choice: true, tool-call-parser: hermes"),
        f"{D}.enable-auto-tool-choice",
        "not in p",
        every("enable-auto-tool-choice: true, tool-call-parser: hermes"),
    ),
)
NAMES = (
    Case(
        "S29",
        WARNING,
        every("max-num-batched-token: 4096"),
        f"{ALL}.max-num-batched-token",
        "did you mean `max-num-batched-tokens`",
        every("max_num_batched_tokens: 4096, no-enable-prefix-caching: true, swap-space: 4"),
    ),
    Case("S29", INFO, every("my-own-thing: 1"), f"{ALL}.my-own-thing", "known here"),
    Case("S29", WARNING, every("seed.x: 1"), f"{ALL}.seed.x", "has no parts"),
    Case(
        "S29", WARNING, every("no-enable-prefix-caching: 1"), f"{ALL}.no-enable-prefix-caching", "takes no value"
    ),
    Case("S30", ERROR, every("headless: true"), f"{ALL}.headless", "delete it", every("headless: false")),
    Case("S30", ERROR, every("api-server-count: 4"), f"{ALL}.api-server-count", "", every("api-server-count: 1")),
    Case("S30", WARNING, every("config: /etc/vllm.yaml"), f"{ALL}.config", "not checked"),
    Case(
        "S30",
        WARNING,
        every("distributed-executor-backend: ray"),
        f"{ALL}.distributed-executor-backend",
        "ray",
        every("distributed-executor-backend: mp"),
    ),
    Case(
        "S31",
        ERROR,
        every("compilation-config: {mode: 3}, compilation-config.cudagraph_mode: FULL_DECODE_ONLY"),
        f"{ALL}.compilation-config.cudagraph_mode",
        "drops all",
        every("compilation-config.mode: 3, compilation-config.cudagraph_mode: FULL_DECODE_ONLY"),
    ),
)


def workload(text: str) -> tuple[str, str]:
    return "name: small", f"name: small\nworkload: {{{text}}}"


WORKLOAD = (
    Case(
        "W1",
        WARNING,
        (workload("context_tokens: 16000"),),
        f"{ALL}.max-model-len",
        "is 4000, but the workload has requests of 16000",
        (workload("context_tokens: 4000"),),
    ),
    Case(
        "W2",
        INFO,
        (workload("concurrency: 400"),),
        "workload.concurrency",
        "80 of them wait",
        (workload("concurrency: 320"),),
    ),
    Case(
        "W3",
        INFO,
        (workload("input_tokens: 3000"), *prefill("max-num-batched-tokens: 2048")),
        f"{P}.max-num-batched-tokens",
        "2 steps",
        (workload("input_tokens: 2000"), *prefill("max-num-batched-tokens: 2048")),
    ),
    Case(
        "W3",
        WARNING,
        (
            workload("input_tokens: 3000"),
            (", max-model-len: 4000", ""),
            *prefill("enable-chunked-prefill: false, max-num-batched-tokens: 2048"),
        ),
        f"{P}.max-num-batched-tokens",
        "never computed",
    ),
    Case(
        "W4",
        INFO,
        (workload("input_tokens: 3500, output_tokens: 1100"),),
        "workload",
        "decode tp_size 1 (here 2); decode max-num-seqs 28 (here 40)",
        (workload("input_tokens: 500, output_tokens: 500"),),
    ),
    Case(
        "W4",
        INFO,
        (workload("context_tokens: 32000"), ("dp_size: 2, tp_size: 8,", "dp_size: 4, tp_size: 2,")),
        "workload",
        "(contexts up to 40000 tokens: DeepSeek 2P1D) vLLM-Ascend's guide starts from prefill tp_size 8 (here 2)",
        (workload("context_tokens: 64000"),),
    ),
    Case(
        "W5",
        WARNING,
        (workload("input_tokens: 3000, output_tokens: 900, context_tokens: 3500"),),
        "workload.context_tokens",
        "already 3900",
        (workload("input_tokens: 3000, output_tokens: 900, context_tokens: 4000"),),
    ),
)

CASES: tuple[Case, ...] = (
    *SIDES,
    *FINEGRAINED,
    *SPECULATION,
    *SIZES,
    *SCHEDULERS,
    *SWITCHES,
    *PARALLEL,
    *NAMES,
    *WORKLOAD,
)
