"""The one door to the vendor tools: what changes their state, never ends or is not known cannot be sent at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pdtui
from pdtui.readings.commands import QUERIES, argv_of, may_be_sent, ping_argv
from pdtui.remote.messages.commands import Command
from tests.readings.test_commands import REFUSED

SOURCE = Path(pdtui.__file__).parent
EXEC = {"fleet/commands.py", "fleet/containers/engine.py"}
"""Where operators' own commands go through, and what makes a container, with the tools among its mounts."""


@pytest.mark.parametrize(
    "line", [line for line in REFUSED if ("ping -g" not in line and "hccn_tool" in line) or "npu-smi" in line]
)
def test_a_command_that_may_not_be_sent_cannot_be_made(line: str) -> None:
    with pytest.raises(ValueError, match="not a command that may be sent"):
        Command(tuple(line.split()))
    with pytest.raises(ValueError, match="not a command that may be sent"):
        Command(("sh", "-c", line))


def test_every_query_of_every_platform_and_device_and_the_pings_can_be_made() -> None:
    for platform, queries in QUERIES.items():
        for query in queries:
            for device in range(16):
                assert Command(argv_of(query, platform, device)).argv
    assert Command(ping_argv(3, "10.0.0.4", "roce")).argv
    assert Command(ping_argv(3, "192.1.2.199", "hccs", packets=3)).argv


@pytest.mark.parametrize(
    "line",
    [
        "hccn_tool -i 0 -ping -g address 10.0.0.4 pkt 4096",
        "hccn_tool -i 0 -hccs_ping -g address 192.1.2.199 cnt 100000",
        "hccn_tool -i 0 -ping -s address 10.0.0.4",
        "hccn_tool -i 0 -ping -g address host",
        "sudo npu-smi info",
        "timeout 5 npu-smi info",
        "/usr/local/sbin/npu-smi info",
        "rm /usr/local/sbin/npu-smi",
    ],
)
def test_what_is_only_like_them_cannot(line: str) -> None:
    assert not may_be_sent(line.split())


def test_other_programs_can_be_sent() -> None:
    assert Command(("dmesg", "-T")).argv


TEXTS = {
    path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
    for path in SOURCE.rglob("*.py")
    if "sim" not in path.relative_to(SOURCE).parts
}


def modules_with(pattern: str) -> set[str]:
    found = re.compile(pattern)
    return {name for name, text in TEXTS.items() if found.search(text)}


def test_argv_of_the_tools_are_written_in_one_place() -> None:
    assert modules_with(r"""["']hccn_tool["'],\s*["']-|["']npu-smi["'],\s*["']info""") == {"readings/commands.py"}


def test_only_preflight_pings() -> None:
    assert modules_with(r"\bping_argv\(") == {"readings/commands.py", "fleet/preflight/pinging.py"}


def test_what_is_sent_past_the_door_is_what_an_operator_types() -> None:
    assert modules_with(r"\bExecSpec\(") == EXEC, "their argv are the operator's, a shell, or an engine's"
