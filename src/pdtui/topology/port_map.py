"""The port map, host by host: who binds what, what lies near, and which hosts are alike. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pdtui.topology.model import Flow, Role, Topology
from pdtui.topology.plan import Plan, PortUse
from pdtui.topology.ports import EPHEMERAL

EXACT = frozenset({"api", "rpc", "kv", "proxy"})
"""Uses of ports that somebody binds; the others are ranges from which somebody picks."""

EPHEMERAL_USE = "ephemeral"
"""What the kernel's range is called: from it every client on the host gets its port."""

CLOSE = 1000
"""Ports that lie this near to a range are told, whatever else there is to say of them."""


@dataclass(frozen=True, slots=True)
class Near:
    """Ports of others, or a range from which somebody picks, seen from the ports of one row."""

    use: str
    first: int
    last: int
    where: Literal["inside", "below", "above"]
    """Where the ports are: at least one of them inside, or all of them below or above the range."""
    distance: int
    """Ports in between, and one; 0 inside."""
    owner: str = ""
    """Whose they are, if somebody else's: the two collide."""


@dataclass(frozen=True, slots=True)
class PortRow:
    """Neighbouring ports of one use and one group on one host."""

    first: int
    last: int
    use: str
    owners: tuple[str, ...] = ()
    """Rank ids, a group, `proxy`; of a range nobody."""
    bound: bool = True
    """Somebody listens on all of them. Not on KV ports of the role that the connector lets call: kept free."""
    near: tuple[Near, ...] = ()
    """Ports of others that are the same, the ranges that it lies in, then the nearest of the other ranges."""

    @property
    def is_range(self) -> bool:
        """Whether somebody picks from it, and nobody binds all of it."""
        return self.use not in EXACT

    @property
    def ports(self) -> str:
        """The ports as text."""
        return span(self.first, self.last)

    @property
    def owner(self) -> str:
        """Whose it is as text: `decode/0..15`."""
        first, last = (self.owners[0], self.owners[-1]) if self.owners else ("", "")
        return first if first == last else f"{first}..{last.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class HostPorts:
    """The port map of one server."""

    node: str
    host: str
    rows: tuple[PortRow, ...]
    """By their first port."""


def span(first: int, last: int) -> str:
    """Return a range as text."""
    return str(first) if first == last else f"{first}-{last}"


def joined(ports: Iterable[PortUse]) -> list[tuple[PortUse, tuple[str, ...]]]:
    """Join neighbouring ports of one use and group on one host; return each with all its owners."""
    found: list[tuple[PortUse, tuple[str, ...]]] = []
    for use in sorted(ports, key=lambda use: (use.host, use.use, use.first)):
        last, owners = found[-1] if found else (None, ())
        if (
            last is not None
            and (last.host, last.use, _group(last.owner)) == (use.host, use.use, _group(use.owner))
            and last.last + 1 == use.first
        ):
            found[-1] = replace(last, last=use.last), (*owners, use.owner)
        else:
            found.append((use, (use.owner,)))
    return found


def port_map_of(topology: Topology, plan: Plan) -> tuple[HostPorts, ...]:
    """Return the port map of every server in the order of the file."""
    by_host: dict[str, list[PortRow]] = {node.address: [] for node in topology.nodes.values()}
    for use, owners in joined(plan.ports):
        exact = use.use in EXACT
        row = PortRow(use.first, use.last, use.use, owners if exact else (), exact and _is_bound(topology, use))
        if row not in by_host[use.host]:
            by_host[use.host].append(row)
    return tuple(
        HostPorts(node.name, node.address, _rows(by_host[node.address])) for node in topology.nodes.values()
    )


def _is_bound(topology: Topology, use: PortUse) -> bool:
    """Pull connectors of vLLM-Ascend listen on prefill, layerwise ones on decode; NixlConnector on both."""
    if use.use != "kv" or not topology.has_npus:
        return True
    listens = Role.PREFILL if topology.flow is Flow.PULL else Role.DECODE
    return topology.groups[_group(use.owner)].role is listens


def _rows(rows: Sequence[PortRow]) -> tuple[PortRow, ...]:
    every = [*rows, PortRow(*EPHEMERAL, EPHEMERAL_USE, bound=False)]
    placed = [replace(row, near=_near(row, [other for other in every if other is not row])) for row in every]
    return tuple(sorted(placed, key=lambda row: (row.first, row.last)))


def _near(row: PortRow, others: Iterable[PortRow]) -> tuple[Near, ...]:
    seen = [_seen_from(row, other) for other in others if other.is_range or not row.is_range]
    found = sorted(seen, key=lambda near: (near.distance, not near.owner))
    inside = tuple(near for near in found if near.where == "inside")
    apart = [near for near in found if near.where != "inside" and not near.owner]
    return inside if row.is_range else (*inside, *apart[:1])


def _seen_from(row: PortRow, other: PortRow) -> Near:
    if row.last < other.first:
        return Near(other.use, other.first, other.last, "below", other.first - row.last, other.owner)
    if row.first > other.last:
        return Near(other.use, other.first, other.last, "above", row.first - other.last, other.owner)
    return Near(other.use, other.first, other.last, "inside", 0, other.owner)


def alike(topology: Topology, hosts: Iterable[HostPorts]) -> list[list[HostPorts]]:
    """Return hosts in bundles that are equal but for address, ranks and KV ports, in the order of the file."""
    bundles: dict[tuple[object, ...], list[HostPorts]] = {}
    for host in hosts:
        bundles.setdefault(_shape(topology, host), []).append(host)
    return list(bundles.values())


def _shape(topology: Topology, host: HostPorts) -> tuple[object, ...]:
    shape: list[tuple[object, ...]] = []
    for row in host.rows:
        group = topology.groups.get(_group(row.owner))
        inside = tuple(near.use for near in row.near if near.where == "inside")
        place = row.last - row.first if row.use == "kv" else (row.first, row.last)
        shape.append((row.use, place, group.role if group else "", len(row.owners), inside))
    return tuple(sorted(shape, key=repr))


def _group(owner: str) -> str:
    return owner.partition("/")[0]
