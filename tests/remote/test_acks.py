"""Acknowledgements as a file on a node: whoever races, whatever lies there, whatever the clock does."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from pdtui.errors import AgentError
from pdtui.remote.messages.acks import KEPT, LONGEST
from tests.remote.conftest import Connect
from tests.support.ack_rules import ack, check_rules, ids
from tests.support.manual_clock import ManualClock
from tests.support.memory_node import MemoryAgent, MemoryNode


async def test_memory_keeps_the_rules() -> None:
    await check_rules(MemoryAgent(MemoryNode("node1", ManualClock())), "tiny")


async def test_consoles_that_write_at_once_lose_nothing_and_later_agents_read_it(
    connect: Connect, cluster: str
) -> None:
    agents = [await connect() for _ in range(3)]
    await asyncio.gather(
        *(
            agent.put_acks(cluster, [ack(f"c{n}", f"decode/{n}{i}:kv-held")])
            for i, agent in enumerate(agents)
            for n in range(8)
        )
    )
    assert len(ids(await agents[0].acks(cluster))) == 24
    later = await connect()
    assert ids(await later.acks(cluster)) == ids(await agents[0].acks(cluster))


async def test_what_lies_in_the_file_hurts_nobody(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.put_acks(cluster, [ack("ann"), ack("bob", "decode/3:kv-held")])
    path = Path(agent.facts.state_dir) / cluster / "acks.json"
    assert path.stat().st_mode & 0o777 == 0o600
    value = json.loads(path.read_text())
    good, now = value["acks"]["node3/9:link-down"], time.time()
    value["acks"] |= {
        "a:list": [1],
        "a:words": {**good, "at": "yesterday"},
        "a:nan": {**good, "expires": float("nan")},
        "a:true": {**good, "at": True},
        "a:ancient": {**good, "at": now - LONGEST - 60},
        "a:no-id": {**good, "id": 7},
        "a:hostile": {**good, "reason": "\x1b[2J[red]" + "x" * 9000},
        "a:later": {**good, "severity": {"new": 1}, "at": now + 9e6},
    }
    path.write_text(json.dumps({**value, "format": 9, "also": [1]}))
    found = {one.key: one for one in (await agent.acks(cluster)).acks or ()}
    assert set(found) == {"node3/9:link-down", "decode/3:kv-held", "a:hostile", "a:later"}
    assert "\x1b" not in found["a:hostile"].reason
    # Of a clock that was ahead nothing stays for ever: what is newer by now's time stands instead of it.
    assert ids(await agent.put_acks(cluster, [ack("now", "a:later", age=-10)]))["a:later"] == "id-now"
    kept = json.loads(path.read_text())  # What a later version put there is kept.
    assert (kept["format"], kept["also"]) == (9, [1])
    for junk in ("", "[1]", '{"format": 1, "acks": [', "\x00\xff", '{"acks": {"k": null}}'):
        path.write_text(junk)
        assert (await agent.acks(cluster)).acks == ()
    assert ids(await agent.put_acks(cluster, [ack("cat")])) == {"node3/9:link-down": "id-cat"}
    path.unlink()
    path.mkdir()
    with pytest.raises(AgentError):
        await agent.put_acks(cluster, [ack("cat")])
    assert (await agent.acks(cluster)).acks == ()


async def test_no_more_are_kept_than_the_newest(connect: Connect, cluster: str) -> None:
    agent = await connect()
    many = [ack(f"n{n}", f"decode/{n}:kv-held", age=float(n)) for n in range(KEPT)]
    await agent.put_acks(cluster, many)
    found = ids(await agent.put_acks(cluster, [ack("one"), ack("two", "p/0:failed", age=1e6)]))
    assert len(found) == KEPT
    assert found["node3/9:link-down"] == "id-one"
    assert "decode/499:kv-held" not in found
    with pytest.raises(AgentError, match="no valid name"):
        await agent.put_acks("../../x", [ack("one")])
