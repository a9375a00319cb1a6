"""What the file's `workload` asks of the groups: what is certain, and what vLLM-Ascend's guide would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdtui.topology.findings import Problem
from pdtui.topology.model import Group, Role
from pdtui.topology.rules.registry import Context, info, npu_rule, rule, warning
from pdtui.topology.rules.settings import count, per_group
from pdtui.topology.schema import WorkloadPart


@dataclass(frozen=True, slots=True)
class Guide:
    """A shape that a guide recommends for a workload (its table of recommended configurations)."""

    input_tokens: int
    output_tokens: int
    context_tokens: int
    settings: dict[Role, dict[str, int]]
    npus: dict[Role, int]


LARGE_EP = Guide(
    3500,
    1100,
    16000,
    {
        Role.PREFILL: {"tp_size": 8, "max-num-batched-tokens": 16384, "max-num-seqs": 4},
        Role.DECODE: {"tp_size": 1, "max-num-batched-tokens": 256, "max-num-seqs": 28},
    },
    {Role.PREFILL: 64, Role.DECODE: 64},
)
"""Distributed DP server with large-scale expert parallelism: four servers of 16 NPUs for each role."""


@rule("W1", "W2", "W3", "W5")
def fits(context: Context) -> Iterator[Problem]:
    """The groups take what the workload says: length (W1), requests at once (W2), prompts (W3); it adds up "
    "(W5)."""
    workload = context.file.workload
    if workload is None:
        return
    asked, context_tokens = (workload.input_tokens or 0) + (workload.output_tokens or 0), workload.context_tokens
    if context_tokens is not None and context_tokens < asked:
        message = (
            f"context_tokens {context_tokens} is the longest prompt and answer, but a mean one is already {asked} "
            "(input_tokens + output_tokens)"
        )
        yield warning("W5", message, ("workload", "context_tokens"))
    longest = max(asked, context_tokens or 0)
    yield from per_group(
        context,
        lambda _, group: _length(context, group, longest),
        lambda _, group: _prompt(context, group, workload),
    )
    yield from _at_once(context, workload)


def _length(context: Context, group: Group, longest: int) -> Iterator[Problem]:
    length = count(group, "max-model-len")
    if length is not None and length < longest:
        message = (
            f"max-model-len of {group.name} is {length}, but the workload has requests of {longest} tokens: it "
            "answers 400 "
            "to them"
        )
        yield warning("W1", message, context.where(group, "args", "max-model-len"))


def _prompt(context: Context, group: Group, workload: WorkloadPart) -> Iterator[Problem]:
    tokens, prompt = count(group, "max-num-batched-tokens"), workload.input_tokens
    if group.role is Role.DECODE or tokens is None or prompt is None or tokens >= prompt:
        return
    where = context.where(group, "args", "max-num-batched-tokens")
    if group.args.get("enable-chunked-prefill") is False:
        message = (
            f"max-num-batched-tokens of {group.name} is {tokens}, a mean prompt of the workload has {prompt}, and "
            "enable-chunked-prefill is false: such prompts are never computed"
        )
        yield warning("W3", message, where)
    else:
        steps = -(-prompt // tokens)
        message = (
            f"max-num-batched-tokens of {group.name} is {tokens}: a mean prompt of the workload, {prompt} "
            "tokens, takes "
            f"{steps} steps, and its first token comes later"
        )
        yield info("W3", message, where)


def _at_once(context: Context, workload: WorkloadPart) -> Iterator[Problem]:
    decode = context.groups(Role.DECODE)
    seqs = [count(group, "max-num-seqs") for group in decode]
    if workload.concurrency is None or not decode:
        return
    room = sum(each * group.dp_size for each, group in zip(seqs, decode, strict=True) if each is not None)
    if None not in seqs and room < workload.concurrency:
        message = (
            f"{workload.concurrency} requests at once, but decode runs {room} (max-num-seqs of its "
            f"{sum(group.dp_size for group in decode)} ranks): {workload.concurrency - room} of them wait "
            "their turn"
        )
        yield info("W2", message, ("workload", "concurrency"))


@npu_rule("W4")
def like_the_guide(context: Context) -> Iterator[Problem]:
    """A workload like the guide's has a shape like the guide's, or its owner knows where they differ (W4)."""
    workload, guide = context.file.workload, LARGE_EP
    if workload is None or context.topology.model.kind != "moe" or not _is_like(workload, guide):
        return
    differs = []
    for role in Role:
        groups = context.groups(role)
        for key, value in guide.settings[role].items():
            said = {group.tp_size if key == "tp_size" else count(group, key) for group in groups} - {None}
            if said and said != {value}:
                differs.append(
                    f"{role.value} {key} {value} (here {', '.join(map(str, sorted(filter(None, said))))})"
                )
    npus = {role: sum(group.dp_size * group.npus_per_rank for group in context.groups(role)) for role in Role}
    ours, theirs = npus[Role.PREFILL], npus[Role.DECODE]
    if ours and theirs and not 0.5 < (ours / theirs) / (guide.npus[Role.PREFILL] / guide.npus[Role.DECODE]) < 2:
        differs.append(f"as many NPUs for prefill as for decode (here {ours} and {theirs})")
    if differs:
        message = (
            f"for a workload like this ({guide.input_tokens} tokens in, {guide.output_tokens} out, "
            f"{guide.context_tokens} context) vLLM-Ascend's guide starts from {'; '.join(differs)}"
        )
        yield info("W4", message, ("workload",), on_key=True)


def _is_like(workload: WorkloadPart, guide: Guide) -> bool:
    pairs = ((workload.input_tokens, guide.input_tokens), (workload.output_tokens, guide.output_tokens))
    is_like = all(said is not None and 0.67 <= said / known <= 1.5 for said, known in pairs)
    return is_like and (workload.context_tokens or guide.context_tokens) <= 1.5 * guide.context_tokens
