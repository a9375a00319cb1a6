from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.style import Style

from pdtui.console.lines import Line, fit, wrap
from pdtui.console.timing import clock_time, count, duration, latency

RED = Style.parse("red")


def test_neighbours_of_one_style_are_one_segment() -> None:
    strip = Line().add("a", RED).add("b", RED).add("c").strip(10)
    assert [segment.text for segment in strip] == ["ab", "c", " " * 7]


@pytest.mark.parametrize("width", range(1, 14))
def test_a_line_is_exactly_as_wide_as_asked_for_also_with_wide_characters(width: int) -> None:
    strip = Line().add("中文 host 节点").strip(width)
    assert strip.cell_length == width
    assert cell_len(strip.text) == width


def test_a_column_cuts_and_pads_by_cells() -> None:
    assert fit("中文节点", 5) == "中文…"
    assert fit("abc", 5) == "abc  "
    assert fit("abcdef", 4, "..") == "ab.."
    assert fit("abc", 0) == ""
    assert Line().column("7", 3, align="right").text == "  7"


def test_the_right_end_wins_over_what_does_not_fit() -> None:
    line = Line().add("a" * 30).right(Line().add("right"), 20)
    assert line.text == "a" * 13 + "… right"


@pytest.mark.parametrize("width", [4, 7, 20, 50])
@pytest.mark.parametrize("text", ["", "short", "word " * 20, "x" * 77, "中文日志内容很长" * 9, "a 中 " * 30])
def test_wrapping_loses_nothing_and_fits(text: str, width: int) -> None:
    pieces = wrap(text, width, 2)
    assert "".join(pieces) == text
    assert all(cell_len(piece) <= width for piece in pieces)


def test_durations_have_one_shape() -> None:
    shown = [duration(value) for value in (None, -1, 0, 59, 60, 3599, 3600, 86_399, 86_400)]
    assert shown == ["-", "0 s", "0 s", "59 s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h"]


def test_numbers_and_times() -> None:
    assert [count(value) for value in (None, 470.4, 9_999, 14_900, 2_500_000)] == [
        "-",
        "470",
        "9999",
        "14.9k",
        "2.5M",
    ]
    assert [latency(value) for value in (None, 0.212, 1.25)] == ["-", "212 ms", "1.25 s"]
    assert clock_time(0.5, milliseconds=True) == "00:00:00.500"
    assert clock_time(None) == ""


def test_blanks_take_the_style_beside_them_unless_they_would_be_seen() -> None:
    strip = Line().add("a", RED).add("  ").add("b", RED).strip(6)
    assert [segment.text for segment in strip] == ["a  b", "  "]
    band = Style.parse("red on blue")
    strip = Line().add("a", RED).add("  ", band).add("b", RED).strip(4)
    assert [segment.text for segment in strip] == ["a", "  ", "b"]
    assert [segment.text for segment in Line().add("  ", Style(underline=True)).add("b", RED).strip(3)] == [
        "  ",
        "b",
    ]


def test_a_number_stays_on_the_line_of_its_unit() -> None:
    assert wrap("Last start took 7 s.", 18) == ["Last start took ", "7 s."]
    assert wrap("check 32 ranks again", 9)[0] == "check 32 "
