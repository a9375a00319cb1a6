"""What the file's `workload` asks of the groups: what is certain, and what vLLM-Ascend's guide would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdtui.topology.findings import Problem
from pdtui.topology.model import Group, Role
from pdtui.topology.rules.registry import Context, info, npu_rule, rule, warning
from pdtui.topology.rules.settings import count, per_group
from pdtui.topology.schema import WorkloadPart


@dataclass(frozen=True, slots=True)
class Guide:
    """A shape that one of vLLM-Ascend's guides starts from."""

    workload: str
    """What it is for, as the guide says it."""
    input_tokens: int | None
    output_tokens: int | None
    """Means; None where the guide says nothing of them."""
    contexts: tuple[int, int]
    """The longest contexts for which it is taken: from, to."""
    settings: Mapping[Role, Mapping[str, int]]

    def is_for(self, workload: WorkloadPart) -> bool:
        """Whether a workload is like the guide's: means within a half of each other, a context that fits."""
        pairs = ((workload.input_tokens, self.input_tokens), (workload.output_tokens, self.output_tokens))
        asked = [(said, known) for said, known in pairs if known is not None]
        if not all(said is not None and 0.67 <= said / known <= 1.5 for said, known in asked):
            return False
        low, high = self.contexts
        return low <= workload.context_tokens <= high if workload.context_tokens is not None else bool(asked)


GUIDES = (
    Guide(
        "3500 tokens in, 1100 out, 16000 context: large-scale EP",
        3500,
        1100,
        (0, 17000),
        {
            Role.PREFILL: {"tp_size": 8, "max-num-batched-tokens": 16384, "max-num-seqs": 4},
            Role.DECODE: {"tp_size": 1, "max-num-batched-tokens": 256, "max-num-seqs": 28},
        },
    ),
    Guide(
        "contexts up to 40000 tokens: DeepSeek 2P1D",
        None,
        None,
        (17001, 40000),
        {
            Role.PREFILL: {"tp_size": 8, "max-num-batched-tokens": 16384, "max-num-seqs": 8},
            Role.DECODE: {"tp_size": 1, "max-num-batched-tokens": 256, "max-num-seqs": 40},
        },
    ),
)
"""Both have as many NPUs for prefill as for decode: four servers of 16 for each role, and two."""


@rule("W1", "W2", "W3", "W5")
def fits(context: Context) -> Iterator[Problem]:
    """The groups take what the workload says: length (W1), concurrency (W2), prompts (W3); it adds up (W5)."""
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
            "answers 400 to them"
        )
        yield warning("W1", message, context.where(group, "args", "max-model-len"))


def _prompt(context: Context, group: Group, workload: WorkloadPart) -> Iterator[Problem]:
    tokens, prompt = count(group, "max-num-batched-tokens"), workload.input_tokens
    if group.role is Role.DECODE or tokens is None or prompt is None or tokens >= prompt:
        return
    where = context.where(group, "args", "max-num-batched-tokens")
    if group.args.get("enable-chunked-prefill") is False:
        if (count(group, "max-model-len") or 0) > tokens:
            return  # vLLM refuses to start: S2.
        message = (
            f"max-num-batched-tokens of {group.name} is {tokens}, a mean prompt of the workload has {prompt}, and "
            "enable-chunked-prefill is false: such prompts are never computed"
        )
        yield warning("W3", message, where)
    else:
        steps = -(-prompt // tokens)
        message = (
            f"max-num-batched-tokens of {group.name} is {tokens}: a mean prompt of the workload, {prompt} tokens, "
            f"takes {steps} steps, and its first token comes later"
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
    """A workload like a guide's has a shape like the guide's, or its owner knows where they differ (W4)."""
    workload = context.file.workload
    if workload is None or context.topology.model.kind != "moe":
        return
    guide = next((guide for guide in GUIDES if guide.is_for(workload)), None)
    differs = list(_differences(context, guide)) if guide is not None else []
    if guide is not None and differs:
        message = (
            f"for a workload like this ({guide.workload}) vLLM-Ascend's guide starts from {'; '.join(differs)}"
        )
        yield info("W4", message, ("workload",), on_key=True)


def _differences(context: Context, guide: Guide) -> Iterator[str]:
    for role in Role:
        groups = context.groups(role)
        for key, value in guide.settings[role].items():
            said = {group.tp_size if key == "tp_size" else count(group, key) for group in groups} - {None}
            if said and said != {value}:
                yield f"{role.value} {key} {value} (here {', '.join(map(str, sorted(filter(None, said))))})"
    npus = {role: sum(group.dp_size * group.npus_per_rank for group in context.groups(role)) for role in Role}
    ours, theirs = npus[Role.PREFILL], npus[Role.DECODE]
    if ours and theirs and not 0.5 < ours / theirs < 2:
        yield f"as many NPUs for prefill as for decode (here {ours} and {theirs})"
