"""Counters of one API server and their Prometheus text, names and labels as vLLM's."""

import os
import threading
import time

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
           80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                 80.0)  # fmt: skip
REQUEST_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0)

HISTOGRAMS = {
    "request_prompt_tokens": COUNTS,
    "request_generation_tokens": COUNTS,
    "iteration_tokens_total": COUNTS,
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
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
COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
    "mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached",
    "generation_tokens",
)  # fmt: skip
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
REASONS = ("stop", "length", "abort", "error", "repetition")


class Metrics:
    """What has been counted since the start."""

    def __init__(self, engine: int, model: str, block_size: int, blocks: int) -> None:
        self._labels = f'engine="{engine}",model_name="{model}"'
        self._block_size = block_size
        self._blocks = blocks
        self._lock = threading.Lock()
        self._started = time.time()
        self._counters = dict.fromkeys(COUNTERS, 0.0)
        self._sources = dict.fromkeys(SOURCES, 0.0)
        self._reasons = dict.fromkeys(REASONS, 0.0)
        self._buckets = {name: [0] * (len(bounds) + 1) for name, bounds in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)
        self._http: dict[tuple[str, str, str], int] = {}
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
                for name in (
                    "external_prefix_cache_queries",
                    "external_prefix_cache_hits",
                    "prompt_tokens_cached",
                ):
                    self._counters[name] += tokens

    def finished(self, reason: str) -> None:
        """Count a request's end."""
        with self._lock:
            self._reasons[reason] += 1

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram."""
        with self._lock:
            bounds = HISTOGRAMS[name]
            place = next((i for i, bound in enumerate(bounds) if value <= bound), len(bounds))
            self._buckets[name][place] += 1
            self._sums[name] += value

    def http(self, handler: str, method: str, status: int) -> None:
        """Count an HTTP answer."""
        with self._lock:
            key = (handler, method, f"{status // 100}xx")
            self._http[key] = self._http.get(key, 0) + 1

    def enter(self, state: str) -> None:
        """Count a request into `waiting`, `running` or `fetching`."""
        with self._lock:
            setattr(self, state, getattr(self, state) + 1)

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
        return min(1.0, self.used_blocks / self._blocks)

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
            for name in HISTOGRAMS:
                self._histogram(lines, name)
            for (handler, method, status), count in self._http.items():
                labels = f'handler="{handler}",method="{method}",status="{status}"'
                lines.append(f"http_requests_total{{{labels}}} {float(count)}")
        return "\n".join(lines) + "\n"

    def _process(self, lines: list[str]) -> None:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * 4096
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
        ]

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
                  "# TYPE vllm:num_requests_kv_fetch_by_stage gauge",
                  f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="waiting_to_start"}} 0.0',
                  f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="in_progress"}} {float(self.fetching)}',
                  f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="completed_waiting"}} 0.0',
                  "# TYPE vllm:engine_sleep_state gauge",
                  f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} 1.0',
                  f'vllm:engine_sleep_state{{{labels},sleep_state="weights_offloaded"}} 0.0',
                  f'vllm:engine_sleep_state{{{labels},sleep_state="discard_all"}} 0.0',
                  "# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.",
                  "# TYPE vllm:kv_cache_usage_perc gauge",
                  f"vllm:kv_cache_usage_perc{{{labels}}} {self.usage}",
                  "# TYPE vllm:cache_config_info gauge",
                  f'vllm:cache_config_info{{block_size="{self._block_size}",cache_dtype="auto",'
                  f'{labels.split(",")[0]},num_gpu_blocks="{self._blocks}"}} 1.0']  # fmt: skip

    def _totals(self, lines: list[str]) -> None:
        labels, created = self._labels, f"{self._started:.7e}"
        for name, value in self._counters.items():
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} {float(value)}",
                      f"# TYPE vllm:{name}_created gauge", f"vllm:{name}_created{{{labels}}} {created}"]  # fmt: skip
        lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
        for source, value in self._sources.items():
            lines.append(f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {float(value)}')
        lines.append("# TYPE vllm:request_success_total counter")
        engine, model = labels.split(",", 1)
        for reason, value in self._reasons.items():
            lines.append(
                f'vllm:request_success_total{{{engine},finished_reason="{reason}",{model}}} {float(value)}'
            )

    def _histogram(self, lines: list[str], name: str) -> None:
        labels = self._labels
        engine, model = labels.split(",", 1)
        lines.append(f"# TYPE vllm:{name} histogram")
        total = 0
        for bound, count in zip((*map(str, HISTOGRAMS[name]), "+Inf"), self._buckets[name], strict=True):
            total += count
            lines.append(f'vllm:{name}_bucket{{{engine},le="{bound}",{model}}} {float(total)}')
        lines.append(f"vllm:{name}_count{{{labels}}} {float(total)}")
        lines.append(f"vllm:{name}_sum{{{labels}}} {self._sums[name]}")
