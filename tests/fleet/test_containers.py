"""Nodes whose containers and sudo misbehave: what is said, who is spared, and that all comes back by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import NodeState, NodeStatus, RankState
from pdtui.readings.verdict import Verdict
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.sim.support import run
from tests.support.processes import carrying
from tests.support.required import skip_unless
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("containers")]

FILE = """
pdtui: 1
name: boxed
platform: a3
vllm_ascend: "0.22.1rc1"
ssh: {{sudo: {sudo}}}
runtime: {{{runtime}}}
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
ALL = ("p/0", "d/0", "d/1")
SPEED = 30.0


def fleet_of(simulation: Simulation, tmp_path: Path) -> Fleet:
    topology = load_checked(simulation.topology_path)
    return Fleet(
        topology,
        make_plan(topology),
        clock=SystemClock(),
        read_only=False,
        by="test@here",
        journal_dir=tmp_path / "journal",
    )


def states(fleet: Fleet) -> dict[str, RankState]:
    return {rank_id: fleet.store.ranks[rank_id].state for rank_id in ALL}


def node(fleet: Fleet, name: str = "node2") -> NodeStatus:
    return fleet.store.nodes[name]


async def shows(fleet: Fleet, probe: Callable[[NodeStatus], bool], what: str) -> None:
    """Wait until node2 is shown so, with an operator who has it tried again now and then."""

    async def look() -> bool:
        if node(fleet).error:
            await fleet.poll_now(("node2",))
        return probe(node(fleet))

    asked: Callable[[], bool | Awaitable[bool]] = look
    await eventually(asked, within=60, every=0.3, what=f"{what}; {node(fleet)}")


async def refused(fleet: Fleet, words: str, remedy: str) -> None:
    """Wait until node2's container is out of reach for this reason: its ranks are lost, nothing else is."""
    await shows(fleet, lambda it: words in it.error and remedy in it.remedy, words)
    assert node(fleet).state is NodeState.CONNECTED
    await eventually(lambda: {states(fleet)["d/0"], states(fleet)["d/1"]} == {RankState.LOST})
    assert states(fleet)["p/0"] is RankState.READY
    assert node(fleet, "node1").error == ""
    fleet.store.publish()
    assert fleet.snapshot.headline is not None
    assert "node2" in fleet.snapshot.headline.message
    assert words in fleet.snapshot.headline.message


async def returns(fleet: Fleet, state: RankState) -> None:
    """Wait until node2's ranks are seen again."""
    await shows(fleet, lambda it: it.error == "", "no error")
    await eventually(lambda: {states(fleet)["d/0"], states(fleet)["d/1"]} == {state}, within=60)


def processes(simulation: Simulation) -> list[int]:
    return [one.pid for one in carrying("PDTUI_RANK=boxed:", str(simulation.root))]


@pytest.fixture
async def boxed(tmp_path: Path) -> AsyncIterator[Simulation]:
    """Two nodes whose ranks run in a container of their own."""
    path = tmp_path / "boxed.yaml"
    path.write_text(FILE.format(sudo="false", runtime="container: vllm-ascend"))
    async with Simulation(path, tmp_path / "sim", speed=SPEED) as simulation:
        reasons = {one.container_refused for one in simulation.nodes.values()} - {""}
        skip_unless(not reasons, f"no container of its own: {', '.join(reasons)}")
        yield simulation


async def test_a_container_under_its_ranks(
    boxed: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdtui.remote.rpc.PING_EVERY", 2.0)
    monkeypatch.setattr("pdtui.remote.rpc.LOST_AFTER", 6.0)
    async with fleet_of(boxed, tmp_path) as fleet:
        assert await fleet.settled(60)
        done = await fleet.wait(await fleet.submit(StartRanks(ALL)))
        assert done.state == "done", done
        # The tools are asked on the host and know the ranks by other pids; none of them is somebody else's.
        await fleet.poll_now()
        npu = next(one for one in node(fleet).npus if one.rank == "d/0")
        assert npu.verdict is Verdict.HEALTHY
        (pid, _, _) = npu.processes[0]
        assert pid != fleet.store.ranks["d/0"].pid
        assert not (await fleet.preview(RestartRanks(("d/0",)))).blockers
        hbm = f"{boxed.node('node2').folder}/npu/0/hbm"
        await run(boxed, f"sleep 1000 >/dev/null 2>&1 </dev/null & echo '900 stranger' > {hbm}/$!", "node2")
        await fleet.poll_now()
        await shows(fleet, lambda it: [one.command for one in it.foreign] == ["sleep 1000"], "only the stranger")
        (stranger,) = node(fleet).foreign
        assert (stranger.npus, stranger.hbm_mb, stranger.hits) == ((0,), 900, ("d/0",))
        await run(boxed, f"kill {stranger.pid}", "node2")
        await fleet.poll_now()
        await shows(fleet, lambda it: it.foreign == (), "nobody else")

        await boxed.fault("container node2 pause")
        await refused(fleet, "container vllm-ascend is paused", "docker unpause vllm-ascend")
        await boxed.fault("container node2 unpause")  # it comes back by itself
        await eventually(lambda: {states(fleet)["d/0"], states(fleet)["d/1"]} == {RankState.READY}, within=60)

        # Its ranks die with it, and numbers begin anew: what has a dead rank's pid now is not that rank.
        await boxed.fault("container node2 stop")
        await refused(fleet, "container vllm-ascend is not running", "docker start vllm-ascend")
        blockers = (await fleet.preview(StartRanks(("d/0", "d/1")))).blockers
        assert [one.id for one in blockers] == ["node:node2"]
        assert "docker start vllm-ascend" in blockers[0].remedy
        await boxed.fault("container node2 start")
        await returns(fleet, RankState.FAILED)
        cause = await eventually(lambda: fleet.store.ranks["d/0"].diagnosis, within=30)
        assert cause is not None
        assert "its container was stopped or restarted" in cause.summary
        assert states(fleet)["p/0"] is RankState.READY
        done = await fleet.wait(await fleet.submit(StartRanks(("d/0", "d/1"))))
        assert done.state == "done", done
        assert states(fleet)["d/1"] is RankState.READY

        # A new container whose state folder is its own: it runs, and the next start is warned.
        await boxed.fault("container node2 remove")
        await refused(fleet, "there is no container vllm-ascend", "runtime.container")
        await boxed.fault("container node2 create no-state")
        await returns(fleet, RankState.STOPPED)
        await shows(fleet, lambda it: [c.id for c in it.conditions] == ["state-in-container"], "the condition")
        (warning,) = (await fleet.preview(StartRanks(ALL))).warnings
        assert warning.startswith("node2: records and logs of ranks go with container vllm-ascend")
        assert f"-v {boxed.state_dir}:{boxed.state_dir}" in warning

        await boxed.fault("engine-denied node2")
        await boxed.fault("container node2 kill")
        await shows(
            fleet, lambda it: "may not use docker" in it.error and "ssh: {sudo: true}" in it.remedy, "denied"
        )
        await boxed.fault("engine-down node2")
        await shows(fleet, lambda it: "systemctl start docker" in it.remedy, "engine down")
        await boxed.fault("heal node2")
        await shows(fleet, lambda it: it.error == "" and it.conditions == (), "as it was")
        done = await fleet.wait(await fleet.submit(StopRanks(ALL, grace=10.0)))
        assert done.state == "done", done
    assert await eventually(lambda: not processes(boxed))


async def test_no_sudo_and_a_login_that_takes_its_ranks_along(tmp_path: Path) -> None:
    path = tmp_path / "boxed.yaml"
    path.write_text(FILE.format(sudo="true", runtime="setup: [/usr/local/Ascend/ascend-toolkit/set_env.sh]"))
    async with Simulation(path, tmp_path / "sim", speed=SPEED) as simulation:
        skip_unless(simulation.isolated, "no pid namespaces")
        await simulation.fault("sudo node2 password")
        async with fleet_of(simulation, tmp_path) as fleet:
            await fleet.settled(60)
            await shows(fleet, lambda it: it.state is NodeState.FAILED, "refused")
            assert "sudo asks for a password" in node(fleet).error
            assert "ALL=(root) NOPASSWD: ALL" in node(fleet).remedy
            assert node(fleet, "node1").state is NodeState.CONNECTED
            await simulation.fault("sudo node2 allow")
            await simulation.fault("kills-at-logout node2")
            await fleet.poll_now(("node2",))
            await shows(fleet, lambda it: it.state is NodeState.CONNECTED, "let in")
            assert node(fleet).facts.startswith("root@node2")
            await shows(fleet, lambda it: [c.id for c in it.conditions] == ["logout"], "the condition")
            (warning,) = (await fleet.preview(StartRanks(ALL))).warnings
            assert warning.startswith("node2: ranks end with the last login of")
            assert "systemctl restart systemd-logind" in warning
            done = await fleet.wait(await fleet.submit(StartRanks(ALL)))
            assert done.state == "done", done
        # As was said: node2's ranks go with this console's connection, and node1's do not.
        await eventually(lambda: len(processes(simulation)) and not _of(simulation, "d/"), within=30)
        assert _of(simulation, "p/0")
        async with fleet_of(simulation, tmp_path) as fleet:
            assert await fleet.settled(60)
            await eventually(lambda: states(fleet)["d/0"] is RankState.FAILED, within=30)
            cause = await eventually(lambda: fleet.store.ranks["d/0"].diagnosis, within=30)
            assert cause is not None
            assert cause.summary.endswith("ended with its keeper, most likely with a login (KillUserProcesses)")
            assert "systemctl restart systemd-logind" in cause.remedy
            await fleet.wait(await fleet.submit(StopRanks(("p/0",), grace=10.0)))


def _of(simulation: Simulation, rank: str) -> list[int]:
    return [one.pid for one in carrying(f"PDTUI_RANK=boxed:{rank}", str(simulation.root))]
