"""The lines that an engine which works has in its server's log every ten seconds."""

from .config import Config
from .log import Log
from .metrics import Metrics


def log_throughput(
    config: Config, metrics: Metrics, log: Log, before: tuple[float, float], now: tuple[float, float]
) -> None:
    """Say what was done since `before`: prompt and generation tokens until then and until now."""
    cpu = config.cpu
    parts = [
        f"Engine {config.dp_rank:03d}: Avg prompt throughput: {(now[0] - before[0]) / 10:.1f} tokens/s",
        f"Avg generation throughput: {(now[1] - before[1]) / 10:.1f} tokens/s",
        f"Running: {metrics.running} reqs",
        f"Waiting: {metrics.waiting + (metrics.fetching if cpu else 0)} reqs",
    ]
    if cpu and metrics.fetching:
        parts.append(f"Deferred: {metrics.fetching} reqs")
        parts.append(f"KV fetch: 0 waiting to start, {metrics.fetching} in progress, 0 completed waiting")
    parts.append(f"{'CPU' if cpu else 'GPU'} KV cache usage: {metrics.usage * 100:.1f}%")
    hits = metrics.external_hits() if cpu else None
    if hits is not None:
        parts.append(f"External prefix cache hit rate: {hits * 100:.1f}%")
    if not cpu:
        parts.append("Prefix cache hit rate: 0.0%")
    log.info("loggers.py:335" if cpu else "loggers.py:248", ", ".join(parts))
    transfers = metrics.transfer_line()
    if transfers:
        log.info("metrics.py:103", transfers)
