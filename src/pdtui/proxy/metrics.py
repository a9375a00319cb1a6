"""Prometheus series of one proxy, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pdtui.proxy.pool import Pool
from pdtui.proxy.trace import Trace, TraceLog

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class _PoolCollector(Collector):
    """Reads the pool when it is scraped."""

    def __init__(self, pool: Pool, traces: TraceLog) -> None:
        self._pool = pool
        self._traces = traces

    def collect(self) -> Iterator[GaugeMetricFamily]:
        usable = GaugeMetricFamily(
            "pdtui_proxy_backend_usable", "Whether requests go to a rank.", labels=["rank", "role"]
        )
        requests = GaugeMetricFamily(
            "pdtui_proxy_backend_requests", "Requests that a rank carries.", labels=["rank", "role"]
        )
        for view in self._pool.views():
            usable.add_metric([view.rank, view.role], float(view.usable and not view.ejected))
            requests.add_metric([view.rank, view.role], view.load.requests)
        yield usable
        yield requests
        yield GaugeMetricFamily("pdtui_proxy_requests_running", "Requests in flight.", value=self._traces.running)


class Metrics:
    """What `/metrics` shows."""

    def __init__(self, pool: Pool, traces: TraceLog) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pdtui_proxy_requests", "Finished requests.", ["path", "outcome"], registry=self.registry
        )
        self._tokens = Counter("pdtui_proxy_tokens", "Generated tokens.", registry=self.registry)
        self._prefills = Counter(
            "pdtui_proxy_prefills", "Prefills begun, repeated ones included.", registry=self.registry
        )
        self._recomputes = Counter("pdtui_proxy_recomputes", "Answers that D dropped.", registry=self.registry)
        self._durations = {
            name: Histogram(f"pdtui_proxy_{name}_seconds", text, buckets=_SECONDS, registry=self.registry)
            for name, text in (
                ("queue", "From a request to its first prefill."),
                ("prefill", "From P's request to its answer."),
                ("transfer", "From P's answer to D's first token."),
                ("first_token", "From a request to its first token."),
                ("request", "From a request to the end of its answer."),
            )
        }
        self.registry.register(_PoolCollector(pool, traces))

    def finished(self, trace: Trace) -> None:
        """Count a request that has ended."""
        self._requests.labels(trace.path, trace.outcome).inc()
        self._tokens.inc(trace.tokens)
        self._prefills.inc(len(trace.attempts))
        self._recomputes.inc(trace.recomputes)
        for name, seconds in (
            ("queue", trace.queue_s),
            ("prefill", trace.prefill_s),
            ("transfer", trace.transfer_s),
            ("first_token", trace.ttft_s),
            ("request", trace.total_s),
        ):
            if seconds is not None:
                self._durations[name].observe(seconds)

    def render(self) -> bytes:
        """Return the text format."""
        return generate_latest(self.registry)
