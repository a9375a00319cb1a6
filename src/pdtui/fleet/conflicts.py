"""Operations from this console that stand in each other's way, on ranks and on the containers of their nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pdtui.errors import ActionRefused
from pdtui.fleet.operations import Operation
from pdtui.fleet.scope import Scope
from pdtui.fleet.snapshot import RankStatus


def check_containers(
    running: Sequence[Operation], nodes: Collection[str], ranks: Mapping[str, RankStatus]
) -> None:
    """Refuse work on these nodes' containers while any operation has them or their ranks in hand.

    Raises `ActionRefused`.
    """
    for operation in running:
        places = {place for place in operation.ids if place in nodes}
        if not operation.status.of_nodes:
            places = {ranks[rank_id].node for rank_id in operation.ids} & set(nodes)
        if places:
            raise ActionRefused(
                f"{operation.id} ({operation.verb}) works on {', '.join(sorted(places))} already", kind="conflict"
            )


def take_over(running: Sequence[Operation], scope: Scope, nodes: Collection[str]) -> None:
    """Refuse what another operation is doing; a stop or restart takes ranks over from a running start.

    `nodes`: those of the scope's ranks. Raises `ActionRefused`.
    """
    for operation in running:
        if operation.status.of_nodes and (common := [node for node in operation.ids if node in nodes]):
            raise ActionRefused(
                f"{operation.id} ({operation.verb}) works on {', '.join(common)} now", kind="conflict"
            )
    shared = [(operation, _shared(scope, operation)) for operation in running]
    for operation, common in shared:
        if common and (scope.verb == "start" or operation.verb != "start"):
            raise ActionRefused(
                f"{operation.id} ({operation.verb}) works on {', '.join(common[:3])} already", kind="conflict"
            )
    for operation, common in shared:
        if common:
            operation.supersede(common)


def _shared(scope: Scope, operation: Operation) -> list[str]:
    return [rank_id for rank_id in scope.ids if rank_id in operation.ids]
