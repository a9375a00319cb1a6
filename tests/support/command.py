"""Commands that ask no node, without a process for each: what a shell would see is the same."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from pdtui.cli import main


def pdtui(*arguments: str | Path, cwd: Path | None = None, text: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run `pdtui ARGUMENTS` in this process and return its exit status and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(text), "utf-8")
    words = [str(word) for word in arguments]
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", given),
        mock.patch.dict(os.environ, {"NO_COLOR": "1"}),
        pytest.raises(SystemExit) as end,
    ):
        main(words)
    assert isinstance(end.value.code, int), end.value.code
    printed = [_all_of(stream) for stream in (out, err)]
    return subprocess.CompletedProcess(words, end.value.code, *printed)


def _all_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.detach()
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
