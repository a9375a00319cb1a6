"""Boxes that ask: what would happen, and whether it should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from pdtui.console.chrome import Title, rule
from pdtui.console.look import Look
from pdtui.console.rows import BLANK, Row, paragraphs
from pdtui.console.strings import S
from pdtui.console.timing import duration
from pdtui.console.widgets.field import Choosable, field
from pdtui.console.widgets.line_view import Bar
from pdtui.console.widgets.text_view import TextView
from pdtui.fleet.intents import Breaking, ChangeContainers, Intent, Preview, RestartRanks, StartRanks, StopRanks

Result = TypeVar("Result")
_PASSING = (StartRanks, RestartRanks, ChangeContainers)
"""Intents that may pass over what is in their way, with a reason."""

_FRAME = 8
"""Lines of a dialog that are not its text, at most."""


class Dialog(ModalScreen[Result]):
    """A box with a title, text that scrolls, and buttons; the focus is on the one that does nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "refuse", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("up,pageup", "scroll(-5)", show=False),
        Binding("down,pagedown", "scroll(5)", show=False),
    ]

    def __init__(self, look: Look, title: str) -> None:
        super().__init__()
        self.look = look
        self.title_text = title

    def compose(self) -> ComposeResult:
        """Title, text, what is asked for, buttons."""
        with Vertical(id="dialog"):
            yield Bar(self.look, id="dialog-title")
            yield TextView(self.look, id="dialog-text")
            yield from self.questions()
            with Horizontal(id="dialog-buttons"):
                yield from self.buttons()
            yield Bar(self.look, id="dialog-hint")

    def questions(self) -> ComposeResult:
        """What the operator types."""
        yield from ()

    def buttons(self) -> ComposeResult:
        """What the operator decides between."""
        yield self.button(S.cancel, "cancel")

    def button(self, label: str, name: str) -> Choosable:
        """Return one of the buttons."""
        return Choosable(label, self.look.glyphs.cursor, id=name)

    def hints(self) -> Sequence[str]:
        """What keys do here."""
        return (S.hint_choose, S.hint_enter, S.hint_cancels)

    def rows(self) -> Sequence[Row]:
        """The text."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Show the text, with the focus on Cancel; the text scrolls without the focus."""
        if not self._has_parts:
            return
        self.query_one("#dialog-text", TextView).can_focus = False
        self.show()
        self.query_one("#cancel", Button).focus()

    @property
    def _has_parts(self) -> bool:
        """Whether it was put together: one that opens in the moment in which the console ends never is."""
        return bool(self.query("#dialog-hint"))

    def on_resize(self, event: events.Resize) -> None:
        """Fit the box."""
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Fit the text into the box and show it."""
        if not self._has_parts:
            return
        bar, text = self.query_one("#dialog-title", Bar), self.query_one("#dialog-text", TextView)
        width = bar.size.width or min(self.app.size.width - 4, 86)
        text.show(self.rows())
        wanted, room = text.lines_for(width), max(1, self.app.size.height - _FRAME)
        text.styles.height = min(wanted, room)
        note = S.more_above_below.format(first=text.top + 1, last=text.top + room, total=wanted)
        title = Title(self.title_text, note=note if wanted > room else "")
        bar.show(rule(title, self.look, width, focused=True))
        below = self.query_one("#dialog-hint", Bar)
        line, gap = below.line(), " "
        for hint in [*self.hints(), *([S.hint_scrolls] if wanted > room else [])]:
            if line.length + len(gap) + len(hint) <= width:
                line.add(f"{gap}{hint}", self.look.styles.key_label)
                gap = "   "
        below.show(line)

    def action_scroll(self, by: int) -> None:
        """Scroll the text."""
        text = self.query_one("#dialog-text", TextView)
        text.go_to(text.top + by)
        self.show()

    def action_refuse(self) -> None:
        """Do nothing."""
        self.dismiss(None)

    @on(Button.Pressed, "#cancel")
    def refuse(self) -> None:
        """Do nothing."""
        self.dismiss(None)


class QuitScreen(Dialog[bool]):
    """Asks before leaving while an operation runs; says when that has ended meanwhile."""

    def __init__(self, look: Look, what: str, running: Callable[[], bool]) -> None:
        super().__init__(look, S.quit_title)
        self._what = what
        self._operation_runs = running
        self._ended = False

    def on_mount(self) -> None:
        """Look whether it still runs."""
        self.set_interval(0.25, self._look_again)

    def _look_again(self) -> None:
        if not self._ended and not self._operation_runs():
            self._ended = True
            self.show()

    def rows(self) -> Sequence[Row]:
        """What would end."""
        text = S.quit_ended if self._ended else S.quit_question
        return [BLANK, Row(text.format(what=self._what)), BLANK]

    def buttons(self) -> ComposeResult:
        """Stay or leave."""
        yield from super().buttons()
        yield self.button(S.quit, "do")

    @on(Button.Pressed, "#do")
    def leave(self) -> None:
        """Leave."""
        self.dismiss(True)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do it."""

    label: str
    intent: Intent
    preview: Preview


class ConfirmScreen(Dialog[Intent]):
    """Shows what an intent touches and asks; returns the intent to submit, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,C", "commands", show=False),
        Binding("g,G", "choice", show=False),
        Binding("o,O", "override", show=False),
    ]

    def __init__(self, look: Look, cluster: str, choices: Sequence[Choice], *, now: Callable[[], float]) -> None:
        super().__init__(look, choices[0].preview.title)
        self._cluster = cluster
        self._now = now
        self._choices = choices
        self._chosen = 0
        self._commands = False
        self._override = False

    @property
    def choice(self) -> Choice:
        """The way that is chosen now."""
        return self._choices[self._chosen]

    def questions(self) -> ComposeResult:
        """The reason for passing over blockers, and the cluster's name."""
        with Horizontal(id="reason-line", classes="question"):
            yield Bar(self.look, id="reason-label")
            yield field("reason")
        with Horizontal(id="name-line", classes="question"):
            yield Bar(self.look, id="name-label")
            yield field("name")

    def on_key(self, event: events.Key) -> None:
        """Put the first letter of the name into its field; capitals are still keys, as a name has none."""
        letter = event.character or ""
        if self.choice.preview.needs_name and isinstance(self.focused, Button) and self._in_name(letter):
            event.stop()
            event.prevent_default()
            name = self.query_one("#name", Input)
            name.focus()
            name.cursor_position = len(name.value)
            name.insert_text_at_cursor(letter)

    def _in_name(self, letter: str) -> bool:
        return letter == "-" or (letter.isalnum() and not letter.isupper())

    def _key(self, letter: str) -> str:
        """Return the key of a letter: a capital where small letters are typed."""
        return letter.upper() if self.choice.preview.needs_name else letter

    def hints(self) -> Sequence[str]:
        """Where a name is wanted, typing comes first."""
        if self.choice.preview.needs_name:
            return (S.hint_name, S.hint_choose_typing, S.hint_enter, S.hint_cancels)
        return super().hints()

    def buttons(self) -> ComposeResult:
        """Do nothing, or do it."""
        yield from super().buttons()
        yield self.button(S.verbs[self.choice.preview.verb], "do")

    def rows(self) -> Sequence[Row]:
        """What it touches, what follows, the steps; or the commands."""
        preview = self.choice.preview
        if self._commands:
            rows = [Row(f"  {line}" if line else "") for text in preview.commands for line in text.splitlines()]
            return [*rows, BLANK, Row(S.hides_commands.format(key=self._key("c")), "dim")]
        rows = [BLANK]
        rows += self._lease_rows(preview)
        rows += paragraphs(preview.consequence)
        rows += paragraphs(preview.note, "dim")
        if len(self._choices) > 1:
            rows.append(BLANK)
            for number, choice in enumerate(self._choices):
                sign = self.look.glyphs.cursor if number == self._chosen else " "
                key = S.choice_key.format(key=self._key("g")) if number == 0 else " "
                style = "title_focused" if number == self._chosen else "dim"
                rows.append(Row(f"{sign} {choice.label}", style, key, "key", label_width=12))
        rows.append(BLANK)
        rows += [Row(step, label=str(n), label_width=4, indent=1) for n, step in enumerate(preview.steps, 1)]
        if preview.warnings:
            rows += [BLANK, Row(S.warnings, "warning")]
            rows += [row for text in preview.warnings for row in paragraphs(text, "warning", indent=2)]
        if preview.processes:
            rows += [BLANK, Row(S.by_hand, "warning")]
            rows += [Row(line, indent=2) for line in preview.processes]
        rows += self._blocker_rows(preview)
        if preview.commands:
            rows += [BLANK, Row(S.shows_commands.format(key=self._key("c")), "dim")]
        return rows

    def _lease_rows(self, preview: Preview) -> list[Row]:
        """Who works on these ranks now: first of all, since the rest may be his doing."""
        if not preview.leases:
            return []
        rows = [Row(S.other_hands, "warning")]
        for lease in preview.leases:
            where = S.lease_from.format(origin=lease.origin) if lease.origin not in ("", "local") else ""
            rows.append(
                Row(
                    S.lease.format(
                        who=lease.by,
                        where=where,
                        verb=lease.verb,
                        what=lease.what,
                        nodes=" ".join(lease.nodes),
                        age=duration(max(0.0, self._now() - lease.since)),
                    ),
                    "failed",
                    indent=2,
                )
            )
        if self._stops:
            rows.append(Row(S.takes_over_stop, "key_label"))
        elif not self._override:
            rows.append(Row(S.takes_over.format(key=self._key("o")), "key_label"))
        return [*rows, BLANK]

    @property
    def _stops(self) -> bool:
        """Whether it only stops: in an emergency one confirmation must do."""
        return isinstance(self.choice.intent, StopRanks)

    def _blocker_rows(self, preview: Preview) -> list[Row]:
        if not preview.blockers:
            return []
        rows = [BLANK, Row(S.blockers, "warning")]
        for blocker in preview.blockers:
            rows.append(Row(blocker.message, "failed", indent=2))
            rows += [Row(line, "key_label", indent=4) for line in blocker.remedy.splitlines()]
        if self._override or preview.leases:
            return rows
        return [*rows, Row(S.override.format(key=self._key("o")), "key_label")]

    def show(self) -> None:
        """Show the text and what is asked for with it."""
        if not self._has_parts:
            return
        preview = self.choice.preview
        self.title_text = preview.title
        super().show()
        labels = ((S.overriding, "reason", self._override), (self._name_label(), "name", preview.needs_name))
        for text, name, wanted in labels:
            self.query_one(f"#{name}-line").display = wanted
            bar = self.query_one(f"#{name}-label", Bar)
            line = bar.line().add(f" {text} ", self.look.styles.warning)
            bar.styles.width = line.length
            bar.show(line)
        self._check()

    def _name_label(self) -> str:
        return S.type_name.format(name=self._cluster)

    def _check(self) -> None:
        """Allow the deed only when everything that is asked for is there."""
        button = self.query_one("#do", Choosable)
        button.disabled = self._made() is None
        verb = S.verbs[self.choice.preview.verb]
        button.rename(S.take_over_and.format(verb=verb.lower()) if self.choice.preview.leases else verb)

    def _made(self) -> Intent | None:
        """Return the intent as confirmed so far, None while something is missing."""
        preview, intent = self.choice.preview, self.choice.intent
        name = self.query_one("#name", Input).value.strip()
        reason = self.query_one("#reason", Input).value.strip()
        if preview.needs_name:
            if name != self._cluster:
                return None
            intent = replace(intent, confirm=name)
        if preview.leases:
            if not self._stops and not (self._override and reason):
                return None
            seen = tuple(lease.id for lease in preview.leases)
            intent = replace(intent, breaking=Breaking(reason or S.taken_over, seen))
        if preview.blockers:
            if not self._override or not reason or not isinstance(intent, _PASSING):
                return None
            intent = replace(intent, override=tuple(blocker.id for blocker in preview.blockers), reason=reason)
        if preview.unmanaged and isinstance(intent, StopRanks | RestartRanks):
            intent = replace(intent, unmanaged=preview.unmanaged)
        return intent

    @on(Input.Changed)
    def typed(self) -> None:
        """Look again whether all is there."""
        self._check()

    @on(Input.Submitted)
    @on(Button.Pressed, "#do")
    def accept(self) -> None:
        """Return the intent when all is there; else go to what is missing."""
        made = self._made()
        if made is not None:
            self.dismiss(made)
        else:
            self.focus_next()

    def action_commands(self) -> None:
        """Show the commands, or the summary."""
        if self.choice.preview.commands:
            self._commands = not self._commands
            self.show()

    def action_choice(self) -> None:
        """Switch between the whole group and this rank only."""
        self._chosen = (self._chosen + 1) % len(self._choices)
        self.show()

    def action_override(self) -> None:
        """Pass over blockers, which needs a reason."""
        preview = self.choice.preview
        if (preview.blockers or preview.leases) and isinstance(self.choice.intent, _PASSING):
            self._override = not self._override
            self.show()
            if self._override:
                self.query_one("#reason", Input).focus()
