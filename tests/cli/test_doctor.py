"""`pdtui doctor`: the installed command in bad surroundings; agents, packages, terminals."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pdtui.cli.doctor import machine, ssh, terminal
from pdtui.cli.doctor.aside import Aside
from pdtui.cli.doctor.cluster import nodes_section
from pdtui.cli.doctor.items import Section, as_text, fail
from pdtui.cli.doctor.redaction import Redaction
from pdtui.clock import SystemClock
from pdtui.fleet.examination import NodeExamination, Trouble, examine
from pdtui.fleet.snapshot import Condition
from pdtui.remote.messages.commands import Facts
from pdtui.topology.load import load, load_bytes
from tests.acceptance.served import PDTUI
from tests.support.raw_terminal import RawTerminal

FILE = """
pdtui: 1
name: seen
platform: a3
vllm_ascend: "0.22.1rc1"
runtime: {{setup: [{folder}/setup.sh], state_dir: {folder}/state}}
model: {{path: /models/none, served_name: tiny, kind: dense}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  here: {{host: local, address: 127.0.0.1, nic: lo}}
  gone: {{host: 127.0.0.2, nic: lo, ssh: {{port: {port}, user: operator-ann, config: {folder}/none}}}}
groups:
  p: {{role: prefill, nodes: [here], dp_size: 1, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  d: {{role: decode, nodes: [gone], dp_size: 1, tp_size: 1, api_port: 7100, rpc_port: 12421, kv_port: {kv}}}
"""


def write_file(folder: Path, port: int, *, kv: int = 14100) -> Path:
    """Write a cluster of this machine and of a node at a port of ours; the KV port 20001 is an error."""
    (folder / "none").touch()
    path = folder / "seen.yaml"
    path.write_text(FILE.format(folder=folder, port=port, kv=kv))
    return path


def doctor(env: Mapping[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [PDTUI, "doctor", *map(str, words)],
        env={**kept, **env},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )


def item(report: Mapping[str, Any], section: str, name: str, *, level: str = "") -> dict[str, str]:
    """Return the one item of that name (and level)."""
    (part,) = [part for part in report["sections"] if part["name"] == section]
    found = [one for one in part["items"] if one["name"] == name and (not level or one["level"] == level)]
    assert len(found) == 1, part
    return dict(found[0])


def test_unusable_home_no_terminal_and_no_locale_are_warnings_and_no_secret_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where the home should be")
    secrets = {"VLLM_API_KEY": "sk-hush", "SSH_AUTH_SOCK": str(tmp_path / "nobody")}
    done = doctor({"HOME": str(home), "LC_ALL": "POSIX", **secrets}, "--json")
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stderr
    assert "sk-hush" not in done.stdout
    report = json.loads(done.stdout)
    assert report["schema_version"] == 1
    assert report["verdict"] == "warn"
    assert [part["name"] for part in report["sections"]] == ["machine", "terminal", "ssh", "files", "simulation"]
    assert item(report, "machine", "locale")["level"] == "warn"
    assert item(report, "terminal", "glyphs")["text"] == "ascii (LC_ALL=POSIX)"
    assert item(report, "terminal", "colours")["text"].startswith("16")
    assert item(report, "ssh", "agent")["level"] == "warn"
    journal = item(report, "files", "journal")
    assert journal["level"] == "warn"
    assert f"{home} is no folder" in journal["text"]
    assert "XDG_STATE_HOME" in journal["remedy"]
    assert report["attach"][0]["what"] == "pdtui doctor --json > doctor.json"


def test_narrow_terminal_that_draws_signs_wide_and_broken_files_of_the_user(tmp_path: Path) -> None:
    config, state = tmp_path / "config" / "pdtui", tmp_path / "state" / "pdtui"
    (config / "themes").mkdir(parents=True)
    (config / "keys.toml").write_text("stop = [")
    (config / "themes" / "mine.toml").write_text('name = "mine"\n[colors]\nprimary = "no-colour"\n')
    state.mkdir(parents=True)
    (state / "crash-20260101-000000-1.log").write_text("Traceback")
    env = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with RawTerminal([PDTUI, "doctor"], size=(60, 20), env=env) as shown:
        deadline = time.monotonic() + 60.0
        answered = 0
        while shown.process.poll() is None:
            assert time.monotonic() < deadline
            shown.read(0.05)
            while shown.output.count(b"\x1b[6n") > answered:
                # Wide for the first set, as a terminal of a Chinese locale draws it, right for the second.
                shown.type(b"\x1b[1;21R" if answered == 0 else b"\x1b[1;15R")
                answered += 1
        shown.read(0.05)
        assert shown.process.returncode == 0, shown.output.decode()
    text = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", shown.output.decode()).replace("\r", "")
    said = " ".join(text.split())
    assert "the terminal draws 14 signs 20 cells wide" in said
    assert "pdtui --glyphs narrow FILE" in said
    assert "keys.toml" in said
    assert "mine.toml" in said
    assert f"- {state}/crash-20260101-000000-1.log" in said
    # Only what cannot be broken (paths, commands, bars of colours) is longer than the terminal is wide.
    long = [line for line in text.splitlines() if len(line) > 60 and " " in line.strip().removeprefix("-> ")]
    assert not [line for line in long if "/" not in line and "pdtui" not in line], long


def test_file_with_an_error_and_a_node_that_is_down_are_failing_and_the_rest_is_told(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.2", 0))  # Nobody listens on it, and nobody else gets it.
        folder = tmp_path / "bob-here" / "operator-ann"  # Who looks, and whom the file names.
        folder.mkdir(parents=True)
        file = write_file(folder, closed.getsockname()[1], kv=20001)
        env = {"HOME": str(tmp_path), "LOGNAME": "bob-here", "LANG": "C.UTF-8"}
        done = doctor(env, "--json", "--redact", file)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "fail"
    assert item(report, "file", "findings", level="fail")["text"].startswith("1 error, 0 warnings; the first: ")
    assert re.fullmatch("[0-9a-f]{64}", item(report, "file", "sha256")["text"])
    gone = item(report, "nodes", "gone")
    assert gone["level"] == "fail"
    assert "connection refused" in gone["text"]
    assert "sshd" in gone["remedy"]
    nodes = next(part["items"] for part in report["sections"] if part["name"] == "nodes")
    here = " ".join(one["text"] for one in nodes if one["name"] == "here" and one["level"] == "ok")
    assert "this machine" in here
    assert "Python 3." in here
    assert "agent's protocol 1" in here
    assert "which takes a start" in here
    assert any("seen.yaml" in one["what"] for one in report["attach"])
    assert "127.0.0.2" not in done.stdout
    assert "bob-here" not in done.stdout
    assert "operator-ann" not in done.stdout
    assert socket.gethostname() not in done.stdout
    assert str(tmp_path) not in done.stdout


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    done = doctor({"HOME": str(tmp_path)}, tmp_path / "none.yaml")
    assert done.returncode == 2
    assert "none.yaml" in done.stderr
    assert not done.stdout


def test_damaged_package_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    (tmp_path / "asyncssh.py").write_text("raise ImportError('its C library is gone')\n")
    file = write_file(tmp_path, 1)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = doctor({"HOME": str(tmp_path), "LANG": "C.UTF-8", "PYTHONPATH": path}, file)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert re.search(r"fail +asyncssh +.*its C library is gone", done.stdout)
    assert re.search(r"fail +nodes +cannot be reached: its C library is gone", done.stdout)
    assert re.search(r"ok +pdtui demo ", done.stdout) or re.search(r"warn +pdtui demo ", done.stdout)


@pytest.mark.parametrize("words", [["status"], ["start"], ["ask"], ["logs"], ["exec"]], ids=str)
def test_damaged_package_is_no_traceback_anywhere(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "asyncssh.py").write_text("raise ImportError('its C library is gone')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    more = {"ask": ["hello"], "exec": ["node1", "--", "true"], "logs": ["p/0"]}.get("".join(words), [])
    done = subprocess.run(
        [sys.executable, "-m", "pdtui", *words, str(write_file(tmp_path, 1)), *more],
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "its C library is gone" in done.stderr
    assert "pdtui doctor" in done.stderr


async def test_node_that_says_nothing_holds_up_no_other(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.2", 0))
        silent.listen()
        loaded = load(write_file(tmp_path, silent.getsockname()[1]))
        assert loaded.topology is not None
        async with asyncio.timeout(60):
            here, gone = await examine(loaded.topology, clock=SystemClock(), patience=5.0)
    assert here.connection is None
    assert here.state is None
    assert here.round_trip is not None
    assert here.clock_offset is not None
    assert gone.host is None
    assert gone.connection is not None
    assert "no answer within 5 s" in gone.connection.message
    assert gone.connection.remedy


def test_container_state_clock_and_conditions_of_a_node_are_told_with_remedies(tmp_path: Path) -> None:
    text = write_file(tmp_path, 1).read_text().replace("runtime: {", "runtime: {container: box, ")
    topology = load_bytes(text.encode(), tmp_path / "seen.yaml").topology
    assert topology is not None
    facts = Facts(1, "3.6.8", "ann", 1000, "far", "m", "b", 0.0, "/var/lib/pdtui", in_container=True)
    stopped = NodeExamination("here", host=facts, connection=Trouble("container box is not running", "start it"))
    full = NodeExamination(
        "gone",
        host=facts,
        ranks=facts,
        round_trip=0.9,
        clock_offset=-42.0,
        state=Trouble("disk full", "free space"),
        conditions=(
            Condition("logout", "ranks end with the login", "as root"),
            Condition("no-state", "none", "x"),
        ),
    )
    items = nodes_section(topology, (stopped, full)).items
    told = {(one.name, one.level, one.text.partition(" (")[0], one.remedy.partition(" ")[0]) for one in items}
    assert ("here", "fail", "container box is not running", "start") in told
    assert ("gone", "fail", "disk full", "free") in told
    assert ("gone", "warn", "answers slowly", "pdtui") in told
    assert ("gone", "warn", "its clock is 42.0 s behind ours", "pdtui") in told
    assert ("gone", "warn", "ranks end with the login", "as") in told
    assert ("gone", "fail", "none", "x") in told
    assert ("gone", "ok", "container box: ann@far, Python 3.6.8, agent's protocol 1", "") in told
    assert not [one for one in items if "takes a start" in one.text]


def agent(path: Path, answer: bytes) -> threading.Thread:
    """Serve one request as an SSH agent does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(64)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def packed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_keys_of_the_agent_are_told_by_name_and_type_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = packed(packed(b"ssh-ed25519") + packed(b"BLOB")) + packed(b"ann@desk\x1b[31m")
    serving = agent(tmp_path / "agent", packed(struct.pack(">BI", 12, 1) + keys))
    (tmp_path / ".ssh").mkdir()
    for name, text in {"id_rsa": "PRIVATE", "id_rsa.pub": "ssh-rsa AAAA me", "config": "Host a\nHost b\n"}.items():
        (tmp_path / ".ssh" / name).write_text(text)
    (tmp_path / ".ssh" / "id_rsa").chmod(0o644)
    found = ssh.section({"SSH_AUTH_SOCK": str(tmp_path / "agent")})
    serving.join()
    text = "\n".join(as_text([found], None))
    assert "holds ann@desk (ssh-ed25519)" in text
    assert "id_rsa (ssh-rsa) may be read by others" in text
    assert "2 Host" in text
    assert "BLOB" not in text
    assert "PRIVATE" not in text
    assert "AAAA" not in text


@pytest.mark.parametrize("answer", [b"", b"\x00\x00\x00\x05\x0c\x00\x00\x00\x09", b"\xff\xff\xff\xff"])
def test_agent_that_talks_nonsense_is_a_warning(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    serving = agent(tmp_path / "agent", answer)
    found = ssh.section({"SSH_AUTH_SOCK": str(tmp_path / "agent")})
    serving.join()
    assert found.items[0].level == "warn"


def test_packages_that_are_too_old_too_new_or_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"asyncssh": "2.9", "textual": "9.0.1", "aiohttp": "3.10", "click": "8.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    needs = ["asyncssh>=2.17", "textual==8.2.8", "aiohttp>=3.10", "PyYAML>=6.0", 'pytest>=8; extra == "test"']
    monkeypatch.setattr(metadata, "requires", lambda _: needs)
    found = {one.name: one for one in machine.section({"LANG": "C.UTF-8"}).items}
    assert found["asyncssh"].level == "fail"
    assert "2.9 is too old: pdtui needs >=2.17" in found["asyncssh"].text
    assert "pip install 'asyncssh>=2.17'" in found["asyncssh"].remedy
    assert found["textual"].level == "warn"
    assert "newer than the 8.2.8" in found["textual"].text
    assert found["PyYAML"].level == "fail"
    assert "aiohttp" not in found
    assert "pytest" not in found["packages"].text


@pytest.mark.parametrize(("setting", "level"), [("external", "warn"), ("off", "warn"), ("on", "ok")])
def test_tmux_that_keeps_the_clipboard_to_itself_is_told(
    setting: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmux = tmp_path / "tmux"
    says = f"*set-clipboard*) echo {setting};; *escape-time*) echo 500;; *) echo tmux 3.3a;;"
    tmux.write_text("#!/bin/sh\n" + f'case "$*" in {says} esac\n')
    tmux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = terminal.section({"TMUX": "x", "TERM": "xterm-256color", "LANG": "zh_CN.UTF-8"}).items
    assert [one.level for one in found if one.name == "clipboard"] == [level]
    assert [one.remedy for one in found if one.name == "tmux"] == [
        "tmux set -g default-terminal tmux-256color",
        "tmux set -s escape-time 20",
    ]
    assert [one.text for one in found if one.name == "glyphs"] == ["narrow (LANG=zh_CN.UTF-8)"]


def test_dumb_terminal_is_a_failure_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    environ = {"TERM": "dumb", "LANG": "C.UTF-8"}
    assert terminal.section(environ).items[0].level == "ok"
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdin", Screen())
    monkeypatch.setattr(sys, "stdout", Screen())
    assert terminal.section(environ).items[0].level == "fail"


def test_look_that_hangs_or_breaks_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdtui.cli.doctor.aside.PATIENCE", 0.1)
    over = threading.Event()
    hanging = Aside(over.wait)
    assert hanging.result() is None
    assert "does a file system hang?" in hanging.error
    over.set()
    monkeypatch.setattr("pdtui.cli.doctor.aside.PATIENCE", 30.0)
    broken = Aside(lambda: Path("/nowhere/at/all").stat())
    assert broken.result() is None
    assert "FileNotFoundError" in broken.error
    assert Aside(lambda: 7).result() == 7


def test_redaction_gives_each_name_one_word_and_touches_nothing_else() -> None:
    redaction = Redaction("/home/ann", ["ann", "root"], ["box", "box-1", "local"])
    words = redaction.text(
        "ann@box-1 and ann@box: /home/ann/x /home/anna/x annual 10.0.0.1:22 3.11.7 SHA256:Ab/+="
    )
    assert words == (
        "<user-1>@<host-2> and <user-1>@<host-1>: ~/x /home/anna/x annual <address>:22 3.11.7 <fingerprint>"
    )


def test_hostile_texts_are_cleaned() -> None:
    text = "\n".join(as_text([Section("nodes", (fail("n\x1b]0;x\x07", "a\x1b[2Jb\nc", "d\x9bm"),))], None))
    assert "\x1b]" not in text
    assert "[2J" not in text
    assert "ab c" in text
