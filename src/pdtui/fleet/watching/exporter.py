"""What is watched, for Prometheus: made anew from the newest snapshot at each scrape.

So what is no longer known is no longer there, instead of standing still: readings of a node that is away, figures
of a rank that does not answer. Names and units follow Prometheus' conventions. Labels come from the file (nodes,
ranks), from fixed lists (verdicts, states, ids), and their number has a limit.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pdtui import __version__
from pdtui.errors import UsageError
from pdtui.fleet.snapshot import NodeState, NodeStatus, NpuStatus, RankMetrics, RankState, RankStatus, Snapshot
from pdtui.fleet.troubles import healthy, troubles

ADDRESS = "127.0.0.1"

FRESH = 60.0
"""Seconds after which a reading of an NPU is left out."""

FRESH_METRICS = 30.0
"""Seconds after which figures of a rank are left out."""

STRAYS = 64
"""Ranks that the file does not have, of which as many are told."""

TROUBLES = 2000

_MB = 1 << 20

_NPU_GAUGES: tuple[tuple[str, str, Callable[[NpuStatus], float | None]], ...] = (
    ("hbm_used_bytes", "HBM in use.", lambda npu: _scaled(npu.hbm_used_mb, _MB)),
    ("hbm_total_bytes", "HBM there is.", lambda npu: _scaled(npu.hbm_total_mb, _MB)),
    ("temperature_celsius", "Temperature of the chip.", lambda npu: npu.temperature_c),
    ("power_watts", "Power.", lambda npu: npu.power_w),
    ("aicore_utilization_ratio", "Use of the AI cores, 0 to 1.", lambda npu: _scaled(npu.utilization, 0.01)),
)

_RANK_GAUGES: tuple[tuple[str, str, Callable[[RankMetrics], float | None]], ...] = (
    ("requests_running", "Requests that run.", lambda m: m.running),
    ("requests_waiting", "Requests that wait.", lambda m: m.waiting),
    ("kv_cache_usage_ratio", "KV cache in use by requests, 0 to 1.", lambda m: m.kv_usage),
    ("generation_tokens_per_second", "Tokens of answers.", lambda m: m.generation_tokens_per_s),
    ("prompt_tokens_per_second", "Tokens of prompts.", lambda m: m.prompt_tokens_per_s),
    ("time_to_first_token_seconds", "Mean over the last requests.", lambda m: m.ttft_s),
    ("time_per_output_token_seconds", "Mean over the last requests.", lambda m: m.tpot_s),
    ("draft_acceptance_ratio", "Share of drafted tokens that were accepted, 0 to 1.", lambda m: m.acceptance),
    (
        "external_prompt_tokens_ratio",
        "Share of prompt tokens with pulled KV.",
        lambda m: m.external_share,
    ),
)

_RANK_COUNTERS: tuple[tuple[str, str, Callable[[RankMetrics], float | None]], ...] = (
    ("preemptions", "Preempted requests since the server began.", lambda m: m.preemptions),
    ("request_errors", "Requests that ended with an error since the server began.", lambda m: m.errors),
    ("request_aborts", "Requests whose client left since the server began.", lambda m: m.aborts),
    ("kv_leases_expired", "Requests whose KV was given up before it was fetched.", lambda m: m.expired_leases),
    ("kv_transfers_failed", "KV transfers that failed.", lambda m: m.failed_transfers),
)


class Exporter(Collector):
    """Metrics of the newest snapshot, and of the watching itself."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        now: Callable[[], float],
        *,
        transitions: Mapping[tuple[str, bool], int],
        hook_runs: Mapping[str, int] | None = None,
        hook_waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare; the callables may be called from any thread. `now`: wall clock."""
        self._snapshot = snapshot
        self._now = now
        self._transitions = transitions
        self._hook_runs = hook_runs
        self._hook_waiting = hook_waiting

    def describe(self) -> Iterable[Metric]:
        """Return nothing: so that to register does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics as they are now."""
        snapshot, now = self._snapshot(), self._now()
        yield from _cluster(snapshot)
        yield from _nodes(snapshot)
        yield from _npus(snapshot, now)
        yield from _ranks(snapshot, now)
        yield from _wrong(snapshot)
        yield from self._watching()

    def _watching(self) -> Iterator[Metric]:
        yield _one("pdtui_build_info", "Version of pdtui that watches.", 1, version=__version__)
        told = CounterMetricFamily(
            "pdtui_transitions", "Changes since the watching began.", labels=("kind", "worse")
        )
        for (kind, worse), count in sorted(dict(self._transitions).items()):
            told.add_metric((kind, str(worse).lower()), count)
        yield told
        if self._hook_runs is not None:
            runs = CounterMetricFamily(
                "pdtui_hook_runs", "Runs of the hook by how they ended; dropped: never run.", labels=("result",)
            )
            for result in ("ok", "failed", "timeout", "dropped"):
                runs.add_metric((result,), dict(self._hook_runs).get(result, 0))
            yield runs
            yield _one("pdtui_hook_waiting", "Transitions that wait for the hook.", self._hook_waiting())


def serve(collector: Collector, port: int) -> tuple[WSGIServer, Thread]:
    """Answer scrapes on loopback, in threads of its own; returns the server. Raises `UsageError`: port taken."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        return start_http_server(port, ADDRESS, registry)
    except OSError as error:
        what = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise UsageError(f"--prometheus: port {port} {what}", remedy="--prometheus PORT; 0 for any") from None


def _cluster(snapshot: Snapshot) -> Iterator[Metric]:
    serving = snapshot.serving
    yield _one("pdtui_cluster_info", "The cluster.", 1, cluster=snapshot.cluster)
    yield _one("pdtui_snapshot_timestamp_seconds", "When the newest picture was made.", snapshot.made_at)
    yield _one("pdtui_healthy", "Nothing is wrong but what is acknowledged.", float(healthy(snapshot)))
    yield _one("pdtui_serving", "1 for how it serves: SERVING, DEGRADED, DOWN.", 1, word=serving.word)
    ready = GaugeMetricFamily("pdtui_serving_ranks_ready", "Ranks that serve.", labels=("role",))
    total = GaugeMetricFamily("pdtui_serving_ranks", "Ranks of the file.", labels=("role",))
    for role, here, there in (
        ("prefill", serving.prefill_ready, serving.prefill_total),
        ("decode", serving.decode_ready, serving.decode_total),
    ):
        ready.add_metric((role,), here)
        total.add_metric((role,), there)
    yield from (ready, total)
    changed = snapshot.file_changed or snapshot.file_removed
    yield _one("pdtui_file_changed", "The topology file is not what was loaded.", float(changed))
    yield _one("pdtui_leases", "Operations of other consoles that run.", len(snapshot.leases))
    yield _one("pdtui_acknowledgements", "Acknowledgements in force.", len(snapshot.acknowledgements))


def _nodes(snapshot: Snapshot) -> Iterator[Metric]:
    up = GaugeMetricFamily("pdtui_node_up", "The node answers.", labels=("node",))
    read = GaugeMetricFamily(
        "pdtui_node_last_reading_timestamp_seconds", "When its NPUs were last read.", labels=("node",)
    )
    offset = GaugeMetricFamily(
        "pdtui_node_clock_offset_seconds", "How far its clock is ahead of ours.", labels=("node",)
    )
    for node in snapshot.nodes:
        up.add_metric((node.name,), float(node.state is NodeState.CONNECTED))
        if node.observed_at is not None:
            read.add_metric((node.name,), node.observed_at)
        if node.state is NodeState.CONNECTED:
            offset.add_metric((node.name,), node.clock_offset)
    yield from (up, read, offset)


def _npus(snapshot: Snapshot, now: float) -> Iterator[Metric]:
    verdict = GaugeMetricFamily(
        "pdtui_npu_verdict", "1 for the verdict that an NPU has.", labels=("node", "npu", "verdict")
    )
    gauges = [
        GaugeMetricFamily(f"pdtui_npu_{name}", text, labels=("node", "npu")) for name, text, _ in _NPU_GAUGES
    ]
    for node, npu in ((each, npu) for each in snapshot.nodes for npu in each.npus):
        verdict.add_metric((node.name, str(npu.id), npu.verdict.value), 1)
        if not _is_fresh(node, npu, now):
            continue
        for gauge, (_, _, value_of) in zip(gauges, _NPU_GAUGES, strict=True):
            if (value := value_of(npu)) is not None:
                gauge.add_metric((node.name, str(npu.id)), value)
    yield verdict
    yield from gauges


def _is_fresh(node: NodeStatus, npu: NpuStatus, now: float) -> bool:
    at = npu.observed_at
    return node.state is NodeState.CONNECTED and at is not None and now - at < FRESH


def _ranks(snapshot: Snapshot, now: float) -> Iterator[Metric]:
    labels = ("rank", "group", "role", "node")
    state = GaugeMetricFamily("pdtui_rank_state", "1 for the state that a rank is in.", labels=(*labels, "state"))
    well = GaugeMetricFamily("pdtui_rank_healthy", "/health answers 200.", labels=labels)
    gauges = [GaugeMetricFamily(f"pdtui_rank_{name}", text, labels=labels) for name, text, _ in _RANK_GAUGES]
    counters = [CounterMetricFamily(f"pdtui_rank_{name}", text, labels=labels) for name, text, _ in _RANK_COUNTERS]
    for rank in _told(snapshot.ranks):
        names = (rank.id, rank.group, rank.role.value, rank.node)
        state.add_metric((*names, rank.state.value), 1)
        if rank.state in (RankState.LOST, RankState.UNKNOWN):
            continue
        well.add_metric(names, float(rank.health == "200"))
        metrics = rank.metrics
        if metrics is None or now - metrics.observed_at >= FRESH_METRICS or rank.health != "200":
            continue
        for gauge, (_, _, value_of) in zip(gauges, _RANK_GAUGES, strict=True):
            if (value := value_of(metrics)) is not None:
                gauge.add_metric(names, value)
        for counter, (_, _, value_of) in zip(counters, _RANK_COUNTERS, strict=True):
            if (value := value_of(metrics)) is not None:
                counter.add_metric(names, value)
    yield from (state, well, *gauges, *counters)


def _told(ranks: Sequence[RankStatus]) -> Iterator[RankStatus]:
    """Return the ranks of the file, and some others: what lies on nodes must not make labels without end."""
    yield from (rank for rank in ranks if "not-in-file" not in rank.flags)
    yield from islice((rank for rank in ranks if "not-in-file" in rank.flags), STRAYS)


def _wrong(snapshot: Snapshot) -> Iterator[Metric]:
    wrong = GaugeMetricFamily(
        "pdtui_trouble",
        "1 for each thing that is wrong: reasons of NPUs, states of nodes and ranks, alarms.",
        labels=("kind", "subject", "id", "severity", "acknowledged"),
    )
    counts: Counter[tuple[str, str]] = Counter()
    for index, one in enumerate(troubles(snapshot)):
        known = str(snapshot.acknowledged(one.key) is not None).lower()
        counts[one.severity, known] += 1
        if index < TROUBLES:
            wrong.add_metric((one.kind, one.subject, one.id, one.severity, known), 1)
    yield wrong
    number = GaugeMetricFamily("pdtui_troubles", "How many things are wrong.", labels=("severity", "acknowledged"))
    for severity in ("error", "warning", "info"):
        for known in ("false", "true"):
            number.add_metric((severity, known), counts[severity, known])
    yield number


def _one(name: str, text: str, value: float, **labels: str) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=tuple(labels))
    gauge.add_metric(tuple(labels.values()), value)
    return gauge


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
