"""Telling that a trouble is known: for how long, and why; or that it is to be told again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input

from pdtui.console.conduct import Severity
from pdtui.console.findings import Finding, head
from pdtui.console.look import Look
from pdtui.console.rows import BLANK, Row
from pdtui.console.screens.dialog import Dialog
from pdtui.console.strings import S
from pdtui.console.timing import day_and_time
from pdtui.console.widgets.field import Choosable, field
from pdtui.console.widgets.line_view import Bar
from pdtui.errors import PdtuiError
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.intents import Acknowledge, Unacknowledge

_HOUR = 3600.0
FOR_HOW_LONG: tuple[float, ...] = (_HOUR, 8 * _HOUR, 72 * _HOUR, 90 * 24 * _HOUR)
"""Seconds; the last is the longest that nodes keep one, for «until it is taken back»."""


class AcknowledgeScreen(Dialog[Acknowledge]):
    """Asks why and for how long; returns the intent, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "longer(-1)", show=False),
        Binding("down", "longer(1)", show=False),
    ]

    def __init__(self, look: Look, finding: Finding, now: float) -> None:
        super().__init__(look, S.acknowledge_title)
        self._finding = finding
        self._now = now
        self._chosen = 1

    def on_mount(self) -> None:
        """Begin with the reason, once the base class has put the focus on Cancel."""
        self.call_later(self._begin)

    def _begin(self) -> None:
        for reason in self.query("#reason").results(Input):
            reason.focus()

    def rows(self) -> Sequence[Row]:
        """What is known, until when, what follows: on a small screen the last of these is cut."""
        rows = [BLANK, Row(head(self._finding), self._finding.style), BLANK]
        for number, seconds in enumerate(FOR_HOW_LONG):
            here = number == self._chosen
            text = S.for_how_long[number].format(until=day_and_time(self._now + seconds))
            sign = self.look.glyphs.cursor if here else " "
            label = S.for_how_long_label if number == 0 else " "
            rows.append(Row(f"{sign} {text}", "title_focused" if here else "dim", label, label_width=10))
        return [*rows, BLANK, Row(S.acknowledge_what, "dim"), BLANK]

    def questions(self) -> ComposeResult:
        """The reason."""
        with Horizontal(id="reason-line", classes="question"):
            yield Bar(self.look, id="reason-label")
            yield field("reason")

    def show(self) -> None:
        """Show the text and the label of the field."""
        super().show()
        for bar in self.query("#reason-label").results(Bar):
            line = bar.line().add(f" {S.overriding} ", self.look.styles.warning)
            bar.styles.width = line.length
            bar.show(line)
        for button in self.query("#do").results(Choosable):
            button.disabled = not self._reason

    def buttons(self) -> ComposeResult:
        """Do nothing, or acknowledge."""
        yield from super().buttons()
        yield self.button(S.acknowledge_do, "do")

    def hints(self) -> Sequence[str]:
        """Typing comes first."""
        return (S.hint_reason, S.hint_how_long, S.hint_enter, S.hint_cancels)

    @property
    def _reason(self) -> str:
        return self.query_one("#reason", Input).value.strip()

    def action_longer(self, by: int) -> None:
        """Choose for how long."""
        self._chosen = (self._chosen + by) % len(FOR_HOW_LONG)
        self.show()

    @on(Input.Changed)
    def typed(self) -> None:
        """Allow it once there is a reason."""
        self.query_one("#do", Choosable).disabled = not self._reason

    @on(Input.Submitted)
    @on(Button.Pressed, "#do")
    def accept(self) -> None:
        """Return the intent when there is a reason."""
        if self._reason:
            self.dismiss(Acknowledge(self._finding.key, self._reason, FOR_HOW_LONG[self._chosen]))


class Say(Protocol):
    """A screen's line of words."""

    def __call__(self, message: str, severity: Severity = "info") -> None:
        """Say something for a while."""
        ...


@dataclass(frozen=True)
class Acknowledger:
    """Carries out what is asked about findings."""

    handle: FleetHandle
    ask: Callable[[Finding], Awaitable[Acknowledge | None]]
    say: Say

    async def turn(self, finding: Finding) -> None:
        """Acknowledge a finding, or take that back if it is known."""
        intents: list[Acknowledge | Unacknowledge]
        if finding.known is not None:
            known = self.handle.snapshot.acknowledged
            found = [one.key for key in (finding.key, *finding.also) if (one := known(key)) is not None]
            intents = [Unacknowledge(key) for key in dict.fromkeys(found)]
        else:
            first = await self.ask(finding)
            intents = (
                [replace(first, key=key) for key in (finding.key, *finding.also)] if first is not None else []
            )
        if not intents:
            self.say(S.nothing_done)
            return
        missing: dict[str, str] = {}
        try:
            for intent in intents:
                missing |= await self.handle.acknowledge(intent)
        except PdtuiError as error:
            self.say(str(error).replace("\n", "  "), "error")
            return
        words = S.was_unacknowledged if finding.known is not None else S.was_acknowledged
        more = S.more_keys.format(n=len(intents) - 1) if len(intents) > 1 else ""
        text = words.format(key=f"{intents[0].key}{more}")
        if missing:
            text += f"; {S.acknowledged_not_on.format(nodes=' '.join(missing))}"
        self.say(text, "warning" if missing else "good")
