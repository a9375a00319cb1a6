"""The Textual application around the one screen, and the function that runs it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import Provider
from textual.screen import Screen

from pdtui.clock import Clock, SystemClock
from pdtui.console import crash
from pdtui.console.actions import bindings
from pdtui.console.glyphs import GLYPH_SETS, GlyphSet, default_glyphs
from pdtui.console.keymap import keymap_path, load_keymap
from pdtui.console.look import Look
from pdtui.console.palette import ConsoleCommands
from pdtui.console.screens.keys import MainScreen
from pdtui.console.screens.preflight import PreflightScreen
from pdtui.console.signals import ended_by_signals, hung_up_with_terminal
from pdtui.console.strings import S
from pdtui.console.themes import DEFAULT_THEME, PLAIN_THEME, ConsoleTheme, ThemeSet, load_theme_file, load_themes
from pdtui.errors import ThemeError
from pdtui.fleet.handle import FleetHandle
from pdtui.topology.findings import Finding

_FAST, _SLOW = 0.2, 1.0
"""Seconds between two paintings, usually and with `--slow`."""


@dataclass(frozen=True)
class Options:
    """How the console shows itself."""

    theme: str | Path | None = None
    """A name, or a file; None takes the default one, on terminals of sixteen colours the plain one."""
    glyphs: GlyphSet = "unicode"
    read_only: bool = False
    quiet: bool = False
    """No bell."""
    slow: bool = False
    no_color: bool = False
    interval: float | None = None
    """Seconds between two paintings; None decides by `slow`."""
    findings: Sequence[Finding] = ()
    """What was found in the topology file."""


class ConsoleApp(App[int], inherit_bindings=False):
    """A view of one fleet.

    Textual's own keys are left out: its ctrl+q, with which hands free a terminal after ctrl+s, ends a program
    without a question.
    """

    CSS_PATH = "console.tcss"
    TITLE = "pdtui"
    COMMAND_PALETTE_BINDING = "ctrl+p"
    COMMANDS: ClassVar[set[type[Provider]]] = {ConsoleCommands}  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = bindings("app")

    def __init__(self, handle: FleetHandle, options: Options, *, clock: Clock | None = None) -> None:
        super().__init__(ansi_color=True if options.no_color else None)
        self._handle = handle
        self._options = options
        self._clock = clock if clock is not None else SystemClock()
        self._colourless = options.no_color
        self._problems: list[str] = []
        self.crash_line = ""
        """What to print when the console failed."""
        self._themes = self._find_themes()
        self._console_theme = self._first_theme()
        self._keys, problems = load_keymap(keymap_path())
        self._problems += problems
        self.main: MainScreen
        self._own_loop: asyncio.AbstractEventLoop | None = None

    def _find_themes(self) -> ThemeSet:
        themes = load_themes()
        self._problems += themes.problems
        for theme in themes.themes.values():
            self.register_theme(theme.theme)
        return themes

    def _first_theme(self) -> ConsoleTheme:
        """Return the theme that was asked for, the default one when that is not usable."""
        wanted = self._options.theme
        plain = self.console.color_system == "standard"
        try:
            if isinstance(wanted, Path) or (wanted and (wanted.endswith(".toml") or "/" in wanted)):
                theme = load_theme_file(Path(wanted))
                self._themes = ThemeSet({**self._themes.themes, theme.name: theme}, self._themes.problems)
                self.register_theme(theme.theme)
                return theme
            return self._themes.get(wanted or (PLAIN_THEME if plain else DEFAULT_THEME))
        except ThemeError as error:
            self._problems.append(str(error).replace("\n", "; "))
            return self._themes.get(DEFAULT_THEME)

    @property
    def look(self) -> Look:
        """The styles and signs in use."""
        styles = self._console_theme.styles
        glyphs = GLYPH_SETS[self._options.glyphs]
        return Look(styles.colourless() if self._colourless else styles, glyphs)

    def end_by_signal(self, status: int) -> None:
        """Leave with an exit status; called by a signal's handler, which may have interrupted anything."""
        if self._own_loop is None:
            raise SystemExit(status)
        self._own_loop.call_soon_threadsafe(self.exit, status)

    def on_mount(self) -> None:
        """Show the one screen."""
        self._own_loop = asyncio.get_running_loop()
        self.theme = self._console_theme.name
        self.set_class(self._options.glyphs != "unicode", "-ascii")
        if self._keys:
            self.set_keymap(dict(self._keys))
        interval = self._options.interval
        if interval is None:
            interval = _SLOW if self._options.slow else _FAST
        self.main = MainScreen(
            self._handle,
            self.look,
            self._clock,
            read_only=self._options.read_only or self._handle.read_only,
            interval=interval,
            keys=_shown_keys(self._keys),
        )
        self.main.themed = self
        self.main.file_findings = self._options.findings
        self.main.bell.on = not self._options.quiet
        self.push_screen(self.main)
        if self._problems:
            self.call_after_refresh(self._tell_problems)

    def _tell_problems(self) -> None:
        more = f" (+{len(self._problems) - 1})" if len(self._problems) > 1 else ""
        self.main.say(self._problems[0] + more, "warning")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give what Textual's own stylesheets use and an ANSI theme does not define by itself."""
        return {"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"}

    def theme_names(self) -> list[str]:
        """Return the usable themes."""
        return sorted(self._themes.themes)

    def use_theme(self, name: str) -> None:
        """Change the theme. Raises `ThemeError`."""
        self._console_theme = self._themes.get(name)
        self.theme = name
        self.main.set_look(self.look)

    def action_do(self, name: str) -> None:
        """Do what belongs to the whole app: `ctrl+c`, visible and harmless."""
        if name == "interrupt" and isinstance(self.screen, PreflightScreen):
            self.screen.say(S.interrupt_harmless_here)
        elif name == "interrupt":
            self.main.do_interrupt()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Offer none of Textual's own commands: the registry is the one place."""
        return ()

    def _fatal_error(self) -> None:
        """Keep tracebacks with the values of variables off the terminal (Textual's own would show them)."""
        error = sys.exc_info()[1] or self._exception
        self.crash_line = crash.write_report(error) if error is not None else ""
        self._exit_renderables.append(Text(self.crash_line))
        self._close_messages_no_wait()


def _shown_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """Return the user's keys as the footer writes them: the first of several."""
    return {name: value.split(",")[0].strip() for name, value in keys.items()}


def run_console(
    handle: FleetHandle,
    *,
    theme: str | Path | None = None,
    read_only: bool = False,
    quiet: bool = False,
    glyphs: GlyphSet | None = None,
    slow: bool = False,
    no_color: bool | None = None,
    clock: Clock | None = None,
    findings: Sequence[Finding] = (),
) -> int:
    """Run the console on the terminal until its user quits; returns the exit status (1: it failed)."""
    colourless = "NO_COLOR" in os.environ if no_color is None else no_color
    if colourless:
        os.environ["NO_COLOR"] = "1"
    options = Options(
        theme, glyphs or default_glyphs(), read_only, quiet, slow, colourless, findings=tuple(findings)
    )
    app = ConsoleApp(handle, options, clock=clock)
    with ended_by_signals(app.end_by_signal), hung_up_with_terminal():
        result = app.run(mouse=not slow)
    if app.crash_line:
        return 1
    return result or 0
