"""Run the README's demo command on a pseudo-terminal, as a newcomer would, and look at what it shows.

Waits until the console says that the cluster serves, presses `t` for a test completion, then `q`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

DEADLINE = 600.0
"""Seconds for everything, the installation included."""


def main(command: str) -> int:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    end = time.monotonic() + DEADLINE
    seen = ""

    def wait_for(pattern: str) -> None:
        nonlocal seen
        while not re.search(pattern, seen):
            if time.monotonic() > end:
                sys.exit(f"never saw {pattern!r}; the last text was:\n{seen[-2000:]}")
            if select.select([terminal], [], [], 1.0)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    data = b""
                if not data:
                    sys.exit(f"the command ended before {pattern!r} was seen:\n{seen[-2000:]}")
                seen += re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", data.decode("utf-8", "replace"))

    wait_for("SERVING")
    seen = ""
    os.write(terminal, b"t")
    wait_for(r"(?i)test")
    os.write(terminal, b"Who are you?\r")
    wait_for(r"tok/s")
    os.write(terminal, b"\x1b")
    time.sleep(1.0)
    os.write(terminal, b"q")
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:
                break
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    print(f"demo: served, answered a test completion, ended with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
