"""Sizes of memory as container engines read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([bkmgt]?)i?b?", re.IGNORECASE | re.ASCII)


def bytes_of(size: str) -> int | None:
    """Return the bytes of a size such as `1g`, `512MB`, `64gib`; None for what is none."""
    match = _SIZE.fullmatch(size.strip())
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match is not None else None


def size_text(size: int) -> str:
    """Return bytes as `bytes_of` reads them: `1g`, `64m`."""
    for unit in "gmk":
        if size >= _UNITS[unit] and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)
