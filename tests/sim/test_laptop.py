"""Real processes on a simulated machine without NPUs: a whole life of its ranks, and what befalls them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, RankState, RankStatus
from pdtui.proxy.interface import Ask
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from pdtui.topology.script import run_script
from tests.sim.support import run, until
from tests.support.processes import carrying
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

FILE = """
pdtui: 1
name: desk
platform: cpu
vllm: "0.32.0"
model: {path: /models/tiny, served_name: tiny, kind: dense}
kv: {connector: NixlConnector}
nodes:
  laptop: {host: 192.0.0.1, address: 192.0.0.1, nic: lo}
groups:
  p: {role: prefill, nodes: [laptop], dp_size: 1, api_port: 18101, kv_port: 18601}
  d: {role: decode, nodes: [laptop], dp_size: 2, api_port: 18111, kv_port: 18611}
proxy: {node: laptop, port: 18199}
"""
SPEED = 60.0
ALL = ("p/0", "d/0", "d/1")

HOLD = """
import socket, time
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(({host!r}, {port}))
held.listen()
time.sleep(600)
"""


class Desk:
    """The machine, and a fleet over it."""

    def __init__(self, simulation: Simulation, fleet: Fleet) -> None:
        self.simulation = simulation
        self.fleet = fleet

    def rank(self, rank_id: str) -> RankStatus:
        return self.fleet.store.ranks[rank_id]

    async def sh(self, line: str) -> str:
        done = await run(self.simulation, line, "laptop")
        assert done.exit_status == 0, done.stderr
        return str(done.stdout)

    async def kill(self, rank_id: str, title: str) -> None:
        """Kill the processes of a rank that bear a title, or its server."""
        port = self.rank(rank_id).api_port
        (server,) = (await self.sh(f"pgrep -f -- 'vllm serve .*--port {port}' | head -1")).split()
        victims = server if title == "vllm serve" else f"$(pgrep -s {server} -f -- '^{title}')"
        await self.sh(f"kill -9 {victims}")

    async def hold(self, port: int) -> None:
        """Have another program listen on a port of the machine."""
        host = self.fleet.plan.ranks[0].host
        code = shlex.quote(HOLD.format(host=host, port=port))
        await self.sh(f"setsid python3 -c {code} > /dev/null 2>&1 < /dev/null & sleep 0.1")
        await until(lambda: self._listens(port))

    async def _listens(self, port: int) -> bool:
        agent = self.fleet.agent("laptop")
        return agent is not None and any(held.port == port for held in await agent.ports())

    async def done(self, intent: StartRanks | StopRanks | RestartRanks) -> OperationStatus:
        return await asyncio.wait_for(self.fleet.wait(await self.fleet.submit(intent)), 120)

    async def becomes(self, rank_id: str, state: RankState, *words: str) -> None:
        """Wait until a rank is in a state, and its diagnosis says these words."""

        def there() -> bool:
            rank = self.rank(rank_id)
            said = rank.diagnosis.summary if rank.diagnosis is not None else ""
            return rank.state is state and all(word in said for word in words)

        await eventually(there, within=60, what=f"{rank_id} {state} {words}: {self.rank(rank_id)}")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    file = tmp_path / "desk.yaml"
    file.write_text(FILE)
    async with Simulation(file, tmp_path / "sim", speed=SPEED) as simulation:
        if not simulation.isolated:
            pytest.skip("without pid namespaces a node's tools see the processes of all nodes")
        topology = load_checked(simulation.topology_path)
        fleet = Fleet(
            topology,
            make_plan(topology),
            clock=SystemClock(),
            read_only=False,
            by="test@here",
            journal_dir=tmp_path / "journal",
        )
        async with fleet:
            assert await fleet.settled(60)
            yield Desk(simulation, fleet)


async def test_ranks_on_a_machine_without_npus_live_break_and_end_as_real_servers_do(
    desk: Desk, tmp_path: Path
) -> None:
    fleet = desk.fleet

    # A side channel that somebody else has: refused with the owner, and told at once where it is started anyhow.
    await desk.hold(18612)
    with pytest.raises(ActionRefused, match="KV side-channel port 18612 of d/1 on laptop is held by pid"):
        await fleet.submit(StartRanks(ALL))
    (blocker,) = (await fleet.preview(StartRanks(ALL))).blockers
    started = await desk.done(StartRanks(ALL, override=(blocker.id,), reason="a test"))
    steps = {step.label: step for step in started.steps}
    assert "does not come up: its KV side-channel port 18612 is held by pid" in steps["d/1"].detail
    assert "(python3 -c" in steps["d/1"].detail
    assert {steps[rank].state for rank in ("p/0", "d/0")} == {"done"}
    await desk.becomes("d/1", RankState.UNHEALTHY, "side-channel port 18612")
    answer = await fleet.ask(Ask("Who are you?", max_tokens=4), lambda _: None)
    assert (answer.error, answer.tokens, answer.decode) == ("", 4, "d/0")
    stopped = await desk.done(StopRanks(("d/1",), grace=1, drain=0))
    assert stopped.state == "done", stopped  # It takes no TERM.
    assert not any("HBM" in step.detail for step in stopped.steps)
    await desk.sh("pkill -f 'held = socket.socket'")

    # Its place is taken by a server that was started by hand; that is used, and taken over.
    script = run_script(fleet.plan.by_id["d/1"], fleet.topology.runtime)
    await desk.sh(f"cat > d1.sh <<'END'\n{script}\nEND\nsetsid bash d1.sh > d1.log 2>&1 < /dev/null &")
    await eventually(lambda: desk.rank("d/1").state is RankState.UNMANAGED, within=60)
    await eventually(lambda: fleet.snapshot.serving.word == "SERVING", within=60)
    assert desk.rank("d/1").difference == ()
    preview = await fleet.preview(RestartRanks(("d/1",)))
    assert any("VLLM::EngineCore" in line for line in preview.commands)
    taken = await desk.done(RestartRanks(("d/1",), unmanaged=("d/1",), drain=0))
    assert taken.state == "done", taken
    assert desk.rank("d/1").state is RankState.READY

    # A dead worker or engine is the end of its server, and of no other.
    await desk.kill("d/1", "VLLM::Worker")
    await desk.becomes("d/1", RankState.FAILED, "one of its processes died")
    await desk.kill("p/0", "VLLM::EngineCore")
    await desk.becomes("p/0", RankState.FAILED, "its engine ended without a word")
    assert desk.rank("d/0").state is RankState.READY
    assert (await desk.done(RestartRanks(("p/0", "d/1"), drain=0))).state == "done"

    # A dead API server leaves its engine behind: it stands against a start, and a restart ends it.
    await desk.kill("d/0", "vllm serve")
    await desk.becomes("d/0", RankState.FAILED, "killed by SIGKILL")
    await eventually(lambda: "processes left of its last run" in " ".join(desk.rank("d/0").difference))
    with pytest.raises(ActionRefused, match="processes of the last run of d/0 live on"):
        await fleet.submit(StartRanks(("d/0",)))
    assert (await desk.done(RestartRanks(("d/0",), drain=0))).state == "done"
    await eventually(lambda: fleet.snapshot.serving.word == "SERVING", within=60)

    assert (await desk.done(StopRanks(ALL, drain=0))).state == "done"
    assert {desk.rank(rank).state for rank in ALL} == {RankState.STOPPED}
    assert not [p.command for p in carrying(str(tmp_path)) if "vllm serve" in p.command or "VLLM::" in p.command]
    node = fleet.snapshot.nodes[0]
    assert (node.npus, node.tool_error, node.foreign, node.ownerless) == ((), "", (), ())
