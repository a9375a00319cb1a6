"""Records of every format that was ever written: read, listed and stopped by every later agent, for ever.

`data/formats/N/NAME` is a rank's folder as an agent and a keeper of format N left it; `@PID@` and the like stand
for processes that a test provides.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdtui.errors import AgentError
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.remote.conftest import Connect, spec

FORMATS = Path(__file__).with_name("data") / "formats"
EXITED, RUNNING, UNKEPT = ProcessState.EXITED, ProcessState.RUNNING, ProcessState.UNKEPT


@dataclass(frozen=True)
class Stand:
    """What plays a keeper and its rank."""

    keeper: int
    rank: int


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """A process with one child, which is no child of ours."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 1000 >/dev/null & echo $!; wait", stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    yield Stand(process.pid, int(await process.stdout.readline()))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.stdout.read()
    await process.wait()


def start_of(pid: int) -> int:
    """Return when a process began, in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def put(agent: AgentClient, cluster: str, name: str, stand: Stand, *, ended: bool = False) -> Path:
    """Lay a fixture where the agent looks for `decode/0`; return its newest run. `ended`: its pids are reused."""
    words = {
        "@BOOT@": agent.facts.boot_id,
        "@INIT@": str(start_of(1)),
        "@PID@": str(stand.rank),
        "@START@": str(start_of(stand.rank) - ended),
        "@KEEPER@": str(stand.keeper),
        "@KEEPER_START@": str(start_of(stand.keeper) - ended),
    }
    folder = Path(agent.facts.state_dir) / cluster / "decode.0"
    for source in (path for path in (FORMATS / name).rglob("*") if path.is_file()):
        target = folder / source.relative_to(FORMATS / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        data = source.read_bytes()
        for word, value in words.items():
            data = data.replace(word.encode(), value.encode())
        target.write_bytes(data)
    return max(folder.glob("run-*"))


async def only(agent: AgentClient, cluster: str) -> RankRecord:
    """Return the record of the cluster's only rank."""
    (record,) = await agent.ranks(cluster)
    return record


@pytest.mark.parametrize(
    ("name", "seen", "asked"),
    [
        ("1/running", RUNNING, False),
        ("1/stopping", RUNNING, True),
        ("1/first-release", RUNNING, False),
        ("1/unknown-fields", RUNNING, True),
        ("1/least", UNKEPT, False),
    ],
)
async def test_what_runs_is_seen_not_started_twice_and_stopped(
    connect: Connect, cluster: str, stand: Stand, name: str, seen: ProcessState, asked: bool
) -> None:
    agent = await connect()
    put(agent, cluster, name, stand)
    record = await only(agent, cluster)
    assert (record.state, record.pid, record.run) == (seen, stand.rank, 1)
    assert record.processes == (stand.rank,)
    assert record.stop_requested is asked
    if seen is RUNNING:
        assert (record.by, record.api_port, record.devices) == ("ops@laptop", 7100, (0, 1))
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="me")
    assert (stopped.outcome, stopped.killed) == ("stopped", False)
    assert not Path(f"/proc/{stand.rank}").exists()
    record = await only(agent, cluster)
    assert (record.state, record.exit_status, record.stopped_by) == (EXITED, None, "me")
    assert (await agent.start_rank(spec(cluster))).record.run == 2


@pytest.mark.parametrize(
    ("name", "run", "status", "killed", "by"),
    [
        ("1/exited", 3, 9, None, ""),
        ("1/stopped", 1, None, 15, "ops@laptop"),
        ("1/cut-record", 1, None, None, ""),
        ("1/power-cut", 1, None, None, ""),
    ],
)
async def test_what_has_ended_is_shown_and_may_start_again(
    connect: Connect,
    cluster: str,
    stand: Stand,
    name: str,
    run: int,
    status: int | None,
    killed: int | None,
    by: str,
) -> None:
    agent = await connect()
    put(agent, cluster, name, stand, ended=True)
    record = await only(agent, cluster)
    assert (record.rank, record.state, record.run, record.processes) == ("decode/0", EXITED, run, ())
    assert (record.exit_status, record.exit_signal, record.stopped_by) == (status, killed, by)
    assert (await agent.stop_rank(cluster, "decode/0", grace=1, by="x")).outcome == "not_running"
    again = await agent.start_rank(spec(cluster))
    assert (again.outcome, again.record.run) == ("started", run + 1)


async def test_the_first_release_is_read_in_full(connect: Connect, cluster: str, stand: Stand) -> None:
    agent = await connect()
    put(agent, cluster, "1/exited", stand)
    record = await only(agent, cluster)
    assert (record.format, record.ended, record.stop_requested) == (1, 1796050001.25, False)
    assert (record.pid, record.by, record.digest) == (4242, "ops@laptop", "0123abcd")
    assert dict(record.env) == {"HCCL_BUFFSIZE": "256"}
    assert (record.ports, dict(record.hbm_before)) == ((7101, 36001), {"8": 2911})


@pytest.mark.parametrize("name", ["2/running", "2/stopped"])
async def test_a_newer_format_is_shown_and_left_alone(
    connect: Connect, cluster: str, stand: Stand, name: str
) -> None:
    agent = await connect()
    run = put(agent, cluster, name, stand, ended=name == "2/stopped")
    before = {path: path.read_bytes() for path in run.iterdir()}
    record = await only(agent, cluster)
    assert record.format == 2
    assert (record.state is RUNNING) == (name == "2/running")
    for act in (
        lambda: agent.start_rank(spec(cluster)),
        lambda: agent.stop_rank(cluster, "decode/0", grace=1, by="x"),
    ):
        with pytest.raises(AgentError, match="newer pdtui") as caught:
            await act()
        assert (caught.value.code, "pdtui" in caught.value.remedy) == ("newer_format", True)
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    assert [path.name for path in run.parent.glob("run-*")] == ["run-1"]
    assert Path(f"/proc/{stand.rank}").exists()
