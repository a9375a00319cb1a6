"""Bytes of a log, cut anywhere, into clean lines; progress bars leave their last state only."""

from __future__ import annotations

from pdtui.text import clean

LINE_LIMIT = 16384
"""Characters of one line; the rest is cut off and said so."""

_REST_LIMIT = 4 * LINE_LIMIT


class LineSplitter:
    """Feed it chunks; it keeps what has no newline yet."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        cut = data.rfind(b"\n")
        if cut < 0:
            self._rest += data
            return self._shorten()
        block = self._rest + data[:cut]
        self._rest = data[cut + 1 :]
        return _lines(block)

    @property
    def partial(self) -> str:
        """The last state of a line that has not ended yet."""
        return _lines(self._rest)[0].rstrip("\ufffd") if self._rest else ""

    def flush(self) -> list[str]:
        """Return what is left as a line: nothing more will come."""
        rest, self._rest = self._rest, b""
        return _lines(rest) if rest.strip() else []

    def _shorten(self) -> list[str]:
        """Forget earlier states of a progress bar; break a line that never ends."""
        if len(self._rest) > LINE_LIMIT and b"\r" in self._rest:
            self._rest = self._rest[self._rest.rfind(b"\r", 0, len(self._rest) - 1) + 1 :]
        return self.flush() if len(self._rest) > _REST_LIMIT else []


def _lines(block: bytes) -> list[str]:
    text = block.decode("utf-8", "replace")
    if "\r" in text:
        text = "\n".join(map(_last_state, text.split("\n")))
    text = clean(text)
    if "\t" in text:
        text = text.expandtabs()
    lines = text.split("\n")
    if len(text) > LINE_LIMIT:
        lines = [line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] + " [cut]" for line in lines]
    return lines


def _last_state(line: str) -> str:
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")
