"""The journal: who did what, when, from where, and with what result. JSON lines; secrets never.

One copy is kept by the console, in the XDG state directory; the nodes that an action touches keep another
beside the ranks' records. Both begin a new file at `LIMIT` bytes and keep the one before.

    {"id": "b5...", "at": 1796060528.929, "who": "ann@desk", "from": "10.0.0.9", "event": "stop", ...}

A node adds `received`, by its own clock: so entries of several consoles can be put in one order.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pdtui.clock import Clock

LIMIT = 4 << 20
"""Bytes after which a journal begins anew."""

TAIL = 1 << 20
"""Bytes from the end of the journal that are read for the durations of earlier starts."""


def default_dir(cluster: str) -> Path:
    """Return `$XDG_STATE_HOME/pdtui/<cluster>`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pdtui" / cluster


def unwritable(path: Path) -> str:
    """Return why a file could not be made or written there, without trying; empty when it could."""
    try:
        for place in (path, *path.parents):
            if place.exists():
                if place != path and not place.is_dir():
                    return f"{place} is no folder"
                return "" if os.access(place, os.W_OK) else f"{place} may not be written"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def origin() -> str:
    """Return where the operator sits: the address that SSH names, or `local`."""
    words = os.environ.get("SSH_CLIENT", "").split()
    return words[0] if words else "local"


class Journal:
    """Appends entries to a cluster's journal."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        by: str,
        trouble: Callable[[str], None] | None = None,
        name: str = "journal",
    ) -> None:
        """Prepare; `trouble` is told after each entry why it could not be written, or that it was (empty)."""
        self._path = directory / f"{name}.jsonl"
        self._clock = clock
        self._by = by
        self._trouble = trouble
        self.origin = origin()
        """Where the operator sits."""
        self.error = ""
        """Why the last entry could not be written, or empty."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def write(self, event: str, **what: object) -> Mapping[str, object]:
        """Append an entry and return it, for the nodes' copies. A full disk does not stop an operation."""
        entry: dict[str, object] = {
            "id": secrets.token_hex(8),
            "at": round(self._clock.wall(), 3),
            "who": self._by,
            "from": self.origin,
            "event": event,
            **{key: value for key, value in what.items() if value not in ("", (), None)},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _append(self._path, json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace"))
            self.error = ""
        except OSError as error:
            self.error = f"{self._path}: {error.strerror}"
        if self._trouble is not None:
            self._trouble(self.error)
        return entry

    def write_ready(self, rank: str, run: int, started: float, seconds: float) -> None:
        """Append that a rank became ready; all who watched the same start give the entry the same id.

        `started`: by the clock of its node.
        """
        name = hashlib.sha256(f"{rank} {run} {started}".encode()).hexdigest()[:16]
        self.write("ready", id=name, rank=rank, seconds=seconds)

    def last_starts(self) -> Mapping[str, float]:
        """Return how long each rank's last start took, in seconds, as far as the journal knows."""
        found: dict[str, float] = {}
        with suppress(OSError):
            for entry in parse(self.tail(TAIL)).entries:
                rank, seconds = entry.get("rank"), entry.get("seconds")
                if entry.get("event") == "ready" and isinstance(rank, str) and isinstance(seconds, int | float):
                    found[rank] = float(seconds)
        return found

    def tail(self, limit: int) -> bytes:
        """Return the last bytes of the journal, the file before the last rotation included. Raises `OSError`."""
        data = b""
        for path in (self._path, _older(self._path)):
            if len(data) < limit and path.exists():
                with path.open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - (limit - len(data))))
                    data = file.read() + data
        return data


@dataclass(frozen=True, slots=True)
class Parsed:
    """Entries of a piece of a journal, and how many lines are none."""

    entries: tuple[Mapping[str, object], ...]
    bad: int


def parse(data: bytes, *, cut: bool = False) -> Parsed:
    """Read entries; lines that are cut, garbage, or no entry are counted. `cut`: the first line may be half."""
    entries: list[Mapping[str, object]] = []
    bad = 0
    for number, line in enumerate(data.splitlines()):
        if not line.strip():
            continue
        try:
            entry = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            bad += not (cut and number == 0)
            continue
        at = entry.get("at") if isinstance(entry, dict) else None
        if isinstance(at, int | float) and 0 < at < 1e12 and isinstance(entry.get("event"), str):
            entries.append(entry)
        else:
            bad += 1
    return Parsed(tuple(entries), bad)


def merge(
    here: Iterable[Mapping[str, object]], nodes: Iterable[tuple[float, Iterable[Mapping[str, object]]]]
) -> tuple[Mapping[str, object], ...]:
    """Return each entry once, in the order of our clock.

    `nodes`: (seconds that a node's clock is ahead of ours, its entries). Ours keep their time; one of another
    console has the time at which a node received it, since that console's clock is not known.
    """
    found: dict[str, Mapping[str, object]] = {}
    for entry in here:
        found.setdefault(key_of(entry), entry)  # Each console of this machine saw the rank get ready.
    ours = set(found)
    for offset, entries in nodes:
        for entry in entries:
            key = key_of(entry)
            if key in ours:
                continue
            received = entry.get("received")
            at = received - offset if isinstance(received, int | float) else _time(entry)
            seen = found.get(key)
            found[key] = {**entry, "at": round(min(at, _time(seen)) if seen is not None else at, 3)}
    return tuple(sorted(found.values(), key=_time))


def key_of(entry: Mapping[str, object]) -> str:
    """Return what an entry is known by; earlier versions gave no id."""
    name = entry.get("id")
    known = ("at", "who", "event", "operation")
    return name if isinstance(name, str) else json.dumps([entry.get(key) for key in known])


def _time(entry: Mapping[str, object]) -> float:
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _append(path: Path, line: bytes) -> None:
    """Append a line, to a new file when the old one is long. Raises `OSError`."""
    with suppress(OSError):  # Another console does it just now, or there is no file yet.
        _rotate(path)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # A full disk, or a crash.
        os.write(handle, (b"\n" if cut else b"") + line + b"\n")
    finally:
        os.close(handle)


def _rotate(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_size > LIMIT and os.path.samestat(os.fstat(handle), path.stat()):
            path.rename(_older(path))
    finally:
        os.close(handle)
