"""Theme files: found, read and checked before use, because Textual checks nothing and dies on the next refresh.

Order, later ones win by name: packaged, `$XDG_CONFIG_HOME/pdtui/themes/*.toml`, the file of the command line.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.errors import StyleSyntaxError
from textual.color import Color, ColorParseError
from textual.css.errors import StylesheetError
from textual.css.stylesheet import Stylesheet, StylesheetParseError
from textual.css.tokenizer import TokenError
from textual.theme import Theme

from pdtui.assets import asset_dir
from pdtui.console.look import Styles
from pdtui.errors import ThemeError
from pdtui.text import did_you_mean

_COLORS = (
    "primary",
    "secondary",
    "warning",
    "error",
    "success",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "boost",
)
_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
_VARIABLE = re.compile(r"[a-z][a-z0-9-]*\Z")
_TOP = ("name", "dark", "ansi", "colors", "variables", "styles")
DEFAULT_THEME, PLAIN_THEME = "dark", "ansi16"


@dataclass(frozen=True)
class ConsoleTheme:
    """A checked theme: Textual's part, and the styles of our own widgets."""

    name: str
    theme: Theme
    styles: Styles


@dataclass(frozen=True)
class ThemeSet:
    """All usable themes by name, and why others are not usable."""

    themes: Mapping[str, ConsoleTheme]
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> ConsoleTheme:
        """Return a theme. Raises `ThemeError`."""
        if name in self.themes:
            return self.themes[name]
        raise ThemeError(f"no theme named {name}", remedy=f"themes: {', '.join(sorted(self.themes))}")


def user_theme_dir() -> Path:
    """Return the folder of the user's own themes."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "pdtui" / "themes"


def load_themes(extra: Iterable[Path] = ()) -> ThemeSet:
    """Read all theme files; a bad one is a problem in the result, never an error."""
    themes: dict[str, ConsoleTheme] = {}
    problems: list[str] = []
    base: Mapping[str, str] = {}
    files = [asset_dir("themes") / "dark.toml"]
    files += sorted(path for path in asset_dir("themes").glob("*.toml") if path.name != "dark.toml")
    files += sorted(user_theme_dir().glob("*.toml"))
    for path in (*files, *extra):
        try:
            data = _read(path)
            base = base or data["styles"]
            theme = check_theme(data, base, str(path))
        except ThemeError as error:
            problems.append(error.message)
        else:
            themes[theme.name] = theme
    return ThemeSet(themes, tuple(problems))


def load_theme_file(path: Path) -> ConsoleTheme:
    """Read and check one theme file. Raises `ThemeError`."""
    base: Mapping[str, str] = _read(asset_dir("themes") / "dark.toml")["styles"]
    return check_theme(_read(path), base, str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"theme {path}: {error}") from error


def check_theme(data: Mapping[str, Any], base: Mapping[str, str], where: str) -> ConsoleTheme:
    """Return the theme that `data` describes; styles that it leaves out come from `base`. Raises `ThemeError`."""
    _known(data, _TOP, where, "key")
    name = data.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise ThemeError(f"theme {where}: name must be lower-case letters, digits and dashes, not {name!r}")
    colors = _texts(data, "colors", where)
    _known(colors, _COLORS, where, "color")
    if "primary" not in colors:
        raise ThemeError(f"theme {where}: colors.primary is missing")
    for key, value in colors.items():
        try:
            Color.parse(value)
        except ColorParseError as error:
            raise ThemeError(f"theme {where}: colors.{key}: {value!r} is no colour") from error
    variables = _texts(data, "variables", where)
    for key, value in variables.items():
        _check_variable(key, value, where)
    styles = _texts(data, "styles", where)
    _known(styles, Styles.names(), where, "style")
    theme = Theme(
        name=name,
        dark=bool(data.get("dark", True)),
        ansi=bool(data.get("ansi", False)),
        variables=variables,
        primary=colors["primary"],
        secondary=colors.get("secondary"),
        warning=colors.get("warning"),
        error=colors.get("error"),
        success=colors.get("success"),
        accent=colors.get("accent"),
        foreground=colors.get("foreground"),
        background=colors.get("background"),
        surface=colors.get("surface"),
        panel=colors.get("panel"),
        boost=colors.get("boost"),
    )
    return ConsoleTheme(name, theme, _styles({**base, **styles}, where))


def _styles(words: Mapping[str, str], where: str) -> Styles:
    for key, value in words.items():
        try:
            Styles.parse({**dict.fromkeys(Styles.names(), ""), key: value})
        except StyleSyntaxError as error:
            raise ThemeError(f"theme {where}: styles.{key}: {error}") from error
    return Styles.parse(words)


def _texts(data: Mapping[str, Any], section: str, where: str) -> dict[str, str]:
    table = data.get(section, {})
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ThemeError(f"theme {where}: [{section}] must be a table of texts")
    return dict(table)


def _known(keys: Iterable[str], allowed: tuple[str, ...], where: str, what: str) -> None:
    for key in keys:
        if key not in allowed:
            raise ThemeError(f"theme {where}: unknown {what} {key!r}{did_you_mean(key, allowed)}")


def _check_variable(name: str, value: str, where: str) -> None:
    """Parse a throw-away stylesheet that uses the variable, as Textual would on its next refresh."""
    problem = f"theme {where}: variables.{name}: {value!r} is no usable value"
    if not _VARIABLE.match(name) or "$" in value:
        raise ThemeError(problem)
    sheet = Stylesheet(variables={name: value})
    try:
        sheet.add_source(f"X {{ color: ${name}; }}", read_from=("", ""))
        sheet.parse()
    except (StylesheetError, StylesheetParseError, TokenError, ColorParseError) as error:
        raise ThemeError(problem) from error
