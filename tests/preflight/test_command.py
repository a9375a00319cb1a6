"""`pdtui preflight` as an operator calls it: exit status, JSON, report, comparison, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdtui.cli.root import root
from pdtui.errors import FileError, UsageError
from pdtui.sim.simulation import Simulation
from tests.fleet.cluster import write_file
from tests.support.processes import carrying
from tests.support.waiting import eventually

FILE = """
pdtui: 1
name: pair
platform: a2
vllm_ascend: "0.22.1rc1"
model: {path: /models/r1, served_name: ds_r1, kind: moe}
kv: {connector: MooncakeConnectorV1}
nodes:
  node1: {host: 192.0.0.1, nic: eth0}
  node2: {host: 192.0.0.2, nic: eth0}
groups:
  p: {role: prefill, nodes: [node1], dp_size: 1, tp_size: 2, api_port: 7100, rpc_port: 12321, kv_port: 14000}
  d: {role: decode, nodes: [node2], dp_size: 2, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 14200}
"""


class Terminal:
    """Calls the command as a shell would, with a home of its own."""

    def __init__(self, file: Path, home: Path) -> None:
        self._file, self._home = file, home

    async def begin(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pdtui",
            "preflight",
            str(self._file),
            *words,
            env={**os.environ, "XDG_STATE_HOME": str(self._home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *words: str) -> tuple[int | None, str, str]:
        process = await self.begin(*words)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, out.decode(), err.decode()


async def acknowledge(file: Path, home: Path, key: str, reason: str) -> None:
    """Acknowledge a finding as an operator would."""
    words = ("-m", "pdtui", "ack", str(file), key, "--reason", reason)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.slow
@pytest.mark.xdist_group("preflight-over-ssh")
async def test_it_reports_compares_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "pair.yaml"
    source.write_text(FILE)
    async with Simulation(source, tmp_path / "sim") as simulation:
        terminal = Terminal(simulation.topology_path, tmp_path / "home")
        status, out, err = await terminal.run("--only", "ssh,link,ping", "--json")
        assert status == 0, out + err
        first = json.loads(out)
        assert first["schema_version"] == 1
        assert {one["outcome"] for one in first["results"]} == {"pass"}
        assert {(one["plane"], one["outcome"]) for one in first["pings"]} == {("roce", "pass")}
        assert "[2/2]" in err

        old, report = tmp_path / "old.json", tmp_path / "report.md"
        old.write_text(out)
        await simulation.fault("link node2/1 down")
        words = ("@node2", "--only", "ssh,link", "--compare", str(old), "--report", str(report))
        status, out, err = await terminal.run(*words)
        assert status == 1
        assert "link  node2/1: link DOWN" in out
        assert "worse: link node2/1: pass -> fail" in out
        assert "only before: node node1" in out
        assert "| link | **FAIL** |" in report.read_text()
        assert "report written" in err

        await acknowledge(simulation.topology_path, tmp_path / "home", "node2/1:link", "cable is ordered")
        status, out, err = await terminal.run("@node2", "--only", "ssh,link")
        assert status == 0, out + err
        assert "acknowledged by" in out
        assert "cable is ordered" in out

        status, out, err = await terminal.run("--only", "ssh", "--report", "/dev/full")
        assert status == 2
        assert "No space left" in err
        assert "2 pass" in out

        await simulation.fault("hang node2 hccn_tool link")
        process = await terminal.begin("--only", "ssh,link", "--report", str(report))
        assert process.stderr is not None
        told = b""
        while b"[1/2]" not in told:
            told += await asyncio.wait_for(process.stderr.readline(), 60)
        process.send_signal(signal.SIGINT)
        out_bytes, err_bytes = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 130
        said = err_bytes.decode()
        assert "interrupted: 1 of 2 nodes done" in said
        assert "not done: node2" in said
        assert "Traceback" not in said
        assert "stopped early" in out_bytes.decode()
        assert "stopped before its end" in report.read_text()
        await eventually(lambda: not carrying("hccn_tool", str(simulation.node("node2").folder)))
    journal = (tmp_path / "home" / "pdtui" / "pair" / "journal.jsonl").read_text().splitlines()
    assert [entry["state"] for entry in map(json.loads, journal) if entry["event"] == "preflight"] == [
        "done"
    ] * 4 + ["stopped"]


def invoke(*words: str) -> str:
    result = CliRunner().invoke(root, ["preflight", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_what_cannot_be_done_is_said_before_any_node_is_asked(tmp_path: Path) -> None:
    file = str(write_file(tmp_path))
    with pytest.raises(UsageError, match="no check 'lnk'; did you mean link"):
        invoke(file, "--only", "ssh,lnk")
    with pytest.raises(UsageError, match="did you mean 'decode'"):
        invoke(file, "decod")
    with pytest.raises(FileError, match="No such file"):
        invoke(file, "--compare", str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="there is no folder"):
        invoke(file, "--report", str(tmp_path / "none" / "r.md"))


def test_the_checks_can_be_listed(tmp_path: Path) -> None:
    lines = invoke(str(write_file(tmp_path)), "--list").splitlines()
    assert lines[0].split() == ["ssh", "SSH", "reaches", "the", "node"]
    assert len(lines) > 30
    assert invoke("--list").splitlines() == lines
