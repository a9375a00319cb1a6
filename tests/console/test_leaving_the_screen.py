from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from pdtui.console import suspend
from pdtui.console.app import ConsoleApp
from pdtui.console.clipboard import tail_that_fits
from pdtui.console.crash import write_report
from pdtui.topology.model import Node, SshOptions
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet


def test_a_shell_has_the_options_of_the_file() -> None:
    options = SshOptions(
        user="root",
        port=2222,
        key=Path("/k"),
        jump="ops@bastion",
        known_hosts=Path("/kh"),
        config=Path("/cfg"),
        connect_timeout=7.0,
    )
    argv = suspend.shell_argv(Node("node1", "192.0.0.1", "192.0.0.1", "eth0", options))
    assert argv == [
        *("ssh", "-t", "-F", "/cfg", "-l", "root", "-p", "2222", "-i", "/k", "-J", "ops@bastion"),
        *("-o", "UserKnownHostsFile=/kh", "-o", "ConnectTimeout=7", "--", "192.0.0.1"),
    ]


def test_a_shell_on_this_machine_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert suspend.shell_argv(Node("here", "local", "127.0.0.1", "lo")) == ["/bin/zsh"]


def test_a_host_that_looks_like_an_option_is_none() -> None:
    argv = suspend.shell_argv(Node("node1", "-oProxyCommand=id", "192.0.0.1", "eth0"))
    assert argv[-2:] == ["--", "-oProxyCommand=id"]


def test_the_editor_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "emacs -nw")
    assert suspend.editor_argv(Path("a b.yaml")) == ["emacs", "-nw", "a b.yaml"]
    monkeypatch.setenv("VISUAL", "code --wait")
    assert suspend.editor_argv(Path("x"))[0] == "code"


def test_ctrl_c_in_the_other_program_does_not_end_the_console() -> None:
    before = signal.getsignal(signal.SIGINT)
    status = suspend.run_foreground(["sh", "-c", "kill -INT $PPID; exit 3"])
    assert status == 3
    assert signal.getsignal(signal.SIGINT) is before


async def test_what_cannot_be_handed_over_is_said() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("e")
        assert "the terminal cannot be handed over here" in screen.text
        await screen.press("s")
        assert screen.app.is_running


def test_a_report_names_the_error_and_holds_no_values_of_variables(tmp_path: Path) -> None:
    def fail() -> None:
        password = "hunter2-very-secret"
        raise ValueError(f"of {len(password)} characters\x1b[2J")

    try:
        fail()
    except ValueError as error:
        line = write_report(error)
    assert line.startswith("pdtui console failed: ValueError: of 19 characters; details in ")
    assert "\x1b" not in line
    (path,) = (tmp_path / "state" / "pdtui").glob("crash-*.log")
    text = path.read_text()
    assert "in fail" in text
    assert "hunter2" not in text.replace('password = "hunter2-very-secret"', "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_report_that_cannot_be_written_is_no_second_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    assert "details in -" in write_report(ValueError("x"))


async def test_a_crash_goes_to_a_file_and_leaves_one_line(tmp_path: Path) -> None:
    apps: list[ConsoleApp] = []

    async def fail() -> None:
        async with console(FakeFleet.healthy()) as screen:
            apps.append(screen.app)
            screen.app.main.do_poll = lambda: 1 // 0  # type: ignore[method-assign, assignment]
            await screen.press("c")

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert apps[0].crash_line.startswith("pdtui console failed: ZeroDivisionError")
    assert list((tmp_path / "state" / "pdtui").glob("crash-*.log"))


def test_whole_lines_from_the_end_are_copied() -> None:
    assert tail_that_fits("a\nbb\nccc", 100) == ("a\nbb\nccc", True)
    assert tail_that_fits("aaaa\nbbbb\ncccc", 8) == ("cccc", False)
    assert tail_that_fits("x\x1b]52;c;aGk=\x07y", 100) == ("xy", True)


async def test_what_a_pane_shows_can_be_copied() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("d", "tab", "y")
        assert "node: node3  192.0.0.3" in screen.app.clipboard
        assert "very-secret" not in screen.app.clipboard
        assert "lines sent to the terminal's clipboard" in screen.text
