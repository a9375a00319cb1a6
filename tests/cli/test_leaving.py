"""Leaving the console: in order whatever signal comes when, and in bounded time whatever hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

import pytest

from pdtui.cli.live import console_on
from pdtui.fleet.engine import EngineThread
from tests.fleet.cluster import write_file


class Engine:
    """Closes in several steps."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._meanwhile()
        self.closed = True


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def left(engine: Engine, show: Callable[[EngineThread], int] = lambda _: 0) -> int:
    return console_on(cast("EngineThread", engine), show)


def test_hang_up_in_the_moment_of_leaving_does_not_cut_the_end_off() -> None:
    engine = Engine(hang_up)
    assert left(engine) == 128 + signal.SIGHUP
    assert engine.closed


def test_hang_up_before_the_console_is_there_ends_it_in_order() -> None:
    engine = Engine()

    def show(_: EngineThread) -> int:
        hang_up()
        raise AssertionError("the console came all the same")

    with pytest.raises(SystemExit) as ended:
        left(engine, show)
    assert ended.value.code == 128 + signal.SIGHUP
    assert engine.closed


def test_status_of_the_console_is_that_of_the_command_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGHUP)
    assert left(Engine(), lambda _: 1) == 1
    assert signal.getsignal(signal.SIGHUP) is before


HANGING = """
import os, sys, threading, time
from pathlib import Path
from pdtui.clock import SystemClock
from pdtui.fleet.engine import EngineThread
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan

path = Path(sys.argv[1])
topology = load_checked(path)
with EngineThread(
    topology, make_plan(topology), clock=SystemClock(), read_only=True, by="ann", journal_dir=path.parent
) as handle:
    path.unlink()
    os.mkfifo(path)  # To read it takes for ever, as from a network disk that is gone.
    since = {}
    while not any(time.monotonic() - begun > 0.5 for begun in since.values()):
        alive = [thread for thread in threading.enumerate() if thread.name == "pdtui-aside"]
        since = {thread: since.get(thread, time.monotonic()) for thread in alive}
        time.sleep(0.02)
    print("hangs", flush=True)
print("left", flush=True)
"""


def test_file_on_a_disk_that_hangs_does_not_keep_the_engine_from_ending(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    path.write_text(path.read_text().replace("192.0.0.", "127.0.0."))  # Nobody listens there: refused at once.
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(path)],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["hangs", "left"]
    assert not done.stderr
