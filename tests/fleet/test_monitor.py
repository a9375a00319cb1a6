from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pdtui.fleet.monitor import NpuMonitor
from pdtui.fleet.polling import Pace, calls_per_minute
from pdtui.fleet.snapshot import NpuStatus
from pdtui.readings.commands import Query
from pdtui.readings.verdict import Verdict
from pdtui.topology.load import load_checked
from pdtui.topology.model import Platform
from pdtui.topology.planner import make_plan
from tests.fleet.npu_tools import TLS, Tools, ToolsLink
from tests.support.memory_node import MemoryNode
from tests.support.virtual_time import VirtualLoop, run_virtual, virtual, virtual_clock

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
        self.clock = virtual_clock()
        self.tools = Tools(self.clock, a3=platform == "a3")
        node = MemoryNode(NODE, self.clock, handler=self.tools.handle)
        self.link = ToolsLink(node, self.tools)
        self.board = Board()
        topology = replace(TOPOLOGY, platform=platform)
        self.monitor = NpuMonitor(self.link, NODE, topology, PLAN, clock=self.clock, publish=self.board.publish)

    async def later(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.sleep(seconds)


@asynccontextmanager
async def running(platform: Platform = "a3", *, roce: bool = True) -> AsyncIterator[Bench]:
    bench = Bench(platform)
    if not roce:
        bench.tools.configured = False
        bench.tools.link = dict.fromkeys(bench.tools.devices, "DOWN")
    task = asyncio.create_task(bench.monitor.run())
    await bench.later(1)
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("platform", ["a2", "a3"])
@virtual
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


@virtual
async def test_npus_carry_the_ranks_that_the_plan_puts_there() -> None:
    async with running() as bench:
        expected = {device: rank.id for rank in PLAN.on_node(NODE) for device in rank.devices}
        assert expected
        assert {npu.id: npu.rank for npu in bench.board.npus if npu.rank} == expected


@pytest.mark.parametrize("platform", ["a2", "a3"])
@virtual
async def test_a_link_set_down_shows_within_one_poll_and_alone(platform: Platform) -> None:
    async with running(platform) as bench:
        await bench.later(7)
        bench.tools.link[5] = "DOWN"
        await bench.later(35)
        assert bench.board.verdicts()[Verdict.FAILED] == [5]
        npu = bench.board.npus[5]
        assert npu.link == "DOWN"
        assert npu.reasons[0].summary == "link DOWN"
        assert npu.reasons[0].command == "hccn_tool -i 5 -link -g"
        assert npu.reasons[0].raw == "link status: DOWN"
        bench.tools.link[5] = "UP"
        await bench.monitor.poll_now()
        assert bench.board.npus[5].verdict is Verdict.HEALTHY


@virtual
async def test_a3_without_a_roce_plane_is_healthy_and_its_vnic_decides() -> None:
    bench = Bench()
    bench.tools.configured = False
    bench.tools.link = dict.fromkeys(bench.tools.devices, "DOWN")
    bench.tools.net_health = dict.fromkeys(bench.tools.devices, "Init")
    await bench.monitor.poll_now()
    assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}
    bench.tools.vnic[3] = "DOWN"
    await bench.later(1)
    await bench.monitor.poll_now()
    assert bench.board.verdicts()[Verdict.FAILED] == [3]


@virtual
async def test_an_npu_whose_values_did_not_change_keeps_its_object() -> None:
    async with running() as bench:
        before = bench.board.npus
        bench.tools.hbm[2] = 41000
        await bench.later(18)
        after = bench.board.npus
        assert after[2].hbm_used_mb == 41000
        assert [i for i in range(16) if after[i] is not before[i]] == [2]
        await bench.later(60)
        fresh = bench.board.npus[0].observed_at
        assert fresh is not None
        assert bench.clock.wall() - fresh < 40


@virtual
async def test_a_device_that_hangs_is_shown_as_hanging_and_delays_no_other() -> None:
    async with running() as bench:
        bench.tools.hanging = {4}
        await bench.later(45)
        npu = bench.board.npus[4]
        assert npu.verdict is Verdict.UNKNOWN
        assert "hangs" in npu.reasons[0].summary
        assert (npu.link, npu.hbm_used_mb) == ("UP", 3000)
        assert bench.board.verdicts()[Verdict.HEALTHY] == [i for i in range(16) if i != 4]
        bench.tools.vnic[9] = "DOWN"
        await bench.later(35)
        assert bench.board.npus[9].verdict is Verdict.FAILED
        assert bench.tools.most_at_once == 1


@virtual
async def test_a_tool_that_is_late_once_makes_nothing_unknown() -> None:
    async with running() as bench:
        seen: set[Verdict] = set()
        for _ in range(3):
            asked = len(bench.tools.calls)
            bench.tools.hanging = {None}
            while not any(argv == ("npu-smi", "info") for _, argv in bench.tools.calls[asked:]):
                await bench.later(0.5)
            bench.tools.hanging = set()
            for _ in range(40):
                await bench.later(0.5)
                seen |= set(bench.board.verdicts())
                assert bench.board.tool_error == "", bench.tools.calls[asked:]
        assert seen == {Verdict.HEALTHY}


@virtual
async def test_what_has_just_timed_out_need_not_be_asked_again_at_once() -> None:
    async with running() as bench:
        bench.tools.hanging = {None}
        await bench.later(38)  # Two time-outs of ten seconds: now it is left alone for a while.
        begin, asked = bench.clock.monotonic(), len(bench.tools.calls)
        await bench.monitor.poll_now(hanging=False)
        again = [argv for _, argv in bench.tools.calls[asked:]]
        assert ("npu-smi", "info") not in again
        assert ("hccn_tool", "-i", "4", "-link", "-g") in again
        assert bench.clock.monotonic() == begin


@virtual
async def test_a_hanging_device_is_probed_ever_more_rarely_and_comes_back() -> None:
    async with running() as bench:
        bench.tools.hanging = {4}
        await bench.later(1200)
        probes = [at for at, argv in bench.tools.calls if argv[2:3] == ("4",) and at > 16]
        assert len(probes) < 12
        pauses = [b - a for a, b in pairwise(probes)]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 300
        next_try = bench.board.npus[4].next_try
        assert next_try is not None
        assert next_try > bench.clock.wall(), "and says when it is asked again"
        bench.tools.hanging = set()
        await bench.later(610)
        assert bench.board.npus[4].verdict is Verdict.HEALTHY


@virtual
async def test_npu_smi_that_hangs_is_said_for_the_node_and_links_are_still_read() -> None:
    async with running() as bench:
        bench.tools.hanging = {None}
        await bench.later(60)
        assert bench.board.tool_error.startswith("npu-smi hangs since")
        assert set(bench.board.verdicts()) == {Verdict.UNKNOWN}
        bench.tools.vnic[1] = "DOWN"
        await bench.later(35)
        assert bench.board.npus[1].verdict is Verdict.FAILED


@virtual
async def test_busy_is_tried_again_and_only_a_lasting_one_is_told() -> None:
    async with running() as bench:
        bench.tools.busy = {6: 3}
        await bench.later(40)
        assert bench.board.npus[6].verdict is Verdict.HEALTHY
        bench.tools.busy = {6: 10_000}
        await bench.later(200)
        npu = bench.board.npus[6]
        assert npu.verdict is Verdict.UNKNOWN
        assert npu.link == "UP"
        assert "busy" in " ".join(reason.summary for reason in npu.reasons) or "too old" in npu.reasons[0].summary


@virtual
async def test_missing_tools_are_said_once_with_what_to_do() -> None:
    bench = Bench()
    bench.tools.missing = True
    await bench.monitor.poll_now()
    assert "npu-smi" in bench.board.tool_error
    assert "No such file" in bench.board.tool_error
    assert "install the driver" in bench.board.tool_error
    assert set(bench.board.verdicts()) == {Verdict.UNKNOWN}


@virtual
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


@pytest.mark.parametrize("seconds", [7200.0, -7200.0])
@virtual
async def test_when_the_clock_here_is_set_all_is_asked_again_at_once(seconds: float) -> None:
    async with running() as bench:
        await bench.later(100)
        bench.clock.jumped = seconds
        await bench.later(5)
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}
        assert all(abs(bench.clock.wall() - (npu.observed_at or 0.0)) < 60 for npu in bench.board.npus)


@virtual
async def test_a_chip_that_drops_off_the_bus_has_failed() -> None:
    async with running() as bench:
        bench.tools.devices.remove(15)
        await bench.monitor.poll_now()
        assert bench.board.npus[15].verdict is Verdict.FAILED
        assert bench.board.npus[15].reasons[0].summary == "not in npu-smi's table"


@virtual
async def test_without_npus_nothing_is_asked() -> None:
    bench = Bench("cpu")
    await bench.monitor.run()
    await bench.monitor.poll_now()
    assert bench.tools.calls == []
    assert bench.board.count == 0


@virtual
async def test_a_newly_connected_node_is_asked_the_most_telling_of_all_npus_first() -> None:
    async with running() as bench:
        bench.tools.takes = 0.5
        bench.link.down()
        await bench.later(100)
        bench.tools.calls.clear()
        bench.link.up()
        await bench.later(120)
        asked = [argv[3] if argv[0] == "hccn_tool" else argv[-1] for _, argv in bench.tools.calls]
        rest = next(
            i for i, query in enumerate(asked) if query not in ("info", "-vnic", "-link", "-net_health", "-ip")
        )
        assert rest >= 16 * 3  # Addresses are known to the node from before.
        assert {"-tls", "-lldp", "-optical", "-stat", "-link_stat", "-netdetect"} <= set(asked)


@virtual
async def test_a_reason_that_comes_up_is_narrowed_down_at_once() -> None:
    async with running("a2") as bench:
        await bench.later(200)
        bench.tools.link[5] = "DOWN"
        down = bench.clock.monotonic()
        await bench.later(40)
        asked = [argv for at, argv in bench.tools.calls if at > down]
        assert ("hccn_tool", "-i", "5", "-optical", "-g") in asked
        assert ("hccn_tool", "-i", "4", "-optical", "-g") not in asked


@virtual
async def test_what_was_put_right_is_seen_when_it_is_asked_for() -> None:
    async with running("a2") as bench:
        bench.tools.said[(3, "-tls")] = TLS.format(3).replace("switch[0]", "switch[1]")
        await bench.later(100)
        npu = bench.board.npus[3]
        assert (npu.verdict, npu.reasons[0].id) == (Verdict.DEGRADED, "tls-mixed")
        assert npu.reasons[0].command == "hccn_tool -i 3 -tls -g"
        bench.tools.said.clear()
        await bench.monitor.poll_now()
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}


@virtual
async def test_an_address_that_is_not_the_one_in_the_file_is_told_with_its_line() -> None:
    async with running("a2") as bench:
        lines = [f"address_{d}=10.0.0.{d if d != 6 else 66}\nnetmask_{d}=255.255.255.0" for d in range(8)]
        bench.link.node.files["/etc/hccn.conf"] = bytearray("\n".join(lines).encode())
        bench.link.down()
        await bench.later(1)
        bench.link.up()
        await bench.later(5)
        npu = bench.board.npus[6]
        assert (npu.verdict, npu.reasons[0].id) == (Verdict.DEGRADED, "address-unlike-conf")
        assert npu.reasons[0].summary == (
            "runs with address 10.0.0.6, /etc/hccn.conf says address_6=10.0.0.66 (line 13)"
        )
        bench.link.node.files["/etc/hccn.conf"] = bytearray(b"address_6=10.0.0.6")
        await bench.monitor.poll_now()
        assert bench.board.verdicts() == {Verdict.HEALTHY: bench.tools.devices}


async def _counted(platform: Platform, consoles: int, minutes: float, *, roce: bool = True) -> dict[str, float]:
    """Return the calls a minute of each query that a node's tools get from some consoles."""
    async with running(platform, roce=roce) as bench:
        bench.tools.takes = 0.5
        topology = replace(TOPOLOGY, platform=platform)
        others = []
        for _ in range(consoles - 1):
            await bench.later(7)
            link = ToolsLink(bench.link.node, bench.tools)
            monitor = NpuMonitor(
                link, NODE, topology, PLAN, clock=bench.clock, publish=bench.board.publish, chance=str(link)
            )
            others.append(asyncio.create_task(monitor.run()))
        await bench.later(100)
        bench.tools.calls.clear()
        await bench.later(minutes * 60)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert bench.tools.most_at_once == 1
        found: dict[str, float] = {}
        for _, argv in bench.tools.calls:
            name = argv[-1] if len(argv) == 2 else argv[3].lstrip("-")
            found[name] = found.get(name, 0) + 1 / minutes
        return found


@pytest.mark.parametrize(("platform", "roce"), [("a2", True), ("a3", True), ("a3", False)])
def test_a_node_is_asked_as_often_as_the_plan_says_and_no_tool_runs_all_the_time(
    platform: Platform, roce: bool
) -> None:
    counted = run_virtual(_counted(platform, 1, 15, roce=roce), VirtualLoop())
    planned = calls_per_minute(Pace(), platform, 8 if platform == "a2" else 16, roce=roce)
    frequent = {query: often for query, often in planned.items() if often * 15 >= 60}
    assert len(frequent) >= 2
    for query, often in frequent.items():
        assert counted["info" if query is Query.TABLE else query.value] == pytest.approx(often, rel=0.15), query
    assert sum(counted.values()) == pytest.approx(sum(planned.values()), rel=0.15)
    assert sum(planned.values()) * 0.5 < 60


@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_three_consoles_cost_a_node_what_one_costs(platform: Platform) -> None:
    counted = run_virtual(_counted(platform, 3, 8), VirtualLoop())
    devices = 8 if platform == "a2" else 16
    planned = calls_per_minute(Pace(), platform, devices, consoles=3)
    assert sum(counted.values()) == pytest.approx(sum(planned.values()), rel=0.12)
    assert sum(planned.values()) < 1.1 * sum(
        calls_per_minute(Pace(), platform, 8 if platform == "a2" else 16).values()
    )


@virtual
async def test_addresses_lead_back_to_npus() -> None:
    async with running() as bench:
        assert bench.monitor.addresses["10.0.0.7"] == 7
        assert bench.monitor.addresses["192.0.2.3"] == 3
