"""additional-config: what vLLM-Ascend reads from it, on which side, and what excludes what."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pdtui.topology.findings import Problem, Severity
from pdtui.topology.model import Group, Role
from pdtui.topology.rules.registry import Context, by_version, error, npu_rule, warning
from pdtui.topology.rules.settings import Config, config, count, is_enabled, is_on, number, per_group, variable
from pdtui.topology.versions import NEWEST, Release, dotted, release_of

FLAG = "additional-config"

_KNOWN = """
    SLO_limits_for_dynamic_batch ascend_compilation_config ascend_fusion_config ascend_log_path
    batch_job_sched_config c8_enable_reshape_optim draft_window_size dump_config dump_config_path
    dynamic_spec_config enable_async_exponential enable_balance_scheduling enable_context_parallel
    enable_cpu_binding enable_cpu_offload enable_dsa_cp enable_flashcomm1 enable_flashcomm2_parallel_size
    enable_force_eplb enable_fused_mc2 enable_kv_nz enable_matmul_allreduce enable_mc2_hierarchy_comm
    enable_mlapo enable_npugraph_ex enable_pcp_o_proj_weight_sharding enable_prefill_mc2 enable_reduce_sample
    enable_shared_expert_dp enable_sleep_mode_extra_cleanup enable_sparse_c8 enable_sparse_li_c8
    enable_sparse_sfa_c8 enable_transpose_kv_cache_by_block eplb_config finegrained_tp_config
    flashcomm2_parallel_size kv_cache_dtype layer_sharding mega_moe_max_tokens mix_placement
    mlapo_keep_prefill_weights msmonitor_use_daemon multistream_dsv4_dsa_overlap multistream_overlap_gate
    multistream_overlap_shared_expert npugraph_ex_config pa_shape_list profiling_chunk_config
    quest_decode_config recompute_scheduler_enable refresh rejection_sampler_config rl_config scheduler_config
    short_request_first_config sparse_kv_offload_config weight_nz_mode weight_prefetch_config xlite_graph_config
"""
KNOWN = frozenset(_KNOWN.split())
"""Top-level keys that some release since 0.12 reads (vllm_ascend/ascend_config.py)."""

GONE: dict[str, tuple[Release, str]] = {
    "enable_weight_nz_layout": ((0, 9, 2), "only 0.9.1 read it; weight_nz_mode is its successor"),
    "enable_prefill_optimizations": ((0, 9, 2), "only 0.9.1 read it"),
    "ascend_scheduler_config": ((0, 12, 0), "it was removed after 0.11; vLLM's own scheduler flags apply"),
    "torchair_graph_config": ((0, 12, 0), "it was removed after 0.11; graphs are set by compilation-config"),
    "enable_flashcomm1": (NEWEST, "FlashComm v1 was removed"),
}
"""Keys that are no longer read -> since when, and what to do."""

SINCE: dict[str, Release] = {
    "enable_shared_expert_dp": (0, 10, 2),
    "multistream_overlap_shared_expert": (0, 11, 0),
    "recompute_scheduler_enable": (0, 11, 0),
    "finegrained_tp_config": (0, 12, 0),
}
"""The release of vllm-ascend from which on a key is read."""

FINEGRAINED = (
    "lmhead_tensor_parallel_size",
    "oproj_tensor_parallel_size",
    "embedding_tensor_parallel_size",
    "mlp_tensor_parallel_size",
    "olora_tensor_parallel_size",
)
FUSED_MC2_MOST = 64
"""NPUs of one expert parallel group between which fused MC2 can exchange (32 without mega MoE)."""

_MINIMAX_M3 = re.compile(r"minimax[-_]?m3", re.IGNORECASE)

SCHEDULER = (
    "recompute_scheduler_enable",
    "enable_balance_scheduling",
    "profiling_chunk_config",
    "short_request_first_config",
    "batch_job_sched_config",
    "dyntra_lb_config",
)
EPLB = (
    "dynamic_eplb",
    "expert_map_path",
    "expert_heat_collection_interval",
    "algorithm_execution_interval",
    "expert_map_record_path",
    "num_redundant_experts",
    "eplb_policy_type",
    "eplb_heat_collection_stage",
    "load_collection_phase",
)
EPLB_NESTED: Release = (0, 14, 0)
"""The first release that reads the keys of `EPLB` in eplb_config; before they stand at the top."""

EPLB_BEFORE = {
    "init_redundancy_expert": "write num_redundant_experts into `eplb_config`",
    "num_iterations_eplb_update": "write expert_heat_collection_interval into `eplb_config`",
    "num_wait_worker_iterations": "write algorithm_execution_interval into `eplb_config`",
    "gate_eplb": "delete it",
}
"""Keys of older releases for balancing experts -> what does the same now."""

COMPILATION = (
    "fuse_norm_quant",
    "fuse_qknorm_rope",
    "fuse_muls_add",
    "fuse_allreduce_rms",
    "enable_static_kernel",
)
NESTED = {
    **dict.fromkeys(FINEGRAINED, "finegrained_tp_config"),
    **dict.fromkeys(EPLB, "eplb_config"),
    **dict.fromkeys(COMPILATION, "ascend_compilation_config"),
    "dyntra_lb_config": "scheduler_config",
}
"""Keys that belong one level down -> into what."""

_TOP_LEVEL_BEFORE: Release = (0, 12, 0)
"""The first release that reads the other keys of `NESTED` in their mappings only."""


def scheduler(said: Config, key: str) -> tuple[Any, tuple[str, ...]]:
    """Return a scheduler's setting and its keys: in `scheduler_config`, or at the top as older releases had it."""
    nested = said.part("scheduler_config")
    if key in nested:
        return nested[key], ("scheduler_config", key)
    return said.values.get(key), (key,)


@npu_rule("R39")
def known_keys(context: Context) -> Iterator[Problem]:
    """Every key of additional-config is one that the release reads, where it reads it (R39)."""
    yield from per_group(context, _known)


def _known(context: Context, group: Group) -> Iterator[Problem]:
    said, release = config(context, group, FLAG), context.release
    engine = f"vllm-ascend {context.topology.vllm_ascend}"
    for key, value in said.values.items():
        where = said.where(key)
        if key in NESTED:
            if release >= (EPLB_NESTED if key in EPLB else _TOP_LEVEL_BEFORE):
                message = (
                    f"`{key}` at the top of additional-config is read by nobody; write it into `{NESTED[key]}`"
                )
                yield warning("R39", message, where, on_key=True)
        elif key in EPLB_BEFORE:
            if release >= EPLB_NESTED:
                message = f"`{key}` is read by vllm-ascend before {dotted(EPLB_NESTED)} only; {EPLB_BEFORE[key]}"
                yield warning("R39", message, where, on_key=True)
        elif key in GONE:
            since, why = GONE[key]
            if release >= since and value is not False:
                yield warning("R39", f"`{key}` is ignored by {engine}: {why}; delete it", where, on_key=True)
        elif key in KNOWN:
            if release < SINCE.get(key, release):
                first = dotted(SINCE[key])
                message = f"`{key}` is read since vllm-ascend {first}; {engine} ignores it"
                yield warning("R39", message, where, on_key=True)
        else:
            yield _unknown(context, key, where)
    eplb, finegrained = said.part("eplb_config"), said.part("finegrained_tp_config")
    for key in eplb:
        if key not in EPLB and release >= _TOP_LEVEL_BEFORE:
            message = f"`{key}` is no key of eplb_config, vLLM-Ascend refuses to start{_near(key, EPLB)}"
            yield warning("R39", message, said.where("eplb_config", key), on_key=True)
    for key in finegrained:
        if key not in FINEGRAINED:
            message = f"`{key}` is no key of finegrained_tp_config and ignored{_near(key, FINEGRAINED)}"
            yield warning("R39", message, said.where("finegrained_tp_config", key), on_key=True)


def _unknown(context: Context, key: str, where: tuple[str | int, ...]) -> Problem:
    near = _near(key, [*KNOWN, *GONE, *NESTED])
    said = release_of(context.topology.vllm_ascend)
    is_sure = bool(near) or (said is not None and (0, 22, 0) <= said <= NEWEST)
    message = (
        f"`{key}` is no key of additional-config that is known here; unknown ones are ignored in silence{near}"
    )
    return Problem("R39", Severity.WARNING if is_sure else Severity.INFO, message, where, on_key=True)


def _near(key: str, known: Any) -> str:
    near = difflib.get_close_matches(key[:80], list(known), n=1, cutoff=0.75)
    if not near:
        return ""
    place = f" in `{NESTED[near[0]]}`" if near[0] in NESTED and near[0] not in EPLB else ""
    return f"; did you mean `{near[0]}`{place}?"


@npu_rule("R34", "R35", "R36", "R37")
def sides(context: Context) -> Iterator[Problem]:
    """Schedulers and switches stand on the side that they are for (R34, R35, R36, R37)."""
    yield from per_group(context, _sides)


def _sides(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, FLAG)
    recompute, keys = scheduler(said, "recompute_scheduler_enable")
    if group.role is Role.PREFILL and is_on(recompute):
        message = f"recompute_scheduler_enable belongs to decode only; take it out of {group.name}"
        yield by_version(context, "R34", message, said.where(*keys))
    balance, keys = scheduler(said, "enable_balance_scheduling")
    message = (
        "is for servers that do both roles; vLLM-Ascend refuses it here, older releases hang on decode: delete it"
    )
    if is_on(balance):
        yield error("R35", f"enable_balance_scheduling {message}", said.where(*keys))
    name = "VLLM_ASCEND_BALANCE_SCHEDULING"
    if is_on(variable(group, name)):
        yield error("R35", f"{name} {message}", context.where(group, "env", name))
    if group.role is Role.DECODE and said.values.get("layer_sharding"):
        message = (
            "layer_sharding belongs to prefill only, vLLM-Ascend refuses it on decode; take it out of "
            f"{group.name}"
        )
        yield error("R36", message, said.where("layer_sharding"))
    if group.role is Role.PREFILL and context.release < (0, 22, 0):
        fused = "VLLM_ASCEND_ENABLE_FUSED_MC2"
        message = f"fused MC2 on prefill ({group.name}) needs a newer vllm-ascend; in this one it is for decode"
        if is_on(said.values.get("enable_fused_mc2")):
            yield warning("R37", message, said.where("enable_fused_mc2"))
        elif number(variable(group, fused)):
            yield warning("R37", message, context.where(group, "env", fused))


@npu_rule("R38")
def finegrained(context: Context) -> Iterator[Problem]:
    """Fine-grained tensor parallelism divides the group and stands where it can work (R38)."""
    yield from per_group(context, _finegrained)


def _finegrained(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, FLAG)
    sizes = {
        key: int(size)
        for key in FINEGRAINED
        if (size := number(said.part("finegrained_tp_config").get(key))) is not None and size >= 1
    }
    for key, size in sizes.items():
        where = said.where("finegrained_tp_config", key)
        if context.topology.model.kind == "dense":
            yield error("R38", f"{key} is for MoE models; `model.kind` is dense", where)
        elif group.dp_size % size:
            message = (
                f"{key} is {size}, but dp_size of {group.name} is {group.dp_size}: it must be a multiple of it"
            )
            yield error("R38", message, where)
        for problem in _fits(context, group, said, key):
            yield error("R38", problem, where)


def _fits(context: Context, group: Group, said: Config, key: str) -> Iterator[str]:
    short = key.partition("_")[0]
    recompute, _ = scheduler(said, "recompute_scheduler_enable")
    if short in {"oproj", "olora"}:
        if group.role is Role.PREFILL:
            yield f"{key} is for decode only, and {group.name} is prefill"
        elif is_on(group.args.get("enforce-eager")):
            yield f"{key} needs graphs, but {group.name} has enforce-eager"
    if short == "oproj" and group.tp_size > 1:
        yield f"{key} needs tp_size 1, that of {group.name} is {group.tp_size}"
    if short in {"oproj", "embedding"} and group.role is Role.DECODE and not is_on(recompute):
        yield f"{key} needs recompute_scheduler_enable, which {group.name} does not have"


@npu_rule("S9", "S10", "S19")
def schedulers(context: Context) -> Iterator[Problem]:
    """Schedulers are not mixed and have what they need (S9, S10, S19)."""
    yield from per_group(context, _schedulers)


def _schedulers(context: Context, group: Group) -> Iterator[Problem]:
    said, name = config(context, group, FLAG), group.name
    on = {key: keys for key in SCHEDULER for value, keys in [scheduler(said, key)] if is_enabled(value)}
    if keys := on.get("short_request_first_config"):
        where, policy = said.where(*keys), str(group.args.get("scheduling-policy", "fcfs"))
        others = [key for key in ("batch_job_sched_config", "profiling_chunk_config") if key in on]
        if group.role is Role.DECODE:
            yield error(
                "S9", f"short_request_first_config is for prefill; vLLM-Ascend refuses it in {name}", where
            )
        elif policy != "fcfs":
            message = f"short_request_first_config needs scheduling-policy fcfs, {name} has {policy:.20}"
            yield error("S9", message, where)
        elif others:
            yield error("S9", f"short_request_first_config and {others[0]} exclude each other", where)
    if keys := on.get("dyntra_lb_config"):
        where = said.where(*keys)
        if group.role is Role.PREFILL:
            yield error("S10", f"dyntra_lb_config is for decode; vLLM-Ascend refuses it in {name}", where)
        elif group.dp_size == 1:
            yield error("S10", f"dyntra_lb_config balances between ranks, but dp_size of {name} is 1", where)
        elif len(group.nodes) > 1:
            message = f"dyntra_lb_config needs the whole group on one server; {name} has {', '.join(group.nodes)}"
            yield error("S10", message, where)
    if keys := on.get("profiling_chunk_config"):
        where = said.where(*keys)
        if group.pp_size == 1:
            message = f"profiling_chunk_config needs pipeline parallelism, but pp_size of {name} is 1"
            yield error("S19", message, where)


@npu_rule("S13", "S14", "S15", "S16", "S17", "S18", "S20", "S21", "S23")
def switches(context: Context) -> Iterator[Problem]:
    """Switches that exclude each other, or do nothing without another, are not set together (S13-S23)."""
    yield from per_group(context, _excluded, _without_effect, _balancing_experts)


def _excluded(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, FLAG)
    values = said.values
    fused = values.get("enable_fused_mc2")
    if is_on(values.get("enable_reduce_sample")):
        where = said.where("enable_reduce_sample")
        if group.role is Role.PREFILL:
            yield error(
                "S13", f"enable_reduce_sample is for decode; vLLM-Ascend refuses it in {group.name}", where
            )
        elif number(said.part("finegrained_tp_config").get("lmhead_tensor_parallel_size")):
            yield error("S13", "enable_reduce_sample and lmhead_tensor_parallel_size exclude each other", where)
    if fused is not None and fused not in (0, 1) and str(fused) not in {"0", "1"}:
        yield error("S16", f"enable_fused_mc2 is 0 or 1, not {fused!r:.20}", said.where("enable_fused_mc2"))
    size = group.dp_size * group.tp_size * group.pcp_size
    if is_on(fused) and context.topology.model.kind == "moe" and size > FUSED_MC2_MOST:
        message = (
            f"fused MC2 exchanges between {FUSED_MC2_MOST} NPUs at most, those of {group.name} are {size} "
            "(dp_size x tp_size)"
        )
        yield warning("S16", message, said.where("enable_fused_mc2"))
    elif is_on(fused) and _MINIMAX_M3.search(context.topology.model.path):
        yield error("S16", "MiniMax-M3 cannot run with enable_fused_mc2", said.where("enable_fused_mc2"))
    if is_on(values.get("enable_mc2_hierarchy_comm")):
        where = said.where("enable_mc2_hierarchy_comm")
        if is_on(fused):
            yield error("S16", "enable_fused_mc2 and enable_mc2_hierarchy_comm exclude each other", where)
        if context.topology.platform == "a5":
            yield error("S17", "enable_mc2_hierarchy_comm exists on a2 and a3 only, the platform is a5", where)
    if group.role is Role.PREFILL and is_on(values.get("enable_kv_nz")):
        message = f"enable_kv_nz is for decode; vLLM-Ascend refuses it in {group.name}"
        yield error("S18", message, said.where("enable_kv_nz"))
    if is_on(values.get("mix_placement")):
        for other in ("enable_shared_expert_dp", "multistream_overlap_shared_expert"):
            if is_on(values.get(other)):
                yield error("S20", f"mix_placement and {other} exclude each other", said.where("mix_placement"))
    if values.get("dump_config") and values.get("dump_config_path"):
        yield error("S21", "dump_config and dump_config_path exclude each other", said.where("dump_config_path"))
    if is_on(values.get("enable_sleep_mode_extra_cleanup")) and context.release >= NEWEST:
        message = "enable_sleep_mode_extra_cleanup is refused; sleep_mode_extra_cleanup in rl_config has its place"
        yield error("S21", message, said.where("enable_sleep_mode_extra_cleanup"), on_key=True)


def _without_effect(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, FLAG)
    values = said.values
    if is_on(values.get("enable_shared_expert_dp")):
        where = said.where("enable_shared_expert_dp")
        if not is_on(group.args.get("enable-expert-parallel")):
            message = (
                f"enable_shared_expert_dp does nothing without enable-expert-parallel, which {group.name} lacks"
            )
            yield warning("S14", message, where)
        elif group.tp_size == 1:
            message = f"enable_shared_expert_dp does nothing with tp_size 1, which {group.name} has"
            yield warning("S14", message, where)
    fused = is_on(values.get("enable_fused_mc2")) or variable(group, "VLLM_ASCEND_ENABLE_FUSED_MC2") == "1"
    if is_on(values.get("multistream_overlap_shared_expert")) and fused:
        message = "multistream_overlap_shared_expert is switched off by fused MC2; keep one of them"
        yield warning("S15", message, said.where("multistream_overlap_shared_expert"))


def _balancing_experts(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, FLAG)
    wants = [name for name in ("DYNAMIC_EPLB", "EXPERT_MAP_RECORD") if name in group.env]
    is_set = any(is_on(variable(group, name)) or not variable(group, name) for name in wants)
    if is_on(said.part("eplb_config").get("dynamic_eplb")) and not is_set:
        message = f"dynamic_eplb needs DYNAMIC_EPLB=true in the environment, which {group.name} does not have"
        yield warning("S23", message, said.where("eplb_config", "dynamic_eplb"))
    if (count(group, "num-redundant-experts") or 0) > 0 and not is_on(group.args.get("enable-eplb")):
        where = context.where(group, "args", "num-redundant-experts")
        yield warning("S23", "num-redundant-experts does nothing without enable-eplb", where)
