from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.readings.vllm_reports import Throughput, Transfers, throughput_of, transfers_of
from tests.readings.samples import DATA, log

BEGIN = "(APIServer pid=9) INFO 11-30 13:22:15 [loggers.py:1] "
NIXL = (
    "KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=15.568, P90 xfer time (ms)=26.527, "
    "Avg post time (ms)=0.989, P90 post time (ms)=1.693, Avg MB per transfer=0.125, Throughput (MB/s)=8.029, "
    "Avg number of descriptors=3.0, "
)

COUNTS = {
    "plain_startup.log": (2, 0),
    "dp-moe-rank0.log": (2, 0),
    "dp-moe-rank1.log": (2, 0),
    "ep-p-rank0.log": (7, 0),
    "ep-d-rank1.log": (2, 1),
    "decode_killed_by_bogus_block_ids.log": (4, 2),
    "pd_prefill_startup.log": (0, 0),
    "pd_decode_startup.log": (0, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_report_in_a_captured_log_is_read(name: str) -> None:
    lines = log(name).split("\n")
    throughput = [one for one in map(throughput_of, lines) if one]
    transfers = [one for one in map(transfers_of, lines) if one]
    assert (len(throughput), len(transfers)) == COUNTS[name]
    assert len(throughput) == sum("Avg prompt throughput" in line for line in lines)
    assert all(one.kv_usage is not None for one in throughput)


def test_a_captured_decode_rank_fetched_what_it_needed() -> None:
    lines = log("ep-d-rank1.log").split("\n")
    assert next(filter(None, map(throughput_of, lines))) == Throughput(4.8, 0, 0, kv_usage=0.0)
    assert next(filter(None, map(transfers_of, lines))) == Transfers(done=2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Engine 017: Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 470.0 tokens/s, "
            "Running: 6 reqs, Waiting: 2 reqs, Deferred: 1 reqs, KV fetch: 1 waiting to start, 2 in progress, "
            "3 completed waiting, Preemptions: 4, NPU KV cache usage: 50.0%, Prefix cache hit rate: 25.0%, "
            "External prefix cache hit rate: 75.0%, MM cache hit rate: 5.0%",
            Throughput(470.0, 6, 2, 1, 4, 0.5),
        ),
        (
            "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
            "Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%",
            Throughput(2.0, 3, 4, kv_usage=0.5),
        ),
        (
            "2 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
            "Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 50.0%",
            Throughput(2.0, 3, 4, kv_usage=0.5),
        ),
        (
            "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
            "Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 50.0%, CPU KV cache usage: 0.0%.",
            Throughput(2.0, 3, 4, kv_usage=0.5),
        ),
        ("Engine 000: nothing", None),
        (
            "Engine 000: Avg prompt throughput: 1 tokens/s, Avg generation throughput: . tokens/s, "
            "Running: 1 reqs, Waiting: 0 reqs",
            None,
        ),
    ],
)
def test_throughput_in_the_words_of_several_versions(line: str, expected: Throughput | None) -> None:
    assert throughput_of(BEGIN + line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            NIXL + "Num failed transfers=1, Num KV expired reqs=4, Num notifs after expiry=3",
            Transfers(2, 1, 4, 3),
        ),
        (
            NIXL + "Num failed transfers=1, Num failed recvs=2, Num KV expired reqs=0",
            Transfers(2, 3),
        ),
        (NIXL.removesuffix(", "), Transfers(2)),
        ("KV Transfer metrics: Something new=2", None),
    ],
)
def test_transfers_as_several_connectors_tell_them(line: str, expected: Transfers | None) -> None:
    assert transfers_of(BEGIN + line) == expected


LINES = [line for path in sorted((DATA / "vllm").glob("*.log")) for line in path.read_text().split("\n")]
REPORTS = [line for line in LINES if "metrics:" in line or "throughput:" in line]


@settings(max_examples=60)
@given(st.sampled_from(REPORTS), st.integers(0, 400), st.text(max_size=20))
def test_no_broken_line_raises(line: str, place: int, noise: str) -> None:
    broken = line[:place] + noise + line[place + len(noise) :]
    throughput_of(broken)
    transfers_of(broken)
