"""Where pdtui keeps things on this machine, and whether it can: configuration, journals, crash logs, room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pdtui.cli.doctor.items import Item, Section, ok, warn
from pdtui.console.clipboard import state_dir
from pdtui.fleet.journal import default_dir, unwritable

LITTLE_ROOM = 100 << 20
"""Bytes; journals, crash logs and saved logs need less for a long time."""

_SHOWN = 4
"""Journals that are named; of the others there is only the number."""


def section(cluster: str) -> Section:
    """Look at the files; `cluster` is the one whose journal is meant, empty for all that there are."""
    return Section(
        "files",
        (
            *_configuration(),
            *([_journal(cluster)] if cluster else _journals()),
            _crashes(),
            *_room(),
        ),
    )


def crash_logs() -> Sequence[Path]:
    """Return the reports of consoles that failed, newest first."""
    try:
        return sorted(state_dir().glob("crash-*.log"), reverse=True)
    except OSError:
        return ()


def journal_file(cluster: str) -> Path:
    """Return where this machine's journal of a cluster is."""
    return default_dir(cluster) / "journal.jsonl"


def _configuration() -> Iterator[Item]:
    """Yield what is known of the user's keys and themes."""
    try:
        from pdtui.console.keymap import keymap_path

        yield _folder("configuration", keymap_path().parent)
        yield from _keymap()
        yield from _themes()
    except ImportError as error:
        yield warn(
            "configuration", f"not looked at: {error}", "the section about the machine says what is missing"
        )


def _folder(name: str, path: Path) -> Item:
    return ok(name, f"{path}{'' if os.path.lexists(path) else ' (there is none: all as it comes)'}")


def _keymap() -> Iterator[Item]:
    from pdtui.console.keymap import keymap_path, load_keymap

    path = keymap_path()
    keys, problems = load_keymap(path)
    for problem in problems:
        yield warn("keys", problem, f"mend or remove {path}; the console leaves the line out")
    if keys:
        yield ok("keys", f"{path}: {len(keys)} changed")


def _themes() -> Iterator[Item]:
    from pdtui.console.themes import load_themes, user_theme_dir

    found = load_themes()
    yield ok("themes", f"{', '.join(sorted(found.themes))}; your own go into {user_theme_dir()}")
    for problem in found.problems:
        yield warn("themes", problem, "mend or remove the file; the console leaves it out")


def _journals() -> Iterator[Item]:
    """Yield what is known of the journals of all clusters."""
    base = state_dir()
    if why := unwritable(base / "cluster"):
        yield _unwritten(base, why)
        return
    found = sorted(base.glob("*/journal.jsonl"))
    if not found:
        yield ok("journals", f"{base}/CLUSTER/journal.jsonl: there are none yet")
    for path in found[:_SHOWN]:
        yield _journal(path.parent.name)
    if len(found) > _SHOWN:
        yield ok("journals", f"{len(found) - _SHOWN} more in {base}")


def _journal(cluster: str) -> Item:
    path = journal_file(cluster)
    if why := unwritable(path):
        return _unwritten(path, why)
    if not path.exists():
        return ok("journal", f"{path}: nothing in it yet")
    return ok("journal", f"{path}, {_size(path.stat().st_size)}")


def _unwritten(path: Path, why: str) -> Item:
    remedy = (
        "make it writable, or set XDG_STATE_HOME to a folder that is; actions go on, and nodes keep their journals"
    )
    return warn("journal", f"{path} cannot be written: {why}", remedy)


def _crashes() -> Item:
    found = crash_logs()
    if not found:
        return ok("crash logs", f"none in {state_dir()}")
    return warn(
        "crash logs", f"{len(found)}, the newest {found[0]}", "a bug report wants it; remove it afterwards"
    )


def _room() -> Iterator[Item]:
    place = next((one for one in (state_dir(), *state_dir().parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(place).free
    text = f"{_size(free)} free at {place}"
    if free < LITTLE_ROOM:
        yield warn("room", text, "make room: without it there is no journal of what is done here")
    else:
        yield ok("room", text)


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count //= 1024
    return f"{count} GiB"
