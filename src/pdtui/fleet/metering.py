"""What ranks' /metrics say, as rates; and which ranks run requests without giving tokens.

/health stays 200 while a rank hangs (cases 80), so the sign of life is tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdtui.clock import Clock
from pdtui.fleet.snapshot import RankMetrics
from pdtui.readings.vllm_metrics import KEEP, MetricsReading, rates, read_metrics
from pdtui.remote.interface import NodeAgent
from pdtui.text import decode
from pdtui.topology.plan import RankPlan

STALL_AFTER = 60.0
"""Seconds with running requests and no token after which a rank is stalled."""

METRICS_TIMEOUT = 3.0


@dataclass(slots=True)
class _Seen:
    reading: MetricsReading
    moved_at: float
    """Monotonic time at which tokens last came, or nothing ran."""
    metrics: RankMetrics = field(default_factory=RankMetrics)


class Meters:
    """The last readings of all ranks of a node."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    async def read(self, agent: NodeAgent, rank: RankPlan, address: str) -> RankMetrics | None:
        """Ask a rank; None when it gave no answer. Raises `RemoteError`."""
        reply = await agent.http(address, rank.api_port, "/metrics", timeout=METRICS_TIMEOUT, keep=KEEP)
        now = self._clock.monotonic()
        reading = read_metrics(decode(reply.body), now) if reply.status == 200 else None
        if reading is None:
            return None
        before = self._seen.get(rank.id)
        seen = _Seen(reading, now)
        if before is not None and not _moved(before.reading, reading):
            seen.moved_at = before.moved_at
        change = rates(before.reading, reading) if before is not None else None
        seen.metrics = RankMetrics(
            running=reading.running,
            waiting=reading.waiting,
            kv_usage=reading.kv_usage,
            generation_tokens_per_s=change.generation_tokens_per_s if change else None,
            prompt_tokens_per_s=change.prompt_tokens_per_s if change else None,
            ttft_s=change.ttft_s if change else None,
            tpot_s=change.tpot_s if change else None,
            local_prefill_tokens=reading.local_prefill_tokens,
            observed_at=self._clock.wall(),
        )
        self._seen[rank.id] = seen
        return seen.metrics

    def stalled(self, rank: str) -> bool:
        """Return whether requests have run for a while and no tokens came."""
        seen = self._seen.get(rank)
        return seen is not None and seen.reading.at - seen.moved_at >= STALL_AFTER

    def forget(self, rank: str) -> None:
        """Forget a rank's last reading."""
        self._seen.pop(rank, None)


def _moved(old: MetricsReading, new: MetricsReading) -> bool:
    """Return whether tokens came, or nothing ran; a prefill rank's tokens are the prompts'."""
    if not new.running or not old.running:
        return True
    return (old.generation_tokens, old.prompt_tokens) != (new.generation_tokens, new.prompt_tokens)
