"""Hand the terminal to another program: an editor on the file, a shell on a node."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pdtui.topology.model import Node

SSH_FAILED = 255
"""Status of ssh itself; any other is that of the shell's last command."""


def editor_argv(path: Path) -> list[str]:
    """Return the user's editor on a file."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    return [*shlex.split(editor), str(path)]


def shell_argv(node: Node) -> list[str]:
    """Return what opens a shell on a node, with the file's SSH options; on this machine the user's shell."""
    if node.host == "local":
        return [os.environ.get("SHELL") or "/bin/sh"]
    options = node.ssh
    argv = ["ssh", "-t"]
    if options.config is not None:
        argv += ["-F", str(options.config)]
    if options.user is not None:
        argv += ["-l", options.user]
    if options.port is not None:
        argv += ["-p", str(options.port)]
    if options.key is not None:
        argv += ["-i", str(options.key)]
    if options.jump is not None:
        argv += ["-J", options.jump]
    if options.known_hosts is not None:
        argv += ["-o", f"UserKnownHostsFile={options.known_hosts}"]
    argv += ["-o", f"ConnectTimeout={max(1, round(options.connect_timeout))}"]
    return [*argv, "--", node.host]


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C in the other program reaches its whole process group: it must not end the console.

    A handler that does nothing, not SIG_IGN, which the other program would inherit.
    """

    def nothing(number: int, frame: FrameType | None) -> None:
        """Let the other program have it."""

    before = signal.signal(signal.SIGINT, nothing)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_foreground(argv: Sequence[str], greeting: str = "") -> int:
    """Run a program on the terminal and return its status. Raises OSError when it cannot be started.

    Blocks the console's loop, which is suspended anyway; the engine has its own.
    """
    if greeting:
        sys.stdout.write(f"{greeting}\n")
        sys.stdout.flush()
    with _interrupts_ignored():
        return subprocess.run(list(argv), check=False).returncode
