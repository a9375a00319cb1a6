"""The programs for nodes under every Python that is here, from 3.6."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import pdtui.remote
from pdtui.errors import AgentLost
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, carriers, spec
from tests.support.required import skip_unless
from tests.support.waiting import eventually

FOLDER = Path(pdtui.remote.__file__).parent
OLDEST = "3.6"
VERSIONS = [OLDEST, "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]
PYENV = Path(os.environ.get("PYENV_ROOT") or Path(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv"))


def interpreter(version: str) -> str:
    """Return the path of a Python; skip when it is not here. The oldest must be there in CI."""
    installed = sorted((PYENV / "versions").glob(f"{version}.*/bin/python3"))
    if installed:
        return str(installed[-1])
    found = shutil.which(f"python{version}")
    usable = found is not None and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
    if version == OLDEST:
        skip_unless(usable, f"no Python {version} here")
    elif not usable:
        pytest.skip(f"no Python {version} here")
    assert found is not None
    return found


PREFLIGHT = FOLDER.parent / "fleet" / "preflight"
PROGRAMS = [
    FOLDER / "agent.py",
    FOLDER / "keeper.py",
    PREFLIGHT / "place_script.py",
    PREFLIGHT / "reach_script.py",
    PREFLIGHT.parent / "discovering" / "survey_script.py",
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_vermin_finds_nothing_newer_than_3_6(path: Path) -> None:
    vermin = shutil.which("vermin") or str(Path(pytest.__file__).parents[4] / "bin" / "vermin")
    result = subprocess.run([vermin, "-q", "-t=3.6-", "--no-tips", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_agent_and_the_keeper_run(version: str, state: Path, cluster: str, tmp_path: Path) -> None:
    local = LocalTransport(CLOCK)
    agent = await AgentClient.connect(local, clock=CLOCK, state_dir=str(state), python=interpreter(version))
    try:
        assert agent.facts.python.startswith(version + ".")
        commands = [Command(("sh", "-c", "echo $0; exit 3", str(n)), device=n % 2, max_age=5) for n in range(4)]
        results = [result async for _, result in agent.batch(commands)]
        assert sorted(r.stdout for r in results) == [b"0\n", b"1\n", b"2\n", b"3\n"]
        timed_out = await agent.run(Command(("sleep", "1000"), timeout=0.2))
        assert timed_out.timed_out
        assert isinstance(await agent.ports(), list)
        assert (await agent.http("127.0.0.1", 1, "/")).error == "refused"
        assert await agent.processes(match=["no-such-process"]) == []
        started = await agent.start_rank(spec(cluster, "echo up; (setsid sleep 1000 &); exec sleep 1000"))
        async for chunk in agent.follow(started.record.log):
            assert chunk.data == b"up\n"
            break
        assert (await agent.start_rank(spec(cluster))).outcome == "already_running"
        stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
        assert stopped.outcome == "stopped"
        (record,) = await agent.ranks(cluster)
        assert (record.state, record.exit_signal, record.stop_requested) == (ProcessState.EXITED, 15, True)
        await agent.start_rank(spec(cluster, "exit 4"))

        async def status() -> int | None:
            return (await agent.ranks(cluster))[0].exit_status

        ended: int | None = await eventually(status)
        assert ended == 4
        await agent.check_state()
        pid = int((await agent.run(Command(("sh", "-c", "echo $PPID")))).stdout)
        running = asyncio.create_task(agent.run(Command(("env", f"X=/{cluster}/", "sleep", "1000"), timeout=999)))
        await eventually(lambda: carriers(f"X=/{cluster}/"))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(AgentLost):
            await running
        await eventually(lambda: not carriers(f"X=/{cluster}/"))
    finally:
        await agent.close()
        await local.close()
