"""What remote text can hold, and what is left of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.text import clean, clean_line, decode, width


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text\n", "plain text\n"),
        ("列车 ready\t✓", "列车 ready\t✓"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;evil title\x07after", "after"),
        ("\x1b]52;c;aGFjaw==\x1b\\after", "after"),
        ("\x1b]0;never ended\nnext line", "\nnext line"),
        ("\x9b2Jgone", "gone"),
        ("\x1b", ""),
        ("a\x7fb\x00c\rd", "abcd"),
        ("\u202eevil\u202c", "evil"),
        ("[/not markup]", "[/not markup]"),
        ("half \ud83d a pair", "half  a pair"),
    ],
)
def test_clean_keeps_words_and_drops_control(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_clean_line_is_one_line() -> None:
    assert clean_line("a\nb\tc") == "a b c"


def test_decode_survives_bytes_that_are_no_text() -> None:
    assert decode(b"ok \xff\xfe") == "ok \ufffd\ufffd"


@given(st.text())
def test_nothing_that_reaches_the_terminal_can_steer_it(raw: str) -> None:
    shown = clean(raw)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    assert not any(0x7F <= ord(c) <= 0x9F for c in shown)


@pytest.mark.parametrize(("text", "columns"), [("ready", 5), ("节点", 4), ("e\u0301", 1), ("ＡＢ", 4), ("·✖", 2)])
def test_width_counts_columns_not_characters(text: str, columns: int) -> None:
    assert width(text) == columns
