"""A link that keeps itself up, and the links of a whole topology."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ConnectError, ConnectKind
from pdtui.remote.channel import Transport
from pdtui.remote.connections import Connections
from pdtui.remote.interface import LinkState
from pdtui.remote.link import Link
from pdtui.remote.messages.commands import Command
from pdtui.remote.transports.local import LocalTransport
from pdtui.topology.model import Flow, Model, Node, Runtime, Safety, SshOptions, Topology
from tests.remote.memory import MemoryTransport
from tests.remote.simulated_ssh import simulated_ssh
from tests.support.manual_clock import ManualClock, settle
from tests.support.ports import free_port
from tests.support.waiting import eventually


@asynccontextmanager
async def running(link: Link) -> AsyncIterator[Link]:
    """Run a link while the block lasts."""
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def failing(kind: ConnectKind, tries: list[float], clock: ManualClock) -> Callable[[], asyncio.Future[Transport]]:
    """Return a `connect` that notes when it is called and fails."""

    async def connect() -> Transport:
        tries.append(clock.monotonic())
        raise ConnectError("no", kind=kind)

    return lambda: asyncio.ensure_future(connect())


async def test_loss_is_said_before_what_is_left_is_closed_and_closed_whole_at_the_end(state: Path) -> None:
    closing, closed = asyncio.Event(), asyncio.Event()

    class Stubborn(MemoryTransport):
        async def close(self) -> None:
            closing.set()
            await asyncio.sleep(0.1)
            await super().close()
            closed.set()

    transport = Stubborn()

    async def connect() -> Transport:
        return transport

    link = Link("n", connect, clock=SystemClock(), state_dir=str(state))
    async with running(link):
        await eventually(lambda: link.host_agent)
        await MemoryTransport.close(transport)
        await closing.wait()
        assert link.status.state is LinkState.RECONNECTING
        assert not closed.is_set()
    assert closed.is_set()


@pytest.mark.parametrize("refused", [True, False])
async def test_cancellation_that_connecting_has_lost_ends_the_link(refused: bool) -> None:
    started = asyncio.Event()

    async def connect() -> Transport:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if refused:
            raise ConnectError("no", kind="refused")
        return MemoryTransport()

    link = Link("n", connect, clock=ManualClock())
    task = asyncio.create_task(link.run())
    await started.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done
    assert task.cancelled()


async def test_back_off_doubles_to_thirty_seconds_with_jitter() -> None:
    clock, tries = ManualClock(), list[float]()
    link = Link("n", failing("refused", tries, clock), clock=clock, rng=random.Random(1))
    async with running(link):
        for _ in range(200):
            await clock.advance(1)
        gaps = [b - a for a, b in itertools.pairwise(tries)]
        for gap, longest in zip(gaps, [1, 2, 4, 8, 16, 30, 30, 30], strict=False):
            assert longest / 2 <= gap <= longest
        assert len(gaps) >= 8
        status = link.status
        assert status.state is LinkState.CONNECTING
        assert status.attempt == len(tries)
        assert status.error is not None
        assert status.next_try is not None
        assert clock.wall() <= status.next_try <= clock.wall() + 30
    assert link.status.state is LinkState.CLOSED


@pytest.mark.parametrize("kind", ["unknown_host_key", "auth", "no_python"])
async def test_what_will_not_come_right_by_itself_is_failed_and_tried_slowly(kind: ConnectKind) -> None:
    clock, tries = ManualClock(), list[float]()
    link = Link("n", failing(kind, tries, clock), clock=clock, rng=random.Random(1))
    async with running(link):
        await settle()
        assert link.status.state is LinkState.FAILED
        await clock.advance(29)
        assert len(tries) == 1
        await clock.advance(60)
        assert len(tries) >= 2
        link.retry_now()
        await settle()
        assert tries[-1] == clock.monotonic()


async def test_a_link_reconnects_and_tells_everyone(state: Path) -> None:
    made: list[MemoryTransport] = []

    async def connect() -> Transport:
        made.append(MemoryTransport())
        return made[-1]

    link = Link("n", connect, clock=SystemClock(), state_dir=str(state), rng=random.Random(1))
    seen: list[LinkState] = []

    async def watch() -> None:
        while True:
            await link.changed()
            seen.append(link.status.state)

    async with running(link):
        watcher = asyncio.create_task(watch())
        agent = await eventually(lambda: link.host_agent)
        assert agent is not None
        assert link.rank_agent is agent
        assert link.status.attempt == 0
        here = await link.forward("127.0.0.1", 7100)
        assert await link.forward("127.0.0.1", 7100) == here
        await made[0].close()
        await eventually(lambda: link.host_agent not in (None, agent))
        assert (await link.host_agent.run(Command(("true",)))).status == 0  # type: ignore[union-attr]
        await eventually(lambda: seen[-1:] == [LinkState.CONNECTED] and LinkState.RECONNECTING in seen)
        watcher.cancel()
    assert len(made) == 2
    with pytest.raises(ConnectError):
        await link.forward("127.0.0.1", 7100)


async def test_a_missing_container_leaves_the_host_connected(tmp_path: Path, state: Path) -> None:
    docker, flag = tmp_path / "docker", tmp_path / "up"
    docker.write_text(
        f'#!/bin/sh\nshift 3\n[ -e {flag} ] && exec "$@"\necho "Error: No such container: vllm" >&2; exit 1\n'
    )
    docker.chmod(0o755)
    clock = SystemClock()

    async def connect() -> Transport:
        return LocalTransport(clock)

    prefix = (str(docker), "exec", "-i", "vllm")
    link = Link("n", connect, clock=clock, container=prefix, state_dir=str(state), rng=random.Random(1))
    async with running(link):
        await eventually(lambda: link.status.error is not None)
        assert link.status.state is LinkState.CONNECTED
        assert link.status.error is not None
        assert link.status.error.kind == "no_container"
        assert link.host_agent is not None
        assert link.rank_agent is None
        flag.touch()
        link.retry_now()
        await eventually(lambda: link.rank_agent is not None)
        assert link.status.error is None
        assert link.rank_agent is not link.host_agent


async def test_sudo_goes_in_front_and_never_asks(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/asked\nshift\nexec "$@"\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", str(sudo.parent), prepend=":")
    clock = SystemClock()

    async def connect() -> Transport:
        return LocalTransport(clock)

    async with running(Link("n", connect, clock=clock, sudo=True, state_dir=str(state))) as link:
        await eventually(lambda: link.host_agent is not None)
    assert (tmp_path / "asked").read_text() == "-n"


def topology(nodes: dict[str, Node], state: Path) -> Topology:
    """Return a topology of nodes only."""
    return Topology(
        path=state,
        digest="",
        name="c",
        platform="cpu",
        vllm_ascend="0.22.1rc1",
        flow=Flow.PULL,
        connector="",
        model=Model("", ""),
        runtime=Runtime(state_dir=str(state)),
        safety=Safety(),
        nodes=nodes,
        groups={},
        proxy=None,
    )


async def test_one_dead_node_delays_no_other(tmp_path: Path, state: Path) -> None:
    async with simulated_ssh(tmp_path / "ssh") as server:
        bad = SshOptions(port=free_port(), known_hosts=server.options.known_hosts, config=server.options.config)
        nodes = {
            "node1": Node("node1", "127.0.0.1", "127.0.0.1", "lo", server.options),
            "node2": Node("node2", "127.0.0.1", "127.0.0.1", "lo", bad),
            "node3": Node("node3", "local", "127.0.0.1", "lo"),
        }
        async with Connections(topology(nodes, state), clock=SystemClock()) as connections:
            up = ("node1", "node3")
            await eventually(lambda: all(connections.link(name).host_agent for name in up))
            error = await eventually(lambda: connections.link("node2").status.error)
            assert error is not None
            assert error.kind == "refused"
            assert set(connections.links) == set(nodes)
            agent = connections.link("node1").rank_agent
            assert agent is not None
            assert (await agent.run(Command(("echo", "hi")))).stdout == b"hi\n"
        assert {link.status.state for link in connections.links.values()} == {LinkState.CLOSED}
        assert server.logins == 1


async def test_a_cut_connection_comes_back_and_tunnels_with_it(tmp_path: Path, state: Path) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    async def ask(address: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data

    async with (
        simulated_ssh(tmp_path / "ssh") as server,
        await asyncio.start_server(serve, "127.0.0.1", 0) as target,
    ):
        port = target.sockets[0].getsockname()[1]
        nodes = {"n": Node("n", "127.0.0.1", "127.0.0.1", "lo", server.options)}
        async with Connections(topology(nodes, state), clock=SystemClock()) as connections:
            link = connections.link("n")
            first = await eventually(lambda: link.host_agent)
            assert await ask(await link.forward("127.0.0.1", port)) == b"here"
            for connection in list(server.live):
                connection.abort()
            await eventually(lambda: link.host_agent not in (None, first))
            assert await ask(await link.forward("127.0.0.1", port)) == b"here"
