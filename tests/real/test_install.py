"""What the installation says where it cannot go on; nothing is fetched."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_vllm import RealVllm, real_vllm

INSTALL = Path(__file__).parent / "install"


def install(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it; what it would fetch cannot be reached."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    nowhere |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    return subprocess.run(
        [sys.executable, str(INSTALL), str(folder)],
        env={**os.environ, **nowhere, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def script() -> Any:
    """Return the script as a module."""
    loader = importlib.machinery.SourceFileLoader("install", str(INSTALL))
    spec = importlib.util.spec_from_loader("install", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that it ends with; never a traceback."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("install: ")
    return done.stderr


def test_without_python_3_11_it_says_how_to_get_or_name_one(tmp_path: Path) -> None:
    line = only_line(install(tmp_path / "vllm", PYTHON="no-such-python"))
    assert "no no-such-python here" in line
    assert "PYTHON=" in line
    assert not (tmp_path / "vllm").exists()


def python_that_says(version: str, folder: Path) -> str:
    """Make a program that says that it is this Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    return str(program)


def test_another_python_is_refused_with_its_version(tmp_path: Path) -> None:
    other = python_that_says("3.13", tmp_path)
    assert "is Python 3.13" in only_line(install(tmp_path / "vllm", PYTHON=other))


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = only_line(install(tmp_path / "file" / "vllm", PYTHON=python_that_says("3.11", tmp_path)))
    assert f"{tmp_path / 'file'} cannot be written to" in line


def test_full_disk_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    greedy = INSTALL.read_text(encoding="utf-8").replace("DISK = 4 * GB", "DISK = 4_000_000 * GB")
    (tmp_path / "install").write_text(greedy, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "install"), str(tmp_path / "vllm")],
        env={**os.environ, "PYTHON": python_that_says("3.11", tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "4 GB are needed" in only_line(done)
    assert not (tmp_path / "vllm").exists()


NO_MATCH = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.12.0, 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
CONFLICT = """\
ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting dependencies.
The conflict is caused by:
    The user requested torch==2.13.0+cpu
    The user requested (constraint) torch<=2.14.1
ERROR: ResolutionImpossible: for help visit the documentation
"""


@pytest.mark.parametrize("said", [NO_MATCH, CONFLICT])
def test_torch_for_cpus_that_pip_cannot_find_is_named_with_the_way_to_it(said: str) -> None:
    words = script().cause(said)
    assert "torch==2.13.0+cpu" in words
    assert "pytorch.org" in words
    assert "PIP_EXTRA_INDEX_URL" in words


@pytest.mark.slow
def test_without_a_network_it_says_so_and_goes_on_from_there_later(tmp_path: Path) -> None:
    python = Path("/usr/bin/python3.11")
    if not python.exists():
        pytest.skip("no Python 3.11 of the system here")
    checks = script()
    try:
        checks.check_machine()
        checks.check_room(tmp_path, installed=False)
    except checks.Problem as problem:
        pytest.skip(str(problem))
    first = install(tmp_path / "vllm", PYTHON=str(python))
    assert "no network: pip did not reach its package index" in only_line(first)
    made = (tmp_path / "vllm" / "venv" / "pyvenv.cfg").stat().st_mtime_ns
    again = install(tmp_path / "vllm", PYTHON=str(python))
    assert "no network" in only_line(again)
    assert (tmp_path / "vllm" / "venv" / "pyvenv.cfg").stat().st_mtime_ns == made


@pytest.mark.real
def test_what_is_there_is_kept(tmp_path: Path) -> None:
    real: RealVllm = real_vllm()
    done = install(real.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("there already") == 4, done.stdout
