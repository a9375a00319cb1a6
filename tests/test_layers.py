"""The house has floors: each package is imported alone, in a process of its own, and must not reach up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pdtui

ALLOWED = {
    "topology": set(),
    "readings": {"topology"},
    "remote": {"readings", "topology"},
    "sim": {"topology"},
    "proxy": {"readings", "topology"},
    "fleet": {"proxy", "remote", "readings", "topology"},
    "console": {"fleet", "proxy", "remote", "readings", "topology"},
    "cli": {"console", "fleet", "proxy", "sim", "remote", "readings", "topology"},
}
"""Package -> packages below it that it may import (proxy, sim and remote are neighbours)."""

UNPLANNED = {"planner", "plan", "ports", "script"}
"""Modules of topology that the simulator must not know, or it would confirm every formula's bug."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module("pdtui." + sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith(".__main__"):
        importlib.import_module(found.name)
print(json.dumps(sorted(sys.modules)))
"""

LOAD_ONE_AFTER_THE_OTHER = """
import importlib, json, sys
import pdtui.cli.root
loaded = {}
for command in sys.argv[1:]:
    importlib.import_module("pdtui.cli." + command)
    loaded[command] = sorted(sys.modules)
print(json.dumps(loaded))
"""

STATIC = ("check", "plan", "render", "schema", "read")
LIVE = ("status", "start", "stop", "restart", "logs", "ask", "preflight", "watch", "ack")

PACKAGES = sorted(path.parent.name for path in Path(pdtui.__file__).parent.glob("*/__init__.py"))


def answer_of(*command: str) -> Any:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_package_has_a_floor() -> None:
    assert set(PACKAGES) == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_package_imports_only_what_lies_below(package: str) -> None:
    loaded = set(answer_of("-c", IMPORT_ALL, package))
    floors = {name.split(".")[1] for name in loaded if name.startswith("pdtui.")} & set(ALLOWED)
    assert floors - {package} <= ALLOWED[package]
    if package not in {"console", "cli"}:
        assert not loaded & {"textual", "rich"}
    if package in {"topology", "readings"}:
        assert not loaded & {"asyncssh", "aiohttp"}
    if package == "sim":
        assert not {f"pdtui.topology.{module}" for module in UNPLANNED} & loaded


def guilty(commands: Sequence[str], heavy: set[str]) -> dict[str, set[str]]:
    """Return which of some commands load what they should not; in one interpreter: the first named did it."""
    loaded = answer_of("-c", LOAD_ONE_AFTER_THE_OTHER, *commands)
    return {command: heavy.intersection(names) for command, names in loaded.items() if heavy & set(names)}


def test_static_commands_start_light() -> None:
    assert not guilty(STATIC, {"asyncssh", "aiohttp", "textual", "rich"})


def test_live_commands_load_neither_the_console_nor_a_proxy_that_nobody_asks() -> None:
    assert not guilty(LIVE, {"textual", "rich", "aiohttp"})
