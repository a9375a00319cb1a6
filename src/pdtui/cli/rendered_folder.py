"""Write rendered files into a folder, all or none, and never over what somebody else wrote there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pdtui.errors import FileError
from pdtui.topology.render.files import RenderedFile

MANIFEST = ".pdtui-render.json"
"""Names the files that `pdtui render` wrote into a folder, each with the SHA-256 of what it wrote."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it; paths are relative to the folder."""

    changed: frozenset[str]
    """Files that are new, or other than before."""
    removed: tuple[str, ...]
    """Files of an earlier rendering that this one does not have."""
    kept: tuple[str, ...]
    """Such files that were edited since, and so were left."""


def write_folder(folder: Path, files: Sequence[RenderedFile], *, force: bool) -> Written:
    """Write the files; what an earlier rendering wrote there and this one does not have is removed.

    Everything is written beside its place first, so that a full disk leaves the folder as it was. Raises
    `FileError` when the folder is not ours, or a file in it is not as we left it, unless `force`; also when it
    cannot be written.
    """
    try:
        folder = _resolved(folder)
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder} is no folder", remedy="name another with -o")
        old = _manifest(folder, force=force)
        _refuse_foreign(folder, files, old, force=force)
        texts = {file.path: file.text.encode("utf-8", "surrogateescape") for file in files}
        changed = frozenset(path for path, data in texts.items() if _read(folder / path) != data)
        if folder.exists():
            removed, kept = _into(folder, files, texts, old)
        else:
            _anew(folder, files, texts)
            removed, kept = (), ()
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    return Written(changed, removed, kept)


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except RuntimeError as error:  # Python before 3.13, of links that go round.
        raise FileError(f"{folder} is a link that leads to itself", remedy="name another with -o") from error


def _manifest(folder: Path, *, force: bool) -> Mapping[str, str] | None:
    """Return what an earlier rendering wrote, path -> SHA-256; None where there was none."""
    if _is_no_file(folder / MANIFEST):
        raise FileError(f"{folder / MANIFEST} is no file", remedy="move it away, or name another folder with -o")
    data = _read(folder / MANIFEST)
    if data is None:
        return None
    try:
        found = json.loads(data)["files"]
        return {path: str(digest) for path, digest in found.items() if _is_inside(path)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if force:
            return {}
        raise FileError(
            f"{folder / MANIFEST} is damaged: it does not say what `pdtui render` wrote",
            remedy="name another folder with -o, or --force to write over files of the same names",
        ) from error


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


def _refuse_foreign(
    folder: Path, files: Iterable[RenderedFile], old: Mapping[str, str] | None, *, force: bool
) -> None:
    if not folder.exists():
        return
    if old is None and not force and any(folder.iterdir()):
        raise FileError(
            f"{folder} is not empty, and nothing in it is from `pdtui render`",
            remedy="name another folder with -o, or --force to write over files of the same names",
        )
    others = [file.path for file in files if _is_foreign(folder / file.path, file, (old or {}).get(file.path))]
    if others and not force:
        what = f"{others[0]} is" if len(others) == 1 else f"{', '.join(others)} are"
        raise FileError(
            f"{folder}: {what} not as `pdtui render` wrote {'it' if len(others) == 1 else 'them'}",
            remedy="move what you want to keep away, name another folder with -o, or --force to write over it",
        )


def _is_foreign(path: Path, file: RenderedFile, digest: str | None) -> bool:
    if _is_no_file(path) or (not path.exists() and any(parent.is_file() for parent in path.parents)):
        raise FileError(
            f"{path} cannot be written: there is something that is no file, or a file where its folder has to be",
            remedy="move it away, or name another folder with -o",
        )
    data = _read(path)
    return data is not None and data != file.text.encode("utf-8", "surrogateescape") and _digest(data) != digest


def _is_no_file(path: Path) -> bool:
    """Whether something else has the name: a folder, or a pipe, which nobody may ever write to."""
    return path.exists() and not path.is_file()


def _read(path: Path) -> bytes | None:
    try:
        return None if _is_no_file(path) else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _anew(folder: Path, files: Sequence[RenderedFile], texts: Mapping[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    try:
        _stage(stage, files, texts)
        stage.rename(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _into(
    folder: Path, files: Sequence[RenderedFile], texts: Mapping[str, bytes], old: Mapping[str, str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    stage = folder / f".pdtui-render.{secrets.token_hex(4)}"
    try:
        _stage(stage, files, texts)
        for path in (*texts, MANIFEST):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).replace(folder / path)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    gone = [path for path in old or {} if path not in texts and _read(folder / path) is not None]
    removed = tuple(path for path in gone if _digest(_read(folder / path) or b"") == (old or {})[path])
    for path in removed:
        _remove(folder, path)
    return removed, tuple(path for path in gone if path not in removed)


def _stage(stage: Path, files: Sequence[RenderedFile], texts: Mapping[str, bytes]) -> None:
    stage.mkdir()
    for file in files:
        _write(stage / file.path, texts[file.path], 0o777 if file.executable else 0o666)
    manifest = {"format": 1, "files": {path: _digest(data) for path, data in sorted(texts.items())}}
    _write(stage / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode(), 0o666)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file; of its mode the process's umask takes what it takes of every file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _remove(folder: Path, path: str) -> None:
    """Remove a file, and the folders that are empty without it."""
    target = folder / path
    target.unlink()
    for parent in target.parents:
        if parent == folder or any(parent.iterdir()):
            return
        parent.rmdir()
