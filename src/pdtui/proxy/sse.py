"""Server-sent events, whole, out of a stream that is cut anywhere.

Format: WHATWG HTML, section 9.2 «Server-sent events». A line ends with CR, LF or CRLF, an empty line ends an
event, lines that start with a colon are comments, the `data` lines of an event are joined by LF.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.proxy.errors import UpstreamLost

DONE = "[DONE]"
"""The data of the event that ends an OpenAI stream."""

_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(r"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `data` is None when the block held only comments or other fields."""

    data: str | None
    raw: bytes
    """As it came, with the empty line that ends it (a last CR becomes CRLF where the stream was cut after it)."""


class SseParser:
    """Turns pieces of a stream into events; keeps at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int = 4 << 20, *, source: str = "the server") -> None:
        self._limit = limit
        self._source = source
        self._buffer = bytearray()
        self._scan = 0
        self._skip_lf = False
        self._at_start = True

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes; raises `UpstreamLost` for one that is too long."""
        buffer = self._buffer
        if self._skip_lf and data:
            # A CR ended the last event; the LF that may follow belongs to that same line end.
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        buffer += data
        if self._at_start and not _BOM.startswith(buffer[:3]):
            self._at_start = False
        elif self._at_start and len(buffer) >= len(_BOM):
            del buffer[: len(_BOM)]
            self._at_start = False
        events = []
        start = 0
        while match := _END.search(buffer, max(start, self._scan)):
            raw = bytes(buffer[start : match.end()])
            start = match.end()
            self._scan = start
            self._check(len(raw))
            if start == len(buffer) and raw.endswith(b"\r"):
                # An LF may follow and is skipped then; with it the line end is whole for simpler readers too.
                self._skip_lf = True
                raw += b"\n"
            event = _parse(raw)
            if event is not None:
                events.append(event)
        del buffer[:start]
        # An end is at most four bytes long and may have begun in what is here already.
        self._scan = max(0, len(buffer) - 3)
        self._check(len(buffer))
        return events

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise UpstreamLost(f"{self._source} sent an event of more than {self._limit} bytes")


def _parse(raw: bytes) -> Event | None:
    """Return the event of a block, None for empty lines alone."""
    data: list[str] = []
    seen = False
    # Only CR, LF and CRLF end a line here: str.splitlines knows many more.
    for line in _LINE.split(raw.decode("utf-8", "replace")):
        if not line:
            continue
        seen = True
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
    if not seen:
        return None
    return Event("\n".join(data) if data else None, raw)


def encode(data: str) -> bytes:
    """Return `data` as one event."""
    return "".join(f"data: {line}\n" for line in data.split("\n")).encode() + b"\n"
