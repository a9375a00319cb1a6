"""Nothing of the runner's terminal, locale or configuration reaches a console under test."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["TEXTUAL_ANIMATIONS"] = "none"  # Read once, when textual is imported.


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Take out what would change colours, keys or times."""
    for name in ("NO_COLOR", "COLORTERM", "TMUX", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
