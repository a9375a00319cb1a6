"""What a rank that no longer answers said last of its work: how much it had to do before it went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from pdtui.fleet.handle import LogLine
from pdtui.readings.vllm_log import stamp_of
from pdtui.readings.vllm_reports import Throughput, Transfers, throughput_of, transfers_of


def last_work(lines: Sequence[LogLine]) -> str:
    """Return it with the time that the log shows; empty when there is none in these lines.

    `03:12:40: 12 running, 40 waiting, KV cache 97 % full, 470 tokens/s out`
    """
    transfers: Transfers | None = None
    for line in reversed(lines):
        work = throughput_of(line.text)
        if work is None:
            transfers = transfers or transfers_of(line.text)  # A server tells of them right after the rest.
            continue
        at = stamp_of(line.text, line.at)
        begin = f"{time.strftime('%H:%M:%S', time.gmtime(at))}: " if at is not None else ""
        return begin + ", ".join((*_of_requests(work), *_of_transfers(transfers)))
    return ""


def _of_requests(work: Throughput) -> Iterable[str]:
    yield f"{work.running} running"
    yield f"{work.waiting} waiting" + (f" ({work.deferred} for KV)" if work.deferred else "")
    if work.kv_usage is not None:
        yield f"KV cache {work.kv_usage * 100:.0f} % full"
    if work.preemptions:
        yield f"{work.preemptions} preempted"
    yield f"{work.generation_tokens_per_s:.0f} tokens/s out"


def _of_transfers(transfers: Transfers | None) -> Iterable[str]:
    if transfers is None:
        return
    if transfers.failed:
        yield f"{transfers.failed} of {transfers.done + transfers.failed} KV transfers failed"
    if transfers.expired:
        yield f"gave up KV {transfers.expired} times"
    if transfers.late:
        yield f"{transfers.late} fetched too late"
