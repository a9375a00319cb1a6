"""Mounts by the kernel's own calls, and the folders of a simulated node that are put together from them.

Standard library only: this runs on the node.
"""

from __future__ import annotations

import contextlib
import json
import os

from pdtui.sim.tap import call

MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_BIND = 0x1000
MS_MOVE = 0x2000


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system, or bind a file or folder. Raises `OSError`."""
    words = data.encode() if data else None
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, words)


def show_software(node: str) -> None:
    """Show what is installed on the node at its place in the machine's folders, and a shared memory of its own.

    What cannot be shown stays below the node's folder, where the agent finds it by PDTUI_ROOT_VIEW. So do device
    files of NPUs: the machine's /dev has to stay whole, or terminals would not find their names.
    """
    with open(f"{node}/etc/shown.json", encoding="utf-8") as file:
        shown = json.load(file)
    for source, target in shown["binds"]:
        with contextlib.suppress(OSError):
            mount(source, target, None, MS_BIND)
    if not node.startswith("/dev/"):
        with contextlib.suppress(OSError):
            mount("shm", "/dev/shm", "tmpfs", 0, "mode=1777")
    if not shown["npus"]:
        return
    stage = f"{node}/run/stage"
    os.makedirs(stage, exist_ok=True)
    for folder, ours in (("/etc", ("hccn.conf", "ascend_install.info")), ("/usr/local", ("Ascend", "dcmi"))):
        if not node.startswith(f"{folder}/"):
            with contextlib.suppress(OSError):
                compose(stage, folder, {name: f"{node}{folder}/{name}" for name in ours}, whole=folder == "/etc")


def compose(stage: str, folder: str, ours: dict[str, str], *, whole: bool) -> None:
    """Put links to the node's own files among what a folder of the machine holds. Raises `OSError`.

    `whole`: the machine's entries are links into one mount, in place of a mount each.
    """
    mount("tmpfs", stage, "tmpfs", 0, "mode=755")
    behind = f"{stage}/.machine"
    if whole:
        os.mkdir(behind)
        mount(folder, behind, None, MS_BIND | MS_REC)
    for entry in os.scandir(folder):
        place = f"{stage}/{entry.name}"
        if entry.name in ours:
            continue
        if whole:
            os.symlink(f"{folder}/.machine/{entry.name}", place)
        elif entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        else:
            lend(entry.path, place, is_folder=entry.is_dir())
    for name, path in ours.items():
        os.symlink(path, f"{stage}/{name}")
    mount(stage, folder, None, MS_MOVE)


def lend(source: str, place: str, *, is_folder: bool) -> None:
    """Bind a file or folder where there is nothing yet. Raises `OSError`."""
    if is_folder:
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    mount(source, place, None, MS_BIND | MS_REC)
