"""A one-line input that does not blink."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Button, Input


def field(id: str, placeholder: str = "") -> Input:  # noqa: A002
    """Return an input of one line; the blinking cursor would be the only thing that moves."""
    made = Input(placeholder=placeholder, id=id, compact=True, select_on_focus=False)
    made.cursor_blink = False
    return made


def button(label: str, id: str) -> Button:  # noqa: A002
    """Return a button of one line whose label is never taken for markup."""
    return Button(Content(label), id=id, compact=True)
