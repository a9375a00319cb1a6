"""Flags of `vllm serve` and additional-config (S, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R34",
            "recompute_scheduler_enable stands in decode groups only",
            "On prefill old releases computed wrong text with it; newer ones refuse or ignore it.",
            "Move it from `defaults` or the prefill role into `roles: {decode: {args: ...}}`.",
            "vllm_ascend/platform.py, check of the recompute scheduler",
            (Severity.ERROR, Severity.WARNING),
            since=(((0, 23, 0), Severity.WARNING),),
        ),
        Explanation(
            "R35",
            "Balance scheduling is off where prefill and decode are apart",
            "With the recompute scheduler the ranks of decode choose different collectives and block each "
            "other: it listens, never answers, AICore 0 %. Newer releases refuse to start.",
            "Delete enable_balance_scheduling and VLLM_ASCEND_BALANCE_SCHEDULING.",
            "vllm_ascend/platform.py, checks of the scheduler; vllm-ascend #8975, #8373",
        ),
        Explanation(
            "R36",
            "layer_sharding stands in prefill groups only",
            "Newer releases refuse to start decode with it.",
            "Move it into `roles: {prefill: {args: ...}}`.",
            "vllm_ascend/platform.py",
        ),
        Explanation(
            "R37",
            "Fused MC2 stands on prefill only where the release can do it",
            "Releases of the 0.18 line have it for decode only; on prefill it fails or computes slowly. Later "
            "ones are tested with it on both.",
            "Set it for decode only, or take a newer release.",
            "vllm-ascend release notes 0.18; its nightly configurations",
            (Severity.WARNING,),
        ),
        Explanation(
            "R38",
            "finegrained_tp_config divides the group and stands where it can work",
            "vLLM-Ascend stops with a bare AssertionError: sizes must divide dp_size, the model must be MoE; "
            "oproj and olora need decode with graphs, oproj tp_size 1, oproj and embedding the recompute "
            "scheduler.",
            "Take a size that divides dp_size, or leave the key out.",
            "vllm_ascend/ascend_config.py, FinegrainedTPConfig; vllm-ascend #14975",
        ),
        Explanation(
            "R39",
            "Every key of additional-config is read, at its place",
            "Releases up to 0.27 ignore unknown keys in silence, so what was meant to be on is off; later "
            "ones refuse to start.",
            "Write the key that is proposed, where the message says, or delete it.",
            "vllm_ascend/ascend_config.py; user_guide/configuration/additional_config.md",
            (
                Severity.WARNING,
                Severity.INFO,
            ),
        ),
        Explanation(
            "R40",
            "Prefill and decode guess tokens ahead together",
            "With speculation on one side only, decode dies with `IndexError: list index out of range`; with "
            "unequal counts a hybrid Mamba model answers wrongly.",
            "Write speculative-config under `defaults`; for Qwen3-Next and Qwen3.5 with one "
            "num_speculative_tokens.",
            "vllm-ascend #16160, #16177, #16622",
        ),
        Explanation(
            "R41",
            "Prefill guesses one token ahead",
            "Nobody uses what it guesses beyond that; the guide has 1, some tested configurations have as "
            "many as decode.",
            "`roles: {prefill: {args: {speculative-config: {num_speculative_tokens: 1, ...}}}}`.",
            "the 2P1D guide of vLLM-Ascend",
            (Severity.INFO,),
        ),
        Explanation(
            "R42",
            "Hybrid models run without prefix cache where it hangs",
            "With 0.17 and 0.18 a prefill server hangs after its first hit, and decode does not support it.",
            "enable-prefix-caching: false, or a newer release.",
            "vllm-ascend #7722, #7944",
            (Severity.WARNING,),
        ),
        Explanation(
            "R44",
            "All ranks serve the model under one name",
            "The proxy passes the name on as clients send it; a rank with another one answers 404.",
            "Write it once, in `model.served_name`.",
            "the proxy examples of vLLM-Ascend",
        ),
        Explanation(
            "R45",
            "What both sides must have alike is alike",
            "They load the same weights and exchange raw KV blocks: another quantization, type or block size "
            "fails or answers nonsense, another template or tokenizer gives other tokens.",
            "Write the flag once, under `defaults`.",
            "vLLM-Ascend: design of disaggregated prefill",
            (Severity.WARNING,),
        ),
        Explanation(
            "R46",
            "Decode takes what prefill takes",
            "Decode answers 400 to what is longer, after prefill has computed it, and prefill's blocks stay "
            "held until their lease ends.",
            "Write max-model-len once, under `defaults`.",
            "collected field cases 117",
            (Severity.WARNING,),
        ),
        Explanation(
            "R51",
            "gpu-memory-utilization leaves room",
            "HCCL's buffers and what uneven experts need come on top: decode runs out of memory under load.",
            "0.90 to 0.95.",
            "vllm-ascend #10784; guides",
            (Severity.WARNING,),
        ),
        Explanation(
            "S1",
            "Both sides take requests with tools",
            "The proxy sends a request to both; the one without enable-auto-tool-choice answers 400 to "
            "tool_choice auto.",
            "Write enable-auto-tool-choice and tool-call-parser under `defaults`.",
            "vLLM: entrypoints/openai",
            (Severity.WARNING,),
        ),
        Explanation(
            "S2",
            "A step has room for all sequences, or a whole prompt",
            "Each sequence of decode takes one token and the guessed ones a step: with fewer, not all run. "
            "Below max-num-seqs, or below max-model-len without chunked prefill, vLLM refuses to start.",
            "Raise max-num-batched-tokens, or lower max-num-seqs.",
            "vllm/config/scheduler.py",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "S4",
            "The method of speculation has its present name",
            "`deepseek_mtp` and its like are aliases of `mtp` that vLLM warns of.",
            "method: mtp.",
            "vllm/config/speculative.py",
            (Severity.INFO,),
        ),
        Explanation(
            "S5",
            "Decode runs graphs",
            "Without them every token pays for launching each operator from the host: several times slower.",
            "Keep enforce-eager to prefill: `roles: {prefill: {args: {enforce-eager: true}}}`.",
            "guides of vLLM-Ascend",
            (Severity.WARNING,),
        ),
        Explanation(
            "S6",
            "Graphs are captured for what runs",
            "A batch above the largest size runs without a graph, in silence; with enable_shared_expert_dp "
            "sizes that tp_size does not divide end in an AssertionError.",
            "Let the sizes reach max-num-seqs * (1 + num_speculative_tokens), or leave them out.",
            "vllm_ascend/platform.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "S9",
            "short_request_first_config stands on prefill, alone, with policy fcfs",
            "vLLM-Ascend refuses to start otherwise (ValueError).",
            "Move it to prefill, or take the other scheduler out.",
            "vllm_ascend/platform.py, checks of the scheduler",
        ),
        Explanation(
            "S10",
            "dyntra_lb_config stands on a decode group of several ranks on one server",
            "vLLM-Ascend refuses to start otherwise (ValueError).",
            "Delete it where the message says.",
            "vllm_ascend/platform.py, checks of the scheduler",
        ),
        Explanation(
            "S13",
            "enable_reduce_sample stands on decode, without lmhead tensor parallelism",
            "vLLM-Ascend refuses to start otherwise (ValueError).",
            "Keep one of the two; delete it on prefill.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S14",
            "enable_shared_expert_dp has what it needs",
            "Without expert parallelism, or with tp_size 1, it is off in silence.",
            "Add enable-expert-parallel, or delete it.",
            "vllm_ascend/ascend_config.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "S15",
            "Shared experts are not overlapped under fused MC2",
            "vLLM-Ascend switches multistream_overlap_shared_expert off then.",
            "Keep one of them.",
            "vllm_ascend/ascend_config.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "S16",
            "enable_fused_mc2 is 0 or 1, for groups and models that can, without hierarchical communication",
            "vLLM-Ascend stops with an assertion or a ValueError.",
            "Take it out where the message says.",
            "vllm_ascend/ascend_config.py; vllm_ascend/platform.py",
            (Severity.ERROR, Severity.WARNING),
        ),
        Explanation(
            "S17",
            "Hierarchical communication is for a2 and a3",
            "On A5 it is not implemented.",
            "Delete enable_mc2_hierarchy_comm.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S18",
            "enable_kv_nz stands on decode only",
            "vLLM-Ascend stops with a RuntimeError.",
            "Move it into `roles: {decode: {args: ...}}`; the model must have MLA.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S19",
            "profiling_chunk_config stands in a pipeline",
            "It sizes the chunks of a pipeline's stages; without one vLLM-Ascend refuses to start.",
            "Delete it, or set pp_size.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S20",
            "mix_placement is alone",
            "With shared experts apart or overlapped vLLM-Ascend refuses to start.",
            "Keep one of them.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S21",
            "Keys that exclude each other or were taken out are not set",
            "vLLM-Ascend refuses to start.",
            "Delete what the message names.",
            "vllm_ascend/ascend_config.py",
        ),
        Explanation(
            "S23",
            "Balancing of experts is switched on everywhere it must be",
            "dynamic_eplb also needs DYNAMIC_EPLB=true; redundant experts need enable-eplb.",
            "Add what the message names.",
            "vllm_ascend/ascend_config.py, EplbConfig; vllm_ascend/platform.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "S24",
            "A wide MoE group has expert parallelism",
            "Without it each expert is cut over all NPUs of the group: tiny matrices, much exchange, no MC2.",
            "enable-expert-parallel: true.",
            "guides of vLLM-Ascend",
            (Severity.WARNING,),
        ),
        Explanation(
            "S25",
            "Over RoCE a MoE group has pipelines or data parallelism, not both",
            "vLLM-Ascend does not support both together across servers.",
            "Keep the group on one server, or take one of the two.",
            "vLLM-Ascend: design of disaggregated prefill, limits",
            (Severity.WARNING,),
        ),
        Explanation(
            "S26",
            "gpu-memory-utilization is a fraction",
            "vLLM refuses to start.",
            "A number above 0 and up to 1.",
            "vllm/config/cache.py",
        ),
        Explanation(
            "S27",
            "block-size is one that vLLM-Ascend uses",
            "It sets 128 itself; only some models take 32 or 64.",
            "Delete it.",
            "vllm_ascend/platform.py",
            (Severity.INFO,),
        ),
        Explanation(
            "S28",
            "On A2 expert parallelism is wide enough for MC2",
            "Below an expert parallel size of 16 the slower exchange is used.",
            "Nothing, if it is meant so.",
            "vllm_ascend: ops/fused_moe, choice of communication",
            (Severity.INFO,),
        ),
        Explanation(
            "S29",
            "Flags exist",
            "`vllm serve` ends with `unrecognized arguments` before it loads anything.",
            "Write the flag that is proposed.",
            "vllm/engine/arg_utils.py, entrypoints/openai/cli_args.py",
            (
                Severity.WARNING,
                Severity.INFO,
            ),
        ),
        Explanation(
            "S30",
            "Flags suit a rank that is one server of its own",
            "Ranks without an HTTP server on their planned port cannot be checked, warmed up, asked or put "
            "behind the proxy.",
            "Delete the flag; what it was meant for is said elsewhere in the file.",
            "pdtui: how a rank is run",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "S31",
            "A JSON flag is said whole or by its parts, not both",
            "vLLM makes one value of the dotted parts and takes it instead of the whole.",
            "Write all of it into the flag itself.",
            "vllm/utils/argparse_utils.py",
        ),
    )
)
