"""What the script where ranks run has said: parts that answered, hang, failed or make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.rank_place import PARTS, Interface, LocalPorts, Shm, read_place

ASKED = {part: (part, f"ask {part}") for part in PARTS}


def said(document: Any, before: str = "Welcome to node1\n") -> Answer:
    return Answer("bash -ic", f"{before}\nPDTUI-PLACE {json.dumps(document)}\n".encode(), at=7.0)


def one(part: str, value: Any) -> Reading[Any]:
    return read_place(said({part: {"ok": value}}), ASKED)[part]


def test_values_are_typed_and_shown_in_lines() -> None:
    found = one("shm", {"total": 67108864, "free": 1024, "type": "tmpfs"})
    assert found == Reading(
        "ask shm", 7.0, "total: 67108864\nfree: 1024\ntype: tmpfs", Shm(67108864, 1024, "tmpfs")
    )
    ports = one("ports", {"range": [32768, 60999], "reserved": "7100-7115,36000"})
    assert ports.value == LocalPorts(32768, 60999, ((7100, 7115), (36000, 36000)))
    interfaces = [["lo", True, ["127.0.0.1/8"]], ["eth0", False, ["10.0.0.3/24", "fd00::1/64"]]]
    lo, eth0 = one("addresses", interfaces).value or (None, None)
    assert isinstance(lo, Interface)
    assert isinstance(eth0, Interface)
    assert lo.owns("127.7.8.9")
    assert not lo.owns("10.0.0.3")
    assert eth0.owns("10.0.0.3")
    assert eth0.owns("fd00::1")
    assert not eth0.owns("10.0.0.4")
    assert not eth0.owns("node3")
    assert not eth0.up


@pytest.mark.parametrize(
    ("part", "failure", "raw"),
    [
        ({"hangs": 8.0}, Failure.TIMEOUT, "no answer within 8 s"),
        (
            {"error": "/models/x: No such file", "kind": "missing"},
            Failure.NOT_CONFIGURED,
            "/models/x: No such file",
        ),
        ({"error": "/x: Permission denied", "kind": "permission"}, Failure.PERMISSION, "/x: Permission denied"),
        (
            {"error": "Traceback\nImportError: x\x1b[31m", "kind": "failed"},
            Failure.ERROR,
            "Traceback\nImportError: x",
        ),
        ({"ok": {"total": "much"}}, Failure.UNREADABLE, '{"total": "much"}'),
        ({"ok": None}, Failure.UNREADABLE, "null"),
        (None, Failure.EMPTY, "nothing was said of it"),
    ],
)
def test_a_part_without_a_value_says_why(part: Any, failure: Failure, raw: str) -> None:
    found = read_place(said({"shm": part, "limits": {"hangs": 1}}), ASKED)["shm"]
    assert (found.value, found.failure, found.raw) == (None, failure, raw)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (Answer("x", timed_out=True, error="no answer within 40 s: ~/.bashrc waits"), Failure.TIMEOUT),
        (Answer("x", stderr=b"pdtui: cannot read /opt/set_env.sh", status=1), Failure.ERROR),
        (Answer("x", stderr=b"bash: python3: command not found", status=127), Failure.ENVIRONMENT),
        (Answer("x", b"PDTUI-PLACE {broken"), Failure.UNREADABLE),
        (Answer("x", b"PDTUI-PLACE []"), Failure.UNREADABLE),
        (Answer("x", b""), Failure.EMPTY),
    ],
)
def test_without_a_document_every_part_has_the_same_failure(answer: Answer, failure: Failure) -> None:
    found = read_place(answer, ASKED)
    assert {reading.failure for reading in found.values()} == {failure}
    assert set(found) == set(ASKED)


def test_a_late_answer_that_is_whole_is_an_answer() -> None:
    late = Answer("x", said({"shm": {"ok": {"total": 1, "free": 1, "type": "t"}}}).stdout, timed_out=True)
    assert read_place(late, ASKED)["shm"].value == Shm(1, 1, "t")


NAMES = sorted(
    {
        *(
            "ok",
            "hangs",
            "error",
            "kind",
            "total",
            "free",
            "type",
            "npus",
            "closed",
            "management",
            "driver",
            "nofile",
        ),
        *("range", "reserved", "variables", "proxies", "version", "file", "home", "set", "packages", "modules"),
        *("python", "executable", "path", "files", "indexes", "config"),
    }
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(PARTS)), VALUES, max_size=3))
def test_nothing_raises_on_any_document(document: dict[str, Any]) -> None:
    for reading in read_place(said(document), ASKED).values():
        assert (reading.value is None) != (reading.failure is None)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_nothing_raises_on_any_bytes(data: bytes) -> None:
    for reading in read_place(Answer("x", b"PDTUI-PLACE " + data), ASKED).values():
        assert reading.failure is not None or reading.value is not None
