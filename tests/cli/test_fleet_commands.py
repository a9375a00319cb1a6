"""`status`, `start`, `stop`, `restart`, `logs` and `ask` as a shell sees them, on this machine without SSH."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pdtui.cli.actions import confirm, dry_run, no_rank
from pdtui.cli.ask import Printer, trace_line
from pdtui.cli.live import OTHERS, settle_for
from pdtui.cli.status import as_dict, as_text
from pdtui.fleet.intents import StartRanks, StopRanks
from pdtui.fleet.snapshot import Diagnosis, NodeState, NpuStatus, RankState
from pdtui.fleet.targets import in_short
from pdtui.fleet.troubles import healthy
from pdtui.proxy.interface import AskProgress
from pdtui.readings.verdict import Reason, Verdict
from tests.fleet.cluster import ALL, Cluster
from tests.support.command import pdtui
from tests.support.ports import free_ports
from tests.support.processes import carrying

FILE = """
pdtui: 1
name: {name}
platform: a3
vllm_ascend: "0.22.1rc1"
safety: {{protected: {protected}}}
runtime: {{setup: [{folder}/setup.sh], state_dir: {folder}/state}}
model: {{path: /models/none, served_name: tiny, kind: dense}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  box: {{host: local, address: 127.0.0.1, nic: lo}}
groups:
  p:
    {{role: prefill, nodes: [box], devices: [0], dp_size: 1, tp_size: 1,
      api_port: {api}, rpc_port: 12321, kv_port: 14000}}
  d:
    {{role: decode, nodes: [box], devices: [1], dp_size: 1, tp_size: 1,
      api_port: {api2}, rpc_port: 12421, kv_port: 14100}}
"""

SERVER = """#!{python}
import http.server, sys
print("Starting to load model", flush=True)
if "{dies}" in sys.argv:
    print("ERROR boom: no weights", flush=True)
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
print("Application startup complete.", flush=True)
http.server.HTTPServer(("0.0.0.0", port), Handler).serve_forever()
"""


def take_terminal() -> None:
    """Make stdin the controlling terminal, so that Ctrl-C reaches the command."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Box:
    """This machine as a cluster of two ranks."""

    def __init__(self, folder: Path, *, protected: bool = False) -> None:
        self.folder = folder
        # Nobody else's: whoever looks at this machine takes what carries the name for ranks of the cluster.
        self.name = f"here-{os.getpid()}"
        self.ports = free_ports(2)
        (folder / "bin").mkdir()
        self.serve()
        (folder / "setup.sh").write_text(f"export PATH={folder}/bin:$PATH\n")
        (folder / "home").mkdir()
        self.file = folder / "here.yaml"
        self.file.write_text(
            FILE.format(
                name=self.name,
                folder=folder,
                protected=str(protected).lower(),
                api=self.ports[0],
                api2=self.ports[1],
            )
        )

    def serve(self, dies: str = "--never") -> None:
        """Install the server; with a word of `dies` in its command line it ends at once."""
        server = self.folder / "bin" / "vllm"
        server.write_text(SERVER.format(python=sys.executable, dies=dies))
        server.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """Where a command finds what is an operator's own."""
        return {"XDG_STATE_HOME": str(self.folder / "xdg"), "HOME": str(self.folder / "home")}

    def words(self, *words: str) -> list[str]:
        """Return words with the file's name for `FILE`."""
        return [str(self.file) if word == "FILE" else word for word in words]

    def begin(self, *words: str, terminal: int | None = None) -> subprocess.Popen[str]:
        """Start a command; on a terminal it has stdin and stderr there, and a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pdtui", *self.words(*words)],
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
            start_new_session=terminal is not None,
            preexec_fn=None if terminal is None else take_terminal,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command in this process, which has imported all that it needs."""
        with mock.patch.dict(os.environ, self.env):
            done = pdtui(*self.words(*words))
        return done.returncode, done.stdout, done.stderr

    def run_apart(self, *words: str) -> tuple[int, str, str]:
        """Run a command in a process of its own, for what goes past this one's streams."""
        with self.begin(*words) as process:
            out, err = process.communicate(timeout=60)
            return process.returncode, out, err

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "FILE", "--json")[1])
        return found


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    deadline = time.monotonic() + 60
    while left := carrying(f"PDTUI_RANK={made.name}:") + carrying(f"/{made.name}/"):
        assert time.monotonic() < deadline, left
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)


def test_start_status_logs_restart_stop(box: Box) -> None:
    code, out, err = box.run_apart("start", "FILE", "--reason", "first day")
    assert code == 0, err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [["p/0", "box", "ok"], ["d/0", "box", "ok"]]
    code, out, err = box.run("status", "FILE", "--over", "0.1")
    assert code == 1  # This machine has no NPUs.
    assert out.startswith(f"{box.name}  SERVING since ")
    assert "npu-smi" in out
    code, out, err = box.run("logs", "FILE", "p/0", "-n", "2")
    assert (code, out) == (0, "Starting to load model\nApplication startup complete.\n")
    code, out, err = box.run("logs", "FILE", "p", "d", "-n", "1")
    assert {line.split()[0] for line in out.splitlines()} == {"p/0", "d/0"}
    with box.begin("logs", "FILE", "p", "-f") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()  # As `head -1` does; the rank writes no more.
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == ""
    first = box.status()["ranks"][0]
    code, out, err = box.run("restart", "FILE", "p/0", "--json")
    assert code == 0, err
    assert (
        json.loads(out)["ranks"] == [{"id": "p/0", "node": "box", "ok": True, "detail": "ready after 0 s"}]
        or (json.loads(out)["ranks"][0]["ok"])
    )
    second = box.status()["ranks"][0]
    assert (first["run"], second["run"]) == (1, 2)
    assert first["pid"] != second["pid"]
    assert box.run("logs", "FILE", "p/0", "--previous", "-n", "1")[0] == 0
    code, out, err = box.run_apart("stop", "FILE", "all")
    assert code == 0, err
    assert {rank["state"] for rank in box.status()["ranks"]} == {"stopped"}
    journal = box.folder / "xdg/pdtui" / box.name / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [entry["event"] for entry in entries if entry["event"] != "ready"] == [
        "start", "start ended", "restart", "restart ended", "stop", "stop ended",
    ]  # fmt: skip
    assert entries[0]["reason"] == "first day"


async def test_what_follows_a_stop_is_said_before_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path)
    follows = "The other 3 ranks of decode will fail: a MoE group lives and dies together."
    intent = StopRanks(("decode/3",))
    async with cluster.fleet() as fleet:
        await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert await cluster.drive(dry_run(fleet, intent, as_json=False)) == 0
        assert follows in capsys.readouterr().err
        assert await cluster.drive(confirm(fleet, intent)) == ""
        assert follows in capsys.readouterr().err
        assert cluster.states(fleet)["decode/3"] is RankState.READY
        await cluster.drive(fleet.wait(await fleet.submit(StopRanks(ALL))))
        assert await cluster.drive(dry_run(fleet, StartRanks(("decode/3",)), as_json=False)) == 1
        assert "blocked: group:decode: decode comes up only as a whole" in capsys.readouterr().err


def test_targets_without_a_rank_are_said_in_plain_words() -> None:
    assert no_rank(("failed",)) == "no rank has failed"
    assert (
        no_rank(("failed", "@node5", "role:decode")) == "no rank has failed or is on node5 or has the role decode"
    )


def test_rank_that_dies_at_its_start_fails_with_its_words(box: Box) -> None:
    box.serve(dies=str(box.ports[1]))
    code, out, _ = box.run("start", "FILE")
    assert code == 1
    assert out.splitlines()[1].split()[:3] == ["d/0", "box", "failed"]
    assert "exit 3" in out
    code, out, _ = box.run("status", "FILE")
    assert code == 1
    assert "d/0 failed at" in out.splitlines()[1]
    rank = box.status()["ranks"][1]
    assert (rank["state"], rank["exit_status"]) == ("failed", 3)
    assert rank["diagnosis"]["summary"]
    code, out, _ = box.run("restart", "FILE", "failed", "--dry-run")
    assert code == 0
    assert "# d/0 on box" in out
    assert "exec vllm serve" in out
    assert "p/0" not in out


def test_interrupted_start_leaves_ranks_and_says_so(box: Box) -> None:
    (box.folder / "bin" / "vllm").write_text("#!/bin/sh\nexec sleep 1000\n")
    process = box.begin("start", "FILE", "p")
    assert process.stderr is not None
    for line in process.stderr:
        if "p/0" in line:
            break
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Ctrl-C again leaves at once" in err
    assert "start cancelled: p/0: left as it is" in err
    assert out.splitlines()[1].split()[:3] == ["p/0", "box", "skipped"]
    assert box.status()["ranks"][0]["state"] == "starting"
    assert box.run("stop", "FILE", "p")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_start_holds_no_lease_and_has_an_end_in_the_journal(box: Box, number: signal.Signals) -> None:
    (box.folder / "bin" / "vllm").write_text("#!/bin/sh\nexec sleep 1000\n")
    process = box.begin("start", "FILE", "p")
    assert process.stderr is not None
    for line in process.stderr:
        if "p/0" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "start cancelled: p/0" in err
    assert box.run("stop", "FILE", "p")[0] == 0
    words = box.run("journal", "FILE", "-n", "4")[1]
    assert "start ended: cancelled" in words
    code, _, err = box.run("stop", "FILE", "p")
    assert code == 0
    assert "TERM to" not in err


def test_start_that_takes_too_long_exits_1_and_leaves_it(box: Box) -> None:
    (box.folder / "bin" / "vllm").write_text("#!/bin/sh\nexec sleep 1000\n")
    code, out, _ = box.run("start", "FILE", "p", "--timeout", "2")
    assert code == 1
    assert "not ready within 2 s, stage: no line of its log says how far it is; left as it is" in out


def test_taken_port_is_named_with_its_owner(box: Box) -> None:
    with closing(socket.create_server(("127.0.0.1", box.ports[0]))):
        code, out, err = box.run("start", "FILE")
        assert (code, out) == (1, "")
        assert f"port:box:{box.ports[0]}" in err
        assert f"pid {os.getpid()}" in err
        code, out, err = box.run("start", "FILE", "--dry-run", "--json")
        assert code == 1
        assert json.loads(out)["blockers"][0]["id"] == f"port:box:{box.ports[0]}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stop", "FILE"), "TARGET"),
        (("restart", "FILE"), "TARGET"),
        (("start", "FILE", "p/7"), "did you mean 'p/0'?"),
        (("start", "FILE", "--override", "port:box:1"), "--reason"),
        (("status", "/none.yaml"), "/none.yaml"),
        (("logs", "FILE", "p", "-f", "--previous"), "exclude"),
        (("ask", "FILE"), "PROMPT"),
        (("ask", "FILE", " "), "the prompt is empty"),
        (("start", "FILE", "--timeout", "x"), "timeout"),
    ],
)
def test_usage_errors_exit_2(box: Box, words: tuple[str, ...], said: str) -> None:
    done = pdtui(*(box.file if word == "FILE" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_protected_cluster_wants_its_name_without_a_terminal(tmp_path: Path) -> None:
    box = Box(tmp_path, protected=True)
    code, out, err = box.run("stop", "FILE", "all")
    assert (code, out) == (2, "")
    assert f"--confirm {box.name}" in err
    assert box.run("stop", "FILE", "all", "--confirm", "there")[0] == 2
    assert box.run("stop", "FILE", "all", "--confirm", box.name)[0] == 0


@pytest.mark.parametrize(("typed", "code"), [("{name}", 0), ("her", 2), ("\x03", 130)])
def test_protected_cluster_asks_for_its_name_on_a_terminal(tmp_path: Path, typed: str, code: int) -> None:
    box = Box(tmp_path, protected=True)
    master, slave = pty.openpty()
    try:
        with box.begin("stop", "FILE", "all", terminal=slave) as process:
            said = ""
            while f"Type {box.name} to stop all 2 ranks:" not in said:
                said += os.read(master, 4096).decode()
            os.write(master, (typed.format(name=box.name) + "\n").encode())
            assert process.wait(timeout=60) == code
            assert process.stdout is not None
            assert ("not running" in process.stdout.read()) == (code == 0)
    finally:
        os.close(master)
        os.close(slave)


def test_unreachable_node_is_named_and_everything_ends(box: Box) -> None:
    port = free_ports(1)[0]
    text = box.file.read_text().replace("host: local", "host: 127.0.0.1")
    empty = box.folder / "empty"
    empty.touch()
    box.file.write_text(f"ssh: {{port: {port}, known_hosts: {empty}, config: {empty}}}\n" + text)
    for words in (("status", "FILE"), ("start", "FILE"), ("logs", "FILE", "p"), ("ask", "FILE", "hello")):
        code, _, err = box.run(*words)
        assert code == 1, err
        assert f"box: 127.0.0.1:{port}: connection refused" in err
        assert "Traceback" not in err
    code, out, _ = box.run("stop", "FILE", "p", "--json")
    assert code == 1
    assert "unreachable" in json.loads(out)["ranks"][0]["detail"]


def test_ask_of_a_stopped_cluster_says_so(box: Box) -> None:
    code, out, err = box.run("ask", "FILE", "hello")
    assert (code, out) == (1, "")
    assert err.startswith("failed: ")
    assert "the cluster is STOPPED" in err


async def test_silent_nodes_hold_up_only_what_is_done_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path)
    cluster.nodes["node3"].stuck = cluster.nodes["node4"].stuck = True
    async with cluster.fleet(settled=False) as fleet:

        async def takes(*nodes: str) -> float:
            began = cluster.clock.monotonic()
            needed = frozenset(nodes) or None
            await cluster.drive(settle_for(fleet, 8.0, npus=False, needed=needed), step=0.25)
            return cluster.clock.monotonic() - began

        assert await takes("node1", "node2") <= OTHERS + 0.5
        assert capsys.readouterr().err == (
            "no answer yet from node3, node4: not waited for, nothing is to be done there\n"
        )
        assert await takes("node1", "node3") >= 8.0
        assert await takes() >= 8.0
        assert capsys.readouterr().err.splitlines() == 2 * ["no answer within 8 s from node3, node4"]
        for name in ("node3", "node4"):
            cluster.nodes[name].stuck = False
            cluster.nodes[name].cut()
            cluster.nodes[name].restore()
        assert await takes() <= 5.0
        assert not capsys.readouterr().err


async def test_status_text_and_json(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.fleet() as fleet:
        fleet.store.put_rank(
            replace(
                fleet.store.ranks["decode/3"],
                state=RankState.FAILED,
                since=1.0e9,
                exit_status=1,
                diagnosis=Diagnosis("lost its group", "decode/1"),
            )
        )
        bad = NpuStatus(9, Verdict.FAILED, (Reason(Verdict.FAILED, "vnic link DOWN"),), rank="decode/1")
        fleet.store.set_npus("node3", (bad,), 1.0, "")
        fleet.store.update_node("node4", state=NodeState.FAILED, error="host key unknown", remedy="ssh-keyscan")
        fleet.store.publish()
        snapshot = fleet.snapshot
        assert not healthy(snapshot)
        lines = as_text(snapshot)
        await asyncio.sleep(0)
    assert lines[1].startswith("decode/3 failed at ")
    assert lines[4].split()[:3] == ["node4", "192.0.0.4", "failed"]
    assert lines[4].endswith("host key unknown")
    assert ["node3/9", "failed", "decode/1", "vnic", "link", "DOWN"] in [line.split() for line in lines]
    ranks = lines[lines.index("") :]
    first = next(index for index, line in enumerate(ranks) if line.startswith("RANK"))
    assert ranks[first + 1].startswith("decode/3  node4  failed")
    assert ranks[first + 1].endswith("exit 1, lost its group")
    found: Any = json.loads(json.dumps(as_dict(snapshot)))
    assert set(found) == {
        "schema_version", "cluster", "made_at", "healthy", "serving", "nodes", "ranks", "groups", "leases",
        "acknowledgements",
    }  # fmt: skip
    of_node = {"name", "host", "state", "error", "remedy", "npus", "conditions", "foreign", "ownerless_hbm"}
    assert set(found["nodes"][0]) == of_node
    assert set(found["nodes"][2]["npus"][0]) == {
        "id", "verdict", "link", "net_health", "health", "hbm_used_mb", "hbm_total_mb", "temperature_c",
        "observed_at", "reasons", "processes",
    }  # fmt: skip
    assert {"id", "state", "stage", "pid", "exit_status", "since", "flags", "diagnosis"} <= set(found["ranks"][0])


def test_answer_is_printed_as_it_grows(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(silent=False)
    for text in ("I", "I am", "I am", "I am here"):
        printer.take(AskProgress(text=text))
    printer.finish(AskProgress(text="I am here.", done=True))
    assert capsys.readouterr().out == "I am here.\n"
    answer = AskProgress(
        prefill="p1/1", decode="decode/22", queue_s=0.002, prefill_s=0.212, transfer_s=0.031, ttft_s=0.25,
        tokens=64, tokens_per_s=24.12, finish_reason="stop", done=True,
    )  # fmt: skip
    assert trace_line(answer) == (
        "p1/1 -> decode/22  queue 2 ms  prefill 212 ms  transfer 31 ms  first token 250 ms  "
        "24.1 tok/s  64 tokens  stop"
    )
    assert trace_line(AskProgress(prefill="p1/1", queue_s=0.002, error="refused", done=True)) == "p1/1  queue 2 ms"
    assert trace_line(AskProgress(error="no rank", done=True)) == ""


def test_ranks_with_the_same_news_are_named_in_short() -> None:
    assert in_short(("decode/0", "decode/1", "decode/2", "decode/5", "p1/0")) == "decode/0-2, decode/5, p1/0"
    assert in_short(("old/1@node3",)) == "old/1@node3"


async def test_npus_with_the_same_trouble_share_a_row(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    why = (Reason(Verdict.UNKNOWN, "npu-smi: no answer in time"),)
    npus = tuple(NpuStatus(n, Verdict.UNKNOWN, why, rank=f"decode/{n}" if n < 2 else "") for n in range(16))
    async with cluster.fleet() as fleet:
        fleet.store.set_npus("node3", npus, 1.0, "npu-smi hangs")
        fleet.store.publish()
        lines = as_text(fleet.snapshot)
    rows = [line.split()[:3] for line in lines if line.startswith("node3/")]
    assert rows == [["node3/0-1", "unknown", "decode/0-1"], ["node3/2-15", "unknown", "-"]]
