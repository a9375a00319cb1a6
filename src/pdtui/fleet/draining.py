"""Draining: let the requests of ranks end before they are told to stop, since TERM cuts them off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pdtui.errors import RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.operations import Operation
from pdtui.fleet.snapshot import WRONG_STATES, RankState
from pdtui.readings.vllm_metrics import KEEP, read_metrics
from pdtui.text import decode

PHASE = "drain"
DRAINING = "draining"
"""How the words of a rank's line begin while its requests end."""

INTERVAL = 1.0
_ASK_TIMEOUT = 5.0


async def drain(crew: Crew, operation: Operation, ids: Sequence[str], patience: float) -> None:
    """Wait until no request runs on these ranks, for `patience` seconds at most; what is left then is said.

    Only our own proxy sends them nothing new: it has taken them out of rotation before. A rank that is not ready,
    and a MoE group that is broken, has nothing that could end.
    """
    waiting = [rank_id for rank_id in ids if patience > 0 and _can_drain(crew, rank_id)]
    end = crew.clock.monotonic() + patience
    first = True
    while waiting:
        found = await asyncio.gather(*(_requests(crew, rank_id) for rank_id in waiting))
        running = {rank_id: count for rank_id, count in zip(waiting, found, strict=True) if count}
        for rank_id in waiting:
            if rank_id in running:
                operation.rank(rank_id, "running", f"{DRAINING}, {_count(running[rank_id])}")
            elif not first:
                operation.rank(rank_id, "running", f"{DRAINING}: no request runs")
        left, total = end - crew.clock.monotonic(), sum(running.values())
        if running and left <= 0:
            cut = "1 request" if total == 1 else f"{total} requests"
            operation.phase(PHASE, "done", f"{cut} cut off after {patience:.0f} s")
            return
        if running:
            operation.phase(PHASE, "running", f"{_count(total)}, {left:.0f} s left")
            await crew.clock.sleep(min(INTERVAL, left))
        elif not first:
            operation.phase(PHASE, "done", "no request runs")
        first = False
        waiting = list(running)


def _can_drain(crew: Crew, rank_id: str) -> bool:
    ranks = crew.store.ranks
    record = crew.watcher_of(rank_id).record(rank_id)
    if record is None or ranks[rank_id].health != "200" or ranks[rank_id].state is not RankState.STOPPING:
        return False
    mates = (rank for rank in ranks.values() if rank.group == ranks[rank_id].group)
    return crew.topology.model.kind != "moe" or not any(rank.state in WRONG_STATES for rank in mates)


async def _requests(crew: Crew, rank_id: str) -> int:
    """Return how many requests a rank has; none when it does not say."""
    agent, record = crew.agent_of(rank_id), crew.watcher_of(rank_id).record(rank_id)
    if agent is None or record is None:
        return 0
    try:
        async with crew.clock.timeout(_ASK_TIMEOUT):
            reply = await agent.http(record.address, record.api_port, "/metrics", keep=KEEP)
    except (RemoteError, TimeoutError):
        return 0
    reading = read_metrics(decode(reply.body), crew.clock.monotonic()) if reply.status == 200 else None
    return (reading.running or 0) + (reading.waiting or 0) if reading is not None else 0


def _count(number: int) -> str:
    return "1 request runs" if number == 1 else f"{number} requests run"
