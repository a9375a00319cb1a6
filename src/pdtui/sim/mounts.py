"""Changes mounts of a simulated node, or of its container, while it runs: `mounts VERB WORDS... [PID]`.

PID is the container's first process, whose mounts are meant; without one they are the node's own. Standard library
only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Callable

from pdtui.sim.mounting import MS_MOVE, mount
from pdtui.sim.tap import CLONE_NEWNS, call, libc

MS_REMOUNT = 0x20
MNT_DETACH = 2
AT_FDCWD = -100
_OPEN_TREE, _MOVE_MOUNT = 428, 429
"""Numbers of system calls, the same on every machine that Linux 5.2 and newer runs on."""
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4


def shm(size: str) -> None:
    """Give /dev/shm another size; what lies in it stays."""
    mount("shm", "/dev/shm", "tmpfs", MS_REMOUNT, f"mode=1777,size={size}")


def bind(source: int, target: str) -> None:
    """Show a file or folder at a place, made if need be: `source` is a mount of it that has no place yet."""
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if stat.S_ISDIR(os.fstat(source).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    system_call(_MOVE_MOUNT, source, b"", AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def detached(source: str) -> int:
    """Return a mount of a file or folder, for a place that may be among other mounts. Raises `OSError`."""
    return system_call(_OPEN_TREE, AT_FDCWD, source.encode(), _OPEN_TREE_CLONE)


def system_call(number: int, *arguments: object) -> int:
    """Call the kernel where the C library has no name for it. Raises `OSError`."""
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def remove(target: str) -> None:
    """Take away what is mounted at a place, and the place if it is a file or an empty folder."""
    with contextlib.suppress(OSError):
        call("umount2", target.encode(), MNT_DETACH)
    with contextlib.suppress(OSError):
        os.rmdir(target) if os.path.isdir(target) else os.unlink(target)


MARK = ".small"
"""In the root of a small file system: /proc/self is nobody for a process that only shares a container's mounts."""


def small(folder: str, megabytes: str) -> None:
    """Put a file system of its own over a folder, with a copy of what is there and so much room besides."""
    used = sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )
    fresh = f"{os.environ['PDTUI_SIM_NODE']}/run/small"
    os.makedirs(fresh, exist_ok=True)
    size = (used >> 10) + 512 + int(float(megabytes) * 1024)
    mount("small", fresh, "tmpfs", 0, f"mode=755,size={size}k")
    shutil.copytree(folder, fresh, symlinks=True, dirs_exist_ok=True)
    with open(f"{fresh}/{MARK}", "wb"):
        mount(fresh, folder, None, MS_MOVE)


def unsmall(folder: str) -> None:
    """Take the small file system away, and keep what was written meanwhile."""
    if not os.path.exists(f"{folder}/{MARK}"):
        return
    aside = f"{os.environ['PDTUI_SIM_NODE']}/run/aside"
    shutil.copytree(folder, aside, symlinks=True, ignore=shutil.ignore_patterns(MARK))
    call("umount2", folder.encode(), MNT_DETACH)
    shutil.copytree(aside, folder, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(aside)


VERBS: dict[str, tuple[Callable[..., None], int]] = {
    "shm": (shm, 1),
    "bind": (bind, 2),
    "remove": (remove, 1),
    "small": (small, 2),
    "unsmall": (unsmall, 1),
}


def main() -> int:
    """Do what the command line says; returns its exit status."""
    verb, *words = sys.argv[1:]
    act, count = VERBS[verb]
    arguments: list[str | int] = [*words[:count]]
    try:
        if verb == "bind":
            arguments[0] = detached(words[0])
        if len(words) > count:
            space = os.open(f"/proc/{words[count]}/ns/mnt", os.O_RDONLY)
            call("setns", space, CLONE_NEWNS)
        act(*arguments)
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0
