"""Static rules: small functions over a topology, in a registry.

Ids are those of the field's collected cases (R..) and of the rules derived from vLLM-Ascend's sources (T groups,
P ports, K KV transfer, S flags, V environment, X proxy) or from vLLM's (C platform cpu); F is the file itself.
"""

from __future__ import annotations

from pdtui.topology.rules import cpu, environment, flags, general, groups, kv, ports, proxy, runtime
from pdtui.topology.rules.registry import check

__all__ = ["check", "cpu", "environment", "flags", "general", "groups", "kv", "ports", "proxy", "runtime"]
