from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.style import Style
from textual.app import App

from pdtui.assets import asset_dir
from pdtui.console import terminal
from pdtui.console.glyphs import ASCII, GLYPH_SETS, NARROW, default_glyphs
from pdtui.console.look import Styles
from pdtui.console.themes import check_theme, load_theme_file, load_themes
from pdtui.errors import ThemeError, UsageError
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet

GOOD: dict[str, Any] = {"name": "mine", "colors": {"primary": "#ff0000"}}
BASE = dict.fromkeys(Styles.names(), "white")


def test_the_packaged_themes_are_usable() -> None:
    themes = load_themes()
    assert set(themes.themes) == {"dark", "light", "ansi16"}
    assert themes.problems == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "My Theme"}, "name must be"),
        ({"name": None}, "name must be"),
        ({"colors": {}}, "colors.primary is missing"),
        ({"colors": {"primary": "zork"}}, "'zork' is no colour"),
        ({"colors": {"primary": "red", "primry": "red"}}, "did you mean primary"),
        ({"colors": {"primary": 7}}, "must be a table of texts"),
        ({"variables": {"border": "$primary"}}, "variables.border"),
        ({"variables": {"border": "not a } colour {"}}, "variables.border"),
        ({"variables": {"border": "("}}, "variables.border"),
        ({"styles": {"faild": "red"}}, "did you mean failed"),
        ({"styles": {"failed": "redd"}}, "styles.failed"),
        ({"colours": {}}, "did you mean colors"),
    ],
)
def test_a_bad_theme_is_said_before_it_is_used(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ThemeError, match=message):
        check_theme({**GOOD, **change}, BASE, "mine.toml")


@pytest.mark.parametrize("value", ["red 50%", "auto 90%", "ansi_green", "#123456"])
def test_values_that_textual_takes_are_taken(value: str) -> None:
    theme = check_theme({**GOOD, "variables": {"border": value}}, BASE, "mine.toml")
    assert theme.theme.variables == {"border": value}


def test_what_is_no_theme_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ThemeError, match=r"missing\.toml"):
        load_theme_file(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ThemeError, match=r"bad\.toml"):
        load_theme_file(tmp_path / "bad.toml")


async def test_a_bad_theme_gives_one_message_and_the_default_theme(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('name = "mine"\n[colors]\nprimary = "zork"\n')
    async with console(FakeFleet.healthy(), size=(200, 40), theme=tmp_path / "t.toml") as screen:
        await screen.settle()
        assert "colors.primary: 'zork' is no colour" in screen.lines()[-2]
        assert screen.app.theme == "dark"


async def test_an_unknown_theme_names_the_known_ones() -> None:
    async with console(FakeFleet.healthy(), theme="drak") as screen:
        await screen.settle()
        assert "no theme named drak; themes: ansi16, dark, light" in screen.lines()[-2]


async def test_themes_of_the_user_are_found_and_a_broken_one_hurts_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "pdtui" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('name = "mine"\n[colors]\nprimary = "#00ff00"\n[styles]\ntext = "#010203"\n')
    (folder / "broken.toml").write_text("name =")
    async with console(FakeFleet.healthy(), theme="mine", size=(200, 40)) as screen:
        await screen.settle()
        assert screen.app.theme == "mine"
        assert "broken.toml" in screen.lines()[-2]


async def test_every_theme_can_be_taken_while_it_runs() -> None:
    async with console(FakeFleet.faulty()) as screen:
        seen = []
        for _ in range(3):
            await screen.press("ctrl+t")
            seen.append(screen.app.theme)
            await screen.press("R")
            assert "restart decode" in screen.text
            await screen.press("escape")
        assert sorted(seen) == ["ansi16", "dark", "light"]


async def test_no_color_has_no_colour_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with console(FakeFleet.faulty(), no_color=True) as screen:
        for key in ("j", "R", "escape", "colon", "escape", "t"):
            await screen.press(key)
            for strip in screen.app.screen._compositor.render_strips():
                for segment in strip:
                    style = segment.style or Style.null()
                    assert style.color is None or style.color.is_default
                    assert style.bgcolor is None or style.bgcolor.is_default


def test_state_is_never_told_by_colour_alone() -> None:
    for glyphs in GLYPH_SETS.values():
        assert len({glyphs.healthy, glyphs.degraded, glyphs.failed, glyphs.unknown, " "}) == 5
        assert len({glyphs.ready, glyphs.failed, glyphs.degraded, glyphs.unknown, glyphs.stopped}) == 5


def test_the_narrow_set_has_no_character_of_ambiguous_width() -> None:
    for field in fields(NARROW):
        for char in getattr(NARROW, field.name):
            assert unicodedata.east_asian_width(char) in ("N", "Na", "H"), field.name
    assert all(getattr(ASCII, field.name).isascii() for field in fields(ASCII))


async def test_the_ascii_set_keeps_the_screen_ascii() -> None:
    async with console(FakeFleet.faulty(), glyphs="ascii") as screen:
        await screen.press("R")
        await screen.press("escape")
        text = screen.text.replace("°", "")  # of the reading, not of ours
        assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]


def test_no_terminal_is_refused_with_a_line_that_names_status() -> None:
    with pytest.raises(UsageError, match=r"needs a terminal; without one use: pdtui status c\.yaml"):
        terminal.require_terminal("pdtui status c.yaml")


def test_a_dumb_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Tty())
    monkeypatch.setattr("sys.stdout", Tty())
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(UsageError, match="TERM=dumb cannot place its cursor"):
        terminal.require_terminal("pdtui status c.yaml")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal.require_terminal("pdtui status c.yaml")


def test_values_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_FPS", "30")
    monkeypatch.delenv("TEXTUAL_SMOOTH_SCROLL", raising=False)
    terminal.prepare_textual(slow=True)
    import os

    assert os.environ["TEXTUAL_FPS"] == "30"
    assert os.environ["TEXTUAL_SMOOTH_SCROLL"] == "0"


def test_the_command_refuses_without_a_terminal_and_prints_findings(tmp_path: Path) -> None:
    from pdtui.cli.console import command
    from pdtui.errors import FileError

    sample = asset_dir("sample_configs") / "demo.yaml"
    result = CliRunner().invoke(command, [str(sample)])
    assert isinstance(result.exception, UsageError)
    assert "pdtui status" in str(result.exception)
    broken = tmp_path / "broken.yaml"
    broken.write_text("pdtui: 1\nnmae: x\n")
    result = CliRunner().invoke(command, [str(broken)])
    assert isinstance(result.exception, FileError)
    assert f"{broken}:2:1" in result.stderr


def test_textual_is_still_what_the_private_names_rely_on() -> None:
    assert callable(App._fatal_error)
    assert callable(App._close_messages_no_wait)


async def test_sixteen_colours_get_the_plain_theme_unless_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    async with console(FakeFleet.healthy()) as screen:
        assert screen.app.theme == "ansi16"
    async with console(FakeFleet.healthy(), theme="light") as screen:
        assert screen.app.theme == "light"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "ascii"),
        ({"LANG": "C"}, "ascii"),
        ({"LANG": "zh_CN.GBK"}, "ascii"),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "ascii"),
        ({"LANG": "C.UTF-8"}, "unicode"),
        ({"LANG": "C", "LC_CTYPE": "UTF-8"}, "unicode"),
        ({"LANG": "en_US.utf8"}, "unicode"),
        ({"LANG": "zh_CN.UTF-8"}, "narrow"),
        ({"LC_ALL": "ja_JP.UTF-8", "LANG": "C"}, "narrow"),
    ],
)
def test_signs_are_chosen_by_what_the_terminal_says_of_itself(environ: dict[str, str], expected: str) -> None:
    assert default_glyphs(environ) == expected


def test_what_python_makes_of_the_c_locale_does_not_count() -> None:
    code = "from pdtui.console.glyphs import default_glyphs; print(default_glyphs())"
    env = {"PATH": os.environ["PATH"], "LANG": "C"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ascii"
