"""SSE by event, however the bytes arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.proxy.errors import UpstreamLost
from pdtui.proxy.sse import Event, SseParser, encode

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def feed(data: bytes, cuts: list[int]) -> list[Event]:
    """Parse `data` cut at these places."""
    parser = SseParser()
    events: list[Event] = []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        events += parser.feed(data[start:end])
    return events


def reference(text: str) -> list[str]:
    """The data of each event by the letter of the standard, on the whole text at once."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    events: list[str] = []
    data: list[str] = []
    # What follows the last line end is no complete line.
    for line in lines[:-1]:
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line == "data":
            data.append("")
    return events


@given(st.data(), st.lists(st.integers(0, 400), max_size=12))
def test_any_stream_cut_anywhere_gives_the_events_of_the_standard(data: st.DataObject, cuts: list[int]) -> None:
    line = st.one_of(
        st.just(""),
        st.just("data"),
        TEXT.map(lambda t: f"data: {t}"),
        TEXT.map(lambda t: f"data:{t}"),
        TEXT.map(lambda t: f": {t}"),
        TEXT.map(lambda t: f"event: {t}"),
        TEXT.map(lambda t: f"x{t}"),
    )
    lines = data.draw(st.lists(st.tuples(line, ENDS), max_size=20))
    text = "".join(content + end for content, end in lines)
    events = feed(text.encode(), cuts)
    assert [e.data for e in events if e.data is not None] == reference(text)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))), st.lists(st.integers(0))
)
def test_what_is_encoded_comes_back(texts: list[str], cuts: list[int]) -> None:
    assert [e.data for e in feed(b"".join(encode(t) for t in texts), cuts)] == texts


@given(st.lists(st.integers(0)))
def test_raw_bytes_are_kept_with_comments_and_carriage_returns(cuts: list[int]) -> None:
    data = ': hello\n\ndata: {"a":\ndata: "字 🀄"}\n\ndata: [DONE]\n\n'.encode()
    events = feed(data, cuts)
    assert b"".join(e.raw for e in events) == data
    assert [e.data for e in events] == [None, '{"a":\n"字 🀄"}', "[DONE]"]


@given(st.lists(st.sampled_from(["data: a", ": c", "event: e"]), min_size=1, max_size=6), st.lists(st.integers(0)))
def test_no_byte_of_a_crlf_stream_is_added_or_lost(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\r\n\r\n" for line in lines).encode()
    assert b"".join(e.raw for e in feed(data, cuts)) == data


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert [e.data for e in feed(b"\xef\xbb\xbfdata: x\n\n", [1, 2])] == ["x"]


def test_a_half_event_is_not_given_out() -> None:
    parser = SseParser()
    assert parser.feed(b"data: half\n") == []
    assert [e.data for e in parser.feed(b"\n")] == ["half"]


@pytest.mark.parametrize("piece", [1000, 100_000])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(piece: int) -> None:
    parser = SseParser(limit=50_000, source="decode/3")

    def flood() -> None:
        for _ in range(200):
            parser.feed(b"x" * piece)

    with pytest.raises(UpstreamLost, match="decode/3 sent an event of more than 50000 bytes"):
        flood()


def test_an_event_that_ends_is_held_to_the_limit_too() -> None:
    with pytest.raises(UpstreamLost):
        SseParser(limit=100).feed(b"data: " + b"x" * 200 + b"\n\n")
