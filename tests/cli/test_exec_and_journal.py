"""`exec` and `journal` as a shell sees them, on this machine without SSH."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pdtui.cli import exec as exec_command
from pdtui.cli import journal as journal_command
from pdtui.errors import UsageError
from tests.cli.test_fleet_commands import Box, take_terminal

WORDS = ["a b", "$HOME", "`id`", "'", '"', "\\", "前", "x\ny", "--help", "*", "--"]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """One machine for all of them: nothing is started on it."""
    made = Box(tmp_path_factory.mktemp("box"), protected=True)
    (made.folder / "home" / ".bashrc").write_text("echo chatter; echo noise >&2; export FROM_LOGIN=yes\n")
    return made


@pytest.fixture
def inside(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are called here keep their journal where those in processes of their own do."""
    monkeypatch.setenv("XDG_STATE_HOME", str(box.folder / "xdg"))
    monkeypatch.setenv("HOME", str(box.folder / "home"))


def environment(box: Box) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(box.folder / "xdg"), "HOME": str(box.folder / "home")}


def journal(box: Box, *words: str) -> Result:
    return CliRunner().invoke(journal_command.command, [str(box.file), *words], catch_exceptions=False)


def test_rank_has_its_environment_and_argv_arrives_whole(box: Box) -> None:
    script = 'printf "%s|" "$@"; echo; echo $FROM_LOGIN $HCCL_IF_IP; env; echo no >&2; exit 3'
    code, out, err = box.run_apart("exec", "FILE", "p/0", "--", "sh", "-c", script, "name", *WORDS)
    assert (code, err) == (3, "no\n")  # Nothing of what ~/.bashrc says.
    assert out.startswith("".join(f"{word}|" for word in WORDS) + "\nyes 127.0.0.1\n")
    assert f"\nPATH={box.folder}/bin:" in out  # runtime.setup
    assert "PDTUI_EXEC_SCRIPT" not in out
    assert "PDTUI_RANK" not in out  # It is no part of the rank: a stop leaves it alone.
    code, out, err = box.run_apart("exec", "FILE", "@box", "--", "printf", "%s|", *WORDS)
    assert (code, out, err) == (0, "".join(f"{word}|" for word in WORDS), "")


def test_statuses_and_words_when_it_cannot_run(box: Box, tmp_path: Path) -> None:
    assert box.run_apart("exec", "FILE", "@box", "--", "sh", "-c", "kill -9 $$")[0] == 137
    code, _, err = box.run_apart("exec", "FILE", "@box", "--", "no-such-tool")
    assert (code, err) == (127, "pdtui: @box: no-such-tool: No such file or directory\n")
    gone = tmp_path / "gone.yaml"
    text = box.file.read_text().replace("host: local", "host: 127.0.0.1")
    gone.write_text(text.replace("platform: a3", "platform: a3\nssh: {port: 1}"))
    code, _, err = box.run_apart("exec", str(gone), "@box", "--", "true")
    assert code == 255
    assert "@box: cannot be reached: 127.0.0.1:1: connection refused" in err


@pytest.mark.usefixtures("inside")
def test_what_is_refused_before_anything_is_reached(box: Box, tmp_path: Path) -> None:
    def call(*words: str) -> None:
        exec_command.command.main([str(box.file), *words], standalone_mode=False)

    with pytest.raises(UsageError, match="no command: pdtui exec FILE TARGET -- COMMAND"):
        call("p/0")
    with pytest.raises(UsageError, match="did you mean '@box'"):
        call("box", "--", "id")
    with pytest.raises(UsageError, match="name them"):
        call("failed", "--", "id")
    with pytest.raises(UsageError, match="read-only"):
        call("@box", "--read-only", "--", "touch", str(tmp_path / "x"))
    with pytest.raises(UsageError, match=f"{box.name} is protected: a command in 2 places") as refused:
        call("all", "--", "touch", str(tmp_path / "x"))
    assert refused.value.remedy == f"--confirm {box.name}"
    assert not (tmp_path / "x").exists()


def test_several_at_once_with_their_names_and_the_highest_status(box: Box) -> None:
    script = "echo on; echo bad >&2; cat; exit ${ASCEND_RT_VISIBLE_DEVICES:-0}"
    code, out, err = box.run_apart("exec", "FILE", "all", "@box", "--confirm", box.name, "--", "sh", "-c", script)
    assert code == 1  # Device 1, of d/0; p/0 and the host said 0.
    assert sorted(out.splitlines()) == ["@box       on", "d/0        on", "p/0        on"]
    assert sorted(err.splitlines()) == ["@box       bad", "d/0        bad", "p/0        bad"]


def test_input_goes_through_and_a_reader_that_leaves_ends_it(box: Box) -> None:
    argv = [sys.executable, "-m", "pdtui", "exec", str(box.file), "p/0", "--"]
    data = os.urandom(1_000_000)
    done = subprocess.run(
        [*argv, "cat"], input=data, env=environment(box), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")
    with subprocess.Popen(
        [*argv, "yes"], env=environment(box), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 141


def test_interrupt_ends_the_command_there_and_what_it_began(box: Box) -> None:
    script = "trap 'echo ended; exit 9' INT; sleep 1000 & echo $$ $!; wait"
    with box.begin("exec", "FILE", "@box", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        pids = process.stdout.readline().split()
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert (out, process.returncode) == ("ended\n", 9)
    for pid in pids:
        with suppress(FileNotFoundError):
            assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_terminal_for_one_target_and_put_back_afterwards(box: Box) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 99, 0, 0))
    before = termios.tcgetattr(slave)
    script = "stty size; read -r word; echo got:$word; exec sleep 1000"
    with subprocess.Popen(
        [sys.executable, "-m", "pdtui", "exec", str(box.file), "p/0", "--", "sh", "-c", script],
        env={key: value for key, value in environment(box).items() if key not in ("LINES", "COLUMNS")},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=take_terminal,
    ) as process:
        seen = b""

        def until(words: bytes) -> None:
            nonlocal seen
            end = time.monotonic() + 60
            while words not in seen:
                assert time.monotonic() < end, seen
                seen += os.read(master, 4096)

        until(b"31 99")
        os.write(master, b"hello\r")
        until(b"got:hello")
        os.write(master, b"\x03")
        assert process.wait(60) == 130
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


@pytest.mark.usefixtures("inside")
def test_journal_tells_who_what_where_and_the_result(box: Box) -> None:
    box.run_apart("exec", "FILE", "p/0", "--", "env", "HF_TOKEN=hf-secret", "true")
    path = box.folder / f"xdg/pdtui/{box.name}/journal.jsonl"
    who = json.loads(path.read_text().splitlines()[-1])["who"]
    told = journal(box, "p/0", "-n", "2")
    assert (told.exit_code, told.stderr) == (0, "")
    assert [line[19:] for line in told.stdout.splitlines()] == [
        f"  {who}  exec  p/0  command: env 'HF_TOKEN=***' true",
        f"  {who}  exec ended: exit 0  p/0  command: env 'HF_TOKEN=***' true",
    ]
    assert "hf-secret" not in path.read_text()
    with path.open("a") as file:
        file.write("half a li\n")
        hostile = {"id": "h", "at": 1e9, "event": "stop\x1b[31m\n", "who": "e\u202evil", "ranks": ["d/0"]}
        file.write(json.dumps(hostile) + "\n")
    told = journal(box, "d/0", "-n", "0")
    assert (told.stdout, told.stderr) == ("", f"{path}: 1 line could not be read\n")
    told = journal(box, "d/0")
    assert "evil  stop   d/0" in told.stdout
    assert "\x1b" not in told.stdout
    assert "evil" not in journal(box, "--since", "2001-09-10").stdout
    found = json.loads(journal(box, "--nodes", "--json", "-n", "1000").stdout)
    assert (found["schema_version"], found["bad_lines"]) == (1, 1)
    ids = [entry["id"] for entry in found["entries"]]
    assert len(ids) == len(set(ids))  # What is here and on the node counts once.
    assert journal(box, "--since", "soon").exit_code == 2
    with pytest.raises(UsageError, match="no target 'nobody'"):
        journal(box, "nobody")


def test_journal_of_another_console_comes_from_the_nodes(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.run_apart("exec", "FILE", "@box", "--", "true")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(box.folder / "home"))
    assert journal(box, "@box").stdout == ""
    there = journal(box, "@box", "--nodes")
    assert there.stdout.splitlines()[-1].endswith("exec ended: exit 0  @box  command: true")
    argv = [sys.executable, "-m", "pdtui", "journal", str(box.file), "@box", "--nodes", "-f", "-n", "1"]
    env = {**environment(box), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("@box  command: true\n")  # It has looked once.
        box.run_apart("exec", "FILE", "@box", "--", "sh", "-c", "exit 7")
        assert process.stdout.readline().endswith("exec  @box  command: sh -c 'exit 7'\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_journal_that_cannot_be_written_is_said_by_who_acts(box: Box, tmp_path: Path) -> None:
    path = tmp_path / "pdtui" / box.name / "journal.jsonl"
    path.mkdir(parents=True)
    env = {**environment(box), "XDG_STATE_HOME": str(tmp_path)}
    for verb, *words in (("exec", "@box", "--", "true"), ("stop", "p", "--confirm", box.name)):
        argv = [sys.executable, "-m", "pdtui", verb, str(box.file), *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert f"the journal here could not be written: {path}: Is a directory" in done.stderr
