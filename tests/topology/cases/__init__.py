"""Broken and right examples of the rules, by family."""

from __future__ import annotations

from tests.topology.cases import environment, flags, groups, kv, ports, proxy, runtime, stores

FAMILIES = (
    *groups.CASES,
    *ports.CASES,
    *kv.CASES,
    *flags.CASES,
    *environment.CASES,
    *proxy.CASES,
    *runtime.CASES,
    *stores.CASES,
)
