"""Static rules: small functions over a topology, in a registry.

Ids are those of the field's collected cases (R..) and of the rules derived from vLLM-Ascend's sources (T groups,
P ports, K KV transfer, S flags, V environment, X proxy) or from vLLM's (C platform cpu); W is the workload, F the
file itself.
"""

from __future__ import annotations

from pdtui.topology.rules import (
    additional,
    connectors,
    cpu,
    environment,
    flags,
    general,
    groups,
    known_flags,
    kv,
    ports,
    proxy,
    runtime,
    secrets,
    serving,
    stores,
    variables,
    workload,
)
from pdtui.topology.rules.registry import check

__all__ = [
    "additional",
    "check",
    "connectors",
    "cpu",
    "environment",
    "flags",
    "general",
    "groups",
    "known_flags",
    "kv",
    "ports",
    "proxy",
    "runtime",
    "secrets",
    "serving",
    "stores",
    "variables",
    "workload",
]
