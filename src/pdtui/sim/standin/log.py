"""Log lines in vLLM's form, each written at once so that the processes of a rank can share one file."""

import os
import time


def put(text: str, descriptor: int = 1) -> None:
    """Write text; a log that cannot be written any more is nobody's concern here."""
    data = text.encode("utf-8", "replace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return


class Log:
    """One process's lines: `(APIServer pid=7) INFO 11-30 12:46:49 [api_server.py:71] text`."""

    def __init__(self, name: str, pid: int = 0) -> None:
        self.name = name
        self.pid = pid
        """Of another process that the lines are to come from; 0: this one's."""

    def _line(self, level: str, place: str, text: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        head = f"({self.name} pid={self.pid or os.getpid()}) {level} {stamp} [{place}] "
        put("".join(f"{head}{line}\n" for line in text.split("\n")))

    def info(self, place: str, text: str) -> None:
        """Write an INFO line for each line of text."""
        self._line("INFO", place, text)

    def warning(self, place: str, text: str) -> None:
        """Write a WARNING line for each line of text."""
        self._line("WARNING", place, text)

    def error(self, place: str, text: str) -> None:
        """Write an ERROR line for each line of text."""
        self._line("ERROR", place, text)


_sources = "/vllm-workspace/"


def installed_in(folder: str) -> None:
    """Say where vLLM's modules are, for tracebacks; empty: in the source folders of vllm-ascend's images."""
    global _sources
    _sources = folder


def uvicorn(text: str) -> None:
    """Write a line of the HTTP server."""
    put(f"INFO:     {text}\n")


def traceback(*frames: str, error: str) -> str:
    """Return a traceback as Python prints it; a frame is `file:line:function:code`."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        file, line, function, code = frame.split(":", 3)
        if _sources != "/vllm-workspace/":
            file = file.removeprefix("vllm/")
        lines.append(f'  File "{_sources}{file}", line {line}, in {function}')
        lines.append(f"    {code}")
    return "\n".join([*lines, error])
