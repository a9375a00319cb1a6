"""What went wrong on the way to a node, as one word and a remedy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pdtui.errors import ConnectError
from pdtui.remote.channel import ExitInfo

_NO_PYTHON = re.compile(
    r"python3?.{0,40}(not found|no such file)|not found in \$PATH|needs Python 3\.6", re.IGNORECASE
)
_OLD_PYTHON = re.compile(r"needs Python 3\.6 or newer, this is ([\w.+]+)")
_SUDO = re.compile(r"^sudo: (?!unable to resolve host)(.*)", re.MULTILINE)
_SUDO_LACKS = re.compile(r"^sudo: (\S+): command not found", re.MULTILINE)
_NO_TERMINAL = re.compile(r"you must have a tty|no tty present and no askpass")


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Something about a container that engines say in many words; `{tool}`, `{name}` ... are filled in."""

    pattern: re.Pattern[str]
    message: str
    remedy: str


def _trouble(pattern: str, message: str, remedy: str) -> _Trouble:
    return _Trouble(re.compile(pattern, re.IGNORECASE), message, remedy)


_TROUBLES = (
    _trouble(
        r"permission denied.{0,200}\.sock|\.sock.{0,200}permission denied|dial .{0,80}permission denied",
        "container {name} cannot be reached: {user} may not use {tool} on the node",
        "as root: usermod -aG docker {user}; or set ssh: {{sudo: true}} in the file",
    ),
    _trouble(
        r"cannot connect to the \w+ daemon|failed to connect to the \w+ api|is the \w+ daemon running"
        r"|failed to dial|cannot access containerd socket|docker\.sock|containerd\.sock|podman\.sock",
        "container {name} cannot be reached: the engine behind {tool} does not answer on the node",
        "as root: systemctl start {service}",
    ),
    _trouble(r"\bpaused\b", "container {name} is paused", "let it go on: {resume}"),
    _trouble(
        r"\bis restarting\b", "container {name} restarts again and again", "see why: {tool} logs --tail 50 {name}"
    ),
    _trouble(
        r'no such container|no container with name|container "[^"]*".{0,60}: not found',
        "there is no container {name}",
        "create it{up}, or mend runtime.container: {list} shows those that there are",
    ),
    _trouble(
        r"is not running|container state improper|stopped (state|container)|has stopped|no running task",
        "container {name} is not running",
        "start it: {start}",
    ),
)
"""The first that fits counts."""


_REMEDIES = {
    "disk_full": "free space there (df -h); old logs are in the run-N folders of ranks",
    "read_only": "look at dmesg on the node: the file system was mounted, or went, read-only",
    "no_locks": "set runtime.state_dir to a local disk: without locks two consoles could start a rank twice",
    "no_state_dir": "set runtime.state_dir to a folder that this user may write",
    "newer_format": "use the pdtui that started it, or a newer one",
    "timeout": "look at dmesg on the node, and at its network disks",
    "busy": "look at the node's limits on processes and threads (ulimit -u, pids.max of the container)",
}


def remedy_for(code: str) -> str:
    """Return what an operator can do about an error of an agent, by its word; empty when that is not known."""
    return _REMEDIES.get(code, "")


def bootstrap_failure(info: ExitInfo, prefix: Sequence[str] = (), user: str = "") -> ConnectError:
    """Return why a process that should have become an agent has ended; `user` is who logs in, if known."""
    lines = [line for line in info.stderr.splitlines() if line.strip()]
    words = lines[-1].strip() if lines else ""
    sudo = prefix[:1] == ("sudo",)
    engine = tuple(prefix[2:] if sudo else prefix)
    lacks = _SUDO_LACKS.search(info.stderr)
    if (sudo or _SUDO.search(info.stderr)) and lacks is None and (refusal := _sudo_refusal(info, user or "USER")):
        return refusal
    if engine:
        trouble = _container_trouble(info, engine, words, user or "this user", lacks[1] if lacks else "")
        if trouble is not None:
            return trouble
    if info.status == 127 or lacks is not None or _NO_PYTHON.search(info.stderr):
        return _no_python(info.stderr, f"container {engine[-1]}" if engine else "the node", words)
    ended = f"signal {info.signal}" if info.signal else f"status {info.status}"
    return ConnectError(
        f"the agent ended before it answered ({ended})" + (f": {words}" if words else ""),
        kind="protocol",
        remedy="look whether a start-up file of its shell (~/.bashrc) exits" if info.status == 0 else "",
    )


def _no_python(stderr: str, where: str, words: str) -> ConnectError:
    old = _OLD_PYTHON.search(stderr)
    if old is not None:
        message = f"{where} has Python {old[1]} as python3, which is too old"
    else:
        message = f"{where} has no python3 that can be used" + (f": {words}" if words else "")
    return ConnectError(
        message, kind="no_python", remedy="install Python 3.6 or newer there; nothing else is needed"
    )


def _sudo_refusal(info: ExitInfo, user: str) -> ConnectError | None:
    """Return why sudo itself did not let us through, or nothing."""
    rule = f"visudo -f /etc/sudoers.d/pdtui, as root, with the line: {user} ALL=(root) NOPASSWD: ALL"
    said = _SUDO.search(info.stderr)
    if said is not None and _NO_TERMINAL.search(said[1]):
        return ConnectError(
            "sudo wants a terminal on the node (requiretty)",
            kind="auth",
            remedy=f"visudo -f /etc/sudoers.d/pdtui, as root, with the line: Defaults:{user} !requiretty",
        )
    if said is not None and "password is required" in said[1]:
        return ConnectError(f"sudo asks for a password of {user} on the node", kind="auth", remedy=rule)
    if said is not None:
        return ConnectError(f"sudo refuses: {said[1].strip()}", kind="auth", remedy=rule)
    if re.search(r"is not in the sudoers file|is not allowed to (execute|run)|may not run sudo", info.stderr):
        return ConnectError(f"{user} may not use sudo on the node", kind="auth", remedy=rule)
    if info.status == 127 and _is_missing("sudo", info.stderr.strip().rpartition("\n")[2]):
        return ConnectError(
            "there is no sudo on the node",
            kind="auth",
            remedy="install it, or leave ssh.sudo out and log in as root",
        )
    return None


def _container_trouble(
    info: ExitInfo, engine: Sequence[str], words: str, user: str, lacking: str
) -> ConnectError | None:
    """Return what keeps us out of the container, or nothing when we were in it."""
    tool, name = PurePath(engine[0]).name, engine[-1]
    ctr = " ".join((tool, *itertools.takewhile(lambda word: word not in ("t", "task", "tasks"), engine[1:])))
    own = tool == "ctr"  # it knows tasks, and has a name space in front of them
    filling = {
        "tool": tool,
        "name": name,
        "user": user,
        "service": "docker" if tool == "docker" else "containerd",
        "list": f"{ctr} containers ls" if own else f"{tool} ps -a",
        "resume": f"{ctr} tasks resume {name}" if own else f"{tool} unpause {name}",
        "up": "" if own else ": pdtui container up FILE",
        "start": f"{ctr} tasks start -d {name}" if own else f"{tool} start {name}, or pdtui container up FILE",
    }
    for trouble in _TROUBLES:
        if trouble.pattern.search(info.stderr):
            return ConnectError(
                trouble.message.format(**filling), kind="no_container", remedy=trouble.remedy.format(**filling)
            )
    if lacking == engine[0] or (not lacking and info.status == 127 and _is_missing(engine[0], words)):
        return ConnectError(
            f"there is no {tool} on the node: container {name} cannot be reached",
            kind="no_container",
            remedy="install it, or mend runtime.exec; without containers leave runtime.container out",
        )
    return None


def _is_missing(program: str, words: str) -> bool:
    """Return whether a shell says that it cannot find a program, in whatever language: it names it."""
    return (
        re.search(rf"(^|[\s:'\"`]){re.escape(program)}['\"`]?:", f"{words}:") is not None
        and "exec failed" not in words
    )
