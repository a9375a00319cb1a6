from __future__ import annotations

from pdtui.fleet.metering import STALLED_AFTER, Meters
from pdtui.fleet.ranks import metrics_interval
from pdtui.fleet.snapshot import RankMetrics
from pdtui.remote.messages.commands import HttpReply
from pdtui.topology.model import Role
from pdtui.topology.plan import RankPlan
from tests.support.manual_clock import ManualClock
from tests.support.memory_node import MemoryAgent, MemoryNode

RANK = RankPlan("decode/3", "decode", Role.DECODE, "node1", "10.0.0.1", 3, 0, (3,), 7100, (), (), {}, "")


class Server:
    """A rank's /metrics."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.node = MemoryNode("node1", self.clock)
        self.meters = Meters(clock=self.clock)
        self.tokens = 0.0
        self.running = 0
        self.ttft = (0.0, 0)

    async def read(self) -> RankMetrics | None:
        text = (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="3",model_name="m"}} {self.running}\n'
            f'vllm:num_requests_waiting{{engine="3",model_name="m"}} 1\n'
            f'vllm:kv_cache_usage_perc{{engine="3",model_name="m"}} 0.41\n'
            f'vllm:generation_tokens_total{{engine="3",model_name="m"}} {self.tokens}\n'
            f'vllm:time_to_first_token_seconds_sum{{engine="3"}} {self.ttft[0]}\n'
            f'vllm:time_to_first_token_seconds_count{{engine="3"}} {self.ttft[1]}\n'
            f'vllm:prompt_tokens_by_source_total{{engine="3",source="local_compute"}} 12\n'
        )
        self.node.http_replies[7100, "/metrics"] = HttpReply(200, text.encode())
        return await self.meters.read(MemoryAgent(self.node), RANK, "10.0.0.1")


async def test_rates_come_with_the_second_reading() -> None:
    server = Server()
    first = await server.read()
    assert first is not None
    assert (first.running, first.waiting, first.kv_usage, first.local_prefill_tokens) == (0, 1, 0.41, 12.0)
    assert first.generation_tokens_per_s is None
    server.running, server.tokens, server.ttft = 6, 2350.0, (1.0, 4)
    await server.clock.advance(5)
    second = await server.read()
    assert second is not None
    assert second.running == 6
    assert second.generation_tokens_per_s == 470.0
    assert second.ttft_s == 0.25


async def test_times_of_the_last_requests_stay_with_their_age() -> None:
    server = Server()
    await server.read()
    server.ttft = (1.0, 4)
    await server.clock.advance(5)
    await server.read()
    measured = server.clock.wall()
    await server.clock.advance(50)
    later = await server.read()
    assert later is not None
    assert (later.ttft_s, later.ttft_at) == (0.25, measured)
    assert (later.tpot_s, later.tpot_at) == (None, None)
    assert (later.interval_s, later.observed_at) == (50.0, server.clock.wall())


async def test_requests_that_run_without_tokens_are_a_stall_and_idling_is_none() -> None:
    server = Server()
    for _ in range(20):
        await server.read()
        await server.clock.advance(5)
    assert not server.meters.stalled(RANK.id)
    server.running = 2
    for _ in range(round(STALLED_AFTER / 5) - 1):
        await server.read()
        await server.clock.advance(5)
    assert not server.meters.stalled(RANK.id)
    for _ in range(3):
        await server.read()
        await server.clock.advance(5)
    assert server.meters.stalled(RANK.id)
    server.tokens += 1
    await server.read()
    assert not server.meters.stalled(RANK.id)


async def test_no_answer_gives_nothing_and_forgetting_begins_anew() -> None:
    server = Server()
    server.node.http_replies[7100, "/metrics"] = HttpReply(None, error="refused")
    assert await server.meters.read(MemoryAgent(server.node), RANK, "") is None
    server.node.http_replies[7100, "/metrics"] = HttpReply(200, b"<html>")
    assert await server.meters.read(MemoryAgent(server.node), RANK, "") is None
    await server.read()
    server.meters.forget(RANK.id)
    assert not server.meters.stalled(RANK.id)
    again = await server.read()
    assert again is not None
    assert again.generation_tokens_per_s is None


def test_a_large_cluster_is_read_more_rarely_not_faster() -> None:
    assert [metrics_interval(ranks) for ranks in (1, 320, 512, 1024, 9000)] == [5.0, 5.0, 8.0, 16.0, 20.0]
