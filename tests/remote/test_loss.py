"""Connections that break, freeze or talk nonsense."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import AgentLost, ConnectError
from pdtui.remote import loader
from pdtui.remote.channel import Channel
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState
from pdtui.remote.rpc import PING_EVERY
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, Connect, carriers, spec
from tests.remote.memory import MemoryTransport
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually


class Prefixed:
    """A transport that puts a shell in front: what a node's start-up files may do."""

    def __init__(self, script: str) -> None:
        self.local = LocalTransport(CLOCK)
        self._script = script

    async def open(self, argv: Sequence[str]) -> Channel:
        return await self.local.open(("sh", "-c", self._script, *argv))

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        return host, port

    async def close(self) -> None:
        await self.local.close()


async def connect_behind(script: str, state: Path) -> AgentClient:
    """Connect through a shell script that ends in `exec "$0" "$@"`, or does not."""
    transport = Prefixed(script)
    try:
        client = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
        await client.close()
        return client
    finally:
        await transport.close()


async def test_banners_are_skipped(state: Path) -> None:
    noise = r"""printf 'Welcome!\n\033[31mPDTUI-AGENT 00 {}\n\377\376 no newline'; exec "$0" "$@" """
    assert (await connect_behind(noise, state)).facts.protocol == 1


@pytest.mark.parametrize(
    "script",
    [
        "read a; read b; read c; echo got $a$b$c",
        "head -c 150000 /dev/urandom",
        "i=0; while [ $i -lt 3000 ]; do echo PDTUI-AGENT 0011223344556677 {}; i=$((i+1)); done",
        "printf 'pdtui\\npdtui'; exec 2>&1; echo noise >&2",
    ],
)
async def test_start_up_files_that_read_and_print_are_survived(state: Path, script: str) -> None:
    assert (await connect_behind(f'{script}; exec "$0" "$@"', state)).facts.protocol == 1


@pytest.mark.parametrize(
    ("script", "kind"), [("exit 0", "protocol"), ("cat > /dev/null", "timeout"), ("sleep 1000", "timeout")]
)
async def test_start_up_files_that_exit_or_swallow_all_are_named(
    state: Path, script: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdtui.remote.client.HELLO_TIMEOUT", 1.0)
    with pytest.raises(ConnectError) as caught:
        await connect_behind(script, state)
    assert caught.value.kind == kind
    assert "~/.bashrc" in caught.value.remedy


async def test_endless_banners_are_a_protocol_error(state: Path) -> None:
    with pytest.raises(ConnectError) as caught:
        await connect_behind("yes Welcome", state)
    assert caught.value.kind == "protocol"
    with pytest.raises(ConnectError) as caught:
        await connect_behind("tr '\\0' x < /dev/zero", state)
    assert caught.value.kind == "protocol"


async def test_a_damaged_upload_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loader.bootstrap

    def damaged(**options: object) -> loader.Bootstrap:
        boot = real(state_dir=str(state))
        return loader.Bootstrap(boot.argv, boot.payload.replace(b"\x78\xda", b"\x78\xdb", 1), boot.nonce)

    monkeypatch.setattr("pdtui.remote.client.bootstrap", damaged)
    local = LocalTransport(CLOCK)
    with pytest.raises(ConnectError) as caught:
        await AgentClient.connect(local, clock=CLOCK)
    assert "damaged" in str(caught.value)
    await local.close()


@pytest.mark.parametrize(
    ("script", "kind", "word"),
    [
        ("exec nosuch-python3-here", "no_python", "python3"),
        ("echo 'sh: 1: python3: not found' >&2; exit 127", "no_python", "python3"),
        ("echo 'pdtui needs Python 3.6 or newer, this is 3.4.2' >&2; exit 1", "no_python", "3.4.2"),
        ("echo 'sudo: a password is required' >&2; exit 1", "auth", "password"),
        ("echo 'This account is currently not available.' >&2; exit 1", "protocol", "not available"),
        ("kill -9 $$", "protocol", "KILL"),
    ],
)
async def test_why_there_is_no_agent(state: Path, script: str, kind: str, word: str) -> None:
    with pytest.raises(ConnectError) as caught:
        await connect_behind(script, state)
    assert caught.value.kind == kind
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("Error response from daemon: No such container: vllm", "no_container"),
        ("Error response from daemon: container 0123 is not running", "no_container"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?", "no_container"),
        ('OCI runtime exec failed: exec: "python3": executable file not found in $PATH: unknown', "no_python"),
    ],
)
async def test_why_there_is_no_agent_in_a_container(tmp_path: Path, state: Path, says: str, kind: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    docker.chmod(0o755)
    local = LocalTransport(CLOCK)
    with pytest.raises(ConnectError) as caught:
        await AgentClient.connect(
            local, clock=CLOCK, prefix=(str(docker), "exec", "-i", "vllm"), state_dir=str(state)
        )
    await local.close()
    assert caught.value.kind == kind
    assert "vllm" in str(caught.value)


async def test_a_container_prefix_works(tmp_path: Path, state: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    docker.chmod(0o755)
    local = LocalTransport(CLOCK)
    client = await AgentClient.connect(
        local, clock=CLOCK, prefix=(str(docker), "exec", "-i", "vllm"), state_dir=str(state)
    )
    assert (await client.run(Command(("echo", "in")))).stdout == b"in\n"
    await client.close()
    await local.close()


async def test_an_agent_that_dies_is_lost_and_requests_say_so(connect: Connect, cluster: str) -> None:
    agent = await connect()
    pid = int((await agent.run(Command(("sh", "-c", "echo $PPID")))).stdout)
    command = Command(("sleep", "1000"), timeout=999, env={"X": f"/{cluster}/"})
    waiting = asyncio.create_task(agent.run(command))
    await eventually(lambda: carriers(f"X=/{cluster}/"))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentLost):
        await waiting
    await agent.ended()
    with pytest.raises(AgentLost):
        await agent.ports()


async def test_a_frozen_link_is_noticed_by_pings(state: Path) -> None:
    clock = ManualClock()
    transport = MemoryTransport()
    client = await AgentClient.connect(transport, clock=clock, state_dir=str(state))
    for _ in range(4):
        await clock.advance(PING_EVERY)
        assert (await client.run(Command(("true",)))).status == 0
    assert client.lost is None
    transport.frozen = True
    waiting = asyncio.create_task(client.run(Command(("echo", "x"))))
    await clock.advance(PING_EVERY + 16)
    await clock.advance(PING_EVERY + 16)
    with pytest.raises(AgentLost):
        await waiting
    assert "no answer" in str(client.lost)
    await client.close()
    await transport.close()


async def test_a_stopped_agent_is_noticed(connect: Connect) -> None:
    """SIGSTOP: TCP and SSH are fine, nobody answers."""
    clock = ManualClock()
    local = LocalTransport(SystemClock())
    client = await AgentClient.connect(local, clock=clock, state_dir="/proc/nonexistent")
    pid = int((await client.run(Command(("sh", "-c", "echo $PPID")))).stdout)
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(6):
            await clock.advance(10)
        assert client.lost is not None
    finally:
        os.kill(pid, signal.SIGCONT)
        await local.close()
        closing = asyncio.create_task(client.close())
        await clock.advance(10)
        await closing


async def raw_agent(state: Path, silence: float) -> asyncio.subprocess.Process:
    """Start an agent that nobody pings."""
    boot = loader.bootstrap(state_dir=str(state))
    head, _, params = boot.payload.rpartition(b"{")
    process = await asyncio.create_subprocess_exec(
        *boot.argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdin is not None
    process.stdin.write(head + b'{"silence": %r, ' % silence + params)
    return process


@asynccontextmanager
async def silent(state: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent that ends after some seconds without a word."""
    process = await raw_agent(state, 6.0)
    yield process
    if process.returncode is None:
        process.kill()
    assert process.stdin is not None
    process.stdin.close()
    assert process.stdout is not None
    await process.stdout.read()
    await process.wait()


async def test_an_agent_that_hears_nothing_ends_with_its_commands_but_not_its_ranks(
    state: Path, connect: Connect, cluster: str
) -> None:
    other = await connect()
    await other.start_rank(spec(cluster))
    async with silent(state) as agent:
        assert agent.stdin is not None
        script = f"X=/{cluster}/; export X; sleep 1000; true"
        agent.stdin.write(
            b'{"id": 1, "op": "run", "args": {"argv": ["sh", "-c", "%s"], "timeout": 999, "device": 5}}\n'
            % script.encode()
        )
        await eventually(lambda: carriers(f"X=/{cluster}/"))
        async with asyncio.timeout(60):
            assert await agent.wait() == 0
    await eventually(lambda: not carriers(f"X=/{cluster}/"))
    assert (await other.run(Command(("echo", "free"), device=5))).stdout == b"free\n"
    assert (await other.ranks(cluster))[0].state is ProcessState.RUNNING


async def test_nonsense_requests_are_answered_and_survived(state: Path) -> None:
    async with silent(state) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(
            b'hello\n\xff\xfe\n[]\n{}\n{"id": 5}\n{"id": 6, "op": "nosuch"}\n'
            b'{"id": 7, "op": "run", "args": {}}\n{"id": 8, "op": "ping"}\n'
        )
        lines: list[bytes] = []
        async with asyncio.timeout(60):
            while not any(b'"wall"' in line and b"PDTUI" not in line for line in lines) or len(lines) < 9:
                lines.append(await agent.stdout.readline())
    text = b"".join(lines)
    assert text.count(b'"bad_request"') == 5
    assert b'"unknown_request"' in text
    assert b'"internal"' in text


async def test_garbage_instead_of_frames_ends_the_client(state: Path) -> None:
    transport = Prefixed('exec 3<&0; { "$0" "$@" <&3; } | { head -n 2; printf "garbage\\n"; cat >/dev/null; }')
    client = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    async with asyncio.timeout(60):
        assert "not from an agent" in str(await client.ended())
    await client.close()
    await transport.close()
