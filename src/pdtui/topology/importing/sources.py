"""Files as they are given: bytes to text, and the kinds that are no scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.topology.findings import Severity
from pdtui.topology.importing import tolerant
from pdtui.topology.importing.observed import (
    Origin,
    Said,
    ServeCommand,
)
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.importing.words import Word, statements

LARGEST = 4 * 1024 * 1024
"""Bytes of a file; scripts are a thousandth of it."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was named on the command line."""

    name: str
    data: bytes
    host: str = ""
    """The host before `=`, if there was one."""


def decoded(source: Source, notes: list[Note]) -> str | None:
    """Return the text of a file, None when it has none; what is wrong with its bytes goes to `notes`."""
    here = Origin(source.name)
    if len(source.data) > LARGEST:
        size = len(source.data) // 1024
        _unread(notes, f"{size} KiB are no script; files up to {LARGEST // 1024} KiB are read", here)
        return None
    if not source.data.strip():
        _unread(notes, "the file is empty", here)
        return None
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.data.count(b"\n", 0, error.start) + 1
        if source.data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in source.data:
            _unread(notes, "no text in UTF-8: save the file as UTF-8", here)
            return None
        _unread(notes, "this byte is no UTF-8; it was left out", Origin(source.name, line))
        text = source.data.decode("utf-8", "ignore")
    if "\r" in text:
        line = text.count("\n", 0, text.index("\r")) + 1
        message = "the file has the line ends of Windows: bash takes the \\r for a part of the last word"
        notes.append(
            note(
                Kind.FINDING,
                f"{message}; run dos2unix",
                Origin(source.name, line),
                rule="R60",
                severity=Severity.ERROR,
            )
        )
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "")


def json_fragment(name: str, text: str, host: str, fragments: list[ServeCommand], notes: list[Note]) -> None:
    """Read the value of a `*-config` flag."""
    found = tolerant.read(text)
    here = Origin(name, 1)
    if found is None or not isinstance(found.value, dict):
        _unread(notes, "neither a script nor a JSON object", here)
        return
    flag = "kv-transfer-config" if any(key.startswith("kv_") for key in found.value) else "additional-config"
    flags = {flag: Said(text.strip(), here)}
    fragments.append(ServeCommand(host, None, flags, {}, here))


def env_fragment(name: str, text: str, host: str, fragments: list[ServeCommand], notes: list[Note]) -> None:
    """Read variables: everything after the first = is the value, quotes around all of it aside."""
    env: dict[str, Said] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("export "):
            several = [_assigned(word) for words in statements(line) for word in words[1:]]
            if len(several) > 1 and None not in several:  # `export A=1 B=2` is a shell's line.
                env |= {key: Said(value, Origin(name, number)) for key, value in filter(None, several)}
                continue
        key, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or line.lstrip().startswith("#"):
            continue
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        unknown = value if re.search(r"\$(?:\d|\(|`)", value) else ""
        if re.fullmatch(r"[A-Za-z_]\w*", key):
            env[key] = Said(value, Origin(name, number), unknown)
        else:
            _unread(notes, f"{key} is no name of a variable", Origin(name, number))
    if env:
        fragments.append(ServeCommand(host, None, {}, env, Origin(name, 1)))


def _assigned(word: Word) -> tuple[str, str] | None:
    """Return name and value of an assignment in which nothing is left to a shell; None if it is not that."""
    if any(piece.kind != "text" for piece in word.pieces):
        return None
    match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", "".join(piece.text for piece in word.pieces), re.DOTALL)
    return (match[1], match[2]) if match else None


def _unread(notes: list[Note], message: str, origin: Origin) -> None:
    notes.append(note(Kind.UNREAD, message, origin))
