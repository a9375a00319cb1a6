"""The links to all nodes of a topology and what they share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Protocol, Self

from pdtui.clock import Clock
from pdtui.errors import JumpHostError
from pdtui.remote.channel import Transport
from pdtui.remote.interface import NodeLink
from pdtui.remote.link import Link
from pdtui.remote.transports.jump_hosts import JumpHosts
from pdtui.remote.transports.local import LocalTransport
from pdtui.remote.transports.login import Handshakes
from pdtui.remote.transports.ssh import SshTransport
from pdtui.topology.model import Node, Runtime


class Reached(Protocol):
    """What says which nodes there are and where ranks run on them: a topology, or hosts without one."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by their names."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Where ranks run."""
        ...


class Connections:
    """An async context: inside it every node has a link that keeps itself up."""

    def __init__(self, topology: Reached, *, clock: Clock, only: Collection[str] = ()) -> None:
        """Prepare links to all nodes, or to those named in `only`."""
        self._clock = clock
        self._handshakes = Handshakes(clock)
        self._jumps = JumpHosts(clock, self._handshakes, opened=self._hurry)
        self._links = {
            node.name: Link(
                node.name,
                functools.partial(self._transport, node),
                clock=clock,
                sudo=node.ssh.sudo,
                user=node.ssh.user or "",
                container=topology.runtime.exec_prefix,
                state_dir=topology.runtime.state_dir,
            )
            for node in topology.nodes.values()
            if not only or node.name in only
        }
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def links(self) -> Mapping[str, NodeLink]:
        """The links by the names of their nodes."""
        return self._links

    def link(self, node: str) -> NodeLink:
        """Return the link to a node. Raises `KeyError`."""
        return self._links[node]

    async def _transport(self, node: Node) -> Transport:
        """Reach a node. Raises `ConnectError`."""
        if node.host == "local":
            return LocalTransport(self._clock)
        return await SshTransport.connect(
            node.host, node.ssh, clock=self._clock, jumps=self._jumps, handshakes=self._handshakes
        )

    def _hurry(self) -> None:
        """A jump host is there again: nobody waits out the half minute that its absence may have cost."""
        for link in self._links.values():
            if isinstance(link.status.error, JumpHostError):
                link.retry_now()

    async def __aenter__(self) -> Self:
        """Begin to connect to all nodes at once."""
        self._tasks = [asyncio.create_task(link.run(), name=f"link {name}") for name, link in self._links.items()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; ranks stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._jumps.close()
