"""The container engine of one node, asked and told through the agent on the host."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.answers import answer_of
from pdtui.fleet.containers.difference import differences
from pdtui.fleet.containers.wanted import Wanted, read_run
from pdtui.fleet.containers.words import Place, Trouble, is_missing, trouble_of
from pdtui.fleet.polling import closing
from pdtui.readings.answer import Answer
from pdtui.readings.container import Container, read_container, read_image
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.remote.messages.commands import Command, ExecSpec
from pdtui.text import decode
from pdtui.topology.model import Topology
from pdtui.topology.render.container import container_argv, engine_argv

ASK = 15.0
"""Seconds that an engine has to say how a container is."""

GRACE = 5.0
"""Seconds more until the agent itself counts as silent."""

TELL = 180.0
"""Seconds to make, start, stop or remove a container: disks of busy nodes are slow."""

PULL = 3600.0
"""Seconds for an image: the published ones have about 20 GB."""

_KEPT = 1 << 15

ASIDE = "-before-pdtui"
"""After the name of a container that waits until the one made in its place runs."""

Verb = Literal["run", "start", "stop", "rm", "pull", "logs", "set aside", "put back", "rm aside", "undo"]
"""`set aside` and `put back` rename, `undo` removes what was made, in whatever state that is."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a node has."""

    container: Container | None = None
    """None without `trouble`: there is none of that name."""
    different: tuple[str, ...] = ()
    """How it differs from what the file says."""
    has_image: bool | None = None
    """Whether the file's image is on the node; None: that was not said."""
    trouble: Trouble | None = None
    """Why it is not known."""
    aside: str = ""
    """State of an older one that was set aside; empty: there is none."""

    @property
    def state(self) -> str:
        """`running`, `exited`...; empty where there is none."""
        return (self.container.state or "unknown") if self.container is not None else ""


class Engine:
    """Commands of docker, podman or nerdctl on one node."""

    def __init__(self, topology: Topology, link: NodeLink, *, clock: Clock) -> None:
        """Prepare. Raises `FileError` when the file cannot say how the container is made."""
        words = engine_argv(topology)
        self._container_words = words
        self._words = words[:-1] if words[-1:] == ("container",) else words
        """Before `image` and `pull`, which `docker container` does not know."""
        self.run_argv = container_argv(topology, link.name)
        """What makes and starts the container."""
        self.wanted: Wanted = read_run(self.run_argv)
        self._link = link
        self._clock = clock
        self._name = topology.runtime.container or ""
        self.aside = f"{self._name}{ASIDE}"
        """Name of the one that waits while another is made in its place."""
        self.sudo = ("sudo",) if topology.nodes[link.name].ssh.sudo else ()
        """The agent on the host runs under it."""

    @property
    def place(self) -> Place:
        """What its words are about."""
        agent = self._link.host_agent
        return Place(" ".join(self._words), self._name, self.wanted.image, agent.facts.user if agent else "")

    def argv(self, verb: str) -> tuple[str, ...]:
        """Return `docker VERB NAME`; for `pull` with the image."""
        match verb:
            case "pull":
                return (*self._words, "pull", self.wanted.image)
            case "set aside":
                words: tuple[str, ...] = ("rename", self._name, self.aside)
            case "put back":
                words = ("rename", self.aside, self._name)
            case "rm aside":
                words = ("rm", self.aside)
            case "undo":
                words = ("rm", "-f", self._name)
            case _:
                words = (verb, self._name)
        return (*self._container_words, *words)

    def by_hand(self, verb: str) -> str:
        """Return what an operator types on the node for it."""
        return shlex.join((*self.sudo, *self.argv(verb)))

    async def look(self) -> Found:
        """Ask how the container is, and whether the image is there."""
        agent = self._link.host_agent
        if agent is None:
            error = self._link.status.error
            return Found(
                trouble=Trouble(
                    f"unreachable: {error.message}" if error else "unreachable", error.remedy if error else ""
                )
            )
        try:
            described, older, image = await asyncio.gather(
                self._ask(agent, (*self._container_words, "inspect", "--type", "container", self._name)),
                self._ask(agent, (*self._container_words, "inspect", "--type", "container", self.aside)),
                self._ask(agent, (*self._words, "image", "inspect", self.wanted.image)),
            )
        except RemoteError as error:
            return Found(trouble=Trouble(error.message, error.remedy))
        image_id = read_image(image).value
        has_image = True if image_id else None if image.timed_out or image.status in (None, 127) else False
        if described.timed_out:
            place = self.place
            words = f"{place.tool} does not answer within {ASK:.0f} s"
            return Found(trouble=Trouble(words, f"see why, on the node: systemctl status {place.service}"))
        waiting = read_container(older).value
        aside = (waiting.state or "unknown") if waiting is not None else ""
        found = read_container(described).value
        if found is not None:
            different = differences(self.wanted, found, image_id or "")
            return Found(found, different, has_image, aside=aside)
        said = described.text
        if described.status not in (0, None) and is_missing(said):
            return Found(has_image=has_image, aside=aside)
        if described.status == 0:
            return Found(trouble=Trouble(f"what {self.place.tool} says of {self._name} cannot be read"))
        return Found(trouble=trouble_of(said, self.place, described.status))

    async def _ask(self, agent: NodeAgent, argv: Sequence[str]) -> Answer:
        command = Command(tuple(argv), timeout=ASK)
        try:
            async with self._clock.timeout(ASK + GRACE):
                completed = await agent.run(command)
        except TimeoutError:
            return Answer(shlex.join(argv), timed_out=True, status=None)
        return answer_of(completed, self._clock.wall(), ASK)

    async def tell(self, verb: Verb) -> tuple[int | None, str]:
        """Have the engine do something; returns its exit status (None: it did not end) and what it said.

        Only what `argv` and the file make is sent: vendor tools are among the mounts, never called. Raises
        `RemoteError`.
        """
        argv = self.run_argv if verb == "run" else self.argv(verb)
        limit = PULL if verb == "pull" else TELL
        agent = self._link.host_agent
        if agent is None:
            return None, "the connection is gone"
        execution = agent.execute(ExecSpec(argv))
        said = bytearray()
        try:
            async with self._clock.timeout(limit), closing(execution.output()) as chunks:
                async for chunk in chunks:
                    said += chunk.data
                    del said[:-_KEPT]
        except TimeoutError:
            return None, f"no end within {limit:.0f} s"
        return execution.status, decode(bytes(said)).strip()
