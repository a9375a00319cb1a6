from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pdtui.fleet.monitor import NpuMonitor
from pdtui.fleet.snapshot import NpuStatus
from pdtui.readings.verdict import Verdict
from pdtui.topology.load import load_checked
from pdtui.topology.model import Platform
from pdtui.topology.planner import make_plan
from tests.fleet.npu_tools import Tools, ToolsLink
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_node import MemoryNode

TOPOLOGY = load_checked(Path(__file__).parents[2] / "sample_configs" / "demo.yaml")
PLAN = make_plan(TOPOLOGY)
NODE = next(iter(TOPOLOGY.nodes))


class Board:
    """Keeps what a monitor publishes."""

    def __init__(self) -> None:
        self.npus: tuple[NpuStatus, ...] = ()
        self.observed_at = 0.0
        self.tool_error = ""
        self.count = 0

    def publish(self, node: str, npus: tuple[NpuStatus, ...], observed_at: float, tool_error: str) -> None:
        assert node == NODE
        self.npus, self.observed_at, self.tool_error = npus, observed_at, tool_error
        self.count += 1

    def verdicts(self) -> dict[Verdict, list[int]]:
        found: dict[Verdict, list[int]] = {}
        for npu in self.npus:
            found.setdefault(npu.verdict, []).append(npu.id)
        return found


class Bench:
    """A monitor over a node in memory, and the time."""

    def __init__(self, platform: Platform = "a3") -> None:
        self.clock = ManualClock()
        self.tools = Tools(self.clock, a3=platform == "a3")
        node = MemoryNode(NODE, self.clock, handler=self.tools.handle)
        self.link = ToolsLink(node, self.tools)
        self.board = Board()
        topology = replace(TOPOLOGY, platform=platform)
        self.monitor = NpuMonitor(self.link, NODE, topology, PLAN, clock=self.clock, publish=self.board.publish)

    async def later(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass in small steps, as it does."""
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            await settle(60)


@asynccontextmanager
async def running(platform: Platform = "a3") -> AsyncIterator[Bench]:
    bench = Bench(platform)
    task = asyncio.create_task(bench.monitor.run())
    await settle(200)
    await bench.later(1)
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("platform", ["a2", "a3"])
async def test_within_a_second_every_npu_has_its_values(platform: Platform) -> None:
    async with running(platform) as bench:
        bench.tools.processes = [(1, 4711, "VLLM::Worker", 51000)]
        await bench.monitor.poll_now()
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}
        npu = bench.board.npus[1]
        assert (npu.link, npu.net_health, npu.health) == ("UP", "Success", "OK")
        assert npu.vnic == ("UP" if platform == "a3" else None)
        assert (npu.hbm_used_mb, npu.hbm_total_mb, npu.temperature_c, npu.power_w) == (3000, 65536, 45.0, 160.7)
        assert npu.processes == ((4711, "VLLM::Worker", 51000),)
        assert bench.board.tool_error == ""
        assert npu.observed_at is not None
        assert bench.clock.wall() - npu.observed_at < 2


async def test_npus_carry_the_ranks_that_the_plan_puts_there() -> None:
    async with running() as bench:
        expected = {device: rank.id for rank in PLAN.on_node(NODE) for device in rank.devices}
        assert expected
        assert {npu.id: npu.rank for npu in bench.board.npus if npu.rank} == expected


@pytest.mark.parametrize("platform", ["a2", "a3"])
async def test_a_link_set_down_shows_within_one_poll_and_alone(platform: Platform) -> None:
    async with running(platform) as bench:
        await bench.later(7)
        bench.tools.link[5] = "DOWN"
        await bench.later(17)
        assert bench.board.verdicts()[Verdict.FAILED] == [5]
        npu = bench.board.npus[5]
        assert npu.link == "DOWN"
        assert npu.reasons[0].summary == "link DOWN"
        assert npu.reasons[0].command == "hccn_tool -i 5 -link -g"
        assert npu.reasons[0].raw == "link status: DOWN"
        bench.tools.link[5] = "UP"
        await bench.monitor.poll_now()
        assert bench.board.npus[5].verdict is Verdict.HEALTHY


async def test_a3_without_a_roce_plane_is_healthy_and_its_vnic_decides() -> None:
    bench = Bench()
    bench.tools.configured = False
    bench.tools.link = dict.fromkeys(bench.tools.devices, "DOWN")
    bench.tools.net_health = dict.fromkeys(bench.tools.devices, "Init")
    await bench.monitor.poll_now()
    assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}
    bench.tools.vnic[3] = "DOWN"
    await bench.monitor.poll_now()
    assert bench.board.verdicts()[Verdict.FAILED] == [3]


async def test_an_npu_whose_values_did_not_change_keeps_its_object() -> None:
    async with running() as bench:
        before = bench.board.npus
        bench.tools.hbm[2] = 41000
        await bench.later(12)
        after = bench.board.npus
        assert after[2].hbm_used_mb == 41000
        assert [i for i in range(16) if after[i] is not before[i]] == [2]
        await bench.later(60)
        fresh = bench.board.npus[0].observed_at
        assert fresh is not None
        assert bench.clock.wall() - fresh < 40


async def test_a_device_that_hangs_is_shown_as_hanging_and_delays_no_other() -> None:
    async with running() as bench:
        bench.tools.hanging = {4}
        await bench.later(45)
        npu = bench.board.npus[4]
        assert npu.verdict is Verdict.UNKNOWN
        assert "hangs" in npu.reasons[0].summary
        assert (npu.link, npu.hbm_used_mb) == ("UP", 3000)
        assert bench.board.verdicts()[Verdict.HEALTHY] == [i for i in range(16) if i != 4]
        bench.tools.link[9] = "DOWN"
        await bench.later(17)
        assert bench.board.npus[9].verdict is Verdict.FAILED
        assert bench.tools.most_at_once == 1


async def test_what_has_just_timed_out_need_not_be_asked_again_at_once() -> None:
    async with running() as bench:
        bench.tools.hanging = {None}
        await bench.later(36)  # Two time-outs of ten seconds: now it is left alone for a while.
        begin, asked = bench.clock.monotonic(), len(bench.tools.calls)
        await bench.monitor.poll_now(hanging=False)
        again = [argv for _, argv in bench.tools.calls[asked:]]
        assert ("npu-smi", "info") not in again
        assert ("hccn_tool", "-i", "4", "-link", "-g") in again
        assert bench.clock.monotonic() == begin


async def test_a_hanging_device_is_probed_ever_more_rarely_and_comes_back() -> None:
    async with running() as bench:
        bench.tools.hanging = {4}
        await bench.later(1200, 2)
        probes = [at for at, argv in bench.tools.calls if argv[2:3] == ("4",) and at > 16]
        assert len(probes) < 12
        pauses = [b - a for a, b in pairwise(probes)]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 300
        bench.tools.hanging = set()
        await bench.later(610, 2)
        assert bench.board.npus[4].verdict is Verdict.HEALTHY


async def test_npu_smi_that_hangs_is_said_for_the_node_and_links_are_still_read() -> None:
    async with running() as bench:
        bench.tools.hanging = {None}
        await bench.later(60)
        assert bench.board.tool_error.startswith("npu-smi hangs since")
        assert set(bench.board.verdicts()) == {Verdict.UNKNOWN}
        bench.tools.link[1] = "DOWN"
        await bench.later(17)
        assert bench.board.npus[1].verdict is Verdict.FAILED


async def test_busy_is_tried_again_and_only_a_lasting_one_is_told() -> None:
    async with running() as bench:
        bench.tools.busy = {6: 3}
        await bench.later(40)
        assert bench.board.npus[6].verdict is Verdict.HEALTHY
        bench.tools.busy = {6: 10_000}
        await bench.later(100)
        npu = bench.board.npus[6]
        assert npu.verdict is Verdict.UNKNOWN
        assert npu.link == "UP"
        assert "busy" in " ".join(reason.summary for reason in npu.reasons) or "too old" in npu.reasons[0].summary


async def test_missing_tools_are_said_once_with_what_to_do() -> None:
    bench = Bench()
    bench.tools.missing = True
    await bench.monitor.poll_now()
    assert "npu-smi" in bench.board.tool_error
    assert "No such file" in bench.board.tool_error
    assert "install the driver" in bench.board.tool_error
    assert set(bench.board.verdicts()) == {Verdict.UNKNOWN}


async def test_a_lost_node_keeps_its_values_until_they_are_too_old_then_they_are_unknown() -> None:
    async with running() as bench:
        seen = bench.board.observed_at
        bench.link.down()
        await bench.later(20)
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}
        await bench.later(60)
        assert bench.board.verdicts() == {Verdict.UNKNOWN: bench.tools.devices}
        npu = bench.board.npus[0]
        assert (npu.link, npu.hbm_used_mb) == ("UP", 3000)
        assert npu.observed_at is not None
        assert npu.observed_at <= seen
        assert bench.board.observed_at <= seen + 1
        bench.link.up()
        await bench.later(2)
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}


async def test_a_chip_that_drops_off_the_bus_has_failed() -> None:
    async with running() as bench:
        bench.tools.devices.remove(15)
        await bench.monitor.poll_now()
        assert bench.board.npus[15].verdict is Verdict.FAILED
        assert bench.board.npus[15].reasons[0].summary == "not in npu-smi's table"


async def test_without_npus_nothing_is_asked() -> None:
    bench = Bench("cpu")
    await bench.monitor.run()
    await bench.monitor.poll_now()
    assert bench.tools.calls == []
    assert bench.board.count == 0


async def test_the_node_is_not_asked_more_often_than_it_must() -> None:
    async with running() as bench:
        bench.tools.calls.clear()
        await bench.later(300)
        tables = [at for at, argv in bench.tools.calls if argv[0] == "npu-smi"]
        links = [at for at, argv in bench.tools.calls if argv[1:] == ("-i", "0", "-link", "-g")]
        assert 25 <= len(tables) <= 35
        assert 16 <= len(links) <= 24
        ips = [at for at, argv in bench.tools.calls if "-ip" in argv]
        assert ips == []


async def test_addresses_lead_back_to_npus() -> None:
    async with running() as bench:
        assert bench.monitor.addresses["10.0.0.7"] == 7
        assert bench.monitor.addresses["192.0.2.3"] == 3
