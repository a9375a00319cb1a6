"""From a command line as typed to the reader of its answer; and saved text of several devices into answers.

What stands around the tool is passed over: paths, sudo, `docker exec NAME`, a loop, a pipe into grep.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal

from pdtui.errors import UsageError
from pdtui.readings.answer import Answer, Failure, failure_of
from pdtui.readings.hccn.kinds import HCCN, HCCN_A5
from pdtui.readings.hccn_conf import PATH, read_hccn_conf
from pdtui.readings.kinds import Kind
from pdtui.readings.npu_smi_kinds import NPU_SMI
from pdtui.readings.versions import (
    CANN_FILES,
    DRIVER_FILE,
    FIRMWARE_FILE,
    read_cann_version,
    read_version_file,
)
from pdtui.text import clean_line, decode, did_you_mean

Generation = Literal["a2", "a3", "a5"]

_CONF = Kind("hccn-conf", f"cat {PATH}", "addresses that NPUs get at boot", read_hccn_conf)
_DRIVER = Kind("driver-version", f"cat {DRIVER_FILE}", "version of the driver", read_version_file)
_FIRMWARE = Kind("firmware-version", f"cat {FIRMWARE_FILE}", "version of the firmware", read_version_file)
_CANN = Kind("cann-version", f"cat {CANN_FILES[0]}", "version of CANN", read_cann_version)

FILES: Mapping[str, Kind] = {
    "hccn.conf": _CONF,
    "driver/version.info": _DRIVER,
    "firmware/version.info": _FIRMWARE,
    "version.cfg": _CANN,
    "ascend_toolkit_install.info": _CANN,
}
"""By the end of the path."""

REMEDY = "pdtui read --list shows what can be read"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks."""

    kind: Kind
    devices: tuple[int, ...]
    """The ids that the command names: one, those of a loop, or none."""
    looped: bool
    """The command asks several devices one after the other."""
    by_card: bool = False
    """The ids are npu-smi's, which are those of cards."""
    chip: int | None = None
    """The chip of the card that is asked."""


def kinds() -> tuple[Kind, ...]:
    """Return everything that can be read, in the order of a list for people; names are unique."""
    every = (*HCCN.values(), *HCCN_A5.values(), *NPU_SMI.values(), *FILES.values())
    return tuple({kind.name: kind for kind in every}.values())


_SCRIPT = re.compile(r"(?:hccn_tool|npu-smi)\S*\s")
"""A word that is a command line itself: what follows `bash -c`."""


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise UsageError(f"{clean_line(line)[:120]}: {error}", remedy=REMEDY) from None
    return [inner for word in words for inner in (_words(word) if _SCRIPT.search(word) else (word,))]


_END = re.compile(r"[|;&()<>]+$|\d?>&?\d?$")


def _arguments(words: list[str], start: int) -> list[str]:
    """Return the words after a tool, up to the end of its command."""
    found = []
    for word in words[start + 1 :]:
        if _END.match(word):
            break
        found.append(word)
    return found


def _file(words: Iterable[str]) -> Kind | None:
    for word in words:
        path = PurePosixPath(word)
        for end, kind in FILES.items():
            if path.parts[-end.count("/") - 1 :] == PurePosixPath(end).parts:
                return kind
    return None


_RANGE = re.compile(r"\{(\d{1,4})\.\.(\d{1,4})\}$")


def _loop(words: list[str]) -> tuple[int, ...]:
    """Return the ids that `for i in {0..7}`, `for i in 0 1 2` and `for i in $(seq 0 7)` go through."""
    if "for" not in words or "in" not in words[words.index("for") :]:
        return ()
    after = words[words.index("in", words.index("for")) + 1 :]
    items = after[: next((i for i, word in enumerate(after) if word in ("do", ";", ";;")), len(after))]
    if len(items) == 1 and (span := _RANGE.match(items[0])):
        return tuple(range(int(span[1]), int(span[2]) + 1))
    numbers = [int(word) for word in items if word.isdecimal() and len(word) < 5]
    if "seq" in items and numbers:
        first, last = (numbers[0], numbers[-1]) if len(numbers) > 1 else (1, numbers[0])
        return tuple(range(first, last + 1))
    return tuple(numbers) if len(numbers) == len(items) else ()


def _devices(arguments: list[str], words: list[str]) -> tuple[tuple[int, ...], bool]:
    """Return the ids that are asked, and whether in a loop."""
    ids = [after for option, after in pairwise(arguments) if option == "-i"]
    if not ids or ids[0].isdecimal():
        return tuple(int(word) for word in ids[:1] if len(word) < 10), "for" in words
    return _loop(words), True


def _hccn(arguments: list[str], platform: Generation | None) -> Kind:
    options = [word for word in arguments if word.startswith("-") and not word[1:].isdecimal()]
    first = next(iter(options), "")
    a5_order = first in ("-g", "-t", "-s")
    names = [word.lstrip("-") for word in options if word not in ("-g", "-i", "-u", "-p", "-inet6", "-time")]
    changes = "-s" in options or ("-t" in options and "ub_ping" not in names) or "recovery" in arguments
    if changes or ("-c" in options and not a5_order):
        raise UsageError(
            "this command of hccn_tool changes something; its answer holds nothing to read",
            remedy="queries have -g: pdtui read --list",
        )
    tables = (HCCN_A5, HCCN) if platform == "a5" or (platform is None and a5_order) else (HCCN, HCCN_A5)
    for table in tables:
        for name in names:
            if name in table:
                return table[name]
    asked = next(iter(names), "")
    if not asked:
        raise UsageError("hccn_tool needs a query, as in hccn_tool -i 0 -link -g", remedy=REMEDY)
    guess = did_you_mean(asked, {**HCCN, **HCCN_A5}).replace("mean ", "mean -")
    raise UsageError(f"hccn_tool -{clean_line(asked)[:60]} is not known{guess}", remedy=REMEDY)


def _npu_smi(arguments: list[str]) -> Kind:
    if not arguments or arguments[0] != "info":
        asked = clean_line(" ".join(arguments))[:60]
        raise UsageError(f"npu-smi {asked} is no query; queries begin with npu-smi info", remedy=REMEDY)
    rest = arguments[1:]
    if "-t" in rest[:-1]:
        asked = rest[rest.index("-t") + 1]
    else:
        asked = next((word for word in rest if word in ("-l", "-m", "-h") or word.isalpha()), "")
    if asked in NPU_SMI:
        return NPU_SMI[asked]
    guess = did_you_mean(asked, [name for name in NPU_SMI if name])
    raise UsageError(f"npu-smi {clean_line(' '.join(arguments))[:60]} is not known{guess}", remedy=REMEDY)


def find(line: str, platform: Generation | None = None) -> Asked:
    """Return what a command line asks. Raises `UsageError` for one that is not known."""
    words = _words(line)
    for index, word in enumerate(words):
        tool = PurePosixPath(word).name
        if tool not in ("hccn_tool", "npu-smi"):
            continue
        arguments = _arguments(words, index)
        ids, looped = _devices(arguments, words)
        if tool == "hccn_tool":
            return Asked(_hccn(arguments, platform), ids, looped)
        chips = [after for option, after in pairwise(arguments) if option == "-c" and after.isdecimal()]
        chip = int(chips[0]) if chips and len(chips[0]) < 5 else None
        return Asked(_npu_smi(arguments), ids, looped, by_card=True, chip=chip)
    if (kind_of_file := _file(words)) is not None:
        return Asked(kind_of_file, (), looped=False)
    known = ("hccn_tool", "npu-smi", *(PurePosixPath(end).name for end in FILES))
    guess = next(filter(None, (did_you_mean(PurePosixPath(word).name, known) for word in words)), "")
    raise UsageError(f"{clean_line(line)[:120] or 'an empty command'} is not known{guess}", remedy=REMEDY)


_WORDS_OF_FAILURE = re.compile(
    r"(?:Command|Cmd) execute failed!|The cmd line execute timeout!|Get unknown option!|Get device health"
    r"|The ip address you configured|Control link unreachable|Execute failed:|The total count of input|.* failed\."
)


def _is_failure(line: str) -> bool:
    """Return whether a line is an answer by itself: a tool's words of why it has none."""
    if line.startswith("[WARNING]") or not line.strip():
        return False
    found = failure_of(Answer("", line.encode()))
    return found not in (None, Failure.EMPTY) or _WORDS_OF_FAILURE.match(line) is not None


def split(asked: Asked, answer: Answer) -> tuple[tuple[int | None, Answer], ...]:
    """Return the answers in saved text, each with its device where that is known.

    Text is cut where the first line of this kind of answer comes again, and at lines in which the tool says why
    it has no answer. An address that comes again is another port of one device, unless the command is a loop.
    Ids are those in the text, else those of the loop when there is one for each answer.
    """
    kind = asked.kind
    lines = decode(answer.stdout).split("\n")
    parts = _parts(kind, lines)
    if len(parts) < 2 or (kind.name == "ip" and not asked.looped):
        only = asked.devices[0] if len(asked.devices) == 1 else _device_in(kind, lines)
        end = b"" if answer.stdout.endswith(b"\n") or not answer.stdout else b"\n"  # Editors may leave it out.
        return ((only, replace(answer, stdout=answer.stdout + end)),)
    ids = asked.devices if len(asked.devices) == len(parts) else (None,) * len(parts)
    found = []
    for device, part in zip(ids, parts, strict=True):
        inside = _device_in(kind, part)
        text = "\n".join(part) + "\n"
        found.append((inside if inside is not None else device, replace(answer, stdout=text.encode())))
    return tuple(found)


def _parts(kind: Kind, lines: list[str]) -> list[list[str]]:
    """Return the lines of each answer; one part when answers of this kind cannot be told apart."""
    first = kind.first_line(lines)
    if first is None:
        return [lines]
    parts: list[list[str]] = [[]]
    begun = failed = False
    for line in lines:
        begins = first.match(line) is not None
        fails = _is_failure(line) and not (kind.ends_with_words and begun)
        if (begins or fails) and (begun or failed):
            parts.append([])
        if begins or fails:
            begun, failed = begins, fails
        parts[-1].append(line)
    return [part for part in parts if any(map(str.strip, part))]


def _device_in(kind: Kind, lines: list[str]) -> int | None:
    """Return the device that the text names, None when it names none or two."""
    if kind.device is None:
        return None
    found = {match[1] for line in lines if (match := kind.device.match(line))}
    return int(found.pop()) if len(found) == 1 else None
