"""How a screen does what the registry of actions says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pdtui.console.actions import BY_ID, Situation
from pdtui.console.conduct import Severity
from pdtui.console.strings import S


class _Doing(Protocol):
    def situation(self) -> Situation: ...

    def say(self, message: str, severity: Severity = "info") -> None: ...


def do_action(screen: _Doing, action: str) -> None:
    """Do an action of the registry by the screen's method `do_...`, or say why not."""
    offer = BY_ID[action].available(screen.situation())
    if not offer.enabled:
        screen.say(S.refused.format(action=offer.label, why=offer.why_not), "warning")
        return
    deed: Callable[[], None] = getattr(screen, f"do_{action}")
    deed()
