"""What this terminal can do, what the console would make of it, and lines to look at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from pdtui.cli.doctor.items import Item, Section, fail, ok, warn
from pdtui.cli.doctor.machine import answer, version_of
from pdtui.console.glyphs import GLYPH_SETS, Glyphs, default_glyphs
from pdtui.console.terminal import cells

SLOW_ESCAPE = 100
"""Milliseconds that tmux may wait after an escape before a person notices."""

_DUMB = ("dumb", "unknown")
_NO_OSC52 = {"Apple_Terminal": "Terminal.app"}
"""Terminals known by TERM_PROGRAM that take no text for the clipboard from programs."""


def section(environ: Mapping[str, str]) -> Section:
    """Look at the terminal; `environ` is the environment as it was before Python changed it."""
    here = sys.stdin.isatty() and sys.stdout.isatty()
    depth, why = _depth(environ)
    return Section(
        "terminal",
        (
            _terminal(environ, here),
            *_size(here),
            _session(environ),
            *_multiplexer(environ),
            why,
            _glyphs(environ),
            _clipboard(environ),
        ),
        tuple(_samples(environ, depth)) if sys.stdout.isatty() else (),
    )


def _terminal(environ: Mapping[str, str], here: bool) -> Item:
    names = ("TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")
    said = " ".join(f"{name}={environ[name]}" for name in names if environ.get(name)) or "TERM is not set"
    if not here:
        return ok("terminal", f"{said}; input or output is none just now, and the console needs both")
    if environ.get("TERM", "") in _DUMB:
        remedy = "set TERM to what the terminal is, such as xterm-256color"
        return fail("terminal", f"{said} cannot place its cursor: no console", remedy)
    if not environ.get("TERM"):
        return warn("terminal", said, "export TERM=xterm-256color, or what the terminal is")
    return ok("terminal", said)


def _size(here: bool) -> Iterator[Item]:
    if not here:
        return
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return
    try:
        from pdtui.console.screens.main import MIN_HEIGHT, MIN_WIDTH
    except ImportError:  # The section about the machine says why.
        yield ok("size", f"{columns}x{rows}")
        return
    if columns < MIN_WIDTH or rows < MIN_HEIGHT:
        yield warn("size", f"{columns}x{rows}: the console needs {MIN_WIDTH}x{MIN_HEIGHT}", "make it larger")
    else:
        yield ok("size", f"{columns}x{rows}")


def _session(environ: Mapping[str, str]) -> Item:
    peer = environ.get("SSH_CONNECTION", "").split()
    return ok("session", f"over SSH, from {peer[0]}" if peer else "on this machine")


def _multiplexer(environ: Mapping[str, str]) -> Iterator[Item]:
    term = environ.get("TERM", "")
    if environ.get("TMUX"):
        yield ok("multiplexer", version_of("tmux", "-V") or "tmux, which gives no answer")
        if term and not term.startswith(("tmux", "screen")):
            yield warn("tmux", f"TERM={term} in it is not its own", "tmux set -g default-terminal tmux-256color")
        wait = answer("tmux", "show-options", "-sv", "escape-time")
        if wait.isdigit() and int(wait) > SLOW_ESCAPE:
            yield warn("tmux", f"the Esc key takes {wait} ms (escape-time)", "tmux set -s escape-time 20")
    elif environ.get("STY"):
        yield ok("multiplexer", version_of("screen", "--version") or "screen")
    else:
        yield ok("multiplexer", "none; in tmux a console survives the end of a connection")


def _depth(environ: Mapping[str, str]) -> tuple[str, Item]:
    """Return how many colours there are, and the item that says why."""
    try:
        from pdtui.console.colours import colour_depth
    except ImportError as error:
        return "none", fail("colours", f"the console's library cannot be imported: {error}")
    depth, why = colour_depth(environ)
    names = {"none": "none", "16": "16: theme ansi16", "256": "256", "true": "16 million"}
    return depth, ok("colours", f"{names[depth]} ({why})")


def _glyphs(environ: Mapping[str, str]) -> Item:
    """Say which signs would be taken, and whether the terminal draws them as wide as the console thinks."""
    chosen = default_glyphs(environ)
    name = next((key for key in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(key)), "")
    because = f"{name}={environ[name]}" if name else "no locale is set"
    text = f"{chosen} ({because})"
    if chosen == "ascii":
        return ok("glyphs", text)
    signs = _row(GLYPH_SETS[chosen])
    found = cells(signs)
    if found is None:
        return ok("glyphs", f"{text}; compare the lines below" if sys.stdout.isatty() else text)
    if found != len(signs):
        better = "narrow" if chosen == "unicode" and cells(_row(GLYPH_SETS["narrow"])) == len(signs) else "ascii"
        return warn(
            "glyphs",
            f"{text}, but the terminal draws {len(signs)} signs {found} cells wide: columns will be sheared",
            f"pdtui --glyphs {better} FILE, or let the terminal draw ambiguous characters one cell wide",
        )
    return ok("glyphs", f"{text}; the terminal draws each one cell wide")


def _clipboard(environ: Mapping[str, str]) -> Item:
    otherwise = "without it `o` writes to a file"
    if environ.get("TMUX"):
        state = answer("tmux", "show-options", "-sv", "set-clipboard")
        if state == "on":
            return ok("clipboard", f"`y` by OSC 52, passed on by tmux (set-clipboard on); {otherwise}")
        remedy = "tmux set -s set-clipboard on, and the same in ~/.tmux.conf"
        said = state or "which gives no answer"
        return warn("clipboard", f"tmux (set-clipboard {said}) keeps what `y` copies; {otherwise}", remedy)
    if environ.get("STY"):
        return warn("clipboard", f"screen does not pass on what `y` copies (OSC 52); {otherwise}", "use tmux")
    program = _NO_OSC52.get(environ.get("TERM_PROGRAM", ""))
    if program is not None:
        return warn("clipboard", f"{program} does not take what `y` copies (OSC 52); {otherwise}")
    return ok("clipboard", f"`y` by OSC 52, if the terminal allows it; {otherwise}")


def _row(glyphs: Glyphs) -> str:
    """Return the signs of a set that have to be one cell wide."""
    return "".join(
        (
            glyphs.healthy,
            glyphs.degraded,
            glyphs.failed,
            glyphs.unknown,
            glyphs.ready,
            glyphs.starting,
            glyphs.stopping,
            glyphs.stopped,
            glyphs.unmanaged,
            glyphs.cursor,
            glyphs.mark,
            glyphs.rule,
            glyphs.pipe,
            glyphs.tee,
        )
    )


def _samples(environ: Mapping[str, str], depth: str) -> Iterator[str]:
    """Yield lines that look right or do not."""
    sets = list(GLYPH_SETS.values())
    if default_glyphs(environ) == "ascii":
        sets = [GLYPH_SETS["ascii"]]  # What is no UTF-8 could take the others for control characters.
    for glyphs in sets:
        yield f"{glyphs.name:<8} |{_row(glyphs)}|"
    yield f"{'':<8} |{'-' * len(_row(GLYPH_SETS['ascii']))}|  the bars must align"
    if depth == "none":
        return
    yield "16       " + "".join(f"\x1b[{code}m##\x1b[0m" for code in (*range(31, 37), *range(91, 97)))
    if depth in ("256", "true"):
        yield "256      " + "".join(f"\x1b[48;5;{code}m \x1b[0m" for code in range(16, 52))
    if depth == "true":
        steps = range(0, 252, 7)
        bar = "".join(f"\x1b[48;2;{255 - step};{step};128m \x1b[0m" for step in steps)
        yield f"true     {bar}  smooth, without steps"
