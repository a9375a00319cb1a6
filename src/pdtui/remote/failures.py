"""What went wrong on the way to a node, as one word and a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pdtui.errors import ConnectError
from pdtui.remote.interface import ExitInfo

_NO_CONTAINER = re.compile(
    r"no such container|no container with name|container .{0,80} (is not running|not found)", re.IGNORECASE
)
_NO_ENGINE = re.compile(
    r"cannot connect to the docker daemon|docker\.sock|(docker|podman|nerdctl|ctr): .*not found", re.IGNORECASE
)
_NO_PYTHON = re.compile(
    r"python3?.{0,40}(not found|no such file)|not found in \$PATH|needs Python 3\.6", re.IGNORECASE
)
_NO_SUDO = re.compile(r"^sudo: ", re.MULTILINE)


def bootstrap_failure(info: ExitInfo, prefix: Sequence[str] = ()) -> ConnectError:
    """Return why a process that should have become an agent has ended."""
    lines = [line for line in info.stderr.splitlines() if line.strip()]
    words = lines[-1].strip() if lines else ""
    name = prefix[-1] if len(prefix) > 2 else ""  # `sudo -n` alone is no container
    if _NO_SUDO.search(info.stderr):
        return ConnectError(
            f"sudo refuses: {words}", kind="auth", remedy="allow it without a password, or leave out ssh.sudo"
        )
    if name and _NO_CONTAINER.search(info.stderr):
        return ConnectError(
            f"container {name}: {words}", kind="no_container", remedy=f"start it: docker start {name}"
        )
    if name and _NO_ENGINE.search(info.stderr):
        return ConnectError(
            f"container {name} cannot be reached: {words}",
            kind="no_container",
            remedy="check runtime.exec, and that this user may use the container engine",
        )
    if info.status == 127 or _NO_PYTHON.search(info.stderr):
        where = f"container {name}" if name else "the node"
        return ConnectError(
            f"{where} has no python3 that can be used" + (f": {words}" if words else ""),
            kind="no_python",
            remedy="install Python 3.6 or newer there; nothing else is needed",
        )
    ended = f"signal {info.signal}" if info.signal else f"status {info.status}"
    return ConnectError(
        f"the agent ended before it answered ({ended})" + (f": {words}" if words else ""),
        kind="protocol",
        remedy="look whether a start-up file of its shell (~/.bashrc) exits" if info.status == 0 else "",
    )
