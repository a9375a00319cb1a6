"""Run the README's demo command in a terminal, as a newcomer would, and look at what it shows.

Waits until the console says that the whole cluster serves, asks for a test completion with `t`, leaves with `q`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEADLINE = 900.0
"""Seconds for everything, the installation included."""


def tmux(*args: str) -> str:
    """Talk to a tmux server of our own."""
    return subprocess.run(["tmux", "-L", "drive-demo", *args], capture_output=True, text=True, check=False).stdout


def wait_for(end: float, *texts: str) -> None:
    """Wait until the screen shows all texts; ends the program with the screen when it never does."""
    while True:
        shown = tmux("capture-pane", "-p", "-t", "0")
        if all(text in shown for text in texts):
            return
        if time.monotonic() > end or "demo-ended-with" in shown:
            sys.exit(f"never saw {texts}; the screen shows:\n{shown}")
        time.sleep(0.2)


def leave(end: float) -> None:
    """Press `q`, and confirm where the console asks."""
    tmux("send-keys", "-t", "0", "q")
    while "demo-ended-with" not in (shown := tmux("capture-pane", "-p", "-t", "0")):
        if time.monotonic() > end:
            sys.exit(f"the console did not end; the screen shows:\n{shown}")
        if "[ Cancel ]" in shown:
            tmux("send-keys", "-t", "0", "Tab", "Enter")
        time.sleep(0.5)


def main(command: str) -> int:
    """Drive the command; returns its exit status."""
    end = time.monotonic() + DEADLINE
    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder, "status")
        line = f"bash -c {shlex.quote(command)}; echo $? >{status}; echo demo-ended-with $(cat {status}); sleep 60"
        tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", line)
        try:
            wait_for(end, "SERVING", "P 4/4", "D 8/8")
            tmux("send-keys", "-t", "0", "t")
            wait_for(end, "enter send")
            tmux("send-keys", "-t", "0", "-l", "Who are you?")
            tmux("send-keys", "-t", "0", "Enter")
            wait_for(end, "first token", "tokens", "stop")
            tmux("send-keys", "-t", "0", "Escape")
            wait_for(end, "r restart")
            leave(min(end, time.monotonic() + 60.0))
        finally:
            tmux("kill-server")
        code = int(status.read_text())
    print(f"demo: served, answered a test completion, ended with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
