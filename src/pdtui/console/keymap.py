"""The user's own keys: `$XDG_CONFIG_HOME/pdtui/keys.toml`, action id -> keys (`stop = "ctrl+x"`)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pdtui.console.actions import BY_ID
from pdtui.text import did_you_mean


def keymap_path() -> Path:
    """Return where the user's keys are."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "pdtui" / "keys.toml"


def load_keymap(path: Path) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the usable entries and what is wrong with the others; a file that is not there is an empty one."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}, ()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return {}, (f"{path.name}: {error}",)
    keys: dict[str, str] = {}
    problems: list[str] = []
    for name, value in data.items():
        if name not in BY_ID:
            problems.append(f"{path.name}: unknown action {name!r}{did_you_mean(name, BY_ID)}")
        elif not isinstance(value, str) or not value:
            problems.append(f"{path.name}: {name} must be a key or several with commas between them")
        else:
            keys[name] = value
    return keys, tuple(problems)
