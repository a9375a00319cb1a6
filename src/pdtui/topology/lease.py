"""How long a prefill rank keeps the KV blocks of a finished prompt for a decode rank that has not pulled them."""

from __future__ import annotations

from pdtui.topology.model import Group, Role, Topology
from pdtui.topology.ports import env_int
from pdtui.topology.versions import Release, known_release

NIXL_LEASE = 30.0
"""Seconds that NixlConnector keeps blocks (vLLM 0.32, kv_connector/v1/nixl/base_scheduler.py)."""

NIXL_KEY = "kv_lease_duration"
"""Key of `kv_connector_extra_config` that changes it, in seconds."""

MOONCAKE_LEASE = 480
"""Seconds that the Mooncake connectors of vllm-ascend keep blocks."""

OLD_LEASE = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"
"""The variable of it before its name changed."""

_RENAMED: Release = (0, 18, 0)
"""The vllm-ascend from which on the variable bears Mooncake's name."""


def lease_variable(topology: Topology) -> str:
    """Return the variable that sets the lease of a Mooncake connector in the file's version of vllm-ascend."""
    new = known_release(topology.vllm_ascend) >= _RENAMED
    return "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT" if new else OLD_LEASE


def is_lease(value: object) -> bool:
    """Whether a value of `kv_lease_duration` is one: a positive number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def kv_lease(topology: Topology, group: Group) -> float:
    """Return the seconds that the ranks of a prefill group keep blocks, as the file says it or by default.

    A value that is none, or that refers to the node's environment, counts as the default.
    """
    if not topology.has_npus:
        said = group.kv_extra.get(NIXL_KEY)
        return float(said) if isinstance(said, int | float) and is_lease(said) else NIXL_LEASE
    return float(env_int(group, lease_variable(topology), MOONCAKE_LEASE) or MOONCAKE_LEASE)


def shortest_kv_lease(topology: Topology) -> float:
    """Return the seconds after which a pull from some prefill rank comes too late: the least of their leases."""
    leases = [kv_lease(topology, group) for group in topology.groups.values() if group.role is Role.PREFILL]
    return min(leases, default=MOONCAKE_LEASE if topology.has_npus else NIXL_LEASE)
