"""One node's container brought up, taken down or made anew; every step ends in words for that node."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from pdtui.errors import RemoteError
from pdtui.fleet.containers.engine import Engine, Found, Verb
from pdtui.fleet.containers.living import living
from pdtui.fleet.containers.words import is_being_removed, is_missing, trouble_of
from pdtui.fleet.crew import Crew
from pdtui.fleet.intents import ChangeContainers
from pdtui.fleet.operations import Operation
from pdtui.text import clean_line
from pdtui.topology.redact import redacted_text, shown_command

ARRIVAL = 30.0
"""Seconds until pdtui is in a container that was started."""

STEP = 0.5
"""Seconds between two looks whether something has happened."""

GONE = 30.0
"""Seconds until a container that somebody removes is gone."""


class Course(enum.Enum):
    """What is done about a node's container."""

    LEAVE = "leave"
    """It is as wanted."""
    MAKE = "make"
    START = "start"
    REMOVE = "remove"
    REMAKE = "remake"
    REFUSE = "refuse"


def course_of(intent: ChangeContainers, found: Found, engine: Engine, path: str) -> tuple[Course, str]:
    """Return what an intent does on a node that has this, and why it does nothing; pure."""
    name = engine.place.name
    if found.trouble is not None:
        return Course.REFUSE, found.trouble.line
    lacks_image = found.has_image is False and not intent.pull
    no_image = trouble_of("no such image", engine.place).line
    if intent.verb == "container down":
        return (Course.REMOVE, "") if found.container is not None else (Course.LEAVE, "there is none")
    if found.container is None:
        return (Course.REFUSE, no_image) if lacks_image else (Course.MAKE, "")
    if intent.verb == "container recreate":
        return (Course.REFUSE, f"left alone: {no_image}") if lacks_image else (Course.REMAKE, "")
    other = f"{'; '.join(found.different)}: left alone; pdtui container recreate {path} makes it anew"
    match found.state:
        case "running" if found.different:
            return Course.REFUSE, f"{name} runs, but {other}"
        case "running":
            return Course.LEAVE, "runs as wanted"
        case "paused":
            return Course.REFUSE, f"{name} is paused; let it go on: {engine.by_hand('unpause')}"
        case "restarting":
            return Course.REFUSE, f"{name} restarts again and again; see why: {engine.by_hand('logs')}"
        case "removing" | "dead":
            return Course.REFUSE, f"{name} is being removed: try again in a moment"
        case _ if found.different:
            return Course.REFUSE, f"{name} does not run, and {other}"
        case _:
            return Course.START, ""


def commands_of(course: Course, intent: ChangeContainers, found: Found, engine: Engine) -> tuple[str, ...]:
    """Return what runs on the node, as shell lines, secrets hidden."""
    pull = (engine.argv("pull"),) if intent.pull and found.has_image is False else ()
    end = (engine.argv("stop"), engine.argv("rm"))
    commands: Mapping[Course, tuple[tuple[str, ...], ...]] = {
        Course.MAKE: (*pull, engine.run_argv),
        Course.START: (engine.argv("start"),),
        Course.REMOVE: end,
        Course.REMAKE: (*pull, *end, engine.run_argv),
    }
    return tuple(shown_command((*engine.sudo, *argv)) for argv in commands.get(course, ()))


class ContainerWork:
    """What an operation does to the container of one node."""

    def __init__(
        self, crew: Crew, operation: Operation, intent: ChangeContainers, engine: Engine, node: str
    ) -> None:
        self._crew = crew
        self._operation = operation
        self._intent = intent
        self._engine = engine
        self._node = node
        self._link = crew.links[node]

    async def run(self) -> None:
        """Do it; its line in the operation says what came of it."""
        try:
            found = await self._engine.look()
            course, words = course_of(self._intent, found, self._engine, str(self._crew.topology.path))
            match course:
                case Course.LEAVE:
                    self._end("done", words)
                case Course.REFUSE:
                    self._end("failed", words)
                case Course.START:
                    await self._start()
                case Course.MAKE:
                    if await self._pulled(found):
                        await self._make("made and started")
                case Course.REMOVE:
                    if await self._remove():
                        self._end("done", "stopped and removed")
                case Course.REMAKE:
                    if await self._pulled(found) and await self._remove():
                        await self._make("made anew and started")
        except RemoteError as error:
            self._end(
                "failed", f"the connection was lost meanwhile: {error.message}; look again: nothing is certain"
            )

    def _say(self, words: str) -> None:
        self._operation.rank(self._node, "running", words)

    def _end(self, state: str, words: str) -> None:
        self._operation.rank(self._node, "done" if state == "done" else "failed", words)

    async def _told(self, verb: Verb) -> str | None:
        """Have the engine do something; returns what it said against it, None when it was done."""
        status, said = await self._engine.tell(verb)
        if status == 0:
            return None
        return said or f"{verb} ended with status {status}"

    def _refused(self, said: str, doing: str) -> None:
        self._end("failed", f"{doing}: {trouble_of(said, self._engine.place).line}")

    async def _pulled(self, found: Found) -> bool:
        """Fetch the image if it is not there and that was asked for."""
        if found.has_image is not False or not self._intent.pull:
            return True
        self._say(f"pulls {self._engine.wanted.image}")
        said = await self._told("pull")
        if said is not None:
            self._refused(said, "not pulled")
        return said is None

    async def _start(self) -> None:
        self._say("starts")
        said = await self._told("start")
        if said is not None:
            self._refused(said, "not started")
        else:
            await self._arrive("started", None)

    async def _make(self, done: str) -> None:
        self._say("makes and starts it")
        before = self._link.rank_agent
        said = await self._told("run")
        if said is not None:
            self._refused(said, "not made")
            return
        await self._arrive(done, before)

    async def _remove(self) -> bool:
        """Stop and remove it, unless somebody has begun to live in it; returns whether it is gone."""
        crew = self._crew
        fresh = await living(crew, self._node, self._engine)
        if left := [one for one in fresh if one.id not in self._intent.override]:
            self._end("failed", f"left alone: {'; '.join(one.message for one in left)}")
            return False
        steps: tuple[tuple[Verb, str], ...] = (("stop", "stops"), ("rm", "removes it"))
        for verb, words in steps:
            self._say(words)
            said = await self._told(verb)
            if said is not None and not (is_missing(said) or is_being_removed(said)):
                self._refused(said, "not stopped" if verb == "stop" else "stopped, not removed")
                return False
        until = crew.clock.monotonic() + GONE
        while (found := await self._engine.look()).container is not None:
            if crew.clock.monotonic() > until:
                self._end("failed", f"still there ({found.state}) {GONE:.0f} s after its removal")
                return False
            await crew.clock.sleep(STEP)
        if found.trouble is not None:
            self._end("failed", f"removed, but {found.trouble.line}")
        return found.trouble is None

    async def _arrive(self, done: str, before: object) -> None:
        """Wait until pdtui is in the container, or say why it does not get there."""
        clock, link = self._crew.clock, self._link
        self._say(f"{done}; waits to get in")
        until = clock.monotonic() + ARRIVAL
        looks = 0
        while link.rank_agent is None or link.rank_agent is before:
            link.retry_now()
            if looks % 4 == 3 and (words := await self._ended()):
                self._end("failed", words)
                return
            if clock.monotonic() > until:
                error = link.status.error
                why = f"{error.message}{f' ({error.remedy})' if error.remedy else ''}" if error else "no answer"
                self._end("failed", f"{done}, but pdtui does not get into it: {why}")
                return
            looks += 1
            await clock.sleep(STEP)
        self._crew.watchers[self._node].poke()
        self._end("done", done)

    async def _ended(self) -> str:
        """Return why a container that was started does not run any more; empty while it does."""
        found = await self._engine.look()
        if found.container is None or found.state not in ("exited", "dead", "created", "stopped"):
            return ""
        _, said = await self._engine.tell("logs")
        last = redacted_text(clean_line(said.splitlines()[-1])) if said else "it said nothing"
        return f"started, but it ended at once: {last}"
