"""What commands print where the locale is not UTF-8, a file's name is no text, or a terminal wants no colours."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from pdtui.cli import main
from tests.topology.examples import BASE, changed


class Terminal(io.TextIOWrapper):
    """A terminal, as far as a program can see."""

    def isatty(self) -> bool:
        return True


def printed(kind: type[io.TextIOWrapper], encoding: str, *words: str) -> bytes:
    """Return what a command prints on stdout."""
    out, err = kind(io.BytesIO(), encoding), kind(io.BytesIO(), encoding)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code in {0, 1}
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(changed(("seed: 1024", "chat-template: 模型 → «x»")), encoding="utf-8")
    (tmp_path / "warned.yaml").write_text(BASE.replace("seed", "sede"))
    return str(path)


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "utf-8"])
def test_a_file_or_a_pipe_gets_utf_8_and_a_terminal_what_it_has(file: str, encoding: str) -> None:
    for words in (("plan", file, "--rank", "p/0"), ("plan", file, "--json"), ("plan", file, "--commands")):
        assert "模型 → «x»" in printed(io.TextIOWrapper, encoding, *words).decode()
        shown = "模型 → «x»".encode(encoding, "replace")
        assert shown in printed(Terminal, encoding, *words)


def test_json_of_a_file_whose_name_is_no_text_is_json(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.yaml")
    path.write_text(BASE.replace("seed", "sede"))
    name = str(path)
    (finding,) = json.loads(printed(io.TextIOWrapper, "utf-8", "check", name, "--json"))["findings"]
    assert finding["file"] == name
    assert bytes(path) in printed(io.TextIOWrapper, "utf-8", "check", name)


@pytest.mark.parametrize(
    ("name", "value", "coloured"), [("A", "1", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_a_terminal_gets_colours_unless_it_wants_none(
    file: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    assert (b"\x1b[" in printed(Terminal, "utf-8", "check", file.replace("cluster", "warned"))) == coloured
