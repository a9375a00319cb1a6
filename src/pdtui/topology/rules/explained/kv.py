"""KV transfer (K, R) and that of platform cpu (C)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(())
