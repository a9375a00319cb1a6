"""Sixty-four nodes behind one jump host, both with OpenSSH's sshd and its default limits."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.remote.connections import Connections
from pdtui.remote.interface import LinkState
from pdtui.remote.messages.commands import Command
from pdtui.topology.model import Node
from tests.remote.test_link import topology
from tests.support.sshd import Sshd, running_sshd
from tests.support.waiting import eventually

pytestmark = [pytest.mark.sshd, pytest.mark.slow, pytest.mark.timeout(400)]

COUNT = 64
DAEMONS = 4
"""One sshd listens on sixteen addresses at most."""
HANGS = "node64"


@dataclass
class Rack:
    """The jump host, the servers behind it, and a node that accepts and says nothing."""

    jump: Sshd
    servers: list[Sshd]
    nodes: dict[str, Node]
    most_at_jump: int = 0
    """Most connections at once that had not logged in."""
    most_at_nodes: int = 0

    async def watch(self) -> None:
        """Count until cancelled."""
        while True:
            self.most_at_jump = max(self.most_at_jump, self.jump.startups)
            self.most_at_nodes = max(self.most_at_nodes, sum(sshd.startups for sshd in self.servers))
            await asyncio.sleep(0.02)

    @property
    def log(self) -> str:
        """What the servers behind the jump host have said."""
        return "".join(sshd.log for sshd in self.servers)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Rack]:
    choice = random.SystemRandom()
    prefix = f"127.{choice.randint(32, 223)}.{choice.randint(1, 254)}"
    addresses = {f"node{number}": f"{prefix}.{number}" for number in range(1, COUNT + 1)}
    hung = addresses.pop(HANGS)
    names = list(addresses)
    async with AsyncExitStack() as stack:
        (folder / "jump").mkdir()
        jump = await stack.enter_async_context(running_sshd(folder / "jump"))
        user = jump.options.user
        known = (folder / "jump" / "known_hosts").read_text()
        servers: list[Sshd] = []
        nodes: dict[str, Node] = {}
        options = replace(
            jump.options, known_hosts=folder / "known", jump=f"{user}@127.0.0.1:{jump.port}", connect_timeout=15.0
        )
        for number in range(DAEMONS):
            own = folder / f"servers{number}"
            own.mkdir()
            mine = {name: addresses[name] for name in names[number::DAEMONS]}
            sshd = await stack.enter_async_context(running_sshd(own, addresses=list(mine.values())))
            servers.append(sshd)
            known += (own / "known_hosts").read_text()
            (own / "authorized_keys").write_bytes((folder / "jump" / "authorized_keys").read_bytes())
            here = replace(options, port=sshd.port)
            nodes |= {name: Node(name, address, address, "lo", here) for name, address in mine.items()}
        # The kernel accepts, nobody answers.
        mute = stack.enter_context(socket.create_server((hung, 0)))
        nodes[HANGS] = Node(HANGS, hung, hung, "lo", replace(options, port=mute.getsockname()[1]))
        (folder / "known").write_text(known)
        rack = Rack(jump, servers, nodes)
        watching = asyncio.create_task(rack.watch())
        stack.callback(watching.cancel)
        yield rack


async def test_all_nodes_behind_a_jump_host_come_and_come_back_with_it(tmp_path: Path, state: Path) -> None:
    async with (
        running(tmp_path) as rack,
        Connections(topology(rack.nodes, state), clock=SystemClock()) as every,
    ):
        links = {name: link for name, link in every.links.items() if name != HANGS}

        def connected() -> bool:
            return all(link.host_agent is not None for link in links.values())

        await eventually(connected, within=150, what="all nodes are reached")
        assert every.link(HANGS).host_agent is None
        assert rack.jump.log.count("Accepted publickey") == 1
        assert rack.log.count("Accepted publickey") == COUNT - 1
        assert rack.most_at_nodes <= 8

        await rack.jump.kill()
        lost = {LinkState.RECONNECTING}
        await eventually(lambda: {link.status.state for link in links.values()} == lost, what="all are lost")
        await eventually(
            lambda: all("jump host" in str(link.status.error) for link in links.values()),
            what="all have tried again",
        )
        await rack.jump.start()
        await eventually(connected, within=150, what="all nodes are reached again")
        assert rack.jump.log.count("Accepted publickey") == 2
        assert rack.most_at_nodes <= 8
        assert rack.most_at_jump <= 1
        assert "MaxStartups" not in rack.jump.log + rack.log
        agent = every.link("node63").host_agent
        assert agent is not None
        assert (await agent.run(Command(("echo", "there")))).stdout == b"there\n"

        def kind() -> str:
            error = every.link(HANGS).status.error
            return error.kind if error is not None else ""

        await eventually(lambda: kind() == "timeout", within=60, what="the one that hangs is given up")
