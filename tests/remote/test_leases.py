"""Leases as files on a node: one holder, whoever races, whatever lies in the folder, whatever the clock does."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import AgentError
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.leases import LeaseClaim
from tests.remote.conftest import Connect, spec
from tests.support.waiting import eventually


def claim(name: str, *ranks: str, verb: str = "restart") -> LeaseClaim:
    """Return a claim of console `name`."""
    return LeaseClaim(f"{name}-1", name, f"{name}@desk", "10.0.0.9", verb, "group decode", ranks)


async def held(agent: AgentClient, cluster: str) -> list[str]:
    return [lease.claim.id for lease in await agent.leases(cluster)]


def folder(agent: AgentClient, cluster: str) -> Path:
    return Path(agent.facts.state_dir) / cluster


async def test_taken_refused_renewed_broken_released(agent: AgentClient, cluster: str) -> None:
    taken = await agent.take_lease(cluster, claim("ann", "decode/0", "decode/1"), ttl=30)
    assert taken.outcome == "held"
    refused = await agent.take_lease(cluster, claim("bob", "decode/1"), ttl=30)
    assert refused.outcome == "refused"
    (seen,) = refused.leases
    assert seen.claim == claim("ann", "decode/0", "decode/1")
    assert 0 <= seen.age < 20
    assert 10 < seen.left <= 30
    assert (await agent.take_lease(cluster, claim("bob", "decode/2"), ttl=30)).outcome == "held"
    assert (await agent.take_lease(cluster, claim("ann", "decode/0", "decode/1"), ttl=90)).outcome == "held"
    assert max(lease.left for lease in await agent.leases(cluster)) > 60
    over = await agent.take_lease(cluster, claim("cat", "decode/0"), ttl=30, breaks=["ann-1"], reason="why not")
    assert (over.outcome, [one.claim.by for one in over.leases]) == ("held", ["ann@desk"])
    lost = await agent.take_lease(cluster, claim("ann", "decode/0", "decode/1"), ttl=30)
    assert lost.outcome == "broken"
    end = lost.leases[0].end
    assert end is not None
    assert (end.by, end.origin, end.reason, end.expired) == ("cat@desk", "10.0.0.9", "why not", False)
    assert sorted(await held(agent, cluster)) == ["bob-1", "cat-1"]
    for name in ("ann-1", "bob-1", "cat-1", "never-there"):
        await agent.release_lease(cluster, name)
    assert await held(agent, cluster) == []
    with pytest.raises(AgentError, match="no valid name"):
        await agent.release_lease(cluster, "../../x")


async def test_of_consoles_that_race_one_gets_it(connect: Connect, cluster: str) -> None:
    agents = [await connect() for _ in range(3)]
    tries = [
        agent.take_lease(cluster, claim(f"c{n}-{i}", "decode/0", f"decode/{i + 1}"), ttl=30)
        for i, agent in enumerate(agents)
        for n in range(8)
    ]
    outcomes = [result.outcome for result in await asyncio.gather(*tries)]
    assert outcomes.count("held") == 1
    assert len(await held(agents[0], cluster)) == 1


async def test_start_and_stop_under_a_broken_lease_are_refused(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.take_lease(cluster, claim("ann", "decode/0"), ttl=30)
    mine = replace(spec(cluster), lease="ann-1")
    assert (await agent.start_rank(mine)).outcome == "started"
    await agent.take_lease(cluster, claim("bob", "decode/0"), ttl=30, breaks=["ann-1"], reason="fire")
    for act in (
        agent.start_rank(mine),
        agent.stop_rank(cluster, "decode/0", grace=5, by="ann", lease="ann-1"),
    ):
        with pytest.raises(AgentError, match="bob@desk has taken over") as refused:
            await act
        assert refused.value.code == "lease_lost"
    stopped = await agent.stop_rank(cluster, "decode/0", grace=5, by="bob", lease="bob-1")
    assert stopped.outcome == "stopped"


async def test_an_end_that_nobody_waits_for_comes_by_itself(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.take_lease(cluster, claim("ann", "decode/0"), ttl=0.3)
    bob = claim("bob", "decode/0")

    async def free() -> list[str]:
        taken = await agent.take_lease(cluster, bob, ttl=30)
        return [taken.outcome] if taken.outcome == "held" else []

    assert await held(agent, cluster) == ["ann-1"]
    outcome: list[str] = await eventually(free, what="the end of the lease")
    assert outcome == ["held"]
    lost = await agent.take_lease(cluster, claim("ann", "decode/0"), ttl=30)
    assert lost.outcome == "broken"  # Not taken back from him who has it now.
    assert lost.leases[0].end is not None
    assert lost.leases[0].end.expired
    # One that ran out, and that nobody else has taken since, goes on.
    await agent.release_lease(cluster, "bob-1")
    await agent.take_lease(cluster, claim("cat", "decode/0"), ttl=0.01)
    assert (await agent.take_lease(cluster, claim("cat", "decode/0"), ttl=30)).outcome == "held"


async def test_what_lies_in_the_folder_keeps_nobody_from_working(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.take_lease(cluster, claim("ann", "decode/0"), ttl=30)
    place = folder(agent, cluster)
    real = json.loads((place / "lease-ann-1.json").read_text())
    await agent.release_lease(cluster, "ann-1")

    def put(name: str, value: object) -> None:
        (place / f"lease-{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))

    now = time.monotonic()
    put("empty", "")
    put("half", json.dumps(real)[:40])
    put("list", [1, 2])
    put("binary", "\x00\x01\x02")
    put("forever", {**real, "until": now + 1e9})
    put("nan", json.dumps({**real, "until": float("nan")}))
    put("words", {**real, "until": "tomorrow"})
    put("otherboot", {**real, "boot_id": "another"})
    (place / "lease-folder.json").mkdir()
    assert await held(agent, cluster) == []
    assert (await agent.take_lease(cluster, claim("bob", "decode/0"), ttl=30)).outcome == "held"
    await agent.release_lease(cluster, "bob-1")
    # A later format: what we know of it counts; what we do not understand is taken for «all».
    put("later", {**real, "format": 9, "ranks": {"decode": "all"}, "until": now + 60, "more": [1]})
    assert await held(agent, cluster) == ["later"]
    assert (await agent.take_lease(cluster, claim("bob", "p1/0"), ttl=30)).outcome == "refused"
    put(
        "later", {"format": 1, "boot_id": real["boot_id"], "until": now + 60, "holder": 7, "by": None, "broken": 0}
    )
    (bare,) = await agent.leases(cluster)
    assert bare.claim.by == ""
    # The node's wall clock has nothing to say: only what the boot's own clock says counts.
    put("later", {**real, "since": 4e9, "until": now + 60})
    assert await held(agent, cluster) == ["later"]
    assert (await agent.leases(cluster))[0].age < 3600


async def test_journal_on_a_node_is_rotated_and_survives_half_lines(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.journal(cluster, {"id": "a", "event": "stop"})
    path = folder(agent, cluster) / "journal.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id": "half", "ev')
    await agent.journal(cluster, {"id": "b", "event": "start"})
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in (lines[0], lines[2])] == ["a", "b"]
    assert json.loads(lines[2])["received"] == pytest.approx(time.time(), abs=60)
    with path.open("ab") as file:
        file.truncate(5 << 20)  # Longer than one may be; a hole costs nothing.
    others = [await connect() for _ in range(2)]
    await asyncio.gather(*(one.journal(cluster, {"id": f"n{i}", "event": "x"}) for i, one in enumerate(others)))
    assert path.stat().st_size < 1000
    assert path.with_name("journal.jsonl.1").stat().st_size >= 5 << 20  # Rotated once, not twice.
    tail = await agent.journal_tail(cluster, limit=6 << 20)
    assert b'"id": "a"' in tail
    assert b'"id": "n0"' in tail
    assert b'"id": "n1"' in tail
    assert len(await agent.journal_tail(cluster, limit=100)) == 100
