"""Containers of simulated nodes brought up, taken down and made anew, over SSH, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, ChangeContainers, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState
from pdtui.sim.engine_files import write_inspect
from pdtui.sim.simulation import SimNode, Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from pdtui.topology.render.container import container_argv
from tests.sim.support import run
from tests.support.command import pdtui
from tests.support.required import skip_unless
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("containers")]

IMAGE = "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
FILE = f"""
pdtui: 1
name: boxed
platform: a3
vllm_ascend: "0.22.1rc1"
safety: {{protected: true}}
runtime: {{container: vllm-ascend, image: "{IMAGE}", options: [--ulimit, "memlock=-1"]}}
model: {{path: /models/r1, served_name: ds_r1, kind: moe}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  node1: {{host: 192.0.0.1, nic: eth0}}
  node2: {{host: 192.0.0.2, nic: eth0}}
defaults:
  args: {{enable-expert-parallel: true, max-model-len: 40000}}
groups:
  p: {{role: prefill, nodes: [node1], dp_size: 1, tp_size: 2, api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  d: {{role: decode, nodes: [node2], dp_size: 2, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 14200}}
proxy: {{node: node1, listen: 0.0.0.0, port: 1999}}
"""
SPEED = 60.0
BOTH = ("node1", "node2")
UP = ChangeContainers("container up", BOTH)
DOWN = ChangeContainers("container down", BOTH, confirm="boxed")
RECREATE = ChangeContainers("container recreate", BOTH, confirm="boxed")


def fleet_of(simulation: Simulation, tmp_path: Path, *, by: str = "test@here", read_only: bool = False) -> Fleet:
    topology = load_checked(simulation.topology_path)
    return Fleet(
        topology,
        make_plan(topology),
        clock=SystemClock(),
        read_only=read_only,
        by=by,
        journal_dir=tmp_path / by,
    )


async def done(fleet: Fleet, intent: ChangeContainers) -> OperationStatus:
    return await fleet.wait(await fleet.submit(intent))


def said(status: OperationStatus) -> dict[str, str]:
    """Return each node's line."""
    return {step.label: f"{step.state}: {step.detail}" for step in status.steps if step.label in status.targets}


async def refusal(fleet: Fleet, intent: ChangeContainers) -> ActionRefused:
    with pytest.raises(ActionRefused) as caught:
        await fleet.submit(intent)
    return caught.value


async def simulated(tmp_path: Path, *, isolate: bool) -> AsyncIterator[Simulation]:
    path = tmp_path / "boxed.yaml"
    path.write_text(FILE)
    async with Simulation(path, tmp_path / "sim", speed=SPEED, isolate=isolate) as simulation:
        yield simulation


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and take a frozen agent for silent soon."""
    monkeypatch.setattr("pdtui.fleet.containers.work.STEP", 0.1)
    monkeypatch.setattr("pdtui.fleet.leases.LEASE_TIMEOUT", 2.0)


@pytest.fixture
async def boxed(tmp_path: Path) -> AsyncIterator[Simulation]:
    """Two nodes whose ranks run in a container of their own."""
    async for simulation in simulated(tmp_path, isolate=True):
        reasons = {one.container_refused for one in simulation.nodes.values()} - {""}
        skip_unless(not reasons, f"no container of its own: {', '.join(reasons)}")
        for node in simulation.nodes.values():  # What runs in them at first does not mind TERM.
            spec = node.machine.engine / "vllm-ascend" / "spec.json"
            spec.write_text(json.dumps({**json.loads(spec.read_text()), "stop_timeout": 0.1}))
        yield simulation


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Simulation]:
    """The same where the kernel gives containers nothing of their own."""
    async for simulation in simulated(tmp_path, isolate=False):
        assert all(one.container_refused for one in simulation.nodes.values())
        yield simulation


async def test_containers_come_and_go(boxed: Simulation, tmp_path: Path) -> None:
    async with fleet_of(boxed, tmp_path) as fleet, fleet_of(boxed, tmp_path, by="bob@there") as bob:
        assert await fleet.settled(60)
        assert await bob.settled(60)
        # They are as the file says, until somebody wants another limit: told, and left alone.
        assert said(await done(fleet, UP)) == dict.fromkeys(BOTH, "done: runs as wanted")
        for node in boxed.nodes.values():
            forget_limits(node)
        status = await done(fleet, UP)
        assert status.state == "failed"
        words = "failed: vllm-ascend runs, but its limit memlock is not set, the file says unlimited: left alone"
        assert said(status)["node1"].startswith(words), said(status)

        # A rank lives in one of them: that one is named, and nothing happens to the other either.
        started = await fleet.wait(await fleet.submit(StartRanks(("p/0",))))
        assert started.state == "done", started
        preview = await fleet.preview(RECREATE)
        assert [one.id for one in preview.blockers] == ["ranks:node1"]
        assert preview.needs_name
        assert any(
            line.startswith("docker run -d --name vllm-ascend") and IMAGE in line for line in preview.commands
        )
        refused = await refusal(fleet, RECREATE)
        assert (refused.kind, "p/0 lives in container vllm-ascend on node1" in refused.message) == (
            "blocked",
            True,
        )
        assert "pdtui stop" in refused.remedy
        assert (await refusal(fleet, replace(RECREATE, override=("ranks:node1",)))).message.endswith("a reason")
        assert (await refusal(fleet, replace(RECREATE, confirm=""))).kind == "protected"

        # With a reason it goes down under the rank; the other node's is made anew without a question.
        intent = replace(RECREATE, override=("ranks:node1",), reason="wrong limit")
        status = await done(fleet, intent)
        assert status.state == "done", status
        assert set(said(status).values()) == {"done: made anew and started"}
        await eventually(lambda: fleet.store.ranks["p/0"].state is RankState.FAILED, within=60)
        assert said(await done(fleet, UP)) == dict.fromkeys(BOTH, "done: runs as wanted")
        entry = next(one for one in entries(tmp_path) if one["event"] == "container recreate")
        assert (entry["nodes"], entry["reason"], entry["override"]) == (list(BOTH), "wrong limit", ["ranks:node1"])
        journal = await fleet.agent("node1").journal_tail("boxed")  # type: ignore[union-attr]
        assert b'"container recreate ended"' in journal

        # A server that somebody runs in it by hand counts, too.
        engine = "(exec -a VLLM::EngineCore sleep 1000) >/dev/null 2>&1 </dev/null & sleep 0.2"
        await run(boxed, f"docker exec -i vllm-ascend bash -c '{engine}'", "node2")
        refused = await refusal(fleet, replace(DOWN, nodes=("node2",)))
        assert "VLLM::EngineCore" in refused.message
        assert "lives in container vllm-ascend on node2" in refused.message

        # Down: the console says what to do; ranks cannot be started, and up brings it back.
        await fleet.wait(await fleet.submit(StopRanks(("p/0",), confirm="boxed")))
        only = replace(DOWN, nodes=("node1",))
        assert said(await done(fleet, only)) == {"node1": "done: stopped and removed"}
        await eventually(lambda: "there is no container" in fleet.store.nodes["node1"].error)
        assert "pdtui container up" in fleet.store.nodes["node1"].remedy
        assert said(await done(fleet, only)) == {"node1": "done: there is none"}
        journal = await fleet._links["node1"].host_agent.journal_tail("boxed")  # type: ignore[union-attr]
        assert journal.count(b'"container down"') == 2

        await boxed.fault("image-missing node1")
        first = replace(UP, nodes=("node1",))
        status = await done(fleet, first)
        assert f"the image {IMAGE} is not on the node: docker pull {IMAGE}" in said(status)["node1"]
        await boxed.fault("engine-full node1")
        status = await done(fleet, replace(first, pull=True))
        assert "not made: the disk of the engine is full on the node" in said(status)["node1"]
        await boxed.fault("engine-full node1 off")
        # Two consoles at once: one of them has it in hand.
        operation = await fleet.submit(first)
        refused = await refusal(bob, first)
        assert refused.kind == "leased", refused
        assert "test@here" in refused.message
        assert said(await fleet.wait(operation)) == {"node1": "done: made and started"}
        await eventually(lambda: fleet.store.nodes["node1"].error == "")
        assert said(await done(bob, replace(first, breaking=Breaking("night shift")))) == {
            "node1": "done: runs as wanted"
        }

        # What is stopped is started; what is paused, of another image or out of reach is told.
        await boxed.fault("container node1 stop")
        assert said(await done(fleet, first)) == {"node1": "done: started"}
        await boxed.fault("container node1 pause")
        assert "paused; let it go on: docker unpause vllm-ascend" in said(await done(fleet, first))["node1"]
        await boxed.fault("container node1 unpause")
        await boxed.fault("other-image node1")
        status = await done(fleet, first)
        assert f"its image is quay.io/ascend/vllm-ascend:v0.9.1, the file says {IMAGE}" in said(status)["node1"]
        await boxed.fault("engine-down node1")
        assert "systemctl start docker" in said(await done(fleet, first))["node1"]
    async with fleet_of(boxed, tmp_path, read_only=True) as fleet:
        assert (await refusal(fleet, DOWN)).kind == "read_only"


def forget_limits(node: SimNode) -> None:
    """Have a node's container be one that was made without limits."""
    home = node.machine.engine / "vllm-ascend"
    (home / "made.json").write_text(json.dumps({**json.loads((home / "made.json").read_text()), "limits": []}))
    write_inspect(node.machine)


def entries(tmp_path: Path) -> list[dict[str, object]]:
    lines = (tmp_path / "test@here" / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


async def command(simulation: Simulation, *words: str) -> tuple[int | None, str, str]:
    """Run `pdtui container WORDS`; returns its exit status, stdout and stderr."""
    verb, *rest = words
    done = await asyncio.to_thread(pdtui, "container", verb, simulation.topology_path, *rest)
    return done.returncode, done.stdout, done.stderr


async def test_the_command(boxed: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside the simulation's loop, on a thread, which gets no signals: a process of its own takes seconds each.
    monkeypatch.setattr("pdtui.cli.live.ended_by_signals", lambda *_, **__: contextlib.nullcontext())
    status, out, err = await command(boxed, "down", "@node2")
    assert status == 2, err
    assert "boxed is protected" in err
    assert "--confirm boxed" in err
    status, out, err = await command(boxed, "down", "@node2", "--confirm", "boxed")
    assert status == 0, err
    assert out.splitlines()[1].split(maxsplit=2) == ["node2", "ok", "stopped and removed"]
    status, out, err = await command(boxed, "up", "--dry-run", "d")
    assert status == 0, err
    comment, line = out.splitlines()
    assert comment == f"# node2: make and start it from {IMAGE}"
    topology = load_checked(boxed.topology_path)
    assert shlex.split(line) == [*container_argv(topology, "node2")]
    forget_limits(boxed.node("node1"))
    status, out, err = await command(boxed, "up", "--json")
    found = json.loads(out)
    assert status == 1  # Of node1's the limit is another.
    assert (found["schema_version"], found["verb"], found["container"]) == (1, "container up", "vllm-ascend")
    assert [(one["node"], one["ok"]) for one in found["nodes"]] == [("node1", False), ("node2", True)]
    assert "recreate" in found["nodes"][0]["detail"]


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("{container: vllm-ascend}", "runtime.image` is missing"),
        ("{}", "the ranks run on the hosts themselves"),
        (
            "{container: c, image: i, exec: [ctr, -n, k8s.io, tasks, exec, --exec-id, x]}",
            "docker, podman or nerdctl",
        ),
    ],
)
def test_what_the_file_cannot_say_is_told_before_a_node_is_asked(tmp_path: Path, runtime: str, words: str) -> None:
    path = tmp_path / "boxed.yaml"
    path.write_text(re.sub(r"runtime: .*", f"runtime: {runtime}", FILE))
    done = pdtui("container", "up", path)
    assert done.returncode == 2, done
    assert words in done.stderr


def other_fleet(simulation: Simulation, tmp_path: Path, options: str = "[--ulimit, memlock=-1]") -> Fleet:
    """Return a fleet from the simulation's file with other options."""
    path = tmp_path / "other.yaml"
    path.write_text(re.sub(r"options: \[[^]]*\]", f"options: {options}", simulation.topology_path.read_text()))
    topology = load_checked(path)
    return Fleet(
        topology, make_plan(topology), clock=SystemClock(), read_only=False, by="a@b", journal_dir=tmp_path
    )


async def one_line(fleet: Fleet, intent: ChangeContainers, node: str = "node1") -> str:
    """Return what came of it on one node, whoever else seems to live in a container without namespaces.

    There the servers of all tests are seen, and they come and go meanwhile: then it is tried again.
    """
    only = replace(intent, nodes=(node,))
    while True:
        if only.verb != "container up":
            blockers = tuple(one.id for one in (await fleet.preview(only)).blockers)
            assert not [one for one in blockers if one.startswith("ranks:")]
            only = replace(only, override=blockers, reason="others")
        with contextlib.suppress(ActionRefused):
            line = said(await done(fleet, only))[node]
            if not line.startswith("failed: left alone: pid"):
                return line


async def names(simulation: Simulation) -> list[str]:
    """Return containers of node1 as `docker ps -a` has them, each with how it is."""
    lines = str((await run(simulation, "docker ps -a", "node1")).stdout).splitlines()[1:]
    return [f"{line.split()[-1]} {'Up' if ' Up ' in line else 'Exited'}" for line in lines]


async def test_the_old_container_goes_only_for_one_that_runs(
    plain: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ["vllm-ascend Up"]
    for options, words in (
        ("[--shmsize, 1g]", "not made: docker does not know the flag --shmsize"),
        ("[--mount, 'type=bind,source=/no/such,target=/x']", "not made: the node has no /no/such to mount"),
    ):
        async with other_fleet(plain, tmp_path, options) as fleet:
            assert await fleet.settled(60)
            line = await one_line(fleet, RECREATE)
            assert line.startswith(f"failed: {words}"), line
            assert line.endswith("the old one runs again"), line
            assert await names(plain) == old
    async with other_fleet(plain, tmp_path) as fleet:
        assert await fleet.settled(60)
        await plain.fault("engine-full node1")
        line = await one_line(fleet, RECREATE)
        assert "the disk of the engine is full" in line
        assert line.endswith("the old one runs again"), line
        await plain.fault("engine-full node1 off")
        # One that starts, but that pdtui cannot get into, is no gain either.
        monkeypatch.setattr("pdtui.fleet.containers.work.ARRIVAL", 2.0)
        python = plain.node("node1").machine.engine / "image" / "usr" / "local" / "bin" / "python3"
        python.rename(held := python.with_name("held"))  # A link to the machine's own.
        python.write_text("#!/bin/sh\nexit 127\n")
        python.chmod(0o755)
        line = await one_line(fleet, RECREATE)
        assert line.startswith("failed: made anew and started, but pdtui does not get into it"), line
        assert line.endswith("the old one runs again"), line
        assert await names(plain) == old
        held.replace(python)
        monkeypatch.setattr("pdtui.fleet.containers.work.ARRIVAL", 30.0)
        # Somebody takes the name: theirs is not touched, and where ours is, is told.
        await plain.fault("name-taken node1")
        line = await one_line(fleet, RECREATE)
        assert "not made: the name vllm-ascend is taken by another container" in line, line
        assert "the old one is left as vllm-ascend-before-pdtui" in line
        assert "docker rename vllm-ascend-before-pdtui vllm-ascend" in line
        await plain.fault("name-taken node1 off")
        # As after an interrupted run: up brings the old one back, recreate puts a new one in its place.
        assert await names(plain) == ["vllm-ascend-before-pdtui Exited"]
        line = await one_line(fleet, UP)
        assert line.startswith(
            "done: vllm-ascend-before-pdtui, left of a recreate that was interrupted, was put"
        ), line
        assert await names(plain) == old
        await run(plain, "docker stop -t 0 vllm-ascend", "node1")
        await run(plain, "docker rename vllm-ascend vllm-ascend-before-pdtui", "node1")
        assert await one_line(fleet, RECREATE) == "done: made anew and started"
        assert await names(plain) == old
        assert await one_line(fleet, UP) == "done: runs as wanted"


async def test_without_namespaces_a_container_is_a_folder(
    plain: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_of(plain, tmp_path) as fleet:
        assert await fleet.settled(60)
        # An engine that hangs holds up no other node.
        monkeypatch.setattr("pdtui.fleet.containers.engine.ASK", 2.0)
        await plain.fault("engine-hang node1")
        operation = await fleet.submit(UP)
        await eventually(lambda: said(fleet.store.operations[operation])["node2"] == "done: runs as wanted")
        assert said(fleet.store.operations[operation])["node1"] == "waiting: "
        assert "docker does not answer within 2 s" in said(await fleet.wait(operation))["node1"]
        await plain.fault("engine-hang node1 off")
        monkeypatch.setattr("pdtui.fleet.containers.engine.ASK", 15.0)
        assert await one_line(fleet, RECREATE, "node2") == "done: made anew and started"
        assert said(await done(fleet, replace(UP, nodes=("node2",)))) == {"node2": "done: runs as wanted"}
        started = await fleet.wait(await fleet.submit(StartRanks(("p/0",))))
        assert started.state == "done", started
        down = replace(DOWN, nodes=("node1",))
        assert (await refusal(fleet, down)).kind == "blocked"
        await fleet.wait(await fleet.submit(StopRanks(("p/0",), confirm="boxed")))
        assert await one_line(fleet, DOWN) == "done: stopped and removed"
        await eventually(lambda: "there is no container" in fleet.store.nodes["node1"].error)
