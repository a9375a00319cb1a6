"""How one line of a log is drawn: wrapped or cut, with its time, with what the search found in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.style import Style
from textual.strip import Strip

from pdtui.console.lines import Line, wrap
from pdtui.console.look import Look
from pdtui.console.timing import clock_time
from pdtui.fleet.handle import LogLine
from pdtui.readings.vllm_log import prefix_of

_PLAIN = Style(bold=False)


@dataclass(frozen=True)
class Drawing:
    """What the rows of a line depend on besides the line."""

    look: Look
    width: int
    wrap: bool
    times: bool
    pattern: re.Pattern[str] | None
    """What to highlight."""
    current: int
    """Sequence number of the line that `n` went to."""


def line_rows(line: LogLine, drawing: Drawing) -> list[Strip]:
    """Return a line as rows; cut ones are as long as the line."""
    look, styles, width = drawing.look, drawing.look.styles, drawing.width
    stamp = f"{clock_time(line.at, milliseconds=True)} " if drawing.times else ""
    style = styles.text if not line.severity else look.severity(line.severity) + _PLAIN
    text = line.text.expandtabs(4)
    current = line.seq == drawing.current
    prefix = prefix_of(text)
    quiet = len(text) - len(prefix.message) if prefix is not None else 0
    pieces = wrap(text, max(8, width - len(stamp) - 1), 2) if drawing.wrap else [text]
    strips = []
    done = 0
    for number, piece in enumerate(pieces):
        row = Line(look.glyphs.ellipsis)
        row.add(look.glyphs.cursor if current and number == 0 else " ", styles.key)
        if stamp:
            row.add(stamp if number == 0 else " " * len(stamp), styles.dim)
        lead = 0
        if number:
            row.add("  ")
            lead = piece.startswith(" ")  # The blank that it was broken at.
        found = styles.match_current if current else styles.match
        _marked(row, piece[lead:], text, done + lead, _Styles(style, found, styles.dim, quiet), drawing.pattern)
        done += len(piece)
        strips.append(row.strip(width if drawing.wrap else max(width, row.length)))
    return strips


@dataclass(frozen=True)
class _Styles:
    """The styles of one line: its first `quiet` characters say only who wrote it."""

    text: Style
    found: Style
    dim: Style
    quiet: int


def _marked(
    row: Line, piece: str, text: str, offset: int, styles: _Styles, pattern: re.Pattern[str] | None
) -> None:
    """Add a piece of a line with what the search found in it."""
    quiet = max(0, styles.quiet - offset)

    def plain(start: int, end: int) -> None:
        row.add(piece[start : min(end, quiet)], styles.dim).add(piece[max(start, quiet) : end], styles.text)

    position = 0
    for match in pattern.finditer(text) if pattern is not None else ():
        start, end = max(match.start() - offset, position), min(match.end() - offset, len(piece))
        if start < end:
            plain(position, start)
            row.add(piece[start:end], styles.found)
            position = end
    plain(position, len(piece))


def between(text: str, look: Look, width: int) -> Strip:
    """Return the rule that says what is missing between two lines."""
    styles, bar = look.styles, look.glyphs.rule
    line = Line(look.glyphs.ellipsis).add(bar * 2, styles.rule).add(f" {text} ", styles.dim)
    return line.add(bar * max(0, width - line.length), styles.rule).strip(width)
