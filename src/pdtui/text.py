"""Make remote text safe to show; say what a mistyped word may have meant, and numbers in few words.

Logs, stderr, host names and model output can hold escape sequences, control characters and bidirectional
overrides. Textual passes them to the terminal, so everything from outside goes through `clean` once, where
it is parsed. Markup is the widgets' concern: never hand them a bare `str`.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_][^\n]*?(?:\x07|\x1b\\|\x9c|(?=\n)|$)"  # OSC, DCS, SOS, PM, APC up to BEL, ST or end of line
    r"|\x1b[ -/]*[0-~]?"  # two-byte escapes, and an ESC at the end
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI in its 8-bit form
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` without escape sequences, control characters (tab and newline stay) and bidi overrides.

    Lone surrogates, which JSON can hold and no terminal can be sent, go too.
    """
    if not _CONTROL.search(text):
        return text
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def clean_line(text: str) -> str:
    """Return `text` cleaned and on one line, tabs and newlines turned into spaces."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the known word that is nearest, empty when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in few words: `0-7, 12`; empty for none."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def decode(data: bytes) -> str:
    """Return remote bytes as clean text; bytes that are no UTF-8 become U+FFFD."""
    return clean(data.decode("utf-8", "replace"))


def width(text: str) -> int:
    """Return how many columns of a terminal `text` takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
