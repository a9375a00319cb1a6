"""Places where an agent can run, and the promise that nothing is left there."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.remote.channel import Transport
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import LogChunk
from pdtui.remote.messages.ranks import RankSpec
from pdtui.remote.transports.jump_hosts import JumpHosts
from pdtui.remote.transports.local import LocalTransport
from pdtui.remote.transports.login import Handshakes
from pdtui.remote.transports.ssh import SshTransport
from pdtui.topology.model import SshOptions
from tests.remote.memory import MemoryTransport
from tests.remote.simulated_ssh import simulated_ssh
from tests.support.netns import Rack
from tests.support.processes import carrying
from tests.support.sshd import running_sshd
from tests.support.waiting import eventually

Connect = Callable[[], Awaitable[AgentClient]]
CLOCK = SystemClock()


def carriers(word: str) -> list[int]:
    """Return the live processes that carry `word` in their environment or command line."""
    return [process.pid for process in carrying(word)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own: ranks start from its ~/.bashrc, not from the developer's."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[str]:
    """A cluster's name that nobody else has; whatever still runs for it afterwards is killed and waited for."""
    name = "t" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:10]
    yield name

    def gone() -> bool:
        left = carriers(f"PDTUI_RANK={name}:") + carriers(f"/{name}/")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    await eventually(gone, what="ranks and keepers end")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where ranks' records go."""
    return tmp_path / "state"


async def ssh_transport(stack: AsyncExitStack, options: SshOptions, host: str = "127.0.0.1") -> SshTransport:
    """Connect; the stack closes it."""
    handshakes = Handshakes(CLOCK)
    jumps = JumpHosts(CLOCK, handshakes)
    stack.push_async_callback(jumps.close)
    transport = await SshTransport.connect(host, options, clock=CLOCK, jumps=jumps, handshakes=handshakes)
    stack.push_async_callback(transport.close)
    return transport


WAYS = ["memory", "local", "asyncssh", *(pytest.param(name, marks=pytest.mark.sshd) for name in ("sshd", "netns"))]


@pytest.fixture(params=WAYS)
async def transport(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Transport]:
    """Every way to a node."""
    async with AsyncExitStack() as stack:
        place: Transport
        if request.param == "memory":
            place = MemoryTransport()
            stack.push_async_callback(place.close)
        elif request.param == "local":
            place = LocalTransport(CLOCK)
            stack.push_async_callback(place.close)
        elif request.param == "netns":
            rack: Rack = request.getfixturevalue("netns_rack")
            place = await ssh_transport(stack, rack.options("node1"), rack.topology.nodes["node1"].host)
        else:
            folder = tmp_path / "ssh"
            folder.mkdir()
            if request.param == "asyncssh":
                server = await stack.enter_async_context(simulated_ssh(folder))
                place = await ssh_transport(stack, server.options)
            else:
                sshd = await stack.enter_async_context(running_sshd(folder))
                place = await ssh_transport(stack, sshd.options)
        yield place


@pytest.fixture
async def agent(transport: Transport, state: Path) -> AsyncIterator[AgentClient]:
    """An agent in every place."""
    client = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    yield client
    await client.close()


@pytest.fixture
async def connect(state: Path) -> AsyncIterator[Connect]:
    """Start agents on this machine, as many as a test wants."""
    local = LocalTransport(CLOCK)
    clients: list[AgentClient] = []

    async def start() -> AgentClient:
        client = await AgentClient.connect(local, clock=CLOCK, state_dir=str(state))
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()
    await local.close()


@asynccontextmanager
async def on_node(transport: Transport, program: str) -> AsyncIterator[list[str]]:
    """Run a Python program where the agent runs, until its standard input ends; yields the words it says first."""
    async with AsyncExitStack() as stack:
        place = transport
        if isinstance(transport, MemoryTransport):  # It knows agents only, and is this machine.
            place = LocalTransport(CLOCK)
            stack.push_async_callback(place.close)
        channel = await place.open(("python3", "-u", "-c", program))
        words = (await channel.reader.readline()).decode().split()
        assert words, (await channel.closed).stderr
        yield words
        channel.writer.close()
        await channel.closed


@asynccontextmanager
async def following(
    agent: AgentClient, path: Path, *, offset: int | None = 0, tail: int = 65536
) -> AsyncIterator[AsyncIterator[LogChunk]]:
    """Follow a file, from its start if nothing else is said, and stop when the block ends."""
    stream = agent.follow(str(path), offset=offset, tail=tail)
    assert isinstance(stream, AsyncGenerator)
    async with aclosing(stream):
        yield stream


def spec(cluster: str, script: str = "exec sleep 1000", rank: str = "decode/0") -> RankSpec:
    """Return what starts a small rank."""
    return RankSpec(
        cluster=cluster,
        rank=rank,
        script=script + "\n",
        argv=("vllm", "serve", "/model"),
        env={"HCCL_BUFFSIZE": "600"},
        digest="d1",
        address="127.0.0.1",
        api_port=7100,
        ports=(7100, 36200),
        devices=(0, 1),
        by="tester@console",
        hbm_before={"0": 3000},
    )
