"""Processes that no keeper of ours started: how the agent describes them, and ends them by their tree."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pdtui.errors import AgentError
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.processes import ProcessInfo
from tests.remote.conftest import Connect, carriers
from tests.support.waiting import eventually

Type = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def typed(tmp_path: Path) -> AsyncIterator[Type]:
    """Run lines of bash as an operator's shell would, each in one process group with all that it starts.

    What still runs afterwards is killed.
    """
    begun: list[subprocess.Popen[bytes]] = []

    def run(line: str, *, output: str = "shell.log") -> subprocess.Popen[bytes]:
        with (tmp_path / output).open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", line],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "BY_HAND": str(tmp_path), "SECRET": "s"},
                start_new_session=True,
            )
        begun.append(process)
        return process

    yield run

    def gone() -> bool:
        left = carriers(f"BY_HAND={tmp_path}")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    await eventually(gone, what="processes end")
    for process in begun:
        process.wait()


async def find(agent: AgentClient, word: str, count: int = 1) -> list[ProcessInfo]:
    """Return the processes with a word, oldest first, when there are as many."""

    async def probe() -> list[ProcessInfo]:
        found = await agent.processes(match=(word,), env=("BY_HAND",))
        assert all(info.argv for info in found)  # Also of one that is just between two programs.
        named = sorted((info for info in found if info.argv[0] != "bash"), key=lambda info: info.start)
        return named if len(named) == count else []

    found: list[ProcessInfo] = await eventually(probe, what=f"{count} processes with {word}")
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def test_one_child_of_a_launcher_ends_and_the_other_and_the_launcher_stay(
    connect: Connect, typed: Type
) -> None:
    agent = await connect()
    serve = "import os, time; os.fork(); time.sleep(3107)"
    launcher = typed(f"python3 -c '{serve}' child-one-3107 & python3 -c '{serve}' child-two-3107 & wait; exit 0")
    one = [info for info in await find(agent, "child-one-3107", 2) if info.argv[-1] == "child-one-3107"]
    two = [info for info in await find(agent, "child-two-3107", 2) if info.argv[-1] == "child-two-3107"]
    server = next(info for info in one if info.ppid == launcher.pid)
    assert server.tree == tuple(info.pid for info in one if info.pid != server.pid)
    assert os.getpgid(server.pid) == os.getpgid(two[0].pid)
    done = await agent.stop_tree("c", server.pid, server.start, grace=10)
    assert (done.outcome, done.killed, done.record) == ("stopped", False, None)
    assert not any(lives(info.pid) for info in one)
    assert all(lives(info.pid) for info in two)
    assert launcher.poll() is None
    other = next(info for info in two if info.ppid == launcher.pid)
    assert (await agent.stop_tree("c", other.pid, other.start, grace=10)).outcome == "stopped"
    await eventually(lambda: launcher.poll() is not None, what="the launcher ends with its last child")


async def test_child_that_loses_its_parent_during_the_stop_is_ended_too(connect: Connect, typed: Type) -> None:
    agent = await connect()
    deaf = "import os, signal, time; pid = os.fork(); pid or signal.signal(15, 1); time.sleep(3108)"
    typed(f"python3 -c '{deaf}' tree-3108 & wait")
    both = await find(agent, "tree-3108", 2)
    server = next(info for info in both if info.tree)
    await asyncio.to_thread(_deaf, server.tree[0])
    done = await agent.stop_tree("c", server.pid, server.start, grace=0.5)
    assert (done.outcome, done.killed) == ("stopped", True)
    assert not any(lives(info.pid) for info in both)


def _deaf(pid: int) -> None:
    """Wait until a process ignores TERM."""
    while not int(Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0], 16) & (1 << 14):
        os.sched_yield()


async def test_orphan_goes_with_a_server_that_leads_its_own_session_and_with_no_other(
    connect: Connect, typed: Type
) -> None:
    agent = await connect()
    parent = "import os, time; os.fork() or (os.fork() and os._exit(0)); time.sleep(3109)"
    for word, setsid, goes in (("own-3109", "setsid", True), ("shared-3109", "", False)):
        shell = typed(f"{setsid} python3 -c '{parent}' {word} & wait")

        async def apart(word: str = word, shell: int = shell.pid) -> list[ProcessInfo]:
            found = sorted(await find(agent, word, 2), key=lambda info: info.ppid != shell)
            return found if found[0].ppid == shell and found[1].pid not in found[0].tree else []

        pair: list[ProcessInfo] = await eventually(apart, what="an orphan")
        server, orphan = pair
        done = await agent.stop_tree("c", server.pid, server.start, grace=10)
        assert done.outcome == "stopped"
        assert lives(orphan.pid) is not goes


async def test_reused_number_another_boot_and_somebody_elses_process_are_not_touched(
    connect: Connect, typed: Type
) -> None:
    agent = await connect()
    typed("python3 -c 'import time; time.sleep(3110)' here-3110 & wait")
    (info,) = await find(agent, "here-3110")
    assert (await agent.stop_tree("c", info.pid, info.start + 1, grace=1)).outcome == "not_running"
    value, _ = await agent.request(
        "stop_tree", cluster="c", pid=info.pid, start=info.start, boot="another", grace=1
    )
    assert value["outcome"] == "not_running"
    assert lives(info.pid)
    if os.getuid():
        first = await agent.processes(match=(), pids=(1,))
        with pytest.raises(AgentError, match="pid 1 belongs to root"):
            await agent.stop_tree("c", 1, first[0].start, grace=1)


async def test_where_output_goes_and_what_is_known_is_not_told_again(
    connect: Connect, typed: Type, tmp_path: Path
) -> None:
    agent = await connect()
    kept, gone = tmp_path / "kept.log", tmp_path / "gone.log"
    line = "python3 -c 'import time; time.sleep(3111)'"
    typed(f"exec {line} w3111-kept", output="kept.log")
    typed(f"{line} w3111-gone >> {gone} & wait")
    typed(f"{line} w3111-pipe | cat")
    typed(f"{line} w3111-null > /dev/null & wait")
    found = {word: (await find(agent, f"w3111-{word}"))[0] for word in ("kept", "gone", "pipe", "null")}
    gone.unlink()
    again = await agent.processes(
        match=("3111",), known=[(info.pid, info.start) for info in found.values()], skip="c:"
    )
    named = {info.pid: info for info in again}
    outputs = {word: named[info.pid].output for word, info in found.items()}
    assert {word: output.kind for word, output in outputs.items()} == {
        "kept": "file", "gone": "deleted", "pipe": "pipe", "null": "null",
    }  # fmt: skip
    assert outputs["kept"].path == str(kept)
    assert outputs["gone"].path == f"/proc/{found['gone'].pid}/fd/1"
    assert outputs["pipe"].path == outputs["null"].path == ""
    assert all(named[info.pid].brief for info in found.values())
    assert found["kept"].env["BY_HAND"]
    assert "SECRET" not in found["kept"].env


async def test_process_that_becomes_another_program_is_told_again(
    connect: Connect, typed: Type, tmp_path: Path
) -> None:
    agent = await connect()
    go = tmp_path / "go"
    os.mkfifo(go)
    shell = typed(f"read < {go}; WORD=new exec {sys.executable} -c 'import time; time.sleep(3112)' became-3112")

    known: list[tuple[int, int]] = []

    async def looks(program: str) -> list[ProcessInfo]:
        found = await agent.processes(match=("became-3112",), env=("BY_HAND", "WORD"), known=known)
        return [info for info in found if info.argv[:1] == (program,)]

    found: list[ProcessInfo] = await eventually(lambda: looks("bash"), what="the shell")
    (before,) = found
    known.append((before.pid, before.start))
    (brief,) = await agent.processes(match=("became-3112",), known=known)
    assert brief.brief
    await asyncio.to_thread(go.write_text, "\n")
    found = await eventually(lambda: looks(sys.executable), what="the program that it became")
    (after,) = found
    assert (after.pid, after.start) == (shell.pid, before.start)
    assert after.argv[-1] == "became-3112"
    assert (before.env.get("WORD"), after.env.get("WORD")) == (None, "new")
    (again,) = await agent.processes(match=("became-3112",), known=known)
    assert again.brief
