"""40 random sequences on real agents, keepers and ranks: signals and lost connections, two consoles at once.

Ranks are small scripts with a child in a session of its own, as an engine is. Several sequences run side by side,
each on ranks of its own; the end of each is a stop that leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import AgentError, AgentLost
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState, RankRecord, RankSpec
from pdtui.remote.transports.local import LocalTransport
from tests.support.ports import free_port
from tests.support.processes import Process, carrying
from tests.support.waiting import eventually

SEQUENCES = 40
AT_ONCE = 5
"""Sequences that run side by side: each has two agents."""
STEPS = 7

T = TypeVar("T")

SCRIPTS = {
    "serves": "setsid sleep 1000 & exec sleep 1000",
    "ends": "setsid sleep 1000 & sleep 0.3; exit 3",
    "listens": "setsid sleep 1000 & exec python3 -S -c 'import socket, time;"
    ' s = socket.create_server(("127.0.0.1", PORT)); time.sleep(1000)\'',
    "is deaf": "trap '' TERM; setsid sleep 1000 & while :; do sleep 1000; done",
}


class Sequence:
    """One sequence on one rank, from two consoles."""

    def __init__(self, seed: int, state: Path) -> None:
        self._random = random.Random(seed)
        self._state = state
        self._clock = SystemClock()
        self._transport = LocalTransport(self._clock)
        self._agents: list[AgentClient] = []
        self._pids: dict[AgentClient, int] = {}
        self.cluster = f"mix{seed}-{os.getpid()}"
        self.rank = "d/0"
        self._port = free_port()
        self.told: list[str] = []
        """The steps, for a failure."""

    @property
    def _marker(self) -> str:
        return f"PDTUI_RANK={self.cluster}:{self.rank}"

    async def run(self) -> None:
        """Carry out the steps and check after each; at the end nothing may be left."""
        try:
            self._agents = [await self._connect(), await self._connect()]
            for _ in range(STEPS):
                await self._step()
                self._check_once()
            await self._finish()
        finally:
            for agent in self._agents:
                await agent.close()
            await self._transport.close()
            for process in self._processes():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    async def _connect(self) -> AgentClient:
        agent = await AgentClient.connect(self._transport, clock=self._clock, state_dir=str(self._state))
        self._pids[agent] = int((await agent.run(Command(("sh", "-c", "echo $PPID")))).stdout)
        return agent

    async def _step(self) -> None:
        name = self._random.choice(
            (
                "start",
                "start",
                "both start",
                "start and stop",
                "stop",
                "server",
                "engine",
                "keeper",
                "agent",
                "lose",
            )
        )
        self.told.append(name)
        await getattr(self, "_" + name.replace(" ", "_"))()

    async def _ask(self, number: int, ask: Callable[[AgentClient], Awaitable[T]]) -> T | None:
        """Ask an agent; one that was lost is replaced, as a console does."""
        try:
            return await asyncio.wait_for(ask(self._agents[number]), 60.0)
        except AgentLost:
            await self._agents[number].close()
            self._agents[number] = await self._connect()
        except AgentError as error:
            if error.code not in ("locked", "cancelled"):
                raise
        return None

    def _spec(self, number: int) -> RankSpec:
        script = SCRIPTS[self._random.choice(list(SCRIPTS))]
        return RankSpec(
            cluster=self.cluster,
            rank=self.rank,
            script=script.replace("PORT", str(self._port)) + "\n",
            argv=("vllm", "serve"),
            env={},
            digest="d",
            address="127.0.0.1",
            api_port=self._port,
            ports=(self._port,),
            devices=(0,),
            by=f"user{number}",
        )

    async def _start(self) -> None:
        number = self._random.randrange(2)
        spec = self._spec(number)
        await self._ask(number, lambda agent: agent.start_rank(spec))

    async def _both_start(self) -> None:
        specs = [self._spec(0), self._spec(1)]
        before = await self._record()
        idle = before is None or not before.processes
        done = await asyncio.gather(
            self._ask(0, lambda agent: agent.start_rank(specs[0])),
            self._ask(1, lambda agent: agent.start_rank(specs[1])),
        )
        outcomes = [one.outcome for one in done if one is not None]
        if idle and len(outcomes) == 2 and "sleep 0.3" not in specs[0].script + specs[1].script:
            assert sorted(outcomes) == ["already_running", "started"]

    async def _start_and_stop(self) -> None:
        spec = self._spec(0)
        await asyncio.gather(self._ask(0, lambda a: a.start_rank(spec)), self._end(1))

    async def _stop(self) -> None:
        await self._end(self._random.randrange(2))
        self._check_nothing_left()

    def _check_nothing_left(self) -> None:
        left = {process.pid: process.command for process in self._processes()}
        assert not left, f"a stop said done and left {left}"
        with socket.create_server(("127.0.0.1", self._port)):
            pass  # Its port is free.

    async def _end(self, number: int) -> None:
        result = None
        while result is None:  # An agent that was killed has been replaced.
            result = await self._ask(number, lambda a: a.stop_rank(self.cluster, self.rank, grace=0.3, by="x"))
        assert result.outcome in ("stopped", "not_running")

    async def _kill(self, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _server(self) -> None:
        record = await self._record()
        if record is not None and record.pid in record.processes:
            await self._kill(record.pid)

    async def _engine(self) -> None:
        record = await self._record()
        if record is not None:
            for pid in set(record.processes) - {record.pid}:
                await self._kill(pid)

    async def _keeper(self) -> None:
        record = await self._record()
        if record is not None and record.state is ProcessState.RUNNING:
            await self._kill(record.keeper)

    async def _agent(self) -> None:
        """Kill an agent in the middle of a start."""
        spec, number = self._spec(0), self._random.randrange(2)
        starting = asyncio.ensure_future(self._ask(number, lambda a: a.start_rank(spec)))
        await asyncio.sleep(self._random.choice((0.0, 0.02, 0.1)))
        await self._kill(self._pids[self._agents[number]])
        await starting

    async def _lose(self) -> None:
        """Lose the connection in the middle of a stop."""
        number = self._random.randrange(2)
        agent = self._agents[number]
        ending = asyncio.ensure_future(agent.stop_rank(self.cluster, self.rank, grace=0.3, by="x"))
        await asyncio.sleep(self._random.choice((0.0, 0.05, 0.2)))
        await agent.close()
        await asyncio.gather(ending, return_exceptions=True)
        self._agents[number] = await self._connect()

    async def _record(self) -> RankRecord | None:
        records = await self._ask(0, lambda a: a.ranks(self.cluster)) or ()
        return next(iter(records), None)

    def _processes(self) -> list[Process]:
        return carrying(self._marker)

    def _check_once(self) -> None:
        """See that all processes of the rank are of one start: they share the folder of its logs."""
        runs = {
            line
            for process in self._processes()
            for line in process.environment.splitlines()
            if line.startswith("ASCEND_PROCESS_LOG_PATH=")
        }
        assert len(runs) <= 1, runs

    async def _finish(self) -> None:
        await asyncio.gather(self._end(0), self._end(1))
        await self._end(0)
        self._check_nothing_left()
        await eventually(lambda: not self._keepers(), what="keepers end with their ranks")
        spec = self._spec(0)
        started = None
        while started is None:
            started = await self._ask(0, lambda a: a.start_rank(spec))
        assert started.outcome == "started"
        await self._end(1)
        self._check_nothing_left()

    def _keepers(self) -> list[Process]:
        return carrying(f"/{self.cluster}/", "keeper-")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records go, and an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return tmp_path / "state"


async def _take(seeds: AsyncIterator[int], state: Path) -> None:
    async for seed in seeds:
        sequence = Sequence(seed, state)
        try:
            await sequence.run()
        except AssertionError as error:
            raise AssertionError(f"sequence {seed}, after {sequence.told}: {error}") from error


async def _numbers(left: list[int]) -> AsyncIterator[int]:
    while left:
        yield left.pop(0)


@pytest.mark.timeout(300)
async def test_whatever_is_killed_a_rank_runs_once_and_a_stop_leaves_nothing(state: Path) -> None:
    left = list(range(SEQUENCES))
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(_take(_numbers(left), state))
