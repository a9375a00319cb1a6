"""Help: the registry of actions, with what each would do now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult

from pdtui.console.actions import ACTIONS, Situation
from pdtui.console.look import Look
from pdtui.console.rank_order import filter_fields
from pdtui.console.rows import BLANK, Row, heading
from pdtui.console.screens.dialog import Dialog
from pdtui.console.strings import S

_KEYS = 18
_OF_PREFLIGHT = ("preflight", "text", "prompt", "move")
"""Groups of keys that do something on the screen of preflight."""


def help_rows(situation: Situation, keys: Mapping[str, str]) -> list[Row]:
    """Return all keys by group; what cannot be done now says why."""
    rows: list[Row] = []
    for group, title in S.groups.items():
        if group not in _OF_PREFLIGHT if situation.preflight is not None else group == "preflight":
            continue
        rows += [BLANK, heading(title)]
        if group == "move":
            cell = S.help_cell_npu if situation.npus else S.help_cell_rank
            rows += [
                Row(text.format(cell=cell), label=name, label_style="key", label_width=_KEYS)
                for name, text in S.help_move
            ]
        for action in ACTIONS:
            if action.group != group:
                continue
            offer = action.available(situation)
            text = offer.label if offer.label.startswith(action.label) else f"{action.label}: {offer.label}"
            style = "text" if offer.enabled else "key_disabled"
            if not offer.enabled:
                text = f"{action.label}  ({offer.why_not})"
            key = keys.get(action.id, action.shown_key)
            rows.append(Row(text, style, key, "key_danger" if action.danger else "key", label_width=_KEYS))
    if situation.preflight is not None:
        return rows
    fields = " ".join(f"{name}:" for name in filter_fields(npus=situation.npus))
    return [*rows, BLANK, Row(S.help_filter.format(fields=fields), "dim")]


class HelpScreen(Dialog[None]):
    """All keys."""

    def __init__(self, look: Look, situation: Situation, keys: Mapping[str, str]) -> None:
        super().__init__(look, S.help_title)
        self._rows = help_rows(situation, keys)

    def buttons(self) -> ComposeResult:
        """Close."""
        yield self.button(S.close, "cancel")

    def hints(self) -> Sequence[str]:
        """Closing is all there is to choose."""
        return (S.hint_closes,)

    def rows(self) -> Sequence[Row]:
        """The keys."""
        return self._rows
