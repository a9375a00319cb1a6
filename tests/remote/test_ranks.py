"""Ranks with real processes that are really killed: one process whatever happens, nothing left after a stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdtui.remote import keeper
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.remote.conftest import Connect, carriers, spec
from tests.support.ports import free_port
from tests.support.waiting import eventually


def marked(cluster: str, rank: str = "decode/0") -> list[int]:
    """Return the pids that carry a rank's variable."""
    return carriers(f"PDTUI_RANK={cluster}:{rank}\n")


async def settled(cluster: str, rank: str = "decode/0") -> None:
    """Wait until a rank has become its last program, and see that it is one process.

    While it turns from the login shell into its script and from that into its program, the kernel shows for a
    moment no variables at all.
    """

    def probe() -> bool:
        try:
            return [Path(f"/proc/{pid}/comm").read_text() for pid in marked(cluster, rank)] == ["sleep\n"]
        except OSError:  # It ended between the two looks.
            return False

    await eventually(probe, what=f"one process of {rank}")
    assert len(marked(cluster, rank)) == 1


async def only(agent: AgentClient, cluster: str) -> RankRecord:
    """Return the record of the cluster's only rank."""
    (record,) = await agent.ranks(cluster)
    return record


async def until(agent: AgentClient, cluster: str, state: ProcessState) -> RankRecord:
    """Wait for a state."""

    async def probe() -> list[RankRecord]:
        return [record for record in await agent.ranks(cluster) if record.state is state]

    found: list[RankRecord] = await eventually(probe, what=state)
    return found[0]


@pytest.mark.parametrize("racers", [20, 30])
async def test_racing_starters_start_once(connect: Connect, cluster: str, racers: int) -> None:
    agents = await asyncio.gather(*(connect() for _ in range(5)))
    results = await asyncio.gather(*(agents[n % 5].start_rank(spec(cluster)) for n in range(racers)))
    assert sorted(r.outcome for r in results) == ["already_running"] * (racers - 1) + ["started"]
    assert len({r.record.pid for r in results}) == 1
    assert len(marked(cluster)) == 1


async def test_racing_starters_start_nothing_over_an_unkept_rank(connect: Connect, cluster: str) -> None:
    agents = await asyncio.gather(*(connect() for _ in range(5)))
    first = (await agents[0].start_rank(spec(cluster))).record
    assert first.keeper is not None
    os.kill(first.keeper, signal.SIGKILL)
    record = await until(agents[0], cluster, ProcessState.UNKEPT)
    assert (record.pid, record.processes) == (first.pid, (first.pid,))
    results = await asyncio.gather(*(agents[n % 5].start_rank(spec(cluster)) for n in range(20)))
    assert {r.outcome for r in results} == {"already_running"}
    assert marked(cluster) == [first.pid]
    stopped = await agents[1].stop_rank(cluster, "decode/0", grace=20, by="x")
    assert stopped.outcome == "stopped"
    assert marked(cluster) == []
    after = await only(agents[0], cluster)
    assert (after.state, after.exit_status, after.stop_requested) == (ProcessState.EXITED, None, True)
    assert (after.stopped_by, after.stopped_at is not None) == ("x", True)
    again = (await agents[0].start_rank(spec(cluster))).record
    assert (again.stop_requested, again.stopped_by, again.stopped_at) == (False, "x", after.stopped_at)


async def test_an_exit_is_recorded_with_status_and_time(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.start_rank(spec(cluster, "echo first cause; exit 7"))
    record = await until(agent, cluster, ProcessState.EXITED)
    assert (record.exit_status, record.exit_signal, record.stop_requested) == (7, None, False)
    assert record.ended is not None
    assert record.ended >= record.started > 0
    assert Path(record.log).read_text() == "first cause\n"
    again = await agent.start_rank(spec(cluster))
    assert (again.outcome, again.record.run) == ("started", 2)
    assert Path(record.log).read_text() == "first cause\n"


async def test_a_killed_rank_is_no_requested_stop(connect: Connect, cluster: str) -> None:
    agent = await connect()
    pid = (await agent.start_rank(spec(cluster))).record.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    record = await until(agent, cluster, ProcessState.EXITED)
    assert (record.exit_status, record.exit_signal, record.stop_requested) == (None, signal.SIGKILL, False)


async def test_a_rank_runs_on_after_its_keepers_death_and_keeps_logging(connect: Connect, cluster: str) -> None:
    agent = await connect()
    script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done"
    record = (await agent.start_rank(spec(cluster, script))).record
    assert record.keeper is not None
    os.kill(record.keeper, signal.SIGKILL)
    size = Path(record.log).stat().st_size
    await eventually(lambda: Path(record.log).stat().st_size > size + 100)
    lines = Path(record.log).read_text().splitlines()
    assert len(lines) > 10
    assert lines == [f"line {n}" for n in range(1, len(lines) + 1)]


async def test_five_runs_are_kept(connect: Connect, cluster: str) -> None:
    agent = await connect()
    for _ in range(7):
        await agent.start_rank(spec(cluster, "exit 0"))
        await until(agent, cluster, ProcessState.EXITED)
    record = await only(agent, cluster)
    assert record.run == 7
    folder = Path(record.log).parent.parent
    assert sorted(p.name for p in folder.glob("run-*")) == [f"run-{n}" for n in range(3, 8)]


async def test_the_environment_is_that_of_an_interactive_login(connect: Connect, cluster: str, home: Path) -> None:
    (home / ".bashrc").write_text(
        'case $- in *i*) ;; *) return;; esac\necho "Welcome"\nexport ASCEND_HOME_PATH=/ascend\ncd /\n'
    )
    agent = await connect()
    record = (await agent.start_rank(spec(cluster, 'echo "$ASCEND_HOME_PATH $LC_ALL."; env > "$HOME/env"'))).record
    await until(agent, cluster, ProcessState.EXITED)
    assert Path(record.log).read_text() == "/ascend .\n"
    env = dict(line.partition("=")[::2] for line in (home / "env").read_text().splitlines())
    assert env["PDTUI_RANK"] == f"{cluster}:decode/0"
    assert env["SPT_NOENV"] == "1"
    assert env["ASCEND_PROCESS_LOG_PATH"] == str(Path(record.log).parent / "plog")
    assert Path(env["ASCEND_PROCESS_LOG_PATH"]).is_dir()


async def test_a_rank_gets_default_signals_and_no_stray_descriptors(connect: Connect, cluster: str) -> None:
    agent = await connect()
    program = 'import os;print(open("/proc/self/status").read());print(os.listdir("/proc/self/fd"))'
    script = f"exec {sys.executable} -c '{program}'"
    record = (await agent.start_rank(spec(cluster, script))).record
    await until(agent, cluster, ProcessState.EXITED)
    text = Path(record.log).read_text()
    ignored = int(text.partition("SigIgn:")[2].split()[0], 16)
    # CPython itself ignores SIGPIPE (13) and SIGXFSZ (25); what is beyond that would be ours.
    assert ignored & ~(1 << 12 | 1 << 24) == 0
    assert text.splitlines()[-1] == "['0', '1', '2', '3']"  # 3: the listing itself


async def test_stop_reaches_processes_in_sessions_of_their_own(connect: Connect, cluster: str) -> None:
    agent = await connect()
    script = "setsid sleep 1000 & (setsid sh -c 'sleep 1000; true' &) ; exec sleep 1000"
    await agent.start_rank(spec(cluster, script))
    await eventually(lambda: len(marked(cluster)) == 4)
    stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
    assert (stopped.outcome, stopped.survivors) == ("stopped", ())
    assert marked(cluster) == []


async def test_stop_reaches_descendants_that_dropped_the_variable(connect: Connect, cluster: str) -> None:
    agent = await connect()
    script = f"env -i MINE=/{cluster}/ setsid sleep 1000 & exec sleep 1000"
    await agent.start_rank(spec(cluster, script))
    await eventually(lambda: len(carriers(f"MINE=/{cluster}/")) == 1)
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert carriers(f"MINE=/{cluster}/") == []


async def test_orphans_of_a_dead_rank_block_a_start_and_are_stopped(connect: Connect, cluster: str) -> None:
    agent = await connect()
    first = (await agent.start_rank(spec(cluster, "(setsid sleep 1000 &); sleep 0.1; kill -9 $$"))).record
    record = await until(agent, cluster, ProcessState.EXITED)
    assert record.exit_signal == signal.SIGKILL
    assert len(record.processes) == 1
    again = await agent.start_rank(spec(cluster))
    assert (again.outcome, again.record.run) == ("already_running", first.run)
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert marked(cluster) == []
    assert (await agent.start_rank(spec(cluster))).outcome == "started"


async def test_what_ignores_term_is_killed_after_the_grace(connect: Connect, cluster: str) -> None:
    agent = await connect()
    await agent.start_rank(spec(cluster, "trap '' TERM; echo armed; while :; do sleep 1000; done"))
    record = await only(agent, cluster)
    await eventually(lambda: "armed" in Path(record.log).read_text())
    stopped = await agent.stop_rank(cluster, "decode/0", grace=0.5, by="x")
    assert (stopped.outcome, stopped.killed) == ("stopped", True)
    assert marked(cluster) == []


async def test_stop_frees_port_and_lock(connect: Connect, cluster: str) -> None:
    agent = await connect()
    port = free_port()
    program = (
        f'import socket,time;s=socket.create_server(("127.0.0.1",{port}));print(1,flush=True);time.sleep(1000)'
    )
    record = (await agent.start_rank(spec(cluster, f"exec {sys.executable} -c '{program}'"))).record
    await eventually(lambda: Path(record.log).read_text() == "1\n")
    (listener,) = [entry for entry in await agent.ports() if entry.port == port]
    assert (listener.pid, listener.rank) == (record.pid, f"{cluster}:decode/0")
    await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    lock = Path(record.log).parent.parent / "lock"
    assert f":{lock.stat().st_ino} " not in Path("/proc/locks").read_text()


async def test_two_stops_at_once_both_succeed(connect: Connect, cluster: str) -> None:
    one, two = await connect(), await connect()
    await one.start_rank(spec(cluster))
    results = await asyncio.gather(*(a.stop_rank(cluster, "decode/0", grace=20, by="x") for a in (one, two)))
    assert {r.outcome for r in results} <= {"stopped", "not_running"}
    assert marked(cluster) == []


async def test_a_stop_does_not_touch_a_newer_start(connect: Connect, cluster: str) -> None:
    one, two = await connect(), await connect()
    await one.start_rank(spec(cluster, "trap 'exit 0' TERM; while :; do sleep 0.01; done"))
    for _ in range(10):
        stop = asyncio.create_task(one.stop_rank(cluster, "decode/0", grace=20, by="x"))
        while (await two.start_rank(spec(cluster))).outcome != "started":
            pass
        await stop
        await settled(cluster)


async def test_killing_the_agent_during_a_start_leaves_one_rank(connect: Connect, cluster: str) -> None:
    for attempt in range(6):
        agent = await connect()
        pid = int((await agent.run(Command(("sh", "-c", "echo $PPID")))).stdout)
        task = asyncio.create_task(agent.start_rank(spec(cluster, rank=f"decode/{attempt}")))
        await asyncio.sleep(0.004 * attempt)
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(task, return_exceptions=True)
        other = await connect()
        await other.start_rank(spec(cluster, rank=f"decode/{attempt}"))
        await settled(cluster, f"decode/{attempt}")


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b'{"pid": "x", "start": []}', b"\xff\0\xff", b"[1]", b'{"format": "x"}']
)
async def test_a_damaged_record_is_survived(connect: Connect, cluster: str, garbage: bytes) -> None:
    agent = await connect()
    record = (await agent.start_rank(spec(cluster))).record
    path = Path(record.log).with_name("record.json")
    path.write_bytes(garbage)
    damaged = await only(agent, cluster)
    assert damaged.state in (ProcessState.UNKEPT, ProcessState.RUNNING)
    assert damaged.processes == (record.pid,)
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert (await only(agent, cluster)).state is ProcessState.EXITED
    assert (await agent.start_rank(spec(cluster))).outcome == "started"


async def test_processes_without_their_folder_are_still_seen_and_stopped(connect: Connect, cluster: str) -> None:
    import shutil

    agent = await connect()
    record = (await agent.start_rank(spec(cluster))).record
    await settled(cluster)
    shutil.rmtree(Path(record.log).parent.parent)
    lost = await only(agent, cluster)
    assert (lost.state, lost.rank, lost.processes) == (ProcessState.UNKEPT, "decode/0", (record.pid,))
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


async def test_a_reused_pid_is_not_taken_for_the_rank(connect: Connect, cluster: str) -> None:
    agent = await connect()
    record = (await agent.start_rank(spec(cluster, "exit 0"))).record
    await until(agent, cluster, ProcessState.EXITED)
    path = Path(record.log).with_name("record.json")
    stranger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    try:
        raw = json.loads(path.read_text())
        path.write_text(json.dumps(raw | {"pid": stranger.pid, "keeper": stranger.pid}))
        assert (await only(agent, cluster)).processes == ()
        assert (await agent.stop_rank(cluster, "decode/0", grace=0, by="x")).outcome == "not_running"
        start = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
        path.write_text(json.dumps(raw | {"pid": stranger.pid, "start": start, "boot_id": "another boot"}))
        assert (await agent.stop_rank(cluster, "decode/0", grace=0, by="x")).outcome == "not_running"
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_list_during_many_starts_never_calls_a_fresh_rank_dead(connect: Connect, cluster: str) -> None:
    starter, watcher = await connect(), await connect()
    names = [f"decode/{number}" for number in range(24)]
    seen: set[ProcessState] = set()
    starts = asyncio.ensure_future(
        asyncio.gather(*(starter.start_rank(spec(cluster, rank=name)) for name in names))
    )
    while not starts.done():
        seen.update(record.state for record in await watcher.ranks(cluster))
    await starts
    assert seen <= {ProcessState.NONE, ProcessState.RUNNING}


def test_a_keeper_whose_agent_was_killed_during_the_start_keeps_the_rank(tmp_path: Path) -> None:
    run = tmp_path / "run-1"
    run.mkdir()
    (run / "start.json").write_text('{"format": 1}')
    (run / "env").write_bytes(b"")
    ear, mouth = os.pipe()
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    os.close(ear)  # Nobody hears the keeper's answer any more.
    script = Path(keeper.__file__)
    words = [sys.executable, "-I", "-S", str(script), str(run), str(lock), str(mouth), "1000000", "2", "5"]
    subprocess.run([*words, "sh", "-c", "sleep 0.3; exit 7"], pass_fds=(lock, mouth), check=True)
    os.close(mouth)
    os.close(lock)
    deadline = time.monotonic() + 20.0
    while '"status": 7' not in ((run / "exit.json").read_text() if (run / "exit.json").exists() else ""):
        assert time.monotonic() < deadline, "the keeper did not outlive its agent"
        time.sleep(0.05)


async def test_what_a_server_left_whose_keeper_had_gone_before_is_no_running_rank(
    connect: Connect, cluster: str
) -> None:
    agent = await connect()
    first = (await agent.start_rank(spec(cluster, "setsid sleep 1000 & wait"))).record
    assert first.keeper is not None
    assert first.pid is not None
    os.kill(first.keeper, signal.SIGKILL)
    await until(agent, cluster, ProcessState.UNKEPT)
    await eventually(lambda: len(marked(cluster)) == 2)
    os.kill(first.pid, signal.SIGKILL)
    record = await until(agent, cluster, ProcessState.EXITED)
    assert (record.exit_status, record.exit_signal, len(record.processes)) == (None, None, 1)
    assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"
    assert marked(cluster) == []
