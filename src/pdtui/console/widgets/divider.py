"""The thin line between two areas that stand side by side."""

from __future__ import annotations

from textual.strip import Strip

from pdtui.console.widgets.line_view import LineView


class Divider(LineView):
    """One column; its first cell meets the rules of both areas."""

    def draw(self, width: int, height: int) -> list[Strip]:
        """Return the line."""
        styles, glyphs = self.look.styles, self.look.glyphs
        first = self.line().add(glyphs.tee, styles.rule).strip(width)
        return [first] + [self.line().add(glyphs.pipe, styles.rule).strip(width)] * (height - 1)
