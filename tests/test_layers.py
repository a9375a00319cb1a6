"""The house has floors: each package is imported alone, in a process of its own, and must not reach up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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

LOAD = "import json, sys; import pdtui.cli.root, pdtui.cli.{}; print(json.dumps(sorted(sys.modules)))"

PACKAGES = sorted(path.parent.name for path in Path(pdtui.__file__).parent.glob("*/__init__.py"))


def modules_after(*command: str) -> set[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_package_has_a_floor() -> None:
    assert set(PACKAGES) == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_package_imports_only_what_lies_below(package: str) -> None:
    loaded = modules_after("-c", IMPORT_ALL, package)
    floors = {name.split(".")[1] for name in loaded if name.startswith("pdtui.")} & set(ALLOWED)
    assert floors - {package} <= ALLOWED[package]
    if package not in {"console", "cli"}:
        assert not loaded & {"textual", "rich"}
    if package in {"topology", "readings"}:
        assert not loaded & {"asyncssh", "aiohttp"}
    if package == "sim":
        assert not {f"pdtui.topology.{module}" for module in UNPLANNED} & loaded


@pytest.mark.parametrize("command", ["check", "plan", "schema", "read"])
def test_static_commands_start_light(command: str) -> None:
    assert not modules_after("-c", LOAD.format(command)) & {"asyncssh", "aiohttp", "textual", "rich"}


LIVE = ["status", "start", "stop", "restart", "logs", "ask", "preflight", "watch", "ack"]


@pytest.mark.parametrize("command", LIVE)
def test_live_commands_load_neither_the_console_nor_a_proxy_that_nobody_asks(command: str) -> None:
    assert not modules_after("-c", LOAD.format(command)) & {"textual", "rich", "aiohttp"}
