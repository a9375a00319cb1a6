"""A program in a real terminal: tmux, keys, and what the screen shows."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class Terminal:
    """A tmux server of its own with one program in it; ends both when left."""

    def __init__(
        self, argv: Sequence[str], *, socket: Path, size: tuple[int, int], env: Mapping[str, str]
    ) -> None:
        self._socket = str(socket)
        words = [f"{name}={value}" for name, value in {"LANG": "C.UTF-8", **env, "TERM": "tmux-256color"}.items()]
        command = shlex.join(["env", "-i", *words, *argv])
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), f"{command}; sleep 600"
        )
        self._tmux("set-option", "-g", "status", "off")

    def _tmux(self, *args: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *args], capture_output=True, text=True, check=False
        ).stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    def screen(self) -> str:
        """Return what the screen shows."""
        return self._tmux("capture-pane", "-p", "-t", "0")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._tmux("send-keys", "-t", "0", *keys)

    def type(self, text: str) -> None:
        """Type text as it stands."""
        self._tmux("send-keys", "-t", "0", "-l", text)

    def until(self, *texts: str, within: float = 60.0, absent: str = "") -> str:
        """Return the screen once it shows all `texts` and not `absent`; fails with the screen otherwise."""
        deadline = time.monotonic() + within
        while True:
            shown = self.screen()
            if all(text in shown for text in texts) and not (absent and absent in shown):
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"never saw {texts} without {absent!r} in {within} s:\n{shown}")
            time.sleep(0.05)
