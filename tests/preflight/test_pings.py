"""Pings between NPUs in memory: the plane, who is left out, what failed pings have in common, and hangs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pdtui.fleet.preflight.check import Survey, chosen
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.facts import Connection, Key, NodeFacts
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.matrix import Npu, Pair
from pdtui.fleet.preflight.outcome import OF_VERDICT, Outcome, Result
from pdtui.fleet.preflight.pinging import Pinged, judge_ping, pings
from pdtui.fleet.preflight.probes import Asking, Everywhere
from pdtui.fleet.preflight.request import Pings
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import assess
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Address, HccsPing, Vnic
from pdtui.readings.npu_smi import Process, Table
from pdtui.readings.npu_smi_identity import Spod
from pdtui.remote.messages.commands import Command, Completed
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.fleet.cluster import Cluster
from tests.support.memory_node import MemoryAgent, MemoryNode

load()

GOOD = "{n} packets transmitted, {n} received, 0.00% {packets} loss"


class Network:
    """All NPUs of a cluster: addresses, which of them are dead, and who takes part in a ping just now."""

    def __init__(self, tmp_path: Path, platform: str = "a3", pods: Sequence[int] = (7, 7, 7, 7)) -> None:
        self.cluster = Cluster(tmp_path, platform=platform)
        self.pods = dict(zip(self.cluster.topology.nodes, pods, strict=True))
        self.dead: set[str] = set()
        """`node/device`."""
        self.hung: set[str] = set()
        self.silent: set[str] = set()
        """Those whose tool hung already when it was asked for addresses."""
        self.whole = True
        """npu-smi's tables come to their end."""
        self.used: set[str] = set()
        self.starting: set[str] = set()
        """Of ranks that run and are not in npu-smi's table yet."""
        self.commands: list[tuple[str, ...]] = []
        self.busy: set[str] = set()
        self.clash: list[str] = []
        self.where: dict[str, str] = {}

    def facts(self) -> dict[str, NodeFacts]:
        found: dict[str, NodeFacts] = {}
        for index, node in enumerate(self.cluster.topology.nodes):
            readings: dict[Key, Reading[object]] = {}
            processes = []
            for device in range(self.cluster.topology.npus_per_node):
                name = f"{node}/{device}"
                vnic, roce = f"192.{index}.{2 + device % 2}.{199 - device}", f"10.0.{index}.{device + 1}"
                self.where |= {vnic: name, roce: name}
                readings[Query.VNIC, device] = Reading("", 0.0, "", Vnic("UP", vnic, "255.255.255.0"))
                readings[Query.IP, device] = Reading("", 0.0, "", Address(roce, "255.255.255.0"))
                readings[Query.SPOD, device] = Reading("", 0.0, "", Spod(index << 22, 384, self.pods[node], index))
                if name in self.silent:
                    late: Reading[object] = Reading("", 0.0, "no answer from hccn_tool", failure=Failure.TIMEOUT)
                    readings[Query.VNIC, device] = readings[Query.IP, device] = late
                if name in self.used:
                    processes.append(Process(device, 4242, "python", 1000, None))
            table = Table("25.2", "25.2", (), tuple(processes), complete=self.whole)
            readings[Query.TABLE, None] = Reading("npu-smi info", 0.0, "", table)
            found[node] = NodeFacts(node, Connection(host=True, ranks=True), readings)
        return found

    async def results(self, mode: Pings = "auto") -> list[Result]:
        """Ping, and return what the check says."""
        facts, cluster = self.facts(), self.cluster
        limits = Limits(ping={"roce": 5.0, "hccs": 5.0})
        asking = {
            name: Asking(
                cluster.topology.nodes[name],
                cluster.topology,
                cluster.plan,
                _Agent(node, self),
                cluster.clock,
                limits,
            )
            for name, node in cluster.nodes.items()
        }
        everywhere = Everywhere(
            cluster.topology, cluster.plan, facts, asking, asking, cluster.clock, limits, mode, lambda *_: None
        )
        readings = {name: dict(found.readings) for name, found in facts.items()}

        async def collect() -> None:
            async for node, item, reading in pings(everywhere):
                readings[node]["ping", item] = reading

        await cluster.drive(collect(), step=0.25)
        assert not self.clash
        self.made = [
            one.value for found in readings.values() for one in found.values() if isinstance(one.value, Pinged)
        ]
        nodes = {name: NodeFacts(name, facts[name].connection, found) for name, found in readings.items()}
        (check,) = chosen(("ping",))
        return list(check.body(Survey(check, cluster.topology, cluster.plan, nodes, cluster.clock.wall())))


class _Agent(MemoryAgent):
    """hccn_tool's pings: each takes a second, and two on one NPU at the same time are noted."""

    def __init__(self, node: MemoryNode, network: Network) -> None:
        super().__init__(node)
        self._network = network

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        network = self._network
        for command in commands:
            network.commands.append(command.argv)
            source, target = f"{self.node.name}/{command.device}", network.where[command.argv[6]]
            for end in (source, target):
                if end in network.busy:
                    network.clash.append(f"{end} in {command.argv}")
                network.busy.add(end)
            try:
                await self.node.clock.sleep(command.timeout if source in network.hung else 1.0)
                yield command, self._done(command, source, target)
            finally:
                network.busy -= {source, target}

    async def ranks(self, cluster: str) -> Sequence[RankRecord]:
        places = [name.split("/") for name in self._network.starting]
        devices = tuple(int(device) for node, device in places if node == self.node.name)
        state = ProcessState.RUNNING
        return [RankRecord(cluster=cluster, rank="d/0", state=state, devices=devices)] if devices else []

    def _done(self, command: Command, source: str, target: str) -> Completed:
        if source in self._network.hung:
            return Completed(command.argv, None, b"", b"", timed_out=True)
        head = f"device {command.device} PING {command.argv[6]}\n"
        hccs = "-hccs_ping" in command.argv
        if {source, target} & self._network.dead:
            words = "3 packets transmitted, 0 received, 100.00% packets loss\n"
            words = words if hccs else "recv time out seq=0\n" + words.replace("packets loss", "packet loss")
            return Completed(command.argv, 0 if hccs else 1, (head + words).encode(), b"")
        if hccs:
            each = "".join(f"recv seq {n}, time = 21.5us, L1 plane check result = 0x0\n" for n in range(3))
            return Completed(command.argv, 0, (head + each + GOOD.format(n=3, packets="packets")).encode(), b"")
        each = "".join(f"recv seq={n},time=0.043000ms\n" for n in range(3))
        return Completed(command.argv, 0, (head + each + GOOD.format(n=3, packets="packet")).encode(), b"")


async def test_within_a_super_pod_every_planned_npu_is_reached_over_hccs(tmp_path: Path) -> None:
    network = Network(tmp_path)
    (result,) = await network.results()
    assert (result.outcome, result.subject) == (Outcome.PASS, "cluster")
    assert "20 NPUs over HCCS" in result.summary
    assert {one.plane for one in network.made} == {"hccs"}
    assert {str(one.pair.target) for one in network.made} == {
        f"{rank.node}/{device}" for rank in network.cluster.plan.ranks for device in rank.devices
    }


async def test_across_super_pods_and_on_a2_the_pings_go_over_roce(tmp_path: Path) -> None:
    network = Network(tmp_path, pods=(7, 7, 8, 8))
    (result,) = await network.results()
    assert result.outcome is Outcome.PASS
    for one in network.made:
        across = network.pods[one.pair.source.node] != network.pods[one.pair.target.node]
        assert one.plane == ("roce" if across else "hccs")
    network = Network(tmp_path, platform="a2")
    (result,) = await network.results()
    assert "over RoCE" in result.summary
    assert all("-ping" in argv for argv in network.commands)


async def test_npus_that_a_process_uses_are_left_alone_unless_pings_are_forced(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.used, network.starting = {"node3/0"}, {"node3/1"}
    found = {result.subject: result for result in await network.results()}
    assert found["node3"].outcome is Outcome.NOT_RUN
    assert found["node3"].by_choice
    assert "NPU 0-1: a process uses it" in found["node3"].because
    touched = {str(npu) for one in network.made for npu in (one.pair.source, one.pair.target)}
    assert touched
    assert not touched & {"node3/0", "node3/1"}
    (result,) = await network.results("force")
    assert result.outcome is Outcome.PASS


async def test_a_dead_npu_is_named_once_with_its_pings_as_evidence(tmp_path: Path) -> None:
    network = Network(tmp_path, platform="a2")
    network.dead = {"node1/3"}
    found = [result for result in await network.results() if result.outcome is Outcome.FAIL]
    assert [result.subject for result in found] == ["node1/3"]
    assert "none of 3 packets came back (time out)" in found[0].summary
    assert found[0].evidence[0].command.startswith("hccn_tool -i ")
    assert "link" in found[0].remedy
    assert any(one.again for one in network.made)


async def test_a_dead_node_is_named_and_not_its_npus(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.dead = {f"node4/{device}" for device in range(16)}
    found = [result for result in await network.results() if result.outcome is Outcome.FAIL]
    assert [result.subject for result in found] == ["node4"]


async def test_when_nothing_comes_through_that_is_said_once(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.dead = set(network.where) | {f"{node}/{n}" for node in network.cluster.nodes for n in range(16)}
    (result,) = await network.results()
    assert (result.outcome, result.subject) == (Outcome.FAIL, "cluster")


async def test_a_source_whose_tool_hangs_pings_no_more_and_the_rest_goes_on(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.hung = {"node2/5"}
    found = {result.subject: result for result in await network.results()}
    assert found["node2"].outcome is Outcome.UNKNOWN
    assert "pings from NPU 5: hangs: no answer from hccn_tool within 5 s" in found["node2"].summary
    assert found["cluster"].outcome is Outcome.PASS


async def test_an_npu_on_which_the_tool_hangs_already_is_not_asked_to_ping(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.silent = {"node2/5"}
    found = {result.subject: result for result in await network.results()}
    assert found["node2"].outcome is Outcome.UNKNOWN
    assert "NPU 5: its address is not known: hangs" in found["node2"].summary
    assert not {str(npu) for one in network.made for npu in (one.pair.source, one.pair.target)} & network.silent


async def test_the_full_matrix_never_pings_the_other_die_of_an_npu(tmp_path: Path) -> None:
    network = Network(tmp_path)
    (result,) = await network.results("full")
    assert result.outcome is Outcome.PASS
    for one in network.made:
        source, target = one.pair.source, one.pair.target
        assert source.node != target.node or source.device // 2 != target.device // 2
    assert len(network.made) == 20 * 19 - 20


async def test_nobody_is_pinged_when_it_is_not_known_whether_a_process_uses_it(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.whole = False
    found = await network.results()
    assert {result.outcome for result in found} == {Outcome.UNKNOWN}
    assert not network.commands


@pytest.mark.parametrize(
    ("received", "planes", "problems", "expected"),
    [
        (3, (0, 0, 0), (), Outcome.PASS),
        (3, (0, 0, 2), (), Outcome.WARN),
        (3, (0, 0, 0), ("pkt check recv msg fail",), Outcome.WARN),
        (2, (0, 0), ("pkt send fail",), Outcome.WARN),
        (0, (), (), Outcome.FAIL),
    ],
)
def test_a_ping_says_the_same_here_as_when_its_text_is_read_alone(
    received: int, planes: tuple[int, ...], problems: tuple[str, ...], expected: Outcome
) -> None:
    value = HccsPing(0, "192.40.2.197", 3, received, (20.0,) * received, planes, problems, None, None, None)
    reading = Reading("hccn_tool -i 0 -hccs_ping", 0.0, "", value=value)
    made = Pinged(Pair(Npu("node1", 0), Npu("node2", 2)), "hccs", reading)
    assert judge_ping(made).outcome is expected
    assert OF_VERDICT[assess(value, "a3").verdict] is expected
