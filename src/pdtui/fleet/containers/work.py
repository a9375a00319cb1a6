"""One node's container brought up, taken down or made anew; every step ends in words for that node."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from pdtui.errors import RemoteError
from pdtui.fleet.containers.engine import Engine, Found, Verb
from pdtui.fleet.containers.living import living
from pdtui.fleet.containers.words import is_being_removed, is_missing, is_taken, trouble_of
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
    RESTORE = "restore"
    """Only one that an interrupted `recreate` has set aside is there: that one comes back."""
    REFUSE = "refuse"


def course_of(intent: ChangeContainers, found: Found, engine: Engine, path: str) -> tuple[Course, str]:
    """Return what an intent does on a node that has this, and why it does nothing; pure."""
    name = engine.place.name
    if found.trouble is not None:
        return Course.REFUSE, found.trouble.line
    lacks_image = found.has_image is False and not intent.pull
    no_image = trouble_of("no such image", engine.place).line
    if intent.verb == "container down":
        there = found.container is not None or bool(found.aside)
        return (Course.REMOVE, "") if there else (Course.LEAVE, "there is none")
    if intent.verb == "container recreate" and (found.container is not None or found.aside):
        return (Course.REFUSE, f"left alone: {no_image}") if lacks_image else (Course.REMAKE, "")
    if found.container is None and found.aside:
        return Course.RESTORE, ""
    if found.container is None:
        return (Course.REFUSE, no_image) if lacks_image else (Course.MAKE, "")
    other = f"{'; '.join(found.different)}: left alone; pdtui container recreate {path} makes it anew"
    match found.state:
        case "running" if found.different:
            return Course.REFUSE, f"{name} runs, but {other}"
        case "running":
            return Course.LEAVE, f"runs as wanted{left_aside(found, engine)}"
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
    end = (engine.argv("stop"), engine.argv("rm")) if found.container is not None else ()
    drop = (engine.argv("rm aside"),)
    if found.container is None:
        replaced: tuple[tuple[str, ...], ...] = (engine.run_argv, *drop)
    elif found.aside and found.state != "running":
        replaced = (engine.argv("undo"), engine.run_argv, *drop)
    else:
        first = drop if found.aside else ()
        replaced = (*first, engine.argv("stop"), engine.argv("set aside"), engine.run_argv, *drop)
    commands: Mapping[Course, tuple[tuple[str, ...], ...]] = {
        Course.MAKE: (*pull, engine.run_argv),
        Course.START: (engine.argv("start"),),
        Course.RESTORE: (engine.argv("put back"), engine.argv("start")),
        Course.REMOVE: (*end, *(drop if found.aside else ())),
        Course.REMAKE: (*pull, *replaced),
    }
    return tuple(shown_command((*engine.sudo, *argv)) for argv in commands.get(course, ()))


def left_aside(found: Found, engine: Engine) -> str:
    """Return words about a container that an interrupted `recreate` has left, and what to do about it."""
    if not found.aside:
        return ""
    return f"; {engine.aside} is left of a recreate that was interrupted: {engine.by_hand('rm aside')}"


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
        self._taken = False
        """Whether the name of the one to be made is another's."""
        self._kept = False
        """Whether the one before is there under its other name."""

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
                    await self._start(found)
                case Course.RESTORE:
                    await self._restore()
                case Course.MAKE:
                    if await self._pulled(found):
                        why = await self._make("made and started")
                        self._end("failed" if why else "done", why or "made and started")
                case Course.REMOVE:
                    if await self._remove(found):
                        self._end("done", "stopped and removed")
                case Course.REMAKE:
                    if await self._pulled(found) and await self._set_aside(found):
                        await self._replace(found)
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

    def _refusal(self, said: str, doing: str) -> str:
        return f"{doing}: {trouble_of(said, self._engine.place).line}"

    def _refused(self, said: str, doing: str) -> None:
        self._end("failed", self._refusal(said, doing))

    async def _pulled(self, found: Found) -> bool:
        """Fetch the image if it is not there and that was asked for."""
        if found.has_image is not False or not self._intent.pull:
            return True
        self._say(f"pulls {self._engine.wanted.image}")
        said = await self._told("pull")
        if said is not None:
            self._refused(said, "not pulled")
        return said is None

    async def _start(self, found: Found) -> None:
        why = await self._started("started", None)
        if why and found.aside:
            why = f"{why}; the one before is there as {self._engine.aside}: pdtui container recreate"
        self._end("failed" if why else "done", why or f"started{left_aside(found, self._engine)}")

    async def _started(self, done: str, before: object) -> str:
        """Start it; returns why it does not run with pdtui in it; empty: it does."""
        self._say("starts")
        said = await self._told("start")
        return self._refusal(said, "not started") if said is not None else await self._arrive(done, before)

    async def _make(self, done: str) -> str:
        """Make and start it; returns why it does not run with pdtui in it; empty: it does."""
        self._say("makes and starts it")
        before = self._link.rank_agent
        self._taken = False
        said = await self._told("run")
        if said is not None:
            self._taken = is_taken(said)
            return self._refusal(said, "not made")
        return await self._arrive(done, before)

    async def _restore(self) -> None:
        """Bring back what an interrupted `recreate` has set aside."""
        self._say(f"puts {self._engine.aside} back")
        said = await self._told("put back")
        if said is not None:
            self._refused(said, f"{self._engine.aside} is left of a recreate that was interrupted, not put back")
            return
        done = f"{self._engine.aside}, left of a recreate that was interrupted, was put back and started"
        why = await self._started(done, None)
        found = await self._engine.look()
        if not why and found.different:
            why = f"{done}, but {'; '.join(found.different)}: pdtui container recreate makes it anew"
        self._end("failed" if why else "done", why or done)

    async def _is_free(self) -> bool:
        """Return whether nobody has begun to live in it."""
        fresh = await living(self._crew, self._node, self._engine)
        left = [one for one in fresh if one.id not in self._intent.override]
        if left:
            self._end("failed", f"left alone: {'; '.join(one.message for one in left)}")
        return not left

    async def _set_aside(self, found: Found) -> bool:
        """Stop the old one and keep it under another name; returns whether the name is free for a new one.

        One that an interrupted run has set aside is the last that is known to have worked: it goes only while
        another one runs.
        """
        if not await self._is_free():
            return False
        if found.container is None:
            self._kept = True
            return True
        if found.aside and found.state != "running":
            self._kept = True
            self._say("removes what an interrupted recreate has made")
            return await self._gone("undo", "not removed")
        if found.aside and not await self._gone("rm aside", f"{self._engine.aside} is in the way, not removed"):
            return False
        self._say("stops")
        said = await self._told("stop")
        if said is not None and not (is_missing(said) or is_being_removed(said)):
            self._refused(said, "left alone: not stopped")
            return False
        self._say(f"sets it aside as {self._engine.aside}")
        said = await self._told("set aside")
        if said is None:
            self._kept = True
            return True
        if is_missing(said) or is_being_removed(said):  # It was run with --rm.
            return await self._awaited()
        words = self._refusal(said, "left alone: not renamed")
        self._end("failed", f"{words}; {await self._again(found, None)}")
        return False

    async def _again(self, found: Found, before: object) -> str:
        """Start the old one if it ran; returns how it is now."""
        if found.container is not None and found.state not in ("running", "restarting", "paused"):
            return f"the old one is there as before ({found.state})"
        why = await self._started("the old one runs again", before)
        return f"the old one: {why}" if why else "the old one runs again"

    async def _replace(self, found: Found) -> None:
        """Make it anew; the old one goes when the new one runs and pdtui is in it, and comes back otherwise."""
        done = "made anew and started"
        why = await self._make(done)
        if not why:
            said = await self._told("rm aside") if self._kept else None
            if said is None or is_missing(said) or is_being_removed(said):
                self._end("done", done)
            else:
                words = self._refusal(said, f"the old one is left as {self._engine.aside}, not removed")
                self._end("done", f"{done}; {words}; {self._engine.by_hand('rm aside')}")
            return
        if not self._kept:
            self._end("failed", f"{why}; the old one is gone: its engine removed it when it stopped (--rm)")
            return
        self._end("failed", f"{why}; {await self._put_back(found)}")

    async def _put_back(self, found: Found) -> str:
        """Have the old one again in place of what was made; returns how that went."""
        before = self._link.rank_agent
        self._say("puts the old one back")
        by_hand = f"the old one is left as {self._engine.aside}"
        if not self._taken:  # Somebody else's is not ours to remove.
            said = await self._told("undo")
            if said is not None and not (is_missing(said) or is_being_removed(said)):
                return f"{by_hand}: {self._refusal(said, 'the new one was not removed')}"
        said = await self._told("put back")
        if said is not None:
            words = self._refusal(said, "not renamed back")
            return f"{by_hand}, {words}; by hand: {self._engine.by_hand('put back')}"
        return await self._again(found, before)

    async def _remove(self, found: Found) -> bool:
        """Stop and remove it, unless somebody has begun to live in it; returns whether it is gone."""
        if not await self._is_free():
            return False
        if found.container is not None:
            self._say("stops")
            said = await self._told("stop")
            if said is not None and not (is_missing(said) or is_being_removed(said)):
                self._refused(said, "not stopped")
                return False
            self._say("removes it")
            if not await self._gone("rm", "stopped, not removed"):
                return False
        return not found.aside or await self._gone("rm aside", f"{self._engine.aside} was not removed")

    async def _gone(self, verb: Verb, doing: str) -> bool:
        """Remove something; returns whether it is gone."""
        said = await self._told(verb)
        if said is not None and not (is_missing(said) or is_being_removed(said)):
            self._refused(said, doing)
            return False
        return verb == "rm aside" or await self._awaited()

    async def _awaited(self) -> bool:
        """Wait until there is no container of the name; returns whether that came."""
        crew = self._crew
        until = crew.clock.monotonic() + GONE
        while (found := await self._engine.look()).container is not None:
            if crew.clock.monotonic() > until:
                self._end("failed", f"still there ({found.state}) {GONE:.0f} s after its removal")
                return False
            await crew.clock.sleep(STEP)
        if found.trouble is not None:
            self._end("failed", f"removed, but {found.trouble.line}")
        return found.trouble is None

    async def _arrive(self, done: str, before: object) -> str:
        """Wait until pdtui is in the container; returns why it does not get there, empty when it did."""
        clock, link = self._crew.clock, self._link
        self._say(f"{done}; waits to get in")
        until = clock.monotonic() + ARRIVAL
        looks = 0
        while link.rank_agent is None or link.rank_agent is before:
            link.retry_now()
            if looks % 4 == 3 and (words := await self._ended()):
                return words
            if clock.monotonic() > until:
                error = link.status.error
                why = f"{error.message}{f' ({error.remedy})' if error.remedy else ''}" if error else "no answer"
                return f"{done}, but pdtui does not get into it: {why}"
            looks += 1
            await clock.sleep(STEP)
        self._crew.watchers[self._node].poke()
        return ""

    async def _ended(self) -> str:
        """Return why a container that was started does not run any more; empty while it does."""
        found = await self._engine.look()
        if found.container is None or found.state not in ("exited", "dead", "created", "stopped"):
            return ""
        _, said = await self._engine.tell("logs")
        last = redacted_text(clean_line(said.splitlines()[-1])) if said else "it said nothing"
        return f"started, but it ended at once: {last}"
