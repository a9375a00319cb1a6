"""Logs that grow: rotated by the keeper without losing a line or moving an offset."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

from pdtui.remote import parse
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.ranks import ProcessState
from tests.remote.conftest import Connect, following, spec
from tests.support.waiting import eventually

LINES = 60_000
WRITER = f"""import os,time
for n in range({LINES}):
    os.write(1, b"%07d %s\\n" % (n, b"x" * 55))
    if n % 2000 == 0: time.sleep(0.02)
time.sleep(1000)
"""


async def start_small(agent: AgentClient, cluster: str, script: str, **rotation: float) -> Path:
    """Start a rank whose log is rotated early; return the log's path."""
    value, _ = await agent.request("start", spec=asdict(spec(cluster, script)), **rotation)
    return Path(parse.start_result(value).record.log)


async def test_rotation_frees_blocks_and_loses_nothing(connect: Connect, cluster: str, tmp_path: Path) -> None:
    agent = await connect()
    (tmp_path / "w.py").write_text(WRITER)
    script = f"exec {sys.executable} {tmp_path}/w.py"
    log = await start_small(agent, cluster, script, rotate=400_000, pieces=99, interval=0.05)
    size = LINES * 64
    await eventually(lambda: log.exists() and log.stat().st_size == size)
    await eventually(lambda: log.stat().st_blocks * 512 < 1_000_000, what="the head is punched out")
    assert log.stat().st_size == size
    got = bytearray()
    async with asyncio.timeout(60), following(agent, log) as stream:
        async for chunk in stream:
            assert (chunk.offset, chunk.gap) == (len(got), False)
            got += chunk.data
            if len(got) >= size:
                break
    assert [int(line[:7]) for line in got.splitlines()] == list(range(LINES))


async def test_followers_that_reconnect_miss_and_double_nothing(
    connect: Connect, cluster: str, tmp_path: Path
) -> None:
    """While it is written at far more than 5,000 lines a second and rotated many times."""
    agent = await connect()
    (tmp_path / "w.py").write_text(WRITER)
    script = f"exec {sys.executable} {tmp_path}/w.py"
    log = await start_small(agent, cluster, script, rotate=300_000, pieces=99, interval=0.02)
    size, got, connections = LINES * 64, bytearray(), 0
    async with asyncio.timeout(90):
        while len(got) < size:
            connections += 1
            async with following(await connect(), log, offset=len(got)) as stream:
                chunks = 0
                async for chunk in stream:
                    assert (chunk.offset, chunk.gap) == (len(got), False)
                    got += chunk.data
                    chunks += 1
                    if len(got) >= size or chunks == 25:
                        break
    assert [int(line[:7]) for line in got.splitlines()] == list(range(LINES))
    assert len(list(log.parent.glob("log.0*"))) >= 3
    assert connections >= 3


async def test_what_was_rotated_away_for_good_is_a_gap(connect: Connect, cluster: str, tmp_path: Path) -> None:
    agent = await connect()
    (tmp_path / "w.py").write_text(WRITER)
    script = f"exec {sys.executable} {tmp_path}/w.py"
    log = await start_small(agent, cluster, script, rotate=400_000, pieces=1, interval=0.05)
    size = LINES * 64
    await eventually(lambda: log.exists() and log.stat().st_size == size)
    await eventually(lambda: log.stat().st_blocks * 512 < 1_000_000)
    async with asyncio.timeout(30), following(agent, log) as stream:
        first = await anext(stream)
    assert first.gap
    assert first.offset > 0
    assert b"\0" not in first.data
    assert len(list(log.parent.glob("log.0*"))) == 1


async def test_a_refusal_is_in_the_record(connect: Connect, cluster: str) -> None:
    """A log folder into which no piece can be written stands for a file system that refuses."""
    agent = await connect()
    log = await start_small(
        agent, cluster, "sleep 0.2; head -c 900000 /dev/zero; exec sleep 1000", rotate=100_000, interval=0.3
    )
    blocked = log.with_name("log.00000000000000000000.tmp")
    blocked.mkdir()
    record = (await agent.ranks(cluster))[0]
    assert record.state is ProcessState.RUNNING

    async def note() -> str:
        return (await agent.ranks(cluster))[0].log_note

    noted: str = await eventually(note)
    assert noted.startswith("refused: ")
    blocked.rmdir()
    assert log.stat().st_size == 900_000
