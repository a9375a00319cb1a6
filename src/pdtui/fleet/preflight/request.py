"""What a preflight is asked for: which nodes, which checks, and whether NPUs may be pinged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pdtui.errors import UsageError
from pdtui.fleet.snapshot import RankStatus
from pdtui.fleet.targets import resolve
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan

Pings = Literal["auto", "force", "full", "off"]
"""Pings between NPUs. `auto`: none to or from a device that a process uses; `force`: there too; `full`: every
pair; `off`: none."""


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """One preflight, as it is asked for."""

    targets: tuple[str, ...] = ()
    """As of `start`; their nodes are asked. Empty: all."""
    only: tuple[str, ...] = ()
    """Ids of checks. Empty: all."""
    pings: Pings = "auto"


def nodes_asked(
    targets: Sequence[str], topology: Topology, plan: Plan, ranks: Iterable[RankStatus] = ()
) -> tuple[str, ...]:
    """Return the nodes that the targets name, in the order of the file; all if there are no targets.

    `ranks` says which have failed. Raises `UsageError` for a target that names nothing, and if no node is left.
    """
    known = list(ranks)
    wanted: set[str] = set()
    for target in targets:
        if target.startswith("@") and target[1:] in topology.nodes:
            wanted.add(target[1:])  # Also one without ranks.
        elif target == "proxy" and topology.proxy is not None:
            wanted.add(topology.proxy.node)
        else:
            ids = set(resolve([target], topology, plan, known))
            wanted.update(rank.node for rank in plan.ranks if rank.id in ids)
            wanted.update(rank.node for rank in known if rank.id in ids)
    if targets and not wanted:
        raise UsageError(f"{', '.join(targets)}: there is no such rank now, so no node to look at")
    return tuple(name for name in topology.nodes if not targets or name in wanted)
