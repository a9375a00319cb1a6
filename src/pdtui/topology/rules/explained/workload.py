"""What the workload asks for (W)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "W1",
            "Requests of the workload fit into max-model-len",
            "A rank answers 400 to what is longer.",
            "Raise max-model-len to `workload.context_tokens` or more, on both sides.",
            "vLLM; the large-scale EP guide of vLLM-Ascend",
            (Severity.WARNING,),
        ),
        Explanation(
            "W2",
            "Decode runs as many requests at once as the workload has",
            "What is beyond max-num-seqs of all its ranks waits, and its first token with it.",
            "Raise max-num-seqs, add ranks, or accept that requests queue.",
            "vllm/config/scheduler.py",
            (Severity.INFO,),
        ),
        Explanation(
            "W3",
            "A mean prompt of the workload fits into one step of prefill",
            "With chunked prefill it takes several steps; without, it is never computed.",
            "Raise max-num-batched-tokens on prefill.",
            "vllm/config/scheduler.py",
            (
                Severity.WARNING,
                Severity.INFO,
            ),
        ),
        Explanation(
            "W4",
            "A workload like a guide's has a shape like the guide's",
            "Its shape is a place to start from: that of large-scale EP for 3.5k tokens in, 1.1k out and 16k "
            "context, that of DeepSeek 2P1D for contexts up to 40k.",
            "Compare; the guides themselves say that theirs is not the optimum.",
            "vLLM-Ascend: large_scale_ep, table of recommended configurations; the 2P1D guide, its commands",
            (Severity.INFO,),
        ),
        Explanation(
            "W5",
            "The workload adds up",
            "A mean request cannot be longer than the longest.",
            "Correct `workload`.",
            "pdtui",
            (Severity.WARNING,),
        ),
    )
)
