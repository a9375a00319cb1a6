"""Turns /metrics of ready ranks into numbers, and notices that requests run and no tokens come."""

from __future__ import annotations

from dataclasses import dataclass

from pdtui.clock import Clock
from pdtui.fleet.snapshot import RankMetrics
from pdtui.readings.vllm_metrics import KEEP, MetricsReading, Rates, rates, read_metrics
from pdtui.remote.interface import NodeAgent
from pdtui.text import decode
from pdtui.topology.plan import RankPlan

STALLED_AFTER = 30.0
"""Seconds of running requests without a token; long prompts take a while, and a group that is fed idles never."""


@dataclass(slots=True)
class _Meter:
    """One rank's last reading."""

    reading: MetricsReading
    rates: Rates | None = None
    moved_at: float = 0.0
    """When tokens last came, or nothing ran."""


class Meters:
    """Asks ranks for their metrics; implements `fleet.ranks.Meter`."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    async def read(self, agent: NodeAgent, rank: RankPlan, address: str) -> RankMetrics | None:
        """Ask a rank; None when it gave no answer. Raises `AgentLost` and `AgentError`."""
        reply = await agent.http(address or rank.host, rank.api_port, "/metrics", keep=KEEP)
        if reply.status != 200:
            return None
        now = self._clock.monotonic()
        reading = read_metrics(decode(reply.body), now)
        if reading is None:
            return None
        self._take(rank.id, reading, now)
        return self._metrics(rank.id)

    def stalled(self, rank: str) -> bool:
        """Return whether requests run and no tokens come."""
        meter = self._meters.get(rank)
        return meter is not None and meter.reading.at - meter.moved_at >= STALLED_AFTER

    def forget(self, rank: str) -> None:
        """Forget a rank's last reading."""
        self._meters.pop(rank, None)

    def _take(self, rank: str, reading: MetricsReading, now: float) -> None:
        old = self._meters.get(rank)
        meter = _Meter(reading, rates(old.reading, reading) if old else None, old.moved_at if old else now)
        if old is None or not reading.running or _tokens(reading) != _tokens(old.reading):
            meter.moved_at = now
        self._meters[rank] = meter

    def _metrics(self, rank: str) -> RankMetrics:
        meter = self._meters[rank]
        reading, since = meter.reading, meter.rates
        return RankMetrics(
            running=reading.running,
            waiting=reading.waiting,
            kv_usage=reading.kv_usage,
            generation_tokens_per_s=since.generation_tokens_per_s if since else None,
            prompt_tokens_per_s=since.prompt_tokens_per_s if since else None,
            ttft_s=since.ttft_s if since else None,
            tpot_s=since.tpot_s if since else None,
            local_prefill_tokens=reading.local_prefill_tokens,
            observed_at=self._clock.wall(),
        )


def _tokens(reading: MetricsReading) -> tuple[float | None, float | None]:
    return reading.prompt_tokens, reading.generation_tokens
