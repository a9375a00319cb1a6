"""Answers that were cut, doubled or mixed: no reading, or the same one; never another value in silence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.answer import Answer, Failure
from pdtui.readings.catalogue import FILES, find
from pdtui.readings.hccn import Tls
from pdtui.readings.hccn.kinds import HCCN, HCCN_A5
from pdtui.readings.kinds import Kind
from pdtui.readings.words import failure_words
from tests.readings.samples import DATA
from tests.readings.test_hccn_samples import ROWS

KINDS = tuple({kind.name: kind for kind in (*HCCN.values(), *HCCN_A5.values(), *FILES.values())}.values())

GROWS = frozenset(
    [
        "stat",
        "hw_stats",
        "optical",
        "link_stat",
        "a5-link_stat",
        "hccn-conf",
        "firmware-version",
        "status",
        "lldp",
        "tls",
        "ub_connect",
    ]
)
"""Lists: what was cut off at the end of a line is missing, and what is there is right."""

MAY_END_EARLY = frozenset(("netdetect", "gateway", "net_health", "ip", "vnic", "version"))
"""What ends with a word or a number that the tool does not close: cut inside it may be another word."""


def single() -> Iterator[tuple[str, Kind, bytes]]:
    """Yield the samples that hold the answer of one device."""
    by_name = {kind.name: kind for kind in KINDS}
    for name, command, expected in ROWS:
        if len(expected) == 1 and not isinstance(expected[0][1], Failure) and "$i" not in command:
            kind = find(command).kind
            assert by_name[kind.name] is kind
            yield name, kind, (DATA / "hccn" / name).read_bytes()


SINGLE = list(single())


def ends(data: bytes) -> Iterator[int]:
    """Yield where an answer is cut: everywhere in short ones, in long ones at each line and every few bytes."""
    step = 1 + len(data) // 300
    yield from (end for end in range(len(data.rstrip())) if end % step == 0 or data[end - 1 : end] == b"\n")


@pytest.mark.parametrize(("name", "kind", "data"), SINGLE, ids=[name for name, *_ in SINGLE])
def test_a_cut_answer_never_says_something_else(name: str, kind: Kind, data: bytes) -> None:
    whole = kind.read(Answer("", data)).value
    for end in ends(data):
        part = data[:end]
        value = kind.read(Answer("", part)).value
        if value is None or value == whole or kind.name in GROWS:
            continue
        assert kind.name in MAY_END_EARLY, (part, value)
        assert not part.endswith(b"\n"), "only a line that was cut may be misread"


@pytest.mark.parametrize(("name", "kind", "data"), SINGLE, ids=[name for name, *_ in SINGLE])
def test_an_answer_twice_is_no_answer_of_one_device(name: str, kind: Kind, data: bytes) -> None:
    value = kind.read(Answer("", data + data)).value
    if kind.name == "hccn-conf":
        assert getattr(value, "problems", ()), "told line by line"
    elif kind.name == "firmware-version":
        assert value == kind.read(Answer("", data)).value
    else:
        assert value is None


def test_answers_of_two_devices_are_not_taken_for_one() -> None:
    tried = 0
    for (_, kind, one), (_, other, two) in itertools.permutations(SINGLE, 2):
        if kind is not other or kind.name in ("ip", "hccn-conf") or one == two:
            continue
        tried += 1
        mixed = b"\n".join(
            line for pair in itertools.zip_longest(one.splitlines(), two.splitlines()) for line in pair if line
        )
        assert kind.read(Answer("", mixed)).value is None, mixed
        assert kind.read(Answer("", one + two)).value is None
    assert tried > 20


@pytest.mark.parametrize(("name", "kind", "data"), SINGLE, ids=[name for name, *_ in SINGLE])
def test_an_answer_whose_end_was_not_kept_is_unreadable(name: str, kind: Kind, data: bytes) -> None:
    assert kind.read(Answer("", data, truncated=True)).failure is Failure.UNREADABLE


TLS = HCCN["tls"]


def test_a_cut_answer_keeps_its_switch() -> None:
    data = (DATA / "hccn" / "hccn_tls_full.a5.doc.txt").read_bytes()
    for end in ends(data):
        value = TLS.read(Answer("", data[:end])).value
        assert value is None or (isinstance(value, Tls) and not value.enabled)


LINES = [line for path in sorted((DATA / "hccn").glob("*.txt")) for line in path.read_bytes().splitlines()]
TEXT = st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=40)), max_size=6).map(b"\n".join)


@given(TEXT, TEXT, st.one_of(st.none(), st.integers(-64, 255)), st.booleans())
def test_no_bytes_raise(stdout: bytes, stderr: bytes, status: int | None, late: bool) -> None:
    answer = Answer("hccn_tool", stdout, stderr, status, timed_out=late)
    for kind in KINDS:
        reading = kind.read(answer)
        assert (reading.value is None) != (reading.failure is None)
        failure_words(reading)
        if (late or status != 0) and kind.name not in ("ping", "ub_ping", "tls"):
            assert reading.failure is not None
        if late or status is None:
            assert reading.failure is not None


@given(st.binary(max_size=60))
def test_noise_has_no_value(noise: bytes) -> None:
    for kind in KINDS:
        if b"=" not in noise:
            assert kind.read(Answer("", noise)).value is None
