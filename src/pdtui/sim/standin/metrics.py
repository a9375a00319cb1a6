"""Counters of one API server and their Prometheus text, names and labels as vLLM's."""

import gc
import os
import platform
import threading
import time

from .config import Config
from .http_metrics import HttpMetrics

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
           80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                 80.0)  # fmt: skip
REQUEST_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
ITERATION = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FEW = (1.0, 2.0, 5.0, 10.0, 20.0)
TRANSFER_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
COUNTS = ()
"""Stands for 1, 2, 5, 10, ... up to the longest request."""

HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "request_prompt_tokens": COUNTS,
    "request_generation_tokens": COUNTS,
    "iteration_tokens_total": ITERATION,
    "request_params_n": FEW,
    "request_params_max_tokens": COUNTS,
    "time_to_first_token_seconds": SECONDS,
    "inter_token_latency_seconds": TOKEN_SECONDS,
    "request_time_per_output_token_seconds": TOKEN_SECONDS,
    "e2e_request_latency_seconds": REQUEST_SECONDS,
    "request_queue_time_seconds": REQUEST_SECONDS,
    "request_inference_time_seconds": REQUEST_SECONDS,
    "request_prefill_time_seconds": REQUEST_SECONDS,
    "request_decode_time_seconds": REQUEST_SECONDS,
    "request_prefill_kv_computed_tokens": COUNTS,
}
CPU_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "request_max_num_generation_tokens": COUNTS,
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
}
"""Of 0.32."""
NIXL_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "nixl_xfer_time_seconds": TRANSFER_SECONDS,
    "nixl_post_time_seconds": (0.001, *TRANSFER_SECONDS),
    "nixl_bytes_transferred": tuple(float(2**power) for power in range(11, 35, 2)),
    "nixl_num_descriptors": (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0,
                             20000.0, 50000.0),
}  # fmt: skip
CPU_COUNTERS = ("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu")
NIXL_COUNTERS = (
    "nixl_num_failed_transfers", "nixl_num_failed_notifications", "nixl_num_kv_expired_reqs",
    "nixl_num_notifications_after_expiry",
)  # fmt: skip
CACHED_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
    "mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached",
    "generation_tokens",
)  # fmt: skip
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
REASONS = ("stop", "length", "abort", "error", "repetition")


def _bound(value: float) -> str:
    """Return a bucket's bound as Prometheus' library writes it: 2097152 is 2.097152e+06."""
    text = repr(value)
    whole = text.split(".")[0]
    if not text.endswith(".0") or len(whole) < 7:
        return text
    return f"{whole[0]}.{whole[1:].rstrip('0') or '0'}e+{len(whole) - 1:02d}"


def _counts(longest: int) -> tuple[float, ...]:
    steps = (mantissa * 10.0**power for power in range(9) for mantissa in (1, 2, 5))
    return tuple(step for step in steps if step <= longest)


class Metrics:
    """What has been counted since the start."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._model = config.served[0]
        self._labels = f'engine="{config.dp_rank}",model_name="{self._model}"'
        self._block_size = config.block_size
        self._blocks = config.blocks
        self._lock = threading.Lock()
        self._started = time.time()
        counts = _counts(config.max_model_len)
        histograms = (
            HISTOGRAMS | (CPU_HISTOGRAMS if config.cpu else {}) | (NIXL_HISTOGRAMS if config.is_nixl else {})
        )
        self._bounds = {name: bounds or counts for name, bounds in histograms.items()}
        names = COUNTERS + (CPU_COUNTERS if config.cpu else ()) + (NIXL_COUNTERS if config.is_nixl else ())
        self._counters = dict.fromkeys(names, 0.0)
        self._sources = dict.fromkeys(SOURCES, 0.0)
        self._reasons = dict.fromkeys(REASONS, 0.0)
        self._buckets = {name: [0] * (len(bounds) + 1) for name, bounds in self._bounds.items()}
        self._sums = dict.fromkeys(self._bounds, 0.0)
        self._http = HttpMetrics(self._started)
        self._has_fetched = not config.cpu
        self._shown = [0] * len(NIXL_COUNTERS)
        self.transfers: list[tuple[float, int, int]] = []
        """Seconds, bytes and descriptors of the reads since the last line about them."""
        self.running = 0
        self.waiting = 0
        self.fetching = 0
        self.used_blocks = 0

    def add(self, name: str, value: float = 1) -> None:
        """Count up."""
        with self._lock:
            self._counters[name] += value

    def prompt(self, source: str, tokens: int) -> None:
        """Count a prompt's tokens by where their KV came from."""
        with self._lock:
            self._counters["prompt_tokens"] += tokens
            self._sources[source] += tokens
            if source == "external_kv_transfer":
                self._counters["prompt_tokens_cached"] += tokens

    def asked_elsewhere(self, tokens: int, *, found: bool) -> None:
        """Count a prompt that another engine may have: whoever promises it, has it, whatever comes of it."""
        with self._lock:
            self._counters["external_prefix_cache_queries"] += tokens
            if found:
                self._counters["external_prefix_cache_hits"] += tokens

    def transferred(self, seconds: float, blocks: int, runs: int) -> None:
        """Count a read of another engine's blocks, in so many runs of neighbours."""
        self.observe("nixl_xfer_time_seconds", seconds)
        self.observe("nixl_post_time_seconds", seconds / 20)
        size = blocks * self._config.block_bytes
        self.observe("nixl_bytes_transferred", size)
        self.observe("nixl_num_descriptors", 2 * runs)
        with self._lock:
            self.transfers.append((seconds, size, 2 * runs))

    def transfer_line(self) -> str:
        """Return what the log says of the connector's work since the last time; empty for none."""
        if not self._config.is_nixl:
            return ""
        with self._lock:
            transfers, self.transfers = self.transfers, []
            now = [int(self._counters[name]) for name in NIXL_COUNTERS]
            failed, _, expired, late = (new - old for new, old in zip(now, self._shown, strict=True))
            self._shown = now
        if not (transfers or failed or expired or late):
            return ""
        times = sorted(seconds * 1000 for seconds, _, _ in transfers) or [0.0]
        megabytes = sum(size for _, size, _ in transfers) / 2**20
        count, total = max(1, len(transfers)), sum(times)
        high = times[min(len(times) - 1, len(times) * 9 // 10)]
        values = {
            "Num successful transfers": len(transfers),
            "Avg xfer time (ms)": round(total / count, 3),
            "P90 xfer time (ms)": round(high, 3),
            "Avg post time (ms)": round(total / count / 20, 3),
            "P90 post time (ms)": round(high / 20, 3),
            "Avg MB per transfer": round(megabytes / count, 3),
            "Throughput (MB/s)": round(megabytes / total * 1000, 3) if total else 0,
            "Avg number of descriptors": round(sum(each for _, _, each in transfers) / count, 1),
            "Num failed transfers": failed,
            "Num KV expired reqs": expired,
            "Num notifs after expiry": late,
        }
        return "KV Transfer metrics: " + ", ".join(f"{name}={value}" for name, value in values.items())

    def external_hits(self) -> float | None:
        """Return the share of prompt tokens that other engines had; None before the first."""
        with self._lock:
            asked = self._counters["external_prefix_cache_queries"]
            return self._counters["external_prefix_cache_hits"] / asked if asked else None

    def finished(self, reason: str) -> None:
        """Count a request's end."""
        with self._lock:
            self._reasons[reason] += 1

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram."""
        with self._lock:
            bounds = self._bounds.get(name)
            if bounds is None:
                return
            place = next((i for i, bound in enumerate(bounds) if value <= bound), len(bounds))
            self._buckets[name][place] += 1
            self._sums[name] += value

    def http(self, handler: str, method: str, status: int, sizes: tuple[int, int], seconds: float) -> None:
        """Count an HTTP answer: bytes of request and answer, and how long it took to begin."""
        with self._lock:
            self._http.count(handler, method, status, sizes, seconds)

    def enter(self, state: str) -> None:
        """Count a request into `waiting`, `running` or `fetching`."""
        with self._lock:
            setattr(self, state, getattr(self, state) + 1)
            self._has_fetched = self._has_fetched or state == "fetching"

    def leave(self, state: str) -> None:
        """Count it out again."""
        with self._lock:
            setattr(self, state, getattr(self, state) - 1)

    def blocks(self, change: int) -> None:
        """Take or give back KV blocks."""
        with self._lock:
            self.used_blocks += change

    @property
    def usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return min(1.0, self.used_blocks / max(1, self._blocks - self._config.cpu))

    def snapshot(self) -> tuple[float, float]:
        """Return prompt and generation tokens so far."""
        with self._lock:
            return self._counters["prompt_tokens"], self._counters["generation_tokens"]

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        with self._lock:
            lines: list[str] = []
            self._process(lines)
            self._gauges(lines)
            self._totals(lines)
            for name in self._bounds:
                self._histogram(lines, name)
            self._http.write(lines)
        return "\n".join(lines) + "\n"

    def _process(self, lines: list[str]) -> None:
        with open("/proc/self/statm", encoding="ascii") as file:
            virtual, resident = (int(pages) * 4096 for pages in file.read().split()[:2])
        lines += [
            "# HELP process_resident_memory_bytes Resident memory size in bytes.",
            "# TYPE process_resident_memory_bytes gauge",
            f"process_resident_memory_bytes {float(resident)}",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started:.2f}",
            "# TYPE process_cpu_seconds_total counter",
            f"process_cpu_seconds_total {time.process_time():.2f}",
            "# TYPE process_open_fds gauge",
            f"process_open_fds {float(len(os.listdir('/proc/self/fd')))}",
            "# TYPE process_max_fds gauge",
            f"process_max_fds {float(os.sysconf('SC_OPEN_MAX'))}",
            "# TYPE process_virtual_memory_bytes gauge",
            f"process_virtual_memory_bytes {float(virtual)}",
        ]
        for name, key in (("objects_collected", "collected"), ("objects_uncollectable", "uncollectable"),
                          ("collections", "collections")):  # fmt: skip
            lines.append(f"# TYPE python_gc_{name}_total counter")
            for generation, values in enumerate(gc.get_stats()):
                lines.append(f'python_gc_{name}_total{{generation="{generation}"}} {float(values[key])}')
        major, minor, patch = platform.python_version_tuple()
        lines.append("# TYPE python_info gauge")
        lines.append(
            f'python_info{{implementation="CPython",major="{major}",minor="{minor}",patchlevel="{patch}",'
            f'version="{major}.{minor}.{patch}"}} 1.0'
        )

    def _gauges(self, lines: list[str]) -> None:
        labels = self._labels
        lines += ["# HELP vllm:num_requests_running Number of requests in model execution batches.",
                  "# TYPE vllm:num_requests_running gauge",
                  f"vllm:num_requests_running{{{labels}}} {float(self.running)}",
                  "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.",
                  "# TYPE vllm:num_requests_waiting gauge",
                  f"vllm:num_requests_waiting{{{labels}}} {float(self.waiting)}",
                  "# TYPE vllm:num_requests_waiting_by_reason gauge",
                  f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {float(self.waiting)}',
                  f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} {float(self.fetching)}',
                  "# TYPE vllm:engine_sleep_state gauge",
                  f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} 1.0',
                  f'vllm:engine_sleep_state{{{labels},sleep_state="weights_offloaded"}} 0.0',
                  f'vllm:engine_sleep_state{{{labels},sleep_state="discard_all"}} 0.0',
                  "# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.",
                  "# TYPE vllm:kv_cache_usage_perc gauge",
                  f"vllm:kv_cache_usage_perc{{{labels}}} {self.usage}",
                  "# TYPE vllm:cache_config_info gauge",
                  f"vllm:cache_config_info{{{self._cache_config()}}} 1.0"]  # fmt: skip
        if self._has_fetched:
            lines += ["# TYPE vllm:num_requests_kv_fetch_by_stage gauge",
                      f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="waiting_to_start"}} 0.0',
                      f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="in_progress"}} {float(self.fetching)}',
                      f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="completed_waiting"}} 0.0']  # fmt: skip

    def _cache_config(self) -> str:
        """Return the labels that say how the KV cache is made."""
        config = self._config
        engine = self._labels.split(",")[0]
        if not config.cpu:
            size = f'block_size="{self._block_size}",cache_dtype="auto"'
            return f'{size},{engine},num_gpu_blocks="{self._blocks}"'
        tokens = self._blocks * self._block_size
        return (
            f'_block_size_resolved="True",block_size="{self._block_size}",cache_dtype="auto",'
            'cache_hit_alignment_tokens="None",'
            f'effective_attention_block_size="{self._block_size}",enable_mamba_shared_prefix_checkpoint="False",'
            f'enable_prefix_caching="{config.flags.get("enable-prefix-caching", True)}",{engine},'
            f'gpu_memory_utilization="{config.flags.get("gpu-memory-utilization", 0.92)}",hash_block_size="None",'
            'is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",'
            f'kv_cache_max_concurrency="{tokens / config.max_model_len}",kv_cache_memory_bytes="{config.kv_bytes}",'
            f'kv_cache_size_tokens="{tokens}",kv_offloading_backend="native",kv_offloading_size="None",'
            'kv_sharing_fast_prefill="False",mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",'
            'mamba_page_size_padded="None",mamba_ssm_cache_dtype="float32",num_cpu_blocks="None",'
            f'num_gpu_blocks="{self._blocks}",num_gpu_blocks_override="None",prefix_cache_retention_interval="0",'
            'prefix_caching_hash_algo="sha256",prefix_match_unit="None",replayssm_buffer_len="16",'
            'skip_page_size_padded="None",sliding_window="None",swa_bounded_replay="True",use_kda_recoverssm="False",'
            'use_replayssm="False",user_specified_block_size="False"'
        )

    def _totals(self, lines: list[str]) -> None:
        labels, created = self._labels, f"{self._started:.7e}"
        for name, value in self._counters.items():
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} {float(value)}",
                      f"# TYPE vllm:{name}_created gauge", f"vllm:{name}_created{{{labels}}} {created}"]  # fmt: skip
        engine, model = labels.split(",", 1)
        self._family(lines, "prompt_tokens_by_source", f'{labels},source="', self._sources)
        self._family(lines, "request_success", f'{engine},finished_reason="', self._reasons, f",{model}")
        if self._config.cpu:
            cached = dict.fromkeys(CACHED_SOURCES, 0.0) | {"p2p": self._counters["external_prefix_cache_hits"]}
            self._family(lines, "prompt_tokens_cached_by_source", f'{labels},source="', cached)
            rejected = dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), 0.0)
            self._family(lines, "admission_rejections", f'{model},reason="', rejected)

    def _family(self, lines: list[str], name: str, before: str, values: dict[str, float], after: str = "") -> None:
        """Write a counter for each value of its last label."""
        for suffix, kind in (("total", "counter"), ("created", "gauge")):
            lines.append(f"# TYPE vllm:{name}_{suffix} {kind}")
            for label, value in values.items():
                shown = float(value) if kind == "counter" else f"{self._started:.7e}"
                lines.append(f'vllm:{name}_{suffix}{{{before}{label}"{after}}} {shown}')

    def _histogram(self, lines: list[str], name: str) -> None:
        labels = self._labels
        engine, model = labels.split(",", 1)
        lines.append(f"# TYPE vllm:{name} histogram")
        total = 0
        for bound, count in zip((*map(_bound, self._bounds[name]), "+Inf"), self._buckets[name], strict=True):
            total += count
            lines.append(f'vllm:{name}_bucket{{{engine},le="{bound}",{model}}} {float(total)}')
        lines.append(f"vllm:{name}_count{{{labels}}} {float(total)}")
        lines.append(f"vllm:{name}_sum{{{labels}}} {self._sums[name]}")
        lines.append(f"# TYPE vllm:{name}_created gauge")
        lines.append(f"vllm:{name}_created{{{labels}}} {self._started:.7e}")
