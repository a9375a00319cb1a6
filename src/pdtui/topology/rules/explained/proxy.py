"""The proxy (X, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(())
