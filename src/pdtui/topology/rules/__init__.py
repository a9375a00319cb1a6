"""Static rules: small functions over a topology, in a registry."""

from __future__ import annotations

from pdtui.topology.rules.registry import check

__all__ = ["check"]
