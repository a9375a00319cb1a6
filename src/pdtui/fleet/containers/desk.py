"""What an intent about containers would do, what stands against it, and its work on all nodes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pdtui.errors import ActionRefused, FileError
from pdtui.fleet.blockers import refused_by
from pdtui.fleet.containers.engine import Engine, Found
from pdtui.fleet.containers.living import living
from pdtui.fleet.containers.words import Trouble
from pdtui.fleet.containers.work import ContainerWork, Course, commands_of, course_of
from pdtui.fleet.crew import Crew
from pdtui.fleet.intents import Blocker, ChangeContainers, Preview
from pdtui.fleet.leases import Hold
from pdtui.fleet.operations import Operation

PATIENCE = 15.0
"""Seconds to see who lives in a container; without an answer it counts as lived in."""

PREVIEW = 6.0
"""Seconds that a preview waits for an engine."""

_DOES: Mapping[str, str] = {
    "container up": "is made where it is missing and started where it does not run; one that runs is left alone",
    "container down": "is stopped and removed: no rank can be started there until it is made again",
    "container recreate": "is made anew from what the file says; the old one comes back if that does not run",
}


class ContainerDesk:
    """Previews and carries out what is done to containers; the supervisor guards the door."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.leases = crew.leases.for_hosts()

    def engines(self, intent: ChangeContainers) -> Mapping[str, Engine]:
        """Return the engine of each node. Raises `ActionRefused` for unknown nodes and files that do not do."""
        crew = self._crew
        unknown = [node for node in intent.nodes if node not in crew.topology.nodes]
        if unknown or not intent.nodes:
            raise ActionRefused(f"no node {', '.join(unknown)}", kind="unknown_target")
        try:
            return {node: Engine(crew.topology, crew.links[node], clock=crew.clock) for node in intent.nodes}
        except FileError as error:
            raise ActionRefused(error.message, kind="unknown_target", remedy=error.remedy) from None

    def needs_name(self, intent: ChangeContainers) -> bool:
        """Return whether a protected cluster wants its name typed."""
        return self._crew.topology.safety.protected and intent.verb != "container up"

    def ranks_of(self, node: str) -> tuple[str, ...]:
        """Return what a lease on a node's container holds: itself, and every rank that is or may be in it."""
        planned = [rank.id for rank in self._crew.plan.on_node(node)]
        seen = [rank.id.partition("@")[0] for rank in self._crew.store.ranks.values() if rank.node == node]
        return (f"@{node}", *dict.fromkeys((*planned, *seen)))

    def everywhere(self, intent: ChangeContainers) -> Mapping[str, tuple[str, ...]]:
        """Return by node what nobody else may work on meanwhile."""
        return {node: self.ranks_of(node) for node in intent.nodes}

    async def admit(self, intent: ChangeContainers) -> tuple[Mapping[str, Engine], Hold]:
        """Return the engine of each node and a lease on all of them. Raises `ActionRefused`."""
        crew = self._crew
        engines = self.engines(intent)
        if self.needs_name(intent) and intent.confirm != crew.topology.name:
            words = in_words(intent.nodes, crew.topology.nodes)
            raise ActionRefused(
                f"{crew.topology.name} is protected: {intent.verb} on {words} needs the cluster's name",
                kind="protected",
            )
        if intent.override and not intent.reason:
            raise ActionRefused("passing over a blocker needs a reason", kind="blocked")
        blockers = await self.blockers(intent, engines)
        if left := [one for one in blockers if one.id not in intent.override]:
            raise refused_by(left)
        places = self.everywhere(intent)
        what = crew.topology.runtime.container or ""
        hold = await self.leases.take(intent.verb, what, places, everywhere=places, breaking=intent.breaking)
        return engines, hold

    async def blockers(self, intent: ChangeContainers, engines: Mapping[str, Engine]) -> Sequence[Blocker]:
        """Return who lives in containers that are to go."""
        if intent.verb == "container up":
            return ()
        found = await asyncio.gather(*(self._living(node, engine) for node, engine in engines.items()))
        return [one for on_node in found for one in on_node]

    async def _living(self, node: str, engine: Engine) -> Sequence[Blocker]:
        try:
            async with self._crew.clock.timeout(PATIENCE):
                return await living(self._crew, node, engine)
        except TimeoutError:
            words = f"who lives in the container on {node} cannot be seen: no answer within {PATIENCE:.0f} s"
            return (Blocker(f"unseen:{node}", words, f"leave {node} out, or see why it hangs"),)

    async def _look(self, engine: Engine) -> Found:
        """Look for as long as a preview may take; the work itself looks again, and waits longer."""
        try:
            async with self._crew.clock.timeout(PREVIEW):
                return await engine.look()
        except TimeoutError:
            tool = engine.place.tool
            return Found(
                trouble=Trouble(f"{tool} has not answered within {PREVIEW:.0f} s; it is waited for longer")
            )

    async def preview(self, intent: ChangeContainers) -> Preview:
        """Say what it would do. Raises `ActionRefused`."""
        engines = self.engines(intent)
        blockers, leases, looks = await asyncio.gather(
            self.blockers(intent, engines),
            self.leases.in_the_way(self.everywhere(intent)),
            asyncio.gather(*(self._look(engine) for engine in engines.values())),
        )
        nodes = zip(engines.items(), looks, strict=True)
        parts = [self._part(intent, node, engine, found) for (node, engine), found in nodes]
        name = self._crew.topology.runtime.container
        return Preview(
            verb=intent.verb,
            title=f"{intent.verb} on {in_words(intent.nodes, self._crew.topology.nodes)}",
            ids=intent.nodes,
            consequence=f"Container {name} {_DOES[intent.verb]}.",
            steps=tuple(step for step, _ in parts),
            blockers=tuple(blockers),
            leases=tuple(leases),
            needs_name=self.needs_name(intent),
            commands=tuple(line for _, lines in parts for line in lines),
        )

    def _part(
        self, intent: ChangeContainers, node: str, engine: Engine, found: Found
    ) -> tuple[str, tuple[str, ...]]:
        course, words = course_of(intent, found, engine, str(self._crew.topology.path))
        image = engine.wanted.image
        pulls = f"pull {image}, " if intent.pull and found.has_image is False else ""
        step = {
            Course.LEAVE: f"nothing: {words}",
            Course.REFUSE: words,
            Course.MAKE: f"{pulls}make and start it from {image}",
            Course.START: "start it",
            Course.RESTORE: f"put back {engine.aside}, left of a recreate that was interrupted, and start it",
            Course.REMOVE: f"stop and remove it ({found.state or f'{engine.aside}: {found.aside}'})",
            Course.REMAKE: f"{pulls}stop it and set it aside ({found.state or found.aside}),"
            f" make and start it from {image}; the old one goes when that runs",
        }[course]
        if course is Course.REMAKE and found.different:
            step = f"{step}; now {'; '.join(found.different)}"
        return f"{node}: {step}", (f"# {node}: {step}", *commands_of(course, intent, found, engine))

    async def run(self, operation: Operation, intent: ChangeContainers, engines: Mapping[str, Engine]) -> None:
        """Do it on all nodes at once: one that hangs holds up no other."""
        await asyncio.gather(
            *(ContainerWork(self._crew, operation, intent, engine, node).run() for node, engine in engines.items())
        )


def in_words(nodes: Sequence[str], every: Mapping[str, object]) -> str:
    """Return nodes in words: `node1, node2`, or how many of all."""
    if len(nodes) == len(every) > 1:
        return f"all {len(nodes)} nodes"
    return ", ".join(nodes) if len(nodes) <= 4 else f"{len(nodes)} nodes"
