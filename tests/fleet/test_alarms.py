"""Alarms of ranks that answer: from the /metrics of real servers' shape, read every five seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pdtui.fleet.alarms import HELD_FOR, IDLE
from pdtui.fleet.metering import Meters
from pdtui.fleet.snapshot import Alarm, RankMetrics
from pdtui.remote.messages.commands import HttpReply
from pdtui.remote.messages.ranks import WarmUp
from pdtui.topology.model import Role
from pdtui.topology.plan import RankPlan
from tests.readings.samples import log
from tests.support.manual_clock import ManualClock
from tests.support.memory_node import MemoryAgent, MemoryNode

EVERY = 5.0


@dataclass
class Server:
    """A rank whose /metrics say what the test wants."""

    role: Role = Role.DECODE
    sources: bool = True
    """It says where its prompt tokens came from."""
    values: dict[str, float] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    warm_up: WarmUp | None = None
    settled: bool = True
    last: RankMetrics | None = None
    lease: float = 30.0

    def __post_init__(self) -> None:
        group = "decode" if self.role is Role.DECODE else "p1"
        self.rank = RankPlan(f"{group}/0", group, self.role, "node1", "10.0.0.1", 0, 0, (), 7100, (), (), {}, "")
        self.node = MemoryNode("node1", self.clock)
        self.meters = Meters(clock=self.clock, leases={group: self.lease})

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + value

    def text(self) -> str:
        known = {
            "running": 0.0,
            "waiting": 0.0,
            "kv": 0.0,
            "prompt": 0.0,
            "external": 0.0,
            "own": 0.0,
            "requests": 0.0,
        }
        now = {**known, **self.values}
        lines = {
            "num_requests_running": now["running"],
            "num_requests_waiting": now["waiting"],
            "kv_cache_usage_perc": now["kv"],
            "prompt_tokens_total": now["prompt"],
            "time_to_first_token_seconds_sum": now["requests"] * 0.2,
            "time_to_first_token_seconds_count": now["requests"],
            "num_preemptions_total": now.get("preempted", 0.0),
            "nixl_num_kv_expired_reqs_total": now.get("expired", 0.0),
            "nixl_num_notifications_after_expiry_total": now.get("late", 0.0),
            "external_prefix_cache_queries_total": now["external"] + now["own"],
            "external_prefix_cache_hits_total": now["external"],
        }
        text = "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in lines.items())
        for source, value in (("local_compute", now["own"]), ("external_kv_transfer", now["external"])):
            if self.sources:
                labels = f'engine="0",model_name="m",source="{source}"'
                text += f"vllm:prompt_tokens_by_source_total{{{labels}}} {value}\n"
        return text

    async def read(self, times: int = 1) -> Sequence[Alarm]:
        """Read so often, and return the alarms of the last reading."""
        for _ in range(times):
            self.node.http_replies[7100, "/metrics"] = HttpReply(200, self.text().encode())
            agent = MemoryAgent(self.node)
            self.last = await self.meters.read(
                agent, self.rank, "10.0.0.1", warm_up=self.warm_up, settled=self.settled
            )
            await self.clock.advance(EVERY)
        return self.meters.alarms(self.rank.id)

    async def pulls(self, tokens: float, requests: float = 1) -> Sequence[Alarm]:
        """Serve requests whose KV came from a prefill rank."""
        self.add(prompt=tokens, external=tokens, requests=requests)
        return await self.read()

    async def computes(self, tokens: float, requests: float = 1) -> Sequence[Alarm]:
        """Serve requests that came without KV."""
        self.add(prompt=tokens, own=tokens, requests=requests)
        return await self.read()


def ids(alarms: Sequence[Alarm]) -> list[str]:
    return [alarm.id for alarm in alarms]


@pytest.mark.parametrize("sources", [True, False], ids=["by source", "older version"])
async def test_a_decode_rank_that_computes_prompts_is_told_and_ends_when_it_pulls_again(sources: bool) -> None:
    server = Server(sources=sources)
    await server.read()
    assert await server.pulls(4000, 4) == ()
    assert await server.computes(600) == ()  # One request may be somebody's test.
    (alarm,) = await server.computes(400, 2)
    assert (alarm.id, alarm.severity) == ("computes-prompts", "error")
    assert alarm.message == "computes prompts itself: 1000 of 5000 prompt tokens in the last 15 s"
    assert "not to port 7100" in alarm.remedy
    assert alarm.since == server.clock.wall() - EVERY
    assert server.last is not None
    assert server.last.local_prefill_tokens == 1000
    for _ in range(5):
        assert ids(await server.pulls(500)) == ["computes-prompts"]  # Half a minute: it could come and go.
    assert await server.pulls(500) == ()
    assert await server.pulls(500) == ()


async def test_an_alarm_counts_the_last_minute_when_it_has_watched_one() -> None:
    server = Server()
    await server.pulls(9000)
    await server.read(12)
    await server.computes(100)
    (alarm,) = await server.computes(43)
    assert alarm.message == "computes prompts itself: 143 of 143 prompt tokens in the last minute"


async def test_a_share_of_requests_that_come_without_kv_keeps_the_alarm() -> None:
    server = Server()
    await server.read()
    await server.computes(100)
    await server.computes(100)
    for _ in range(10):
        assert ids(await server.computes(100)) == ["computes-prompts"]
        assert ids(await server.pulls(2000, 10)) == ["computes-prompts"]


async def test_an_alarm_about_prompts_ends_when_none_come_any_more() -> None:
    server = Server()
    await server.read()
    await server.computes(100)
    await server.computes(100)
    (alarm,) = await server.read(20)
    assert alarm.message == "computes prompts itself"  # Nothing in the last minute to count.
    assert await server.read(round(IDLE / EVERY)) == ()
    assert ids(await server.computes(100)) == ["computes-prompts"]


@pytest.mark.parametrize("silent", [False, True], ids=["idle", "no metrics"])
async def test_two_requests_hours_apart_are_no_pattern(silent: bool) -> None:
    server = Server()
    await server.read()
    for _ in range(3):
        assert await server.computes(600) == ()
        if silent:
            await server.clock.advance(IDLE)
        else:
            assert await server.read(round(IDLE / EVERY)) == ()
    assert await server.computes(100) == ()
    assert ids(await server.computes(100)) == ["computes-prompts"]


async def test_a_warm_up_is_no_alarm_whenever_it_is_read() -> None:
    """A decode rank computes the prompt of its warm-up; the record that says so may be read after its tokens."""
    server = Server()
    await server.read()
    server.settled = False
    for _ in range(2):  # Still under way: sent again after a failure.
        assert await server.computes(40) == ()
    server.settled, server.warm_up = True, WarmUp("ok", tokens=80)
    assert await server.read(3) == ()
    assert server.last is not None
    assert server.last.local_prefill_tokens == 0
    assert await server.pulls(1000) == ()
    assert await server.pulls(1000) == ()


async def test_a_warm_up_between_two_readings_is_no_alarm() -> None:
    server = Server()
    await server.read()
    assert await server.computes(40) == ()  # It began and ended before its record was read.
    server.warm_up = WarmUp("ok", tokens=40)
    assert await server.pulls(1000) == ()
    assert await server.pulls(1000) == ()


async def test_last_tokens_of_pulled_prompts_are_no_alarm() -> None:
    """Versions differ in who computes the last token, or a drafter's look-ahead."""
    server = Server()
    await server.read()
    for _ in range(4):
        server.add(prompt=303, external=300, own=3, requests=3)
        assert await server.read() == ()


async def test_a_version_that_counts_pulled_prompts_as_computed_too_is_no_alarm() -> None:
    server = Server()
    await server.read()
    for _ in range(4):
        server.add(prompt=700, external=700, own=700, requests=1)
        assert await server.read() == ()
    assert server.last is not None
    assert server.last.local_prefill_tokens == 0
    assert server.last.external_share == 1.0


async def test_a_preempted_request_of_an_older_version_is_no_alarm() -> None:
    server = Server(sources=False)
    await server.read()
    for _ in range(4):
        server.add(prompt=500, external=500, own=500, preempted=1, requests=1)
        assert await server.read() == ()


async def test_a_prefill_rank_may_compute_prompts() -> None:
    server = Server(Role.PREFILL)
    await server.read()
    for _ in range(4):
        assert await server.computes(5000, 3) == ()


async def test_a_decode_rank_that_was_started_anew_begins_with_no_alarm() -> None:
    server = Server()
    await server.read()
    await server.computes(100)
    assert ids(await server.computes(100)) == ["computes-prompts"]
    server.values = {"prompt": 10.0, "own": 10.0, "requests": 1.0}
    assert await server.read() == ()


async def test_kv_that_nobody_fetches_is_told_before_it_is_given_up_and_ends_below_the_mark() -> None:
    server = Server(Role.PREFILL, values={"kv": 0.83})
    begun = server.clock.wall()
    before = round(HELD_FOR / EVERY)
    assert await server.read(before) == ()
    (alarm,) = await server.read()
    assert (alarm.id, alarm.severity, alarm.since) == ("kv-held", "warning", begun)
    assert alarm.message == "holds finished prompts that nobody fetches: KV cache 83 % full, nothing runs"
    server.values |= {"waiting": 12.0, "kv": 0.99}
    (alarm,) = await server.read()
    assert alarm.severity == "error"
    assert "99 % full" in alarm.message
    assert alarm.message.endswith("nothing runs, 12 requests wait")
    server.values |= {"waiting": 0.0, "kv": 0.4}
    assert ids(await server.read()) == ["kv-held"]
    server.values["kv"] = 0.1
    assert await server.read() == ()
    server.values["kv"] = 0.4
    assert await server.read(10) == ()


async def test_what_ran_while_there_were_no_metrics_is_not_guessed() -> None:
    server = Server(Role.PREFILL, values={"kv": 0.83})
    assert await server.read() == ()
    await server.clock.advance(600)
    assert await server.read(round(HELD_FOR / EVERY)) == ()
    assert ids(await server.read()) == ["kv-held"]
    await server.clock.advance(600)
    assert ids(await server.read()) == ["kv-held"], "what has been told ends by a reading only"


async def test_a_short_lease_is_told_before_it_ends() -> None:
    server = Server(Role.PREFILL, values={"kv": 0.83}, lease=12.0)
    assert await server.read(2) == ()
    assert ids(await server.read()) == ["kv-held"]


async def test_a_full_rank_that_prefills_for_a_moment_keeps_its_alarm_and_one_that_works_again_loses_it() -> None:
    server = Server(Role.PREFILL, values={"kv": 0.9})
    assert ids(await server.read(5)) == ["kv-held"]
    for _ in range(4):
        server.values["running"] = 1.0
        assert ids(await server.read()) == ["kv-held"]
        server.values["running"] = 0.0
        assert ids(await server.read()) == ["kv-held"]
    server.values["running"] = 2.0
    await server.read(3)
    assert await server.read() == ()


async def test_a_prefill_rank_that_works_on_a_full_cache_is_no_alarm() -> None:
    server = Server(Role.PREFILL, values={"kv": 0.95, "running": 3.0})
    assert await server.read(10) == ()
    server.values |= {"running": 0.0, "kv": 0.02}
    assert await server.read(10) == ()


async def test_a_busy_decode_rank_with_a_full_cache_is_no_alarm() -> None:
    server = Server(Role.DECODE, values={"kv": 0.95})
    assert await server.read(10) == ()


async def test_kv_that_was_given_up_is_counted_and_a_late_fetch_is_worse() -> None:
    server = Server(Role.PREFILL, values={"expired": 7.0})
    assert await server.read(3) == ()  # Of old; nobody knows when.
    server.add(expired=1)
    (alarm,) = await server.read()
    assert (alarm.id, alarm.severity) == ("kv-expired", "warning")
    assert alarm.message == "gave up the KV of 1 request that no decode rank fetched in time (last 5 minutes)"
    begun = alarm.since
    await server.read(30)
    server.add(expired=2, late=1)
    (alarm,) = await server.read()
    assert (alarm.severity, alarm.since) == ("error", begun)
    assert alarm.message == (
        "gave up the KV of 3 requests that no decode rank fetched in time; had KV fetched once after giving it "
        "up, so that answers may be wrong text (last 5 minutes)"
    )
    (alarm,) = await server.read(31)
    assert "2 requests" in alarm.message
    assert await server.read(40) == ()
    assert server.last is not None
    assert (server.last.expired_leases, server.last.late_pulls) == (10, 1)


@pytest.mark.parametrize("sources", [True, False], ids=["by source", "older version"])
async def test_the_share_of_pulled_tokens_leaves_the_warm_up_out(sources: bool) -> None:
    server = Server(sources=sources, warm_up=WarmUp("ok", tokens=40))
    await server.computes(40)
    assert server.last is not None
    assert server.last.external_share is None, "nobody has asked anything yet"
    await server.pulls(60)
    assert server.last.external_share == 1.0
    await server.computes(60)
    assert server.last.external_share == 0.5


async def scrapes(role: Role, *names: str) -> Sequence[Alarm]:
    """Read what real servers said, five seconds apart, and return the last alarms."""
    server = Server(role)
    for name in names:
        server.node.http_replies[7100, "/metrics"] = HttpReply(200, log(f"kept/{name}.txt").encode())
        server.last = await server.meters.read(MemoryAgent(server.node), server.rank, "10.0.0.1")
        await server.clock.advance(EVERY)
    return server.meters.alarms(server.rank.id)


async def test_a_real_prefill_rank_whose_leases_ended_and_whose_kv_was_fetched_after() -> None:
    assert (
        await scrapes(Role.PREFILL, "prefill_idle", "prefill_held", "prefill_held") == ()
    )  # Three blocks: no alarm.
    (alarm,) = await scrapes(Role.PREFILL, "prefill_idle", "prefill_held", "prefill_expired")
    assert alarm.severity == "error"
    assert "the KV of 9 requests" in alarm.message
    assert "fetched once after" in alarm.message


async def test_a_real_decode_rank_that_pulled_and_then_got_requests_that_it_could_not_serve() -> None:
    assert await scrapes(Role.DECODE, "decode_pulled", "decode_pulled", "decode_pulled") == ()
    assert await scrapes(Role.DECODE, "decode_pulled", "decode_failures") == ()  # Not twice in a row.
