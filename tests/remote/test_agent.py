"""The agent among hostile consoles, dead disks and sudden ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from pdtui.errors import AgentError, AgentLost
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState
from tests.remote.conftest import Connect, carriers, following, spec
from tests.remote.injected import RawAgent, inject
from tests.support.waiting import eventually

HANG = """
_open = os.open
def _hang(path, *rest, **more):
    if str(path).endswith("/hung"):
        time.sleep(1000)
    return _open(path, *rest, **more)
os.open = _hang
"""
"""What a dead network disk does: the call does not return."""


StartRaw = Callable[..., Awaitable[RawAgent]]


@pytest.fixture
async def start_raw(state: Path) -> AsyncIterator[StartRaw]:
    """Start agents whose console is the test."""
    agents: list[RawAgent] = []

    async def start(*, code: str = "", silence: float = 30.0) -> RawAgent:
        agents.append(await RawAgent.start(state, code=code, silence=silence))
        return agents[-1]

    yield start
    for agent in agents:
        await agent.abort()


@pytest.fixture
async def raw(start_raw: StartRaw) -> RawAgent:
    """An agent whose console is the test."""
    return await start_raw()


async def test_a_killed_agent_takes_its_commands_along_and_no_rank(connect: Connect, cluster: str) -> None:
    agent, other = await connect(), await connect()
    await other.start_rank(spec(cluster))
    pid = int((await agent.run(Command(("sh", "-c", "echo $PPID")))).stdout)
    script = f"X=/{cluster}/; export X; trap '' TERM HUP; sleep 1000 & sleep 1000; true"
    waiting = [asyncio.create_task(agent.run(Command(("sh", "-c", script), timeout=999))) for _ in range(3)]
    await eventually(lambda: len(carriers(f"X=/{cluster}/")) == 9)
    os.kill(pid, signal.SIGKILL)
    for task in waiting:
        with pytest.raises(AgentLost):
            await task
    await eventually(lambda: not carriers(f"X=/{cluster}/"), what="the commands end with their agent")
    assert (await other.ranks(cluster))[0].state is ProcessState.RUNNING


async def test_an_agent_leaves_no_process_of_its_own(raw: RawAgent) -> None:
    children = Path(f"/proc/{raw.process.pid}/task/{raw.process.pid}/children")
    (reaper,) = map(int, children.read_text().split())
    assert await raw.close() == ""
    assert not Path(f"/proc/{reaper}").exists()


async def test_reads_that_hang_are_told_and_delay_nobody(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inject(monkeypatch, HANG)
    agent = await connect()
    good = tmp_path / "good"
    good.write_text("one\n")
    async with asyncio.timeout(60), following(agent, good) as stream:
        assert (await anext(stream)).data == b"one\n"
        for op in ("follow", "read"):
            with pytest.raises(AgentError) as caught:
                await agent.request(op, path=str(tmp_path / "hung"), limit=9, patience=0.3)
            assert caught.value.code == "timeout"
        with good.open("a") as file:
            file.write("two\n")
        assert (await anext(stream)).data == b"two\n"
    assert await agent.read_file(str(good)) == b"one\ntwo\n"
    hung = [
        asyncio.create_task(agent.request("read", path=str(tmp_path / "hung"), limit=9, patience=0.3))
        for _ in range(20)
    ]
    for task in hung:
        with pytest.raises(AgentError):
            await task
    with pytest.raises(AgentError, match="hang already"):
        await agent.read_file(str(good))
    assert isinstance(await agent.ports(), list)


async def test_an_agent_with_hanging_reads_still_ends(start_raw: StartRaw, tmp_path: Path, cluster: str) -> None:
    raw = await start_raw(code=HANG, silence=5.0)
    for number in range(4):
        raw.send(number, "follow" if number % 2 else "read", path=str(tmp_path / "hung"), limit=9)
    raw.send(9, "run", argv=["env", f"X=/{cluster}/", "sleep", "1000"], timeout=999)
    await eventually(lambda: carriers(f"X=/{cluster}/"))
    async with asyncio.timeout(60):
        assert await raw.process.wait() == 0
    await eventually(lambda: not carriers(f"X=/{cluster}/"))


def peak(pid: int) -> int:
    """Return the most memory that a process has had, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return 0


async def test_a_console_that_does_not_read_costs_no_memory(start_raw: StartRaw) -> None:
    """Answers to 200,000 pings and some hundred listings would be far more than 100 MB."""
    raw = await start_raw(silence=5.0)
    before = peak(raw.process.pid)
    listing = b'{"id": 1, "op": "processes", "args": {"match": [""], "env": ["PATH"]}}\n'
    frames = b"".join(b'{"id": %d, "op": "ping"}\n' % n for n in range(2, 200_000)) + listing * 300
    for at in range(0, len(frames), 1 << 16):
        try:
            async with asyncio.timeout(1.0):
                raw.stdin.write(frames[at : at + (1 << 16)])
                await raw.stdin.drain()
        except TimeoutError:
            break
    else:
        pytest.fail("the agent went on to take requests")
    assert peak(raw.process.pid) - before < 40_000
    # What it does not take, it does not hear: silence ends it.
    await eventually(lambda: raw.process.returncode == 0, within=60)


async def test_small_answers_overtake_bulk(raw: RawAgent, tmp_path: Path) -> None:
    (tmp_path / "bulk").write_bytes(b"x" * 4_000_000)
    for number in range(1, 5):
        raw.send(number, "read", path=str(tmp_path / "bulk"), limit=4_000_000)
    await asyncio.wait_for(raw.stdout.read(1), 30)
    raw.send(99, "ping")
    frames = 0
    while b'"id":99' not in await asyncio.wait_for(raw.stdout.readline(), 30):
        frames += 1
    assert frames < 4 * 4_000_000 / 45_000 / 2


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b'{"id": 5, "op": "follow", "args": {"path": 7}}', "bad_request"),
        (b'{"id": 5, "op": "follow", "args": {"path": "/a\\u0000b"}}', "bad_request"),
        (b'{"id": 5, "op": "follow", "args": {"path": "/", "offset": "x"}}', "bad_request"),
        (b'{"id": 5, "op": "follow", "args": {"path": "/", "offset": -7}}', "not_a_file"),
        (b'{"id": 5, "op": "ack", "args": {}}', "bad_request"),
        (b'{"id": 5, "op": "run", "args": [1]}', "bad_request"),
        (b'{"id": 5, "args": {}}', "bad_request"),
        (b'{"id": 5, "data": ["args"]}', "bad_request"),
        (b'{"id": 5, "op": "__init__", "args": {}}', "unknown_request"),
        (b'{"id": 5, "op": "read", "args": {"path": "/proc/nonexistent", "limit": 1}}', "not_found"),
    ],
)
async def test_wrong_requests_are_answered_where_they_were_asked(raw: RawAgent, frame: bytes, code: str) -> None:
    raw.stdin.write(frame + b"\n")
    assert (await raw.answer(5))["error"]["code"] == code
    raw.send(6, "ping")
    assert "ok" in await raw.answer(6)


async def test_garbage_of_every_kind_ends_nothing(raw: RawAgent) -> None:
    raw.stdin.write(b"[" * 60_000 + b"\n" + b'{"id":' * 9_000 + b"\n\0\xff\n" + b'{"id": [1], "op": "ping"}\n')
    raw.send(1, "run", argv=["sleep", "1000"], timeout=999)
    raw.send(1, "run", argv=["sleep", "1000"], timeout=999)
    assert "not answered yet" in (await raw.answer(1))["error"]["message"]
    raw.send(2, "ack", target=1, bytes=-(10**9))
    raw.send(3, "cancel", target=77)
    raw.send(4, "ping")
    assert "ok" in await raw.answer(4)


async def test_a_request_that_is_too_large_is_refused_and_forgotten(raw: RawAgent) -> None:
    piece = json.dumps({"id": 5, "data": ["args", base64.b64encode(b"x" * 45_000).decode()]}).encode() + b"\n"
    for _ in range((16 << 20) // 45_000 + 3):
        raw.stdin.write(piece)
        await raw.stdin.drain()
    raw.send(5, "run")
    assert (await raw.answer(5))["error"]["code"] == "too_large"
    raw.send(6, "run", argv=["true"])
    assert (await raw.answer(6))["ok"]["status"] == 0


async def test_more_requests_than_it_can_hold_are_refused_at_once(raw: RawAgent) -> None:
    for number in range(1, 900):
        raw.send(number, "http", host="127.0.0.1", port=1, path="/", timeout=1, limit=1)
    raw.send(900, "ping")
    answers: dict[int, str] = {}
    async with asyncio.timeout(60):
        while len(answers) < 900:
            frame = json.loads(await raw.stdout.readline())
            answers[frame["id"]] = frame.get("error", {}).get("code", "ok")
    assert set(answers.values()) <= {"ok", "busy"}
    assert answers[900] == "ok"


async def test_a_node_without_threads_says_so_and_recovers(state: Path, start_raw: StartRaw) -> None:
    code = """
_start = threading.Thread.start
def _refuse(self):
    if os.path.exists("%s"):
        raise RuntimeError("can't start new thread")
    _start(self)
threading.Thread.start = _refuse
"""
    full = state.with_name("full")
    raw = await start_raw(code=code % full)
    full.touch()
    raw.send(1, "run", argv=["true"])
    assert (await raw.answer(1))["error"]["code"] == "busy"
    full.unlink()
    raw.send(2, "run", argv=["true"])
    assert (await raw.answer(2))["ok"]["status"] == 0


async def test_a_frame_beyond_the_limit_ends_it_with_a_word(raw: RawAgent) -> None:
    raw.stdin.write(b'{"id": 1, "op": "' + b"x" * 70_000 + b'"}\n')
    assert "64 KiB" in await raw.close()


async def test_a_cut_frame_is_not_done(raw: RawAgent, tmp_path: Path) -> None:
    made = tmp_path / "made"
    raw.stdin.write(b'{"id": 1, "op": "run", "args": {"argv": ["touch", "%s"]}}' % str(made).encode())
    await raw.close()
    assert not made.exists()


async def test_a_file_that_cannot_be_read_is_told_not_waited_for(connect: Connect, tmp_path: Path) -> None:
    agent = await connect()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, word in ((loop, "symbolic"), (tmp_path, "directory")):
        async with asyncio.timeout(30), following(agent, path) as stream:
            with pytest.raises(AgentError, match=word):
                await anext(stream)


async def test_a_hole_is_not_filled_from_a_file_of_logrotate(connect: Connect, tmp_path: Path) -> None:
    """A writer without O_APPEND leaves a hole after copytruncate; `log.1` beside it is no piece of ours."""
    agent = await connect()
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"after\n")
    log.with_name("log.1").write_bytes(b"WRONG\n" * 1000)
    async with asyncio.timeout(30), following(agent, log) as stream:
        chunk = await anext(stream)
    assert (chunk.offset, chunk.data, chunk.gap) == (1 << 20, b"after\n", True)


async def test_a_command_that_is_being_started_ends_with_a_killed_agent_too(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """Between its start and the moment at which its number is known lies a gap: here it is wide open."""
    code = """
_popen = subprocess.Popen
def _killed(argv, **options):
    _popen(argv, **options)
    if argv[0] == "env":
        os.kill(os.getpid(), 9)
    return _popen(argv, **options)
subprocess.Popen = _killed
"""
    inject(monkeypatch, code)
    agent = await connect()
    with pytest.raises(AgentLost):
        await agent.run(Command(("env", f"X=/{cluster}/", "sleep", "1000"), timeout=999))
    await eventually(lambda: not carriers(f"X=/{cluster}/"))


async def test_a_clock_that_jumps_on_the_node_changes_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, cluster: str, tmp_path: Path
) -> None:
    """Hours forth and back: time-outs, silence, readings, follows and records go by what cannot be set."""
    jump = tmp_path / "jump"
    jump.write_text("0")
    inject(monkeypatch, f"_time = time.time\ntime.time = lambda: _time() + float(open('{jump}').read() or 0)\n")
    agent = await connect()
    record = (await agent.start_rank(spec(cluster, "echo up; exec sleep 1000"))).record
    counter = tmp_path / "counter"
    command = Command(("sh", "-c", f"echo x >> {counter}; cat {counter}"), device=1, max_age=300)
    await agent.run(command)
    for number, hours in enumerate((3, -3, 0)):
        jump.write_text(str(hours * 3600))
        seen = next(r for r in await agent.ranks(cluster) if r.rank == record.rank)
        assert (seen.state, seen.processes) == (ProcessState.RUNNING, (record.pid,))
        assert abs(seen.started - (record.started + hours * 3600)) < 3
        assert (await agent.run(command)).stdout == b"x\n"  # Still the reading of a moment ago.
        assert (await agent.run(Command(("sleep", "1000"), timeout=0.1))).timed_out
        assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
        other = f"decode/{number + 1}"
        await agent.start_rank(spec(cluster, rank=other))
        assert (await agent.stop_rank(cluster, other, grace=20, by="x")).outcome == "stopped"
        async with asyncio.timeout(30), following(agent, Path(record.log)) as stream:
            assert (await anext(stream)).data == b"up\n"
    assert agent.lost is None
