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
    )
)
