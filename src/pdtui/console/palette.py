"""The palette: every action that can be done now, and jumps to nodes, ranks, groups and themes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, runtime_checkable

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from pdtui.console.actions import ACTIONS, Situation
from pdtui.console.strings import S


@runtime_checkable
class Commanded(Protocol):
    """The screen that the palette works on."""

    def situation(self) -> Situation:
        """Return what availability depends on."""
        ...

    def run_action_id(self, action: str) -> None:
        """Do an action of the registry."""
        ...

    def go_to_subject(self, subject: str) -> None:
        """Go to a rank, node or `node/npu`."""
        ...

    def show_filter(self, text: str) -> None:
        """Filter the list of ranks."""
        ...

    def theme_names(self) -> list[str]:
        """Return the usable themes."""
        ...

    def use_theme(self, name: str) -> None:
        """Change the theme."""
        ...


class ConsoleCommands(Provider):
    """Offers the registry and jumps."""

    def _commands(self) -> Iterator[tuple[str, Callable[[], None], str]]:
        screen = self.screen
        if not isinstance(screen, Commanded):
            return
        situation = screen.situation()
        for action in ACTIONS:
            offer = action.available(situation)
            if offer.enabled and action.scope != "preflight" and action.id not in ("palette", "interrupt"):
                yield offer.label, partial(screen.run_action_id, action.id), action.shown_key
        for group in dict.fromkeys(rank.group for rank in situation.snapshot.ranks):
            yield S.jump_group.format(name=group), partial(screen.show_filter, f"group:{group}"), ""
        for node in situation.snapshot.nodes:
            yield S.jump_node.format(name=node.name), partial(screen.go_to_subject, node.name), ""
        for rank in situation.snapshot.ranks:
            yield S.jump_rank.format(name=rank.id), partial(screen.go_to_subject, rank.id), ""
        for theme in screen.theme_names():
            yield S.palette_theme.format(name=theme), partial(screen.use_theme, theme), ""

    async def discover(self) -> Hits:
        """Offer everything before a word is typed, except for the many ranks."""
        for name, run, key in self._commands():
            if key:
                yield DiscoveryHit(_shown(name, key), run, name)

    async def search(self, query: str) -> Hits:
        """Offer what matches."""
        matcher = self.matcher(query)
        for name, run, key in self._commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, _shown(name, key), run, name)


def _shown(name: str, key: str) -> Content:
    """Return a command with its key, never taken for markup."""
    return Content(f"{key:<6} {name}")
