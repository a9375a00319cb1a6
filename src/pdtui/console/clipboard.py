"""Text to the terminal's clipboard (OSC 52), capped, or to a file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from pdtui.text import clean

CAP = 56_000
"""Bytes that go out before base64; terminals and tmux drop longer sequences (about 75 kB encoded)."""


def tail_that_fits(text: str, cap: int = CAP) -> tuple[str, bool]:
    """Return the cleaned text, or its last whole lines that fit into `cap` bytes; and whether all of it fits."""
    text = clean(text)
    data = text.encode()
    if len(data) <= cap:
        return text, True
    return data[-cap:].decode(errors="ignore").partition("\n")[2], False


def state_dir() -> Path:
    """Return the folder of what the console writes for its user."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "pdtui"


def save_text(text: str, name: str, wall: float) -> Path:
    """Write cleaned text to a new file of the user's, readable by nobody else. Raises OSError."""
    return save_texts({"log": text}, name, wall).with_suffix(".log")


def save_texts(texts: Mapping[str, str], name: str, wall: float) -> Path:
    """Write texts to new files of one name, one for each suffix; returns their path without it. Raises OSError."""
    folder = state_dir() / "saved"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall))
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "log"
    for number in range(1000):
        path = folder / f"{stem}-{stamp}{f'-{number}' if number else ''}"
        if any(path.with_suffix(f".{suffix}").exists() for suffix in texts):
            continue
        for suffix, text in texts.items():
            handle = os.open(path.with_suffix(f".{suffix}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(clean(text).rstrip("\n") + "\n")
        return path
    raise FileExistsError(f"{folder}/{stem}-{stamp}")
