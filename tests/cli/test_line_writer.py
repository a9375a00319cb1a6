"""Lines to a reader that has stopped, or is gone: whoever writes them goes on."""

from __future__ import annotations

import os
import threading

import pytest

from pdtui.cli import line_writer
from pdtui.cli.line_writer import KEPT, LineWriter


def test_lines_come_in_order_and_all_before_the_end() -> None:
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        writer = LineWriter(lambda error: pytest.fail(str(error)), descriptor=write)
        for number in range(100):
            writer.write(f"line {number} 前")
        assert writer.close() == 0
        os.close(write)
        assert reader.read().splitlines() == [f"line {number} 前" for number in range(100)]


def test_a_reader_that_has_stopped_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "LEAVE", 0.05)
    read, write = os.pipe()
    gone = threading.Event()
    writer = LineWriter(lambda _: gone.set(), descriptor=write)
    for _ in range(KEPT + 100):
        writer.write("x" * 100)
    lost = writer.close()
    os.close(read)
    assert gone.wait(30)
    os.close(write)
    assert 100 <= lost <= KEPT + 100


def test_a_reader_that_is_gone_is_said_once() -> None:
    read, write = os.pipe()
    os.close(read)
    failed: list[OSError] = []
    told = threading.Event()

    def note(error: OSError) -> None:
        failed.append(error)
        told.set()

    writer = LineWriter(note, descriptor=write)
    writer.write("one")
    assert told.wait(30)
    writer.write("two")
    assert writer.close() == 1
    assert len(failed) == 1
    os.close(write)
