"""Every rule in words: what must hold, why, what to do, and where that is known from."""

from __future__ import annotations

import re
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
    stores,
    workload,
)
from pdtui.topology.rules.explained.explanation import Explanation

EXPLANATIONS: Mapping[str, Explanation] = {
    **file.RULES,
    **groups.RULES,
    **ports.RULES,
    **kv.RULES,
    **stores.RULES,
    **flags.RULES,
    **environment.RULES,
    **runtime.RULES,
    **workload.RULES,
    **proxy.RULES,
    **imported.RULES,
}
"""Rule id -> what is known about it."""


def rule_id(word: str) -> str:
    """Return an id in its one form, whether there is such a rule or not: `r1` is R01, `k06` is K6."""
    match = re.fullmatch(r"([A-Za-z])0*(\d{1,3})", word.strip())
    if match is None:
        return word.strip().upper()[:8]
    forms = (f"{match[1].upper()}{match[2]}", f"{match[1].upper()}{match[2]:0>2}")
    return next((form for form in forms if form in EXPLANATIONS), forms[1])


__all__ = ["EXPLANATIONS", "Explanation", "rule_id"]
