"""A cluster of vLLM itself on one machine without NPUs: its whole life, and the failures of real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pdtui.errors import AgentError, AgentLost, RemoteError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.serving import proxy_settings
from pdtui.fleet.snapshot import OperationStatus, RankState, Snapshot
from pdtui.readings.without_npus import REMEDIES
from pdtui.remote.messages.commands import Command, Completed
from pdtui.remote.messages.processes import Listener, Output, ProcessInfo
from tests.fleet.cluster import Cluster
from tests.support.manual_clock import ManualClock
from tests.support.memory_node import Behaviour, MemoryAgent, MemoryNode

FILE = """
pdtui: 1
name: laptop
platform: cpu
vllm: "{version}"
model: {{path: ~/models/tiny, served_name: tiny, kind: {kind}}}
kv: {{connector: NixlConnector{kv}}}
nodes:
  laptop: {{host: local, address: 127.0.0.1, nic: lo}}
groups:
  p: {{role: prefill, nodes: [laptop], dp_size: {prefill}, api_port: 18101, rpc_port: 18321, kv_port: 18601}}
  d: {{role: decode, nodes: [laptop], dp_size: 2, api_port: 18111, rpc_port: 18322, kv_port: 18611}}
proxy: {{node: laptop, port: 18199}}
"""

SIDE_CHANNEL_TAKEN = """
Exception in thread nixl_handshake_listener:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/vllm/v1/nixl/base_scheduler.py", line 351, in _nixl_handshake_listener
    with zmq_ctx(zmq.ROUTER, path) as sock:
zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:{port}')
"""

STARTING = """\
(APIServer pid=7) INFO 11-30 20:51:06 [model.py:733] Resolved architecture: Qwen2ForCausalLM
(EngineCore pid=8) INFO 11-30 20:51:30 [core.py:402] init engine (profile, create kv cache) took 1.22 s
"""

ENGINE_KILLED = """\
(APIServer pid=7) WARNING 11-30 20:47:59 [core_client.py:817] [shutdown] MPClient: engine core exited \
unexpectedly; starting cleanup
(APIServer pid=7) ERROR 11-30 20:47:59 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=7) ERROR 11-30 20:47:59 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
nanobind: leaked 4 instances!
 - leaked instance 0x7f6bab048c68 of type "triton._C.libtriton.ir.attribute"
nanobind: this is likely caused by a reference counting issue in the binding code.
"""

WORKER_KILLED = """\
(EngineCore pid=8) ERROR 11-30 20:47:55 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly \
(exit code: -9), shutting down executor.
(EngineCore pid=8) ERROR 11-30 20:47:55 [core.py:1512] RuntimeError: Executor failed.
"""


class Laptop(Cluster):
    """One machine with everything on it."""

    def __init__(
        self, folder: Path, *, kind: str = "dense", prefill: int = 1, kv: str = "", version: str = "0.32.0"
    ) -> None:
        self.folder = folder
        self.clock = ManualClock()
        path = folder / "cluster.yaml"
        path.write_text(FILE.format(kind=kind, prefill=prefill, kv=kv, version=version))
        self.load(path)
        self.node = MemoryNode("laptop", self.clock)
        self.node.handler = self._run
        self.nodes = {"laptop": self.node}
        self.commands: list[tuple[str, ...]] = []

    def _run(self, command: Command) -> Completed:
        self.commands.append(command.argv)
        return Completed(command.argv, 0, b"done\n", b"", started=self.node.wall())

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.plan.by_id)

    def write(self, rank: str, text: str) -> None:
        """Have a rank write to its log."""
        run = self.node.ranks.newest(("laptop", rank))
        assert run is not None
        self.node.append(run.record.log, text.encode())

    async def start(self, fleet: Fleet, *ids: str, **more: object) -> OperationStatus:
        return await self.drive(fleet.wait(await fleet.submit(StartRanks(ids or self.ids, **more))))  # type: ignore[arg-type]


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path)


@pytest.fixture
def moe(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, kind="moe", prefill=2)


def stranger(pid: int, *argv: str, ppid: int = 1, tree: tuple[int, ...] = ()) -> ProcessInfo:
    return ProcessInfo(pid, ppid, pid, 1.0, argv, {}, "alice", start=pid, tree=tree, output=Output("null"))


def texts(value: object) -> Iterator[str]:
    """Yield every text in a status."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from texts(part)


def speaks_of_npus(snapshot: Snapshot) -> list[str]:
    words = ("NPU", "HBM", "npu-smi", "hccn", "device", "HCCL", "Ascend")
    return [text for text in texts(asdict(snapshot)) if any(word in text for word in words)]


async def test_no_tool_is_asked_and_nothing_is_said_of_npus_over_a_whole_life(laptop: Laptop) -> None:
    async with laptop.fleet() as fleet:
        preview = await laptop.drive(fleet.preview(StartRanks(laptop.ids)))
        assert "check ports and leftovers" in preview.steps
        assert (await laptop.start(fleet)).state == "done"
        await laptop.clock.advance(10)
        assert fleet.store.snapshot.serving.word == "SERVING"
        assert fleet.store.snapshot.headline is None
        preview = await laptop.drive(fleet.preview(RestartRanks(("d/0",))))
        assert any(step.startswith("check that processes and port 18111 are free") for step in preview.steps)
        await laptop.drive(fleet.wait(await fleet.submit(RestartRanks(("d/0",), drain=0))))
        await laptop.drive(fleet.poll_now())
        stop = await laptop.drive(fleet.wait(await fleet.submit(StopRanks(laptop.ids, drain=0))))
        await laptop.clock.advance(5)
        assert {step.label: step.detail for step in stop.steps}["p/0"] == "stopped"
        assert ("check", "done", "processes and ports") in [(s.label, s.state, s.detail) for s in stop.steps]
        assert {rank.state for rank in fleet.store.snapshot.ranks} == {RankState.STOPPED}
        assert speaks_of_npus(fleet.store.snapshot) == []
        assert fleet.store.nodes["laptop"].npus == ()
        assert fleet.store.nodes["laptop"].tool_error == ""
    assert laptop.commands == []
    assert [spec.devices for spec in laptop.node.starts] == [()] * 4
    assert laptop.node.starts[0].ports == (18101, 18601)


async def test_a_cancelled_stop_says_what_was_not_looked_at(laptop: Laptop) -> None:
    laptop.node.behaviour = lambda _: Behaviour(ready_after=1)
    async with laptop.fleet() as fleet:
        await laptop.start(fleet)
        laptop.node.listeners.append(Listener("127.0.0.1", 18101, 1, "", "laptop:p/0"))  # Never given up.
        operation = await fleet.submit(StopRanks(("p/0",), drain=0))
        await laptop.until(lambda: fleet.store.ranks["p/0"].state is RankState.STOPPED)
        await laptop.drive(fleet.cancel(operation))
        status = await laptop.drive(fleet.wait(operation))
        assert {s.label: s.detail for s in status.steps}["p/0"] == "stopped, ports not verified"


async def test_one_dead_rank_of_a_dense_group_takes_nobody_with_it(laptop: Laptop) -> None:
    async with laptop.fleet() as fleet:
        await laptop.start(fleet)
        laptop.node.kill("laptop", "d/1")
        await laptop.until(lambda: fleet.store.ranks["d/1"].state is RankState.FAILED)
        await laptop.clock.advance(6)
        serving = fleet.store.snapshot.serving
        assert (serving.word, serving.decode_ready, serving.decode_total) == ("DEGRADED", 1, 2)
        assert fleet.store.ranks["d/0"].state is RankState.READY
        headline = fleet.store.snapshot.headline
        assert headline is not None
        assert headline.message.startswith("d/1 failed at")
        assert "killed by SIGKILL" in headline.message
        preview = await laptop.drive(fleet.preview(RestartRanks(("d/1",))))
        assert preview.ids == ("d/1",)
        assert preview.blockers == ()


async def test_a_moe_group_of_two_lives_and_dies_together(moe: Laptop) -> None:
    async with moe.fleet() as fleet:
        assert (await moe.start(fleet)).state == "done"
        moe.node.kill("laptop", "d/1")
        await moe.until(lambda: fleet.store.ranks["d/1"].state is RankState.FAILED)
        await moe.clock.advance(6)
        assert fleet.store.ranks["d/0"].health == "200"  # As a real one, until its next request.
        assert fleet.store.snapshot.serving.word == "DOWN"
        group = fleet.store.snapshot.group("d")
        assert group is not None
        assert group.must_restart == ("d/0",)
        preview = await moe.drive(fleet.preview(RestartRanks(("d/1",))))
        assert preview.ids == ("d/0", "d/1")
        assert "2 ranks on laptop stop and start." in preview.consequence
        moe.node.kill("laptop", "d/0")
        await moe.until(lambda: fleet.store.ranks["d/0"].state is RankState.FAILED)
        preview = await moe.drive(fleet.preview(RestartRanks(("d/1",))))
        assert "2 ranks on laptop start. None of them runs now." in preview.consequence


async def test_evidence_is_kept_without_the_tools_of_npus(laptop: Laptop) -> None:
    async with laptop.fleet() as fleet:
        await laptop.start(fleet)
        laptop.node.kill("laptop", "p/0")
        await laptop.until(lambda: fleet.store.ranks["p/0"].state is RankState.FAILED)
        saved = await laptop.drive(fleet.save_evidence(("p/0",)))
        assert saved["p/0"].error == ""
    names = {path.rpartition("/")[2] for path in laptop.node.files if "/evidence/" in path}
    assert {"command.txt", "deaths.txt", "processes.txt", "dmesg.txt"} <= names
    assert not names & {"npu-smi.txt", "hccn.txt"}
    assert {argv[0] for argv in laptop.commands} == {"ps", "dmesg"}


# Ports ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "command", "words", "remedy"),
    [
        (
            [],
            "python3 -m http.server",
            "port 18601 of p/0 on laptop is held by pid 50 (python3 -m http.server), not started here",
            "stop that process where it was started",
        ),
        (
            [stranger(50, "VLLM::EngineCore")],
            "VLLM::EngineCore",
            "held by pid 50 (VLLM::EngineCore), left behind by a server that has ended",
            "end it on laptop: kill 50",
        ),
        (
            [stranger(50, "VLLM::EngineCore", ppid=30)],  # Of a program that uses vLLM as a library.
            "VLLM::EngineCore",
            "held by pid 50 (VLLM::EngineCore), not started here",
            "stop that process where it was started",
        ),
        (
            [
                stranger(40, "/venv/bin/python3", "/venv/bin/vllm", "serve", "m", "--port", "9", tree=(50,)),
                stranger(50, "VLLM::EngineCore", ppid=40),
            ],
            "VLLM::EngineCore",
            "held by pid 50 (VLLM::EngineCore) of pid 40 (python3 vllm serve m), not started here",
            "stop that process where it was started",
        ),
    ],
)
async def test_a_taken_side_channel_port_stands_against_a_start_with_its_owner(
    laptop: Laptop, processes: list[ProcessInfo], command: str, words: str, remedy: str
) -> None:
    laptop.node.strangers += processes
    laptop.node.listeners.append(Listener("127.0.0.1", 18601, 50, command))
    async with laptop.fleet() as fleet:
        preview = await laptop.drive(fleet.preview(StartRanks(laptop.ids)))
        (blocker,) = preview.blockers
        assert blocker.message.startswith("KV side-channel port 18601 of p/0")
        assert words in blocker.message
        assert blocker.remedy.startswith(remedy)


async def test_an_engine_whose_server_is_gone_is_listed_whatever_it_holds(laptop: Laptop) -> None:
    laptop.node.strangers += [
        stranger(50, "VLLM::EngineCore", tree=(51,)),
        stranger(51, "VLLM::Worker", ppid=50),
    ]
    async with laptop.fleet() as fleet:
        await laptop.clock.advance(6)
        (found,) = fleet.store.nodes["laptop"].foreign
        assert (found.pid, found.command, found.hits) == (50, "VLLM::EngineCore", ())
        assert found.note == "left behind by a server that has ended"


async def test_a_start_that_hangs_on_a_taken_port_is_told_within_seconds_with_its_owner(laptop: Laptop) -> None:
    laptop.node.behaviour = lambda spec: Behaviour(
        ready_after=1e9 if spec.rank == "d/1" else 2,
        log=STARTING + SIDE_CHANNEL_TAKEN.format(port=18612) if spec.rank == "d/1" else "",
    )
    laptop.node.listeners.append(Listener("127.0.0.1", 18612, 50, "python3 -m http.server"))
    words = "its KV side-channel port 18612 is held by pid 50 (python3 -m http.server), not started here"
    async with laptop.fleet() as fleet:
        begun = laptop.clock.monotonic()
        result = await laptop.start(fleet, override=("port:laptop:18612",), reason="a test")
        assert laptop.clock.monotonic() - begun < 20
        steps = {step.label: step for step in result.steps}
        assert result.state == "failed"
        assert steps["d/1"].detail == f"does not come up: {words}; left as it is: stop or restart it"
        assert {steps[rank].state for rank in ("p/0", "d/0")} == {"done"}
        rank = fleet.store.ranks["d/1"]
        assert rank.state is RankState.UNHEALTHY
        assert rank.diagnosis is not None
        assert (rank.diagnosis.summary, rank.diagnosis.signature) == (words, "zmq-port-in-use")
        headline = fleet.store.snapshot.headline
        assert headline is not None
        assert headline.message.startswith("d/1 unhealthy")
        assert words in headline.message
        assert fleet.store.snapshot.serving.word == "DEGRADED"
        async with laptop.fleet(by="bob@desk") as other:  # Another console says the same, without having seen it.
            await laptop.until(lambda: not other.is_reading, limit=10)
            assert other.store.ranks["d/1"].state is RankState.UNHEALTHY
            assert other.store.ranks["d/1"].diagnosis == rank.diagnosis
        stop = await laptop.drive(fleet.wait(await fleet.submit(StopRanks(("d/1",), drain=0))))
        assert stop.state == "done"
        laptop.node.listeners.clear()
        laptop.node.behaviour = lambda _: Behaviour(ready_after=2)
        assert (await laptop.start(fleet, "d/1")).state == "done"  # Nothing of it is left in the next run.


@pytest.mark.parametrize(
    ("line", "port", "use"),
    [
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:18322')", 18322, "RPC port 18322"),
        ("OSError: [Errno 98] Address already in use", 18111, "API port 18111"),
    ],
)
async def test_a_rank_that_ended_for_a_taken_port_names_the_port_and_its_owner(
    moe: Laptop, line: str, port: int, use: str
) -> None:
    dying, waiting = Behaviour(ready_after=1e9, dies_after=4, log=f"{line}\n"), Behaviour(ready_after=1e9)
    moe.node.behaviour = lambda spec: dying if spec.rank == "d/0" else waiting
    moe.node.listeners.append(Listener("127.0.0.1", port, 50, "/usr/sbin/nginx -g"))
    async with moe.fleet() as fleet:
        result = await moe.start(fleet, "d/0", "d/1", override=(f"port:laptop:{port}",), reason="a test")
        steps = {step.label: step.detail for step in result.steps}
        words = f"its {use} is held by pid 50 (nginx -g), not started here"
        assert words in steps["d/0"]
        assert "d/0 failed, and its group with it" in steps["d/1"]
        headline = fleet.store.snapshot.headline
        assert headline is not None
        assert words in headline.message


async def test_a_holder_that_has_gone_is_not_named(laptop: Laptop) -> None:
    laptop.node.behaviour = lambda _: Behaviour(
        dies_after=2, exit_status=1, log="OSError: [Errno 98] Address already in use\n"
    )
    async with laptop.fleet() as fleet:
        await laptop.start(fleet, "p/0")
        diagnosis = fleet.store.ranks["p/0"].diagnosis
        assert diagnosis is not None
        assert diagnosis.summary == "its API port 18101 was taken; nobody holds it any more"


@pytest.mark.parametrize("error", [AgentLost("gone"), AgentError("no", code="failed")])
async def test_a_holder_that_cannot_be_asked_for_leaves_the_cause_that_the_log_names(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, error: RemoteError
) -> None:
    asked = MemoryAgent.processes

    async def processes(self: MemoryAgent, **words: Any) -> Sequence[ProcessInfo]:
        if words["match"] and not words.get("skip"):  # As who looks for a cause asks, and nobody else.
            raise error
        return await asked(self, **words)

    monkeypatch.setattr(MemoryAgent, "processes", processes)
    laptop.node.behaviour = lambda _: Behaviour(
        dies_after=2, exit_status=1, log="OSError: [Errno 98] Address already in use\n"
    )
    async with laptop.fleet() as fleet:
        await laptop.start(fleet, "p/0")
        diagnosis = fleet.store.ranks["p/0"].diagnosis
        assert diagnosis is not None
        assert (diagnosis.signature, diagnosis.summary) == ("api-port-in-use", "its API port 18101 is taken")


# What real servers write when they end ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "summary"),
    [
        (ENGINE_KILLED, "its engine ended without a word"),
        (WORKER_KILLED, "one of its processes died: VllmWorker-0, killed by SIGKILL"),
    ],
)
async def test_a_server_that_ends_with_status_0_for_its_dead_engine_has_failed(
    laptop: Laptop, log: str, summary: str
) -> None:
    async with laptop.fleet() as fleet:
        await laptop.start(fleet)
        laptop.write("d/0", log)
        laptop.node.set_behaviour("laptop", "d/0", Behaviour(ready_after=0, health=503))
        await laptop.until(lambda: fleet.store.ranks["d/0"].state is RankState.UNHEALTHY, limit=8)
        run = laptop.node.ranks.newest(("laptop", "d/0"))
        assert run is not None
        laptop.node.ranks.end(run, laptop.node.ranks.pids(("laptop", "d/0")), status=0)
        await laptop.until(lambda: fleet.store.ranks["d/0"].state is RankState.FAILED, limit=8)
        await laptop.clock.advance(4)
        rank = fleet.store.ranks["d/0"]
        assert rank.exit_status == 0
        assert rank.diagnosis is not None
        assert rank.diagnosis.summary == summary
        assert rank.diagnosis.remedy == REMEDIES["process-died"]
        said = [event for event in fleet.store.snapshot.events if event.message == summary]
        assert len(said) == 1
        assert speaks_of_npus(fleet.store.snapshot) == []


async def test_health_is_asked_at_once_when_a_process_of_a_ready_rank_is_gone(laptop: Laptop) -> None:
    async with laptop.fleet() as fleet:
        await laptop.start(fleet)
        await laptop.clock.advance(20)
        for shift in (0.0, 1.3, 2.6):  # Wherever between two looks at /health it happens.
            await laptop.clock.advance(20 + shift)
            run = laptop.node.ranks.newest(("laptop", "p/0"))
            assert run is not None
            worker = laptop.node.table.add(parent=run.record.pid or 1, marker="laptop:p/0")
            await laptop.clock.advance(10)
            laptop.node.table.remove({worker.pid})
            laptop.node.set_behaviour("laptop", "p/0", Behaviour(ready_after=0, health=503))
            seconds = await laptop.until(lambda: fleet.store.ranks["p/0"].state is RankState.UNHEALTHY)
            assert seconds <= 2.5
            laptop.node.set_behaviour("laptop", "p/0", Behaviour(ready_after=0))
            await laptop.until(lambda: fleet.store.ranks["p/0"].state is RankState.READY)


@pytest.mark.parametrize(
    ("rank", "missing", "line", "stage"),
    [
        ("d/1", "d/0", STARTING.splitlines()[0], "configuration"),
        (
            "d/0",
            "d/1",
            "(APIServer pid=7) INFO 11-30 20:51:25 [utils.py:1245] Started DP Coordinator process (PID: 32324)",
            "coordinator",
        ),
    ],
)
async def test_a_rank_that_waits_for_the_rest_of_its_group_says_so(
    moe: Laptop, rank: str, missing: str, line: str, stage: str
) -> None:
    moe.node.behaviour = lambda _: Behaviour(ready_after=1e9, log=f"{line}\n")
    async with moe.fleet() as fleet:
        (blocker,) = (await moe.drive(fleet.preview(StartRanks((rank,))))).blockers
        start = StartRanks((rank,), override=(blocker.id,), reason="a test")
        operation = await fleet.submit(start)
        waiting = asyncio.ensure_future(fleet.wait(operation))
        await moe.clock.advance(40)
        headline = fleet.store.snapshot.headline
        assert headline is not None
        assert headline.message.startswith(f"d waits for {missing} on laptop since ")
        steps = {step.label: step.detail for step in fleet.store.operations[operation].steps}
        assert steps[rank] == f"{stage}; waits for {missing}, which does not run"
        await moe.drive(fleet.cancel(operation))
        await moe.drive(waiting)


# The proxy's lease ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "version", "lease", "renewed"),
    [
        ("", "0.32.0", 30.0, True),
        (", extra: {kv_lease_duration: 12}", "0.32.0", 12.0, True),
        ("", "0.21.0", 30.0, False),
        ("", "main", 30.0, True),
    ],
)
def test_the_proxy_keeps_to_the_lease_of_the_file(
    tmp_path: Path, kv: str, version: str, lease: float, renewed: bool
) -> None:
    settings = proxy_settings(Laptop(tmp_path, kv=kv, version=version).topology)
    assert (settings.lease_s, settings.lease_renewed) == (lease, renewed)
    assert settings.margin_s <= lease / 3


def test_the_proxy_keeps_to_mooncakes_lease_on_npus(tmp_path: Path) -> None:
    settings = proxy_settings(Cluster(tmp_path).topology)
    assert (settings.lease_s, settings.lease_renewed, settings.margin_s) == (480.0, False, 10.0)


def test_what_is_said_without_npus_names_none() -> None:
    assert not [text for text in REMEDIES.values() if "plog" in text or "driver" in text or "Ascend" in text]
    assert json.dumps(dict(REMEDIES))
