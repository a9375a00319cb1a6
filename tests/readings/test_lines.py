from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.lines import LINE_LIMIT, LineSplitter


def test_lines_come_whole_however_the_bytes_are_cut() -> None:
    data = "你好 one\nzwei\r\n\tdrei\n".encode()
    for cut in range(len(data) + 1):
        splitter = LineSplitter()
        lines = splitter.feed(data[:cut]) + splitter.feed(data[cut:])
        assert lines == ["你好 one", "zwei", "        drei"]
        assert splitter.partial == ""


def test_a_progress_bar_leaves_its_last_state() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\rLoading:   0%|\rLoading:  40%|##") == []
    assert splitter.partial == "Loading:  40%|##"
    assert splitter.feed(b"\rLoading:  60%|###\r") == []
    assert splitter.partial == "Loading:  60%|###"
    assert splitter.feed(b"Loading: 100%|#####\ndone\n") == ["Loading: 100%|#####", "done"]


def test_a_bar_that_runs_for_hours_does_not_fill_memory() -> None:
    splitter = LineSplitter()
    for step in range(20000):
        assert splitter.feed(b"\rCapturing graphs: %d%%" % (step % 100)) == []
        assert len(splitter._rest) < 2 * LINE_LIMIT
    assert splitter.partial == "Capturing graphs: 99%"


def test_a_line_that_never_ends_is_broken() -> None:
    splitter = LineSplitter()
    lines: list[str] = []
    for _ in range(200):
        lines += splitter.feed(b"x" * 4096)
    assert lines
    assert all(len(line) <= LINE_LIMIT + 6 for line in lines)
    assert lines[0].endswith(" [cut]")


def test_escape_sequences_are_gone() -> None:
    assert LineSplitter().feed(b"\x1b[31mred\x1b[0m \x1b]0;title\x07end\n") == ["red end"]


def test_what_is_left_at_the_end_is_a_line() -> None:
    splitter = LineSplitter()
    splitter.feed(b"a\nhalf")
    assert splitter.flush() == ["half"]
    assert splitter.flush() == []


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_raise_or_leave_control_characters(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    lines += [splitter.partial, *splitter.flush()]
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for line in lines for c in line)


@given(st.text(alphabet=st.characters(blacklist_categories=("Cc", "Cs", "Cf"))), st.integers(0, 60))
def test_cutting_does_not_change_lines(text: str, cut: int) -> None:
    data = text.encode() + b"\n"
    splitter = LineSplitter()
    assert splitter.feed(data[:cut]) + splitter.feed(data[cut:]) == [text]
