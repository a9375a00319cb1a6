"""One line above the footer: a filter, a search."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from pdtui.console.actions import bindings
from pdtui.console.look import Look
from pdtui.console.widgets.field import field
from pdtui.console.widgets.line_view import Bar


class Prompt(Horizontal):
    """A label and an input, shown while something is asked for."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("prompt")

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look

    def compose(self) -> ComposeResult:
        """Label and input."""
        yield Bar(self._look, id="prompt-label")
        yield field("prompt-text")
