"""The plan: pure arithmetic on a topology. Everything that starts, checks or shows a rank uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pdtui.topology.model import Role


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One `vllm serve` process as it should run."""

    id: str
    """`group/dp_rank`."""
    group: str
    role: Role
    node: str
    host: str
    """The node's address in the cluster."""
    dp_rank: int
    local_rank: int
    """Index among the group's ranks on this node, from 0."""
    devices: tuple[int, ...]
    api_port: int
    kv_ports: tuple[int, ...]
    """Ports of the KV handshake that belong to this rank, ascending."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """In the order of export. `$NAME` and `${NAME...}` refer to the node's environment, the rest is literal."""
    digest: str
    """Hash of argv and env; a running rank with another one is outdated."""


@dataclass(frozen=True, slots=True)
class PortUse:
    """A range of ports on one host and what it is for. Reserved ranges are those from which others pick."""

    host: str
    first: int
    last: int
    use: Literal["api", "rpc", "kv", "proxy", "transfer-engine", "transfer-engine-rpc", "hccl"]
    owner: str
    """Rank id, group, `proxy`, or the node's name for ranges of the transfer engine and HCCL."""


@dataclass(frozen=True)
class Plan:
    """All ranks in the order of the file's groups and DP ranks, and one port map over all hosts."""

    ranks: tuple[RankPlan, ...]
    ports: tuple[PortUse, ...]

    @cached_property
    def by_id(self) -> Mapping[str, RankPlan]:
        """Ranks by their id."""
        return {rank.id: rank for rank in self.ranks}

    def of_group(self, group: str) -> tuple[RankPlan, ...]:
        """Return the ranks of one group by DP rank."""
        return tuple(rank for rank in self.ranks if rank.group == group)

    def on_node(self, node: str) -> tuple[RankPlan, ...]:
        """Return the ranks that run on one node."""
        return tuple(rank for rank in self.ranks if rank.node == node)
