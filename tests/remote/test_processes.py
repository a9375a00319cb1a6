"""Processes that hide, or get the number of another: none of ours is missed, no stranger is touched."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, Connect, carriers, spec
from tests.remote.injected import inject, need_namespaces
from tests.support.waiting import eventually

DAEMON = """
import ctypes, os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 64)
os.chdir("/")
ctypes.CDLL(None).prctl(15, b"kworker/0:1", 0, 0, 0)
os.execve(sys.argv[1], ["[kworker/0:1]", "-c", "import time; time.sleep(1000)"], {"MINE": sys.argv[2]})
"""
"""Forks twice, leads another session, closes all, names itself after the kernel and clears its environment."""

BEHEADED = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall(60 if os.uname()[4] == "x86_64" else 93, 0)
"""
"""Ends its first thread only: proc(5) shows a zombie that lives."""


async def only(agent: AgentClient, cluster: str) -> RankRecord:
    """Return the record of the cluster's only rank."""
    (record,) = await agent.ranks(cluster)
    return record


async def until(agent: AgentClient, cluster: str, wanted: Callable[[RankRecord], object]) -> RankRecord:
    """Wait for a record."""

    async def probe() -> list[RankRecord]:
        return [record for record in await agent.ranks(cluster) if wanted(record)]

    found: list[RankRecord] = await eventually(probe)
    return found[0]


async def start_daemon(agent: AgentClient, cluster: str, folder: Path, after: str) -> tuple[RankRecord, int]:
    """Start a rank with a daemon that hides, which goes on as `after`; return the record and the daemon's pid."""
    (folder / "daemon.py").write_text(DAEMON)
    mine = f"/{cluster}/daemon"
    record = (
        await agent.start_rank(
            spec(cluster, f"{sys.executable} {folder}/daemon.py {sys.executable} {mine}; echo up; {after}")
        )
    ).record
    await eventually(lambda: Path(record.log).read_text() == "up\n")
    (pid,) = await eventually(lambda: carriers(f"MINE={mine}"))
    return record, pid


async def test_a_daemon_that_hides_is_counted_and_stopped(connect: Connect, cluster: str, tmp_path: Path) -> None:
    agent = await connect()
    record, pid = await start_daemon(agent, cluster, tmp_path, "exec sleep 1000")
    assert set((await only(agent, cluster)).processes) == {record.pid, pid}
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert not Path(f"/proc/{pid}").exists()


async def test_a_daemon_that_outlives_its_rank_is_shown_blocks_and_is_stopped(
    connect: Connect, cluster: str, tmp_path: Path
) -> None:
    agent = await connect()
    _, pid = await start_daemon(agent, cluster, tmp_path, "exit 3")
    record = await until(agent, cluster, lambda record: record.state is ProcessState.EXITED)
    assert (record.exit_status, record.processes) == (3, (pid,))
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert not Path(f"/proc/{pid}").exists()
    assert (await only(agent, cluster)).exit_status == 3


async def test_a_damaged_record_hides_no_daemon_while_the_keeper_lives(
    connect: Connect, cluster: str, tmp_path: Path
) -> None:
    agent = await connect()
    record, pid = await start_daemon(agent, cluster, tmp_path, "exec sleep 1000")
    Path(record.log).with_name("record.json").write_text('{"pid')
    seen = await only(agent, cluster)
    assert (seen.state, seen.keeper, set(seen.processes)) == (
        ProcessState.RUNNING,
        record.keeper,
        {record.pid, pid},
    )
    assert (seen.by, seen.api_port) == ("tester@console", 7100)
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert not Path(f"/proc/{pid}").exists()


async def test_a_process_whose_first_thread_has_ended_still_lives(
    connect: Connect, cluster: str, tmp_path: Path
) -> None:
    agent = await connect()
    (tmp_path / "b.py").write_text(BEHEADED)
    record = (await agent.start_rank(spec(cluster, f"exec {sys.executable} {tmp_path}/b.py"))).record
    stat = Path(f"/proc/{record.pid}/stat")
    await eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert (await only(agent, cluster)).processes == (record.pid,)
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


async def test_keeper_and_rank_killed_is_an_end_that_nobody_saw(connect: Connect, cluster: str) -> None:
    agent = await connect()
    record = (await agent.start_rank(spec(cluster, "sleep 1000; true"))).record
    assert record.keeper is not None
    assert record.pid is not None
    os.kill(record.keeper, signal.SIGKILL)
    unkept = await until(agent, cluster, lambda record: record.state is ProcessState.UNKEPT)
    assert unkept.log_note == "its keeper is gone"
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"

    def ended(record: RankRecord) -> bool:
        for pid in record.processes:  # Also what its shell has begun since the last look.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return record.state is ProcessState.EXITED and not record.processes

    gone = await until(agent, cluster, ended)
    assert (gone.exit_status, gone.exit_signal, gone.stop_requested) == (None, None, False)
    assert gone.gone_with == "keeper"
    other = await connect()
    assert (await only(other, cluster)) == gone
    assert (await other.start_rank(spec(cluster))).outcome == "started"


async def test_a_rank_is_found_in_the_instant_of_its_exec(
    connect: Connect, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan known by its variable alone, which the first look of an agent finds empty."""
    first = await connect()
    record = (await first.start_rank(spec(cluster, "(setsid sleep 1000 &); sleep 0.2; kill -9 $$"))).record
    assert record.keeper is not None
    os.kill(record.keeper, signal.SIGKILL)
    await until(first, cluster, lambda record: len(record.processes) == 1)
    code = """
_read, _seen = read_bytes, set()
def read_bytes(path, limit=1 << 20):
    if path.endswith("/environ") and path not in _seen:
        _seen.add(path)
        return b""
    return _read(path, limit)
"""
    inject(monkeypatch, code)
    agent = await connect()
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


TAKE = """
import os, sys, time
number, stays = int(sys.argv[1]), sys.argv[2] == "stays"
def fork_as(number):
    for _ in range(200):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
        pid = os.fork()
        if pid == 0:
            if os.getpid() == number:
                return
            os._exit(0)
        if pid == number:
            os._exit(0)
        os.waitpid(pid, 0)
    os._exit(1)
fork_as(number)
os.setsid()
if os.fork() and not stays:
    os._exit(0)
os.closerange(0, 64)
time.sleep(1000)
"""
"""Becomes process NUMBER, leads a session of its own, and leaves a child in it."""


@pytest.fixture
async def own_pids(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """Start agents in a world of pids of their own, where the next number can be chosen."""
    need_namespaces("-Urpf")
    local = LocalTransport(CLOCK)
    # bash as process 1 reaps orphans, so that their numbers become free.
    prefix = ("unshare", "-Urpf", "--mount-proc", "--kill-child", "bash", "-c", '"$0" "$@"; exit $?')
    client = await AgentClient.connect(local, clock=CLOCK, prefix=prefix, state_dir=str(tmp_path / "state"))
    yield lambda: client
    await client.close()
    await local.close()


@pytest.mark.parametrize("leader", ["stays", "leaves"])
@pytest.mark.parametrize("keeper", ["lives", "killed"])
async def test_a_stranger_with_the_number_of_a_rank_is_left_alone(
    own_pids: Callable[[], AgentClient], cluster: str, tmp_path: Path, leader: str, keeper: str
) -> None:
    agent = own_pids()
    (tmp_path / "take.py").write_text(TAKE)
    record = (await agent.start_rank(spec(cluster))).record
    if keeper == "killed":
        await agent.run(Command(("kill", "-9", str(record.keeper))))
    await agent.run(Command(("kill", "-9", str(record.pid))))
    await until(agent, cluster, lambda record: record.state is ProcessState.EXITED and not record.processes)
    taken = await agent.run(
        Command((sys.executable, str(tmp_path / "take.py"), str(record.pid), leader), timeout=30)
    )
    assert taken.status == 0, taken.stderr

    async def strangers() -> list[tuple[int, int]]:
        found = await agent.processes(match=["take.py"])
        return [(p.pid, p.session) for p in found if p.session == record.pid]

    there: list[tuple[int, int]] = await eventually(strangers)
    assert (record.pid in dict(there)) == (leader == "stays")
    seen = await only(agent, cluster)
    assert (seen.state, seen.processes) == (ProcessState.EXITED, ())
    assert (await agent.stop_rank(cluster, "decode/0", grace=0, by="x")).outcome == "not_running"
    assert (await agent.start_rank(spec(cluster))).outcome == "started"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert await strangers() == there


async def test_a_stop_right_after_a_start_is_not_lost_on_the_login_shell(
    connect: Connect, cluster: str, home: Path
) -> None:
    """An interactive bash ignores TERM until it has become the rank."""
    (home / ".bashrc").write_text("touch ~/reading; sleep 1\n")
    agent = await connect()
    await agent.start_rank(spec(cluster))
    await eventually(lambda: (home / "reading").exists())
    stopped = await agent.stop_rank(cluster, "decode/0", grace=25, by="x")
    assert (stopped.outcome, stopped.killed) == ("stopped", False)
