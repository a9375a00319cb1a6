"""Hosts without a topology file: which are meant, how they are reached, all asked at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.clock import Clock
from pdtui.errors import UsageError
from pdtui.fleet.discovering.survey import Survey, survey
from pdtui.remote.connections import Connections
from pdtui.remote.interface import NodeLink
from pdtui.text import clean_line
from pdtui.topology.model import Node, Runtime, SshOptions

REACH = 25.0
"""Seconds to a connection: ten for SSH, some for the agents behind it."""

_HOST = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^@:\s\[\]]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Hosts:
    """What `Connections` needs to know of hosts that are in no file."""

    nodes: Mapping[str, Node]
    runtime: Runtime = field(default_factory=Runtime)


def hosts_of(
    words: Sequence[str], ssh: SshOptions, *, container: str = "", prefix: Sequence[str] = ("docker", "exec", "-i")
) -> Hosts:
    """Return the hosts of `[user@]host[:port]`; `local` is this machine. Raises `UsageError`.

    `ssh` is what all have in common; with `container` servers are looked for in it, by `prefix`.
    """
    nodes: dict[str, Node] = {}
    for word in words:
        match = _HOST.fullmatch(word)
        if match is None or not 0 < int(match["port"] or 22) < 65536:
            raise UsageError(f"{clean_line(word)!r} is no host", remedy="write [USER@]HOST[:PORT], or local")
        host = match["host"].strip("[]")
        own = replace(ssh, user=match["user"] or ssh.user, port=int(match["port"]) if match["port"] else ssh.port)
        if host in nodes:
            raise UsageError(f"{clean_line(word)} is named twice")
        nodes[host] = Node(host, host, "", "", own)
    return Hosts(nodes, Runtime(container=container, exec=tuple(prefix)) if container else Runtime())


async def survey_all(
    hosts: Hosts, *, clock: Clock, told: Callable[[Survey], None] = lambda _: None
) -> Sequence[Survey]:
    """Ask all hosts at once and return what they say, in their order; one that is unreachable delays no other.

    `told` is called with each as soon as it has answered.
    """
    async with Connections(hosts, clock=clock) as connections:

        async def one(name: str) -> Survey:
            found = await _one(name, connections.link(name), hosts, clock)
            told(found)
            return found

        return await asyncio.gather(*map(one, hosts.nodes))


async def _one(name: str, link: NodeLink, hosts: Hosts, clock: Clock) -> Survey:
    why = await _reach(link, clock)
    agent, host_agent = link.rank_agent, link.host_agent
    if why or agent is None or host_agent is None:
        return Survey(name, unreachable=why or "the connection was lost")
    container = hosts.runtime.container
    return await survey(
        name,
        agent,
        host_agent,
        clock=clock,
        containers=(container,) if container else (),
    )


async def _reach(link: NodeLink, clock: Clock) -> str:
    """Wait for the agents; returns why there are none."""
    try:
        async with clock.timeout(REACH):
            while link.rank_agent is None:
                error = link.status.error
                if error is not None:
                    return f"{error.message}{f' ({_words(error.remedy)})' if error.remedy else ''}"
                await link.changed()
    except TimeoutError:
        error = link.status.error
        return error.message if error is not None else f"no connection within {REACH:.0f} s"
    return ""


def _words(text: str) -> str:
    return "; ".join(text.splitlines())
