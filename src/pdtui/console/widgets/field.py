"""A one-line input that does not blink, and a button whose focus shows without colours."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widgets import Button, Input


def field(id: str, placeholder: str = "") -> Input:  # noqa: A002
    """Return an input of one line; the blinking cursor would be the only thing that moves."""
    made = Input(placeholder=placeholder, id=id, compact=True, select_on_focus=False)
    made.cursor_blink = False
    return made


class Choosable(Button):
    """A button of one line; with the focus it has brackets and the cursor's sign, and is as wide as without."""

    def __init__(self, label: str, cursor: str, *, id: str) -> None:  # noqa: A002
        self._cursor = cursor
        self._make(label)
        super().__init__(self._plain, id=id, compact=True)

    def _make(self, label: str) -> None:
        # Contents, so that a label is never taken for markup.
        self._plain, self._chosen = Content(f"   {label}  "), Content(f"{self._cursor}[ {label} ]")

    def rename(self, label: str) -> None:
        """Show other words."""
        self._make(label)
        self.label = self._chosen if self.has_focus else self._plain

    def on_focus(self, event: events.Focus) -> None:
        """Show that enter means this one."""
        self.label = self._chosen

    def on_blur(self, event: events.Blur) -> None:
        """Show the words alone."""
        self.label = self._plain
