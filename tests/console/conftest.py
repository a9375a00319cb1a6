"""Nothing of another test's settings or journal reaches a console under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_PARSED: dict[tuple[object, ...], list[RuleSet]] = {}
_PARSE = Stylesheet._parse_rules


def _parsed_once(sheet: Stylesheet, css: str, **how: Any) -> list[RuleSet]:
    """Parse a style sheet with the same variables once for all consoles, as one console does for itself."""
    key = (css, *sorted(how.items()), *sorted(sheet._variables.items()))
    if key not in _PARSED:
        _PARSED[key] = _PARSE(sheet, css, **how)
    return _PARSED[key]


@pytest.fixture(autouse=True, scope="package")
def one_style_sheet() -> Iterator[None]:
    """Spare each console under test a tenth of a second."""
    with mock.patch.object(Stylesheet, "_parse_rules", _parsed_once):
        yield


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the console folders of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
