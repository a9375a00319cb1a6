"""The same surroundings for every test, whoever runs it; and at the end, nothing of it is left."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.engines.differences import lines_of as differences_of
from tests.faults.report import TABLE, as_markdown, as_text, lines_of
from tests.support.netns import Rack, serving
from tests.support.processes import carrying

_MARK = f"PDTUI_TESTS={uuid.uuid4().hex}"
"""Carried by every process that a test starts from its own environment."""

_HOME = pytest.StashKey[str]()

# The same examples on every run, so that a change is not judged by its luck. `--hypothesis-profile=search` looks
# for new ones, and longer.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # A busy machine is no finding.
settings.register_profile("pdtui", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT, max_examples=2000)
settings.load_profile("pdtui")


def pytest_configure(config: pytest.Config) -> None:
    """Take the user's terminal, locale, SSH agent, proxies and files away before anything of ours is imported."""
    # In the background and under nohup a shell has these ignored, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in list(os.environ):
        if name == "TEXTUAL_SNAPSHOT_TEMPDIR":
            continue  # Where workers leave the pictures from which the first process makes its report.
        if name.startswith(("LC_", "TEXTUAL", "XDG_", "TMUX", "SSH_")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "EDITOR", "VISUAL", "PDTUI_CONFIG"):
        os.environ.pop(name, None)
    # Hundreds of processes would compile the same modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    config.stash[_HOME] = home = tempfile.mkdtemp(prefix="pdtui-tests-")
    name, _, value = _MARK.partition("=")
    os.environ |= {
        name: value,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "TZ": "UTC",
        "TEXTUAL_ANIMATIONS": "none",
    }
    os.environ["PATH"] = _with_python_itself(os.environ["PATH"])
    time.tzset()
    # Textual reads its variables once, and the plugin for pictures of the screen has imported it already.
    importlib.reload(importlib.import_module("textual.constants"))


def _with_python_itself(path: str) -> str:
    """Return a PATH on which `python3` is a program: the script of a version manager takes longer than Python."""
    found = shutil.which("python3", path=path)
    if found is None:
        return path
    with Path(found).open("rb") as program:
        if program.read(2) != b"#!":
            return path
    asked = [found, "-c", "import sys; print(sys.executable)"]
    itself = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return f"{Path(itself).parent}{os.pathsep}{path}"


_WORKERS = 4
"""More than the two processors of a small machine: many tests wait for processes most of their time."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Spread whole folders over workers; single files and tests are quicker without."""
    return _WORKERS if any(Path(arg.split("::")[0]).is_dir() for arg in config.args) else 0


def pytest_collection_finish() -> None:
    """Look for garbage less often, and never among the tests themselves: that takes a seventh of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what tests wrote to their home."""
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_survives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when a process of a test is still there after the last one."""
    yield
    folder = f"{tmp_path_factory.getbasetemp()}/"
    deadline = time.monotonic() + 10.0
    while True:
        left = {process.pid: process.command for word in (_MARK, folder) for process in carrying(word)}
        if not left:
            return
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def netns_rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """Two nodes with a network and an sshd of their own. Whoever breaks something heals it."""
    folder = tmp_path_factory.mktemp("netns")
    with serving(Path(__file__).parent / "sim" / "data" / "cluster.yaml", folder / "sim") as rack:
        yield rack


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the fault table with its measured times, and the known differences from real vLLM."""
    lines = lines_of(report for reports in terminalreporter.stats.values() for report in reports)
    if lines:
        terminalreporter.section("fault table")
        for line in as_text(lines):
            terminalreporter.write_line(line)
    known = differences_of(report for reports in terminalreporter.stats.values() for report in reports)
    if known:
        terminalreporter.section("known differences from real vLLM")
        for line in known:
            terminalreporter.write_line(line)
    place = os.environ.get(TABLE)
    if lines and place:
        Path(place).write_text(f"{as_markdown(lines)}\n", encoding="utf-8")
