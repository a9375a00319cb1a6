"""Every rule in words: what must hold, why, what to do, and where that is known from."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.rules.explained import (
    environment,
    file,
    flags,
    groups,
    imported,
    kv,
    ports,
    proxy,
    runtime,
    workload,
)
from pdtui.topology.rules.explained.explanation import Explanation

EXPLANATIONS: Mapping[str, Explanation] = {
    **file.RULES,
    **groups.RULES,
    **ports.RULES,
    **kv.RULES,
    **flags.RULES,
    **environment.RULES,
    **runtime.RULES,
    **workload.RULES,
    **proxy.RULES,
    **imported.RULES,
}
"""Rule id -> what is known about it."""

__all__ = ["EXPLANATIONS", "Explanation"]
