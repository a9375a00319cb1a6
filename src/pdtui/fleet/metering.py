"""Turns /metrics of ready ranks into numbers and alarms, and notices that requests run and no tokens come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.clock import Clock
from pdtui.fleet.alarms import Moment, RankAlarms
from pdtui.fleet.snapshot import Alarm, RankMetrics
from pdtui.readings.vllm_metrics import KEEP, MetricsReading, Rates, rates, read_metrics
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.ranks import WarmUp
from pdtui.text import decode
from pdtui.topology.plan import RankPlan

STALLED_AFTER = 30.0
"""Seconds of running requests without a token; long prompts take a while, and a group that is fed idles never."""


@dataclass(slots=True)
class _Latest:
    """Values that only readings with requests have, and when (wall clock) they were true."""

    ttft_s: float | None = None
    ttft_at: float | None = None
    tpot_s: float | None = None
    tpot_at: float | None = None
    acceptance: float | None = None
    acceptance_at: float | None = None
    accepted_length: float | None = None
    acceptance_by_position: tuple[float, ...] = ()

    def take(self, since: Rates, at: float) -> None:
        """Take over what an interval says."""
        if since.ttft_s is not None:
            self.ttft_s, self.ttft_at = since.ttft_s, at
        if since.tpot_s is not None:
            self.tpot_s, self.tpot_at = since.tpot_s, at
        if since.acceptance is not None:
            self.acceptance, self.acceptance_at = since.acceptance, at
            self.accepted_length = since.accepted_length
            self.acceptance_by_position = since.acceptance_by_position


class _Meter:
    """What is kept of one rank."""

    def __init__(
        self,
        rank: RankPlan,
        reading: MetricsReading,
        own_tokens: float | None,
        wall: float,
        lease: float | None,
    ) -> None:
        self.reading = reading
        self.own_tokens = own_tokens
        """Prompt tokens that it computed itself, those of its warm-up left out."""
        self.since: Rates | None = None
        self.latest = _Latest()
        self.moved_at = reading.at
        """When tokens last came, or nothing ran."""
        self._rank = rank
        self._lease = lease
        self._watch = RankAlarms(rank, lease)
        self.alarms = self._watch.take(Moment(reading, None, wall, None, settled=False))

    def take(self, reading: MetricsReading, own_tokens: float | None, wall: float, *, settled: bool) -> None:
        """Take over one more reading."""
        if (reading.prompt_tokens or 0.0) < (self.reading.prompt_tokens or 0.0):
            self.latest, self._watch = _Latest(), RankAlarms(self._rank, self._lease)  # Another run answers.
        self.since = rates(self.reading, reading)
        if self.since is not None:
            self.latest.take(self.since, wall)
        if not reading.running or _tokens(reading) != _tokens(self.reading):
            self.moved_at = reading.at
        own = None if own_tokens is None or self.own_tokens is None else own_tokens - self.own_tokens
        if own is not None and own < 0:
            own = None  # Started anew, or its warm-up has become known.
        self.alarms = self._watch.take(Moment(reading, self.since, wall, own, settled))
        self.reading, self.own_tokens = reading, own_tokens


class Meters:
    """Asks ranks for their metrics; implements `fleet.ranks.Meter`."""

    def __init__(self, *, clock: Clock, leases: Mapping[str, float] | None = None) -> None:
        """`leases`: by group, the seconds for which its ranks keep finished prompts."""
        self._clock = clock
        self._leases = leases or {}
        self._meters: dict[str, _Meter] = {}

    async def read(
        self,
        agent: NodeAgent,
        rank: RankPlan,
        address: str,
        *,
        warm_up: WarmUp | None = None,
        settled: bool = True,
    ) -> RankMetrics | None:
        """Ask a rank; None when it gave no answer. Raises `AgentLost` and `AgentError`.

        `warm_up`: what is known of its first completion, whose prompt it computed itself; `settled`: none is under
        way.
        """
        reply = await agent.http(address or rank.host, rank.api_port, "/metrics", keep=KEEP)
        if reply.status != 200:
            return None
        reading = read_metrics(decode(reply.body), self._clock.monotonic())
        if reading is None:
            return None
        wall = self._clock.wall()
        own = reading.own_prompt_tokens
        if own is not None and warm_up is not None:
            own = max(0.0, own - warm_up.tokens)
        meter = self._meters.get(rank.id)
        if meter is None:
            meter = self._meters[rank.id] = _Meter(rank, reading, own, wall, self._leases.get(rank.group))
        else:
            meter.take(reading, own, wall, settled=settled)
        return _metrics(meter, wall)

    def stalled(self, rank: str) -> bool:
        """Return whether requests run and no tokens come."""
        meter = self._meters.get(rank)
        return meter is not None and meter.reading.at - meter.moved_at >= STALLED_AFTER

    def alarms(self, rank: str) -> tuple[Alarm, ...]:
        """Return what a rank's readings say is wrong, worst first."""
        meter = self._meters.get(rank)
        return meter.alarms if meter is not None else ()

    def forget(self, rank: str) -> None:
        """Forget a rank's last reading."""
        self._meters.pop(rank, None)


def _metrics(meter: _Meter, wall: float) -> RankMetrics:
    reading, since, latest = meter.reading, meter.since, meter.latest
    warm_up = (reading.own_prompt_tokens or 0.0) - (meter.own_tokens or 0.0)
    return RankMetrics(
        running=reading.running,
        waiting=reading.waiting,
        kv_usage=reading.kv_usage,
        generation_tokens_per_s=since.generation_tokens_per_s if since else None,
        prompt_tokens_per_s=since.prompt_tokens_per_s if since else None,
        ttft_s=latest.ttft_s,
        tpot_s=latest.tpot_s,
        local_prefill_tokens=meter.own_tokens,
        observed_at=wall,
        interval_s=since.seconds if since else None,
        ttft_at=latest.ttft_at,
        tpot_at=latest.tpot_at,
        preemptions=_whole(reading.preemptions),
        preempted=_whole(since.preempted) if since else None,
        acceptance=latest.acceptance,
        acceptance_at=latest.acceptance_at,
        accepted_length=latest.accepted_length,
        acceptance_by_position=latest.acceptance_by_position,
        external_share=reading.external_share_without(warm_up),
        expired_leases=_whole(reading.expired_leases),
        late_pulls=_whole(reading.late_pulls),
        failed_transfers=_whole(reading.failed_transfers),
        errors=_whole(reading.errors),
        aborts=_whole(reading.aborts),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _tokens(reading: MetricsReading) -> tuple[float | None, float | None]:
    return reading.prompt_tokens, reading.generation_tokens
