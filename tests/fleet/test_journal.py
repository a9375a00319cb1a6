"""The journal: what it keeps, how it grows, and how copies from several places become one list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdtui.fleet import journal
from pdtui.fleet.journal import Journal, merge, parse
from pdtui.topology.redact import shown_command
from tests.support.manual_clock import ManualClock


def make(folder: Path, by: str = "ann@desk") -> Journal:
    return Journal(folder, clock=ManualClock(), by=by)


def test_lines_that_are_none_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    book = make(tmp_path)
    book.write("stop", ranks=("p1/0",))
    with book.path.open("ab") as file:
        file.write(
            b'not json\n[1, 2]\n{"at": "late", "event": "x"}\n'
            b'{"at": 1e30, "event": "x"}\n\n\xff\xfe\n{"at": 5, "ev'
        )
    book.write("start", ranks=("p1/0",))  # After half a line: on a line of its own.
    read = parse(book.tail(1 << 20))
    assert [entry["event"] for entry in read.entries] == ["stop", "start"]
    assert read.bad == 6
    half = parse(book.tail(30), cut=True)
    assert (half.entries, half.bad) == ((), 0)


def test_it_grows_to_twice_its_limit_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LIMIT", 2000)
    books = [make(tmp_path, f"user{n}") for n in range(2)]
    for number in range(60):
        books[number % 2].write("stop", ranks=("p1/0",), number=number)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"journal.jsonl", "journal.jsonl.1"}
    assert all(size < 2400 for size in sizes.values())
    numbers = [entry["number"] for entry in parse(books[0].tail(1 << 20)).entries]
    assert numbers == list(range(60 - len(numbers), 60))  # The newest, without a gap.


def test_copies_of_an_entry_are_one_and_others_are_put_on_our_clock() -> None:
    ours = {"id": "1", "at": 1000.0, "event": "start", "who": "ann"}
    # Bob's laptop is an hour late; node1's clock is 50 s ahead, node2's right.
    bob = {"id": "2", "at": -2570.0 + 3600, "event": "stop", "who": "bob"}
    on_node1 = [{**ours, "received": 1051.0}, {**bob, "received": 1080.0}]
    on_node2 = [{**bob, "received": 1031.0}, {"at": 1010.0, "who": "old", "event": "stop", "operation": "op-1"}]
    merged = merge([ours], [(50.0, on_node1), (0.0, on_node2)])
    assert [(entry["who"], entry["at"]) for entry in merged] == [("ann", 1000.0), ("old", 1010.0), ("bob", 1030.0)]


def test_a_start_that_two_consoles_of_a_machine_watched_is_told_once(tmp_path: Path) -> None:
    console, command = make(tmp_path), make(tmp_path)
    command.write_ready("p/0", 1, 500.25, 22.0)
    console.write_ready("p/0", 1, 500.25, 23.0)
    console.write_ready("p/1", 1, 500.25, 21.0)
    console.write_ready("p/0", 2, 900.5, 19.0)
    told = merge(parse(console.tail(1 << 20)).entries, ())
    assert [(entry["rank"], entry["seconds"]) for entry in told] == [("p/0", 22.0), ("p/1", 21.0), ("p/0", 19.0)]


def test_secrets_of_a_command_are_not_in_it() -> None:
    line = shown_command(
        [
            "env",
            "HF_TOKEN=hf_abc",
            "sh",
            "-c",
            "curl -H 'Authorization: Bearer s3cret' --api-key k1 https://me:pw@host/x; "
            'DB_PASSWORD="two words" go --token=t2',
            "--api-key",
            "k3",
        ]
    )
    for secret in ("hf_abc", "s3cret", "k1", "pw@", "two words", "t2", "k3"):
        assert secret not in line
    assert "https://me:***@host/x" in line
    assert shown_command(["ls", "-l", "a b"]) == "ls -l 'a b'"


def test_entries_hold_what_happened_and_an_id(tmp_path: Path) -> None:
    book = make(tmp_path)
    book.write("stop", ranks=("p1/0",), reason="", override=())
    book.write("stop", ranks=("p1/0",))
    first, second = [json.loads(line) for line in book.path.read_text().splitlines()]
    assert first["id"] != second["id"]
    assert set(first) == {"id", "at", "who", "from", "event", "ranks"}
