"""The console in a real terminal over a simulated cluster, as an operator uses it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdtui.console.bell import QUIET_AT_FIRST
from tests.acceptance.served import PDTUI, Served, serve
from tests.acceptance.test_command_line import host_pid
from tests.support.raw_terminal import RawTerminal
from tests.support.required import skip_unless
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420), pytest.mark.xdist_group("terminals")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    skip_unless(shutil.which("tmux") is not None, "tmux is not installed")
    with serve(tmp_path_factory.mktemp("served")) as served:
        assert served.run("start", "FILE", "all").returncode == 0
        yield served


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=["120x40", "80x24"])
def test_operator_sees_a_fault_and_puts_it_right(cluster: Served, tmp_path: Path, size: tuple[int, int]) -> None:
    with Terminal([PDTUI, cluster.topology], socket=tmp_path / "tmux", size=size, env=cluster.env) as terminal:
        terminal.until("SERVING", "P 4/4", "D 8/8")

        terminal.press("t")
        terminal.until("via embedded proxy")
        terminal.type("Who are you?")
        terminal.press("Enter")
        terminal.until("tokens", "stop", "decode/")
        terminal.press("Escape")

        os.kill(host_pid(cluster, "PDTUI_RANK=demo:decode/3", "VLLM::EngineCore"), signal.SIGKILL)
        terminal.until("decode/3", "failed", within=60.0)
        terminal.until("D 0/8", within=60.0)

        terminal.press("R")
        terminal.until("Cancel", "decode")
        terminal.press("Tab", "Enter")
        terminal.until("SERVING", "D 8/8", within=90.0)

        cluster.fault("link node3/9 down")
        try:
            terminal.until("node3 NPU 9", within=75.0)
        finally:
            cluster.fault("link node3/9 up")
        leave(terminal)


def leave(terminal: Terminal) -> None:
    """Press q; a start counts as running until its last look at the nodes, and then leaving asks first."""
    terminal.press("q")
    deadline = time.monotonic() + 90.0
    while any(word in terminal.screen() for word in ("? help", "[ Cancel ]")):
        assert time.monotonic() < deadline, terminal.screen()
        if "[ Cancel ]" in terminal.screen():
            terminal.press("Tab", "Enter")
        time.sleep(0.1)


def test_demo_command_opens_a_console_on_a_cluster_that_comes_up(tmp_path: Path) -> None:
    skip_unless(shutil.which("tmux") is not None, "tmux is not installed")
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(home / "run")}
    argv = ["sh", "-c", '"$0" demo; echo "ended with $?"', PDTUI]
    with Terminal(argv, socket=tmp_path / "tmux", size=(120, 40), env=env) as terminal:
        terminal.until("SERVING", "P 4/4", "D 8/8", within=90.0)
        leave(terminal)
        terminal.until("ended with 0", within=60.0)


def test_terminal_that_cannot_show_the_console_is_told_so(cluster: Served) -> None:
    done = cluster.run("FILE")
    assert done.returncode == 2
    assert "status" in done.stderr
    assert "Traceback" not in done.stderr


def states(cluster: Served) -> set[str]:
    return {rank["state"] for rank in cluster.ranks().values()}


def test_engine_goes_on_while_the_terminal_is_frozen_and_the_console_recovers(cluster: Served) -> None:
    assert cluster.run("stop", "FILE", "all").returncode == 0
    with RawTerminal([PDTUI, cluster.topology], size=(120, 40), env=cluster.env) as terminal:
        terminal.until(b"STOPPED", b"S starts all")
        opened = time.monotonic()
        terminal.type(b"S")
        deadline = time.monotonic() + 90.0
        while states(cluster) != {"ready"}:
            assert time.monotonic() < deadline, cluster.ranks()
            terminal.type(b"\t" * 50)
        assert terminal.waiting > 1000, "nobody has read what the console writes"
        terminal.until(b"SERVING", b"8/8", b"done", within=60.0)
        assert b"\x1b]9;" not in terminal.output, "nothing got worse"
        while time.monotonic() < opened + QUIET_AT_FIRST + 2.0:
            terminal.type(b"\t")  # Whoever has just opened it is looking, and is not called.
            time.sleep(0.1)
        cluster.fault("link node3/9 down")
        try:
            terminal.type(b"c")
            terminal.until(b"\a\x1b]9;pdtui demo: node3/9 ", within=90.0)
        finally:
            cluster.fault("link node3/9 up")
        terminal.type(b"q")
        assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_console_and_gives_the_terminal_back(cluster: Served, number: signal.Signals) -> None:
    with RawTerminal([PDTUI, cluster.topology], size=(80, 24), env=cluster.env) as terminal:
        terminal.until(b"SERVING")
        assert terminal.modes_now != terminal.modes, "raw while the console runs"
        terminal.process.send_signal(number)
        assert terminal.ended() == 128 + number
        assert terminal.modes_now == terminal.modes
        assert b"\x1b[?1049l" in terminal.output, "back from the alternate screen"
        assert b"Traceback" not in terminal.output
    assert states(cluster) == {"ready"}


def test_console_ends_also_when_its_terminal_has_frozen_or_gone(cluster: Served) -> None:
    with RawTerminal([PDTUI, cluster.topology], size=(120, 40), env=cluster.env) as terminal:
        terminal.until(b"SERVING")
        terminal.fill()
        terminal.process.send_signal(signal.SIGHUP)
        assert terminal.process.wait(60.0) == 128 + signal.SIGHUP
        assert terminal.modes_now == terminal.modes


@pytest.mark.parametrize("frozen", [False, True])
def test_console_ends_with_its_terminal_where_nobody_tells_it(cluster: Served, frozen: bool) -> None:
    """It leads a session that the terminal does not control, so the kernel sends it no signal."""
    with RawTerminal([PDTUI, cluster.topology], size=(80, 24), env=cluster.env) as terminal:
        terminal.until(b"SERVING")
        if frozen:
            terminal.fill()
        terminal.close()
        assert terminal.process.wait(60.0) == 128 + signal.SIGHUP
