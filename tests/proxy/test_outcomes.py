"""Whatever happens to five hundred requests, nothing stays behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.proxy.mock_rank import Behaviour, Rig, drop, error, generate, prefill, respond, rig
from tests.proxy.test_pull import BODY, CHAT, CHAT_PATH, STREAM
from tests.support.waiting import eventually


def linger(then: Behaviour, rounds: int) -> Behaviour:
    """Wait a little first, so that clients leave at every moment."""

    async def behave(rank: Any, request: Any, body: dict[str, Any]) -> Any:
        for _ in range(rounds):
            await asyncio.sleep(0.001)
        return await then(rank, request, body)

    return behave


def choose(rng: random.Random, good: Behaviour, bad: list[Callable[[], Behaviour]]) -> Behaviour:
    fault = good if rng.random() < 0.6 else rng.choice(bad)()
    return linger(fault, rng.choice([0, 0, 1, 5]))


BAD_P: list[Callable[[], Behaviour]] = [
    lambda: error(500, "boom"), lambda: error(400, "no"), lambda: drop, lambda: respond(200, "{}"),
    lambda: prefill(remote_block_ids=[]), lambda: respond(200, "no json"),
]  # fmt: skip
BAD_D: list[Callable[[], Behaviour]] = [
    lambda: error(500, "boom"), lambda: error(404, "no"), lambda: drop, lambda: generate(die_after=3),
    lambda: generate(end_after=0), lambda: generate(recompute_after=2), lambda: generate(error_after=1),
    lambda: generate(chop=5),
]  # fmt: skip


async def one(it: Rig, rng: random.Random) -> int | None:
    """Send a request; None when its client left."""
    body, path = rng.choice([(BODY, "/v1/completions"), (STREAM, "/v1/completions"), (CHAT, CHAT_PATH)])
    request = asyncio.create_task(it.post(body, path))
    if rng.random() < 0.3:
        await asyncio.sleep(rng.random() * 0.02)
        request.cancel()
    try:
        return (await request).status
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("seed", [1])
async def test_counters_return_to_zero_after_five_hundred_random_outcomes(seed: int) -> None:
    rng = random.Random(seed)
    outcomes: dict[int | None, int] = {}
    async with rig(2, 4) as it:
        for rank in it.p:
            rank.script.extend(choose(rng, prefill(), BAD_P) for _ in range(1000))
        for rank in it.d:
            rank.script.extend(choose(rng, generate(), BAD_D) for _ in range(1000))
        for batch in range(50):
            if batch % 10 == 5:
                it.unreachable = {it.d[batch % 4].name}
            it.update(lambda rank, out=batch: rank.name != f"decode/{out % 7}")  # type: ignore[misc]
            # Ranks that were put out by their faults come back, or the rest would only see 503.
            for view in it.proxy.pool.views():
                it.proxy.pool.succeeded(view.rank)
            for status in await asyncio.gather(*(one(it, rng) for _ in range(10))):
                outcomes[status] = outcomes.get(status, 0) + 1
        await eventually(it.idle)
        await eventually(lambda: it.proxy.traces.running == 0)
        await eventually(lambda: sum(rank.running for rank in it.ranks) == 0)
    assert sum(outcomes.values()) == 500
    assert {None, 200, 400, 404, 502} <= set(outcomes)
