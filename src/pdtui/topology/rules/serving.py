"""Flags of `vllm serve` that size, speed up and parallelise a rank: within a group, and between the sides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdtui.topology.findings import Problem
from pdtui.topology.model import Group, Role
from pdtui.topology.rules.registry import Context, error, info, npu_rule, rule, warning
from pdtui.topology.rules.settings import (
    config,
    count,
    is_hybrid,
    is_on,
    number,
    per_group,
    speculative_tokens,
    variable,
)

WIDE_EP = 16
"""Ranks from which on a MoE group without expert parallelism is no choice any more; MC2 begins there, too."""

MAMBA_FIRST, MAMBA_LAST = (0, 17, 0), (0, 19, 0)
"""Releases whose prefix cache hangs on hybrid models between prefill and decode: from, below."""

_NO_DRAFT_CACHE = re.compile(r"ngram|suffix|medusa|mlp_speculator")
"""Methods that guess without layers of their own, so that prefill has nothing to compute for them."""


@rule("S2")
def budgets(context: Context) -> Iterator[Problem]:
    """A step has room for all sequences, and for a whole prompt where prompts are not cut (S2)."""
    yield from per_group(context, _budget)


def _budget(context: Context, group: Group) -> Iterator[Problem]:
    tokens, seqs = count(group, "max-num-batched-tokens"), count(group, "max-num-seqs")
    length = count(group, "max-model-len")
    if tokens is None:
        return
    where = context.where(group, "args", "max-num-batched-tokens")
    each = 1 + speculative_tokens(context, group)
    if seqs is not None and tokens < seqs:
        message = (
            f"max-num-batched-tokens {tokens} is below max-num-seqs {seqs} of {group.name}; vLLM refuses to start"
        )
        yield error("S2", message, where)
    elif seqs is not None and tokens < seqs * each:
        message = (
            f"max-num-batched-tokens of {group.name} is {tokens}, but {seqs} sequences of {each} tokens each (one "
            f"and the guessed ones) need {seqs * each}: not all of them run at once"
        )
        yield warning("S2", message, where)
    if group.args.get("enable-chunked-prefill") is False and length is not None and tokens < length:
        message = (
            f"max-num-batched-tokens {tokens} is below max-model-len {length} and prompts are not cut "
            f"(enable-chunked-prefill: false) in {group.name}; vLLM refuses to start"
        )
        yield error("S2", message, where)


@rule("R40", "R41", "S4")
def speculation(context: Context) -> Iterator[Problem]:
    """Prefill and decode guess ahead together (R40), prefill by one token (R41), by a name that lasts (S4)."""
    yield from per_group(context, _old_method)
    yield from _sides(context)


def _old_method(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, "speculative-config")
    method = str(said.values.get("method", ""))
    if method.endswith("_mtp") and context.release >= (0, 11, 0):
        message = f"method {method:.30} is an old name; vLLM takes it for `mtp` and warns"
        yield info("S4", message, said.where("method"))


def _sides(context: Context) -> Iterator[Problem]:
    guess = {group.name: speculative_tokens(context, group) for group in context.topology.groups.values()}
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            ours, theirs = guess[prefill.name], guess[decode.name]
            if bool(ours) is not bool(theirs):
                with_, without = (prefill, decode) if ours else (decode, prefill)
                said = config(context, with_, "speculative-config")
                if _NO_DRAFT_CACHE.search(str(said.values.get("method", ""))):
                    continue
                message = (
                    f"speculative-config stands in {with_.name} and not in {without.name}: the KV cache of its "
                    "layers is missing on one side and decode fails; write it for both roles"
                )
                yield error("R40", message, context.where(with_, "args", "speculative-config"))
                return
            if ours != theirs and is_hybrid(context):
                message = (
                    f"num_speculative_tokens is {ours} in {prefill.name} and {theirs} in {decode.name}; a hybrid "
                    "model needs the same on both sides, or its answers are wrong"
                )
                said = config(context, decode, "speculative-config")
                yield error("R40", message, said.where("num_speculative_tokens"))
                return
    if is_hybrid(context):
        return
    for group in context.groups(Role.PREFILL):
        if guess[group.name] > 1:
            said = config(context, group, "speculative-config")
            message = (
                f"num_speculative_tokens is {guess[group.name]} in {group.name}: prefill needs 1, what it guesses "
                "beyond that is thrown away"
            )
            yield info("R41", message, said.where("num_speculative_tokens"))
            return


@npu_rule("R42")
def prefix_cache(context: Context) -> Iterator[Problem]:
    """Hybrid models have no prefix cache where it hangs (R42)."""
    if is_hybrid(context) and MAMBA_FIRST <= context.release < MAMBA_LAST:
        yield from per_group(context, _prefix_cache)


def _prefix_cache(context: Context, group: Group) -> Iterator[Problem]:
    if group.args.get("enable-prefix-caching") is not False:
        message = (
            f"prefix caching is on in {group.name}; with a hybrid model and vllm-ascend "
            f"{context.topology.vllm_ascend} a server hangs after its first hit: write enable-prefix-caching: "
            "false"
        )
        yield warning("R42", message, context.where(group, "args", "enable-prefix-caching"))


@npu_rule("S5", "S6", "V3")
def graphs(context: Context) -> Iterator[Problem]:
    """Decode runs graphs that hold all its sequences (S5, S6), and nothing that forbids them (V3)."""
    yield from per_group(context, _eager, _captured)


def _eager(context: Context, group: Group) -> Iterator[Problem]:
    eager = is_on(group.args.get("enforce-eager"))
    if group.role is Role.DECODE and eager:
        message = f"enforce-eager in {group.name} (decode) runs without graphs: every token is much slower"
        yield warning("S5", message, context.where(group, "args", "enforce-eager"))
    if variable(group, "ASCEND_LAUNCH_BLOCKING") == "1" and not eager and not _is_without_graphs(context, group):
        message = (
            f"ASCEND_LAUNCH_BLOCKING=1 forbids graphs, which {group.name} has; vLLM-Ascend refuses to start: "
            "delete it, or set enforce-eager while you search for a fault"
        )
        yield error("V3", message, context.where(group, "env", "ASCEND_LAUNCH_BLOCKING"))


def _is_without_graphs(context: Context, group: Group) -> bool:
    said = config(context, group, "compilation-config").values
    return str(said.get("cudagraph_mode", "")).upper() == "NONE" or number(said.get("mode")) == 0


def _captured(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, "compilation-config")
    listed = said.values.get("cudagraph_capture_sizes")
    sizes = [int(size) for size in map(number, listed) if size is not None] if isinstance(listed, list) else []
    if not sizes or is_on(group.args.get("enforce-eager")):
        return
    where, seqs = said.where("cudagraph_capture_sizes"), count(group, "max-num-seqs")
    each = 1 + speculative_tokens(context, group)
    if group.role is Role.DECODE and seqs is not None and max(sizes) < seqs * each:
        message = (
            f"the largest of cudagraph_capture_sizes is {max(sizes)}, but {seqs} sequences of {group.name} with "
            f"{each} tokens each make {seqs * each}: beyond {max(sizes)} it runs without a graph"
        )
        yield warning("S6", message, where)
    shared = is_on(config(context, group, "additional-config").values.get("enable_shared_expert_dp"))
    odd = next((size for size in sizes if size % group.tp_size), None)
    if shared and odd is not None:
        message = (
            f"with enable_shared_expert_dp graph sizes must be multiples of tp_size {group.tp_size}; {odd} is none"
        )
        yield warning("S6", message, where)


@rule("R51", "S26")
def memory(context: Context) -> Iterator[Problem]:
    """gpu-memory-utilization is a fraction (S26) that leaves room beside the KV cache (R51)."""
    yield from per_group(context, _memory)


def _memory(context: Context, group: Group) -> Iterator[Problem]:
    said = group.args.get("gpu-memory-utilization")
    fraction, where = number(said), context.where(group, "args", "gpu-memory-utilization")
    if said is None:
        return
    if fraction is None or not 0 < fraction <= 1:
        yield error("S26", f"gpu-memory-utilization is a fraction above 0 and up to 1, not {said!r:.20}", where)
    elif fraction > 0.95 and context.topology.has_npus:
        message = (
            f"gpu-memory-utilization {fraction:g} in {group.name} leaves little for HCCL's buffers and uneven "
            "experts; 0.90-0.95 is what the guides use"
        )
        yield warning("R51", message, where)


@npu_rule("S24", "S25", "S27", "S28")
def parallelism(context: Context) -> Iterator[Problem]:
    """Experts are spread (S24, S28), pipelines stay in a server (S25), blocks have the size that counts (S27)."""
    yield from per_group(context, _experts, _pipeline, _blocks)


def _experts(context: Context, group: Group) -> Iterator[Problem]:
    if context.topology.model.kind != "moe":
        return
    size = group.dp_size * group.tp_size * group.pcp_size
    where = context.where(group, "args", "enable-expert-parallel")
    if not is_on(group.args.get("enable-expert-parallel")):
        if group.dp_size >= WIDE_EP:
            message = (
                f"{group.name} has {group.dp_size} ranks and no enable-expert-parallel: every expert is cut into "
                f"{size} pieces; write enable-expert-parallel: true"
            )
            yield warning("S24", message, where)
    elif context.topology.platform == "a2" and group.role is Role.DECODE and size < WIDE_EP:
        message = (
            f"expert parallelism of {group.name} is {size} (dp_size {group.dp_size} x tp_size {group.tp_size}); "
            f"on a2 MC2 is used from {WIDE_EP} on, below that the slower exchange"
        )
        yield info("S28", message, where)


def _pipeline(context: Context, group: Group) -> Iterator[Problem]:
    is_wide = context.topology.platform == "a2" and context.topology.model.kind == "moe" and len(group.nodes) > 1
    if is_wide and group.pp_size > 1 and group.dp_size > 1 and group.role is Role.PREFILL:
        message = (
            f"{group.name} has pp_size {group.pp_size} and dp_size {group.dp_size} over {len(group.nodes)} "
            "servers; for MoE models over RoCE vLLM-Ascend does not support both together"
        )
        yield warning("S25", message, ("groups", group.name, "pp_size"))


def _blocks(context: Context, group: Group) -> Iterator[Problem]:
    size = number(group.args.get("block-size"))
    if size is not None and size not in (32, 64, 128):
        message = f"block-size {size:g}: vLLM-Ascend uses 128 whatever stands here; delete it"
        yield info("S27", message, context.where(group, "args", "block-size"))


@rule("S1")
def tools(context: Context) -> Iterator[Problem]:
    """Both sides take requests with tools, since both are sent them (S1)."""
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            has = {group.name: is_on(group.args.get("enable-auto-tool-choice")) for group in (prefill, decode)}
            if len(set(has.values())) == 1:
                continue
            with_, without = (prefill, decode) if has[prefill.name] else (decode, prefill)
            message = (
                f"enable-auto-tool-choice stands in {with_.name} and not in {without.name}, which answers 400 to "
                "requests with tools; write it and tool-call-parser for both roles"
            )
            yield warning("S1", message, context.where(with_, "args", "enable-auto-tool-choice"))
            return
