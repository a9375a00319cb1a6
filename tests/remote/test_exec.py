"""An operator's command on a node, over every way to it: streams, input, terminal, signals, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator

import pytest

from pdtui.errors import AgentError, AgentLost
from pdtui.remote.client import AgentClient
from pdtui.remote.interface import Execution
from pdtui.remote.messages.commands import ExecSpec
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, carriers
from tests.support.waiting import eventually


class Talk:
    """A command that runs, and what it has said so far."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.out = b""
        self.err = b""
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> int | None:
        async for chunk in self.execution.output():
            if chunk.stream == "out":
                self.out += chunk.data
            else:
                self.err += chunk.data
        return self.execution.status

    async def said(self, words: bytes) -> None:
        """Wait until it has said something."""
        await eventually(lambda: words in self.out, what=f"{words!r}")

    async def end(self) -> int | None:
        """Wait for its end; returns its status."""
        return await asyncio.wait_for(self.task, 30)


def begin(agent: AgentClient, *argv: str, tty: tuple[int, int] | None = None) -> Talk:
    return Talk(agent.execute(ExecSpec(argv, tty=tty)))


async def run(agent: AgentClient, *argv: str, **env: str) -> tuple[int | None, bytes, bytes]:
    talk = Talk(agent.execute(ExecSpec(argv, env)))
    await talk.execution.end_input()
    return await talk.end(), talk.out, talk.err


async def test_streams_status_argv_environment_and_input(agent: AgentClient) -> None:
    assert await run(agent, "sh", "-c", "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")
    words = ("a b", "$HOME", "`id`", "'", '"', "\\", "前", "x\ny", "")
    status, out, _ = await run(agent, "printf", "%s|", *words)
    assert (status, out.decode()) == (0, "".join(f"{word}|" for word in words))
    assert await run(agent, "sh", "-c", 'echo "$WHAT"; kill -9 $$', WHAT="a  b") == (-9, b"a  b\n", b"")
    data = bytes(range(256)) * 4000  # More than every credit and buffer on the way.
    echo = begin(agent, "cat")
    await echo.execution.write(data)
    await echo.execution.end_input()
    assert await echo.end() == 0
    assert echo.out == data
    with pytest.raises(AgentError) as missing:
        await run(agent, "no-such-tool-here")
    assert missing.value.code == "not_found"


async def test_terminal_of_its_own(agent: AgentClient) -> None:
    talk = begin(agent, "sh", "-c", "tty; stty size; read x; stty size; exec sleep 100", tty=(33, 101))
    await talk.said(b"33 101")
    assert b"/dev/pts/" in talk.out
    await talk.execution.resize(24, 80)
    await talk.execution.write(b"go\n")
    await talk.said(b"24 80")
    await talk.execution.write(b"\x03")  # Ctrl-C, as the terminal sends it.
    assert await talk.end() in (-signal.SIGINT, 128 + signal.SIGINT)


async def test_signal_reaches_the_group_and_leaving_kills_it(agent: AgentClient, cluster: str) -> None:
    talk = begin(agent, "sh", "-c", f"X=/{cluster}/; export X; sleep 1000 & echo on; wait")
    await talk.said(b"on")
    await talk.execution.signal(signal.SIGTERM)
    assert await talk.end() == -signal.SIGTERM
    await eventually(lambda: not carriers(f"/{cluster}/"))
    stream = agent.execute(ExecSpec(("sh", "-c", f"X=/{cluster}/; export X; echo on; sleep 1000; true"))).output()
    assert isinstance(stream, AsyncGenerator)
    async for chunk in stream:
        assert chunk.data == b"on\n"
        break
    await stream.aclose()
    await eventually(lambda: not carriers(f"/{cluster}/"))


async def test_a_command_that_says_more_than_anybody_reads_holds_up_nothing(agent: AgentClient) -> None:
    stream = agent.execute(ExecSpec(("yes",))).output()
    assert isinstance(stream, AsyncGenerator)
    await anext(stream)  # And then nothing for a while.
    status, out, _ = await run(agent, "echo", "quick")
    assert (status, out) == (0, b"quick\n")
    assert await agent.clock_offset() < 5
    await stream.aclose()


async def test_a_daemon_that_holds_the_pipes_ends_nobody_else_and_is_left(
    agent: AgentClient, cluster: str
) -> None:
    status, out, _ = await run(agent, "sh", "-c", f"X=/{cluster}/; export X; setsid sleep 1000 & echo done")
    assert (status, out) == (0, b"done\n")
    (daemon,) = await eventually(lambda: carriers(f"/{cluster}/"))
    os.kill(daemon, signal.SIGKILL)


async def test_agent_that_ends_takes_its_commands_along(cluster: str, tmp_path: object) -> None:
    place = LocalTransport(CLOCK)
    agent = await AgentClient.connect(place, clock=CLOCK, state_dir=f"{tmp_path}/state")
    program = f"X=/{cluster}/; export X; echo on; exec {sys.executable} -c 'import time; time.sleep(1000)'"
    talk = begin(agent, "sh", "-c", program)
    await talk.said(b"on")
    await agent.close()
    with pytest.raises(AgentLost):
        await talk.end()
    await eventually(lambda: not carriers(f"/{cluster}/"))
    await place.close()
