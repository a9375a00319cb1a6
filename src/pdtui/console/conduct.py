"""From a key to a submitted intent: preview, dialog where something could be hurt, submit, refusals in words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Protocol

from pdtui.console.screens.dialog import Choice
from pdtui.console.strings import S, ranks_of
from pdtui.errors import ActionRefused, PdtuiError
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.intents import ChangeContainers, Intent, Preview, RestartRanks, StartRanks, StopRanks

Severity = Literal["info", "good", "warning", "error"]
Confirm = Callable[[list[Choice]], Awaitable[Intent | None]]


class Voice(Protocol):
    """The line in which the console says what it does."""

    def say(
        self, message: str, severity: Severity = "info", *, lasting: bool = False, operation: str = ""
    ) -> None:
        """Say something for a while, `lasting` until `unsay`; about an operation, while that runs."""
        ...

    def unsay(self, message: str, instead: str = "") -> None:
        """Take back what is no longer true, or say what came of it."""
        ...


def _verb(intent: Intent) -> str:
    if isinstance(intent, ChangeContainers):
        return intent.verb
    return S.actions[
        "start" if isinstance(intent, StartRanks) else "stop" if isinstance(intent, StopRanks) else "restart"
    ]


class Conductor:
    """Carries out what the operator asks for, through the fleet's handle."""

    def __init__(self, handle: FleetHandle, *, confirm: Confirm, voice: Voice) -> None:
        self._handle = handle
        self._confirm = confirm
        self._voice = voice
        self._say = voice.say
        self._looking = False

    async def carry_out(self, intent: Intent) -> bool:
        """Preview, ask where it is dangerous or blocked, submit; returns whether it has begun."""
        if self._looking:
            self._say(S.one_at_a_time, "warning")
            return False
        looking = S.looking.format(verb=_verb(intent))
        self._say(looking, lasting=True)
        self._looking = True
        try:
            choices = await self._choices(intent)
            preview = choices[0].preview
            self._looking = False
            self._voice.unsay(looking)
            decided: Intent | None = intent
            asks = preview.dangerous or preview.needs_name
            if asks or preview.blockers or preview.warnings or preview.leases:
                decided = await self._confirm(choices)
            if decided is None:
                self._say(S.nothing_done)
                return False
            await self._handle.submit(decided)
        except PdtuiError as error:
            self._say(str(error).replace("\n", "  "), "error")
            return False
        finally:
            self._looking = False
        return True

    async def _choices(self, intent: Intent) -> list[Choice]:
        """Return the ways to do it: for a MoE group also the named ranks alone."""
        preview = await self._handle.preview(intent)
        choices = [Choice(_label(preview), intent, preview)]
        if isinstance(intent, RestartRanks) and intent.whole_group and len(preview.ids) > len(intent.ids):
            alone = replace(intent, whole_group=False)
            try:
                second = await self._handle.preview(alone)
            except ActionRefused:
                return choices
            names = " ".join(second.ids[:3]) + (f" +{len(second.ids) - 3}" if len(second.ids) > 3 else "")
            choices.append(Choice(S.choice_only.format(ids=names), alone, second))
        if isinstance(intent, RestartRanks) and self._can_roll(preview.ids):
            rolling = replace(intent, rolling=True)
            with suppress(ActionRefused):
                choices.append(Choice(S.choice_rolling, rolling, await self._handle.preview(rolling)))
        return choices

    def _can_roll(self, ids: Sequence[str]) -> bool:
        """Return whether ranks of several groups are meant, all of roles with several groups."""
        groups = {self._handle.plan.by_id[rank_id].group for rank_id in ids if rank_id in self._handle.plan.by_id}
        return len(groups) > 1

    async def cancel(self, operation: str, name: str) -> None:
        """Ask a running operation to stop; `name` is what the operator knows it by."""
        try:
            await self._handle.cancel(operation)
        except PdtuiError as error:
            self._say(str(error).replace("\n", "  "), "error")
        else:
            self._say(S.cancel_asked.format(operation=name), operation=operation)

    async def poll(self, node: str) -> None:
        """Read the health of a node (all without one) now."""
        what = node or S.all_nodes
        reading = S.polling.format(what=what)
        self._say(reading, lasting=True)
        try:
            await self._handle.poll_now((node,) if node else ())
        except PdtuiError as error:
            self._say(str(error).replace("\n", "  "), "error")
        else:
            self._voice.unsay(reading, S.polled.format(what=what))


def _label(preview: Preview) -> str:
    return S.choice_group.format(ranks=ranks_of(len(preview.ids)))
