from __future__ import annotations

import calendar
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.lines import LineSplitter
from pdtui.readings.vllm_log import StageReader, is_of, prefix_of, severity, stamp_of
from tests.readings.samples import DATA, log

NOW = calendar.timegm((2026, 11, 30, 14, 0, 0))


def stages(data: bytes, size: int = 1 << 20) -> list[str]:
    """Feed a log in pieces, with the states of unfinished lines, and return the stages in order."""
    splitter, reader = LineSplitter(), StageReader()
    seen: list[str] = []
    for start in range(0, len(data), size):
        for line in (*splitter.feed(data[start : start + size]), splitter.partial):
            seen += [reader.stage] if reader.feed(line) else []
    return seen


STARTED = {
    "plain_startup.log": [],
    "pd_prefill_startup.log": ["KV link"],
    "pd_decode_startup.log": ["KV link"],
    "dp-moe-rank0.log": ["coordinator"],
    "dp-moe-rank1.log": [],
    "ep-p-rank0.log": ["coordinator", "KV link"],
    "ep-d-rank1.log": ["KV link"],
    "decode_killed_by_bogus_block_ids.log": ["KV link"],
}
ALL = ["configuration", "coordinator", "engine", "weights", "weights 100 %", "KV cache", "KV link", "engine ready"]


@pytest.mark.parametrize("name", STARTED)
def test_every_captured_start_goes_through_its_stages_in_order_to_ready(name: str) -> None:
    optional = {"coordinator", "KV link"} - set(STARTED[name])
    expected = [stage for stage in ALL if stage not in optional] + ["API server", "ready"]
    seen = [stage for stage in stages(log(name).encode()) if stage != "weights 0 %"]
    assert seen == expected


ERRORS = {
    "plain_startup.log": (0, ""),
    "pd_prefill_startup.log": (0, ""),
    "pd_decode_startup.log": (0, ""),
    "dp-moe-rank0.log": (0, ""),
    "dp-moe-rank1.log": (0, ""),
    "ep-d-rank1.log": (0, ""),
    "ep-p-rank0.log": (110, "WorkerProc hit an exception."),
    "decode_killed_by_bogus_block_ids.log": (43, "makeXferReq: remote index out of range"),
    "fail/api_port_in_use.log": (2, "Traceback"),
    "fail/ascend_connector_upstream.log": (2, "Traceback"),
    "fail/dp_address_not_local.log": (0, ""),
    "fail/dp_rank1_alone.log": (0, ""),
    "fail/dp_rank_out_of_range.log": (2, "Traceback"),
    "fail/json_trailing_comma.log": (1, "argument --kv-transfer-config"),
    "fail/kv_cache_too_small.log": (29, "EngineCore failed to start."),
    "fail/kv_role_bad.log": (1, "argument --kv-transfer-config"),
    "fail/max_model_len_too_big.log": (2, "Traceback"),
    "fail/model_path_missing.log": (2, "Traceback"),
    "fail/quantization_ascend.log": (2, "Traceback"),
    "fail/unknown_flag.log": (1, "unrecognized arguments"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_every_captured_log_are_counted_from_the_first(name: str) -> None:
    """A server that starts, serves and is stopped has none: what it leaves behind at its end is noise."""
    splitter = LineSplitter()
    lines = [*splitter.feed(log(name).encode()), *splitter.flush()]
    errors = [line for line in lines if severity(line) == "error"]
    count, first = ERRORS[name]
    assert len(errors) == count
    assert first in next(iter(errors), "")


@pytest.mark.parametrize("zone", [0, 8 * 3600, -5 * 3600, 5.75 * 3600])
def test_milestone_has_the_time_that_its_log_says_on_the_node_s_clock(zone: float) -> None:
    """Lines carry local time without a zone; what counts is when, for whoever reads the log and whenever."""
    started = NOW - 120.0
    local = time.strftime("%m-%d %H:%M:%S", time.gmtime(NOW + zone))
    later = time.strftime("%m-%d %H:%M:%S", time.gmtime(NOW + 60 + zone))
    reader = StageReader(started)
    assert reader.since is None
    reader.feed(f"INFO {local} [core.py:1] Initializing a V1 LLM engine")
    assert reader.since == NOW
    reader.feed(f"INFO {later} [runner.py:1] Starting to load model /models/x")
    for percent in (10, 20):  # A bar carries no time and is one milestone.
        reader.feed(f"Loading safetensors checkpoint shards:  {percent}% Completed")
    assert (reader.stage, reader.since) == ("weights 20 %", NOW + 60)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("api_port_in_use.log", []),
        ("ascend_connector_upstream.log", ["configuration"]),
        ("dp_address_not_local.log", ["configuration", "coordinator"]),
        ("dp_rank1_alone.log", ["configuration"]),
        ("dp_rank_out_of_range.log", ["configuration"]),
        ("json_trailing_comma.log", []),
        ("kv_cache_too_small.log", ["KV cache"]),
        ("kv_role_bad.log", []),
        ("max_model_len_too_big.log", ["configuration"]),
        ("model_path_missing.log", []),
        ("quantization_ascend.log", ["configuration"]),
        ("unknown_flag.log", []),
    ],
)
def test_a_start_that_fails_stops_where_it_failed(name: str, last: list[str]) -> None:
    assert stages(log(f"fail/{name}").encode())[-len(last) or 99 :] == last


def test_stages_of_an_ascend_decode_rank() -> None:
    text = (
        "INFO 11-30 13:00:00 [__init__.py:1] Platform plugin ascend is activated\n"
        "(APIServer pid=1) INFO 11-30 13:00:01 [model.py:1] Resolved architecture: DeepseekV3ForCausalLM\n"
        "(EngineCore_DP3 pid=2) INFO 11-30 13:00:09 [core.py:58] Initializing a V1 LLM engine (v0.14.1) with: x\n"
        "(Worker pid=3) INFO 11-30 13:00:20 [model_runner_v1.py:1] Starting to load model /models/ds...\n"
        "\rLoading safetensors checkpoint shards:   1% Completed | 1/163 [00:00<?, ?it/s]"
        "\rLoading safetensors checkpoint shards:  63% Completed | 103/163 [02:10<?, ?it/s]"
        "\rLoading safetensors checkpoint shards: 100% Completed | 163/163 [04:10<?, ?it/s]\n"
        "(Worker pid=3) INFO 11-30 13:05:20 [l.py:1] Loading weights took 250.20 seconds\n"
        "(Worker pid=3) INFO 11-30 13:05:21 [l.py:1] Loading drafter model...\n"
        "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<?, ?it/s]"
        "\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<?, ?it/s]\n"
        "(Worker pid=3) INFO 11-30 13:05:30 [l.py:1] Loading model weights took 41.2000 GB\n"
        "(Worker pid=3) INFO 11-30 13:05:40 [w.py:1] Available KV cache memory: 10.22 GiB\n"
        "(Worker pid=3) INFO 11-30 13:05:44 [m.py:1] KVCacheSendingThread started listening on path: tcp://1.2.3.4:5\n"
        "(Worker pid=3) INFO 11-30 13:05:45 [m.py:1] Compile and warming up model for size 16\n"
        "\rCapturing CUDA graphs (decode, FULL):   0%|          | 0/5 [00:00<?, ?it/s]"
        "\rCapturing CUDA graphs (decode, FULL):  40%|####      | 2/5 [00:01<00:01,  1.00it/s]"
        "\rCapturing CUDA graphs (decode, FULL): 100%|##########| 5/5 [00:03<00:00,  1.00it/s]\n"
        "(Worker pid=3) INFO 11-30 13:06:45 [m.py:1] Graph capturing finished in 60 secs, took 0.55 GiB\n"
        "(EngineCore_DP3 pid=2) INFO 11-30 13:06:46 [core.py:1] init engine "
        "(profile, create kv cache, warmup model) took 90 seconds\n"
        "(APIServer pid=1) INFO 11-30 13:06:47 [api_server.py:1] Starting vLLM API server 0 on http://1.2.3.4:7100\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
    )
    seen = stages(text.encode(), size=8)
    whole = [
        "plugin", "configuration", "engine", "weights", "weights 1 %", "weights 63 %", "weights 100 %", "drafter",
        "drafter 50 %", "drafter 100 %", "weights loaded", "KV cache", "KV link", "warming up", "graphs 0 %",
        "graphs 40 %", "graphs 100 %", "engine ready", "API server", "ready",
    ]  # fmt: skip
    assert [stage for stage in whole if stage not in seen] == []
    assert seen == sorted(seen, key=whole.index)


@pytest.mark.parametrize(
    ("bar", "stage"),
    [
        ("Loading safetensors checkpoint shards:  25% Completed | 1/4", "weights 25 %"),
        ("Loading pt checkpoint shards:  50% Completed | 1/2", "weights 50 %"),
        ("Loading np_cache checkpoint shards:  50% Completed | 1/2", "weights 50 %"),
        ("Multi-thread loading shards:  40% Completed | 2/5", "weights 40 %"),
        ("Multi-thread loading pt checkpoint shards:  40% Completed | 2/5", "weights 40 %"),
        ("Loading safetensors using Runai Model Streamer:  10% Completed | 3/30", "weights 10 %"),
        ("(EngineCore_DP0 pid=7) Loading safetensors checkpoint shards: 100% Completed | 4/4", "weights 100 %"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####", "graphs 40 %"),
        ("Capturing decode CUDA graphs (FULL):  60%|######", "graphs 60 %"),
        ("Capturing ACL graphs (decode, FULL):  80%|########", "graphs 80 %"),
    ],
)
def test_progress_bars_of_several_loaders(bar: str, stage: str) -> None:
    assert stages(f"\r{bar}".encode(), size=16)[-1] == stage


def test_bars_of_workers_that_load_at_once_show_the_furthest_and_never_go_back() -> None:
    def bar(percent: int) -> str:
        return f"\rLoading safetensors checkpoint shards: {percent:3}% Completed | {percent}/100"

    data = "".join(bar(percent) for percent in (10, 0, 10, 30, 20, 30, 60)) + "\n"
    assert stages(data.encode(), size=len(bar(0))) == ["weights 10 %", "weights 30 %", "weights 60 %"]


def test_a_stage_never_goes_back() -> None:
    reader = StageReader()
    reader.feed("INFO: Available KV cache memory: 1 GiB")
    assert not reader.feed("Loading safetensors checkpoint shards:  10% Completed | 1/10")
    assert reader.stage == "KV cache"
    assert not reader.ready


def test_prefixes() -> None:
    whole = prefix_of("(EngineCore_DP3 pid=77) ERROR 11-30 13:22:15 [core.py:133] EngineCore failed to start.")
    assert whole is not None
    assert (whole.level, whole.process, whole.pid, whole.place) == ("ERROR", "EngineCore_DP3", 77, "core.py:133")
    assert whole.message == "EngineCore failed to start."
    uvicorn = prefix_of("INFO:     Application startup complete.")
    assert uvicorn is not None
    assert (uvicorn.process, uvicorn.message) == ("", "Application startup complete.")
    assert prefix_of('  File "x.py", line 3, in f') is None


@pytest.mark.parametrize(
    ("line", "process", "pid", "place"),
    [
        ("INFO 11-30 13:22:15 [core.py:58] text", "", None, "core.py:58"),
        ("INFO 11-30 13:22:15 core.py:58] text", "", None, "core.py:58"),
        ("WARNING 11-30 13:22:15 [v1/engine/core.py:58] text", "", None, "v1/engine/core.py:58"),
        ("(VllmWorker rank=3 pid=77) ERROR 11-30 13:22:15 [x.py:1] text", "VllmWorker rank=3", 77, "x.py:1"),
        ("(EngineCore_0 pid=77) ERROR 11-30 13:22:15 [x.py:1] text", "EngineCore_0", 77, "x.py:1"),
        ("(Worker_DP0_TP1_EP1 pid=77) INFO 11-30 13:22:15 [x.py:1] text", "Worker_DP0_TP1_EP1", 77, "x.py:1"),
        ("(ApiServer_2 pid=77) INFO:     text", "ApiServer_2", 77, ""),
        ("CRITICAL 11-30 13:22:15 text", "", None, ""),
    ],
)
def test_prefixes_of_old_and_new_versions(line: str, process: str, pid: int | None, place: str) -> None:
    found = prefix_of(line)
    assert found is not None
    assert (found.process, found.pid, found.place, found.message) == (process, pid, place, "text")
    assert is_of(line, frozenset({77}), None) is (True if pid else None)


def test_times_take_the_year_that_is_nearest() -> None:
    line = "(APIServer pid=1) INFO 12-31 23:59:58 [x.py:1] text"
    january = calendar.timegm((2027, 1, 2, 0, 0, 0))
    assert stamp_of(line, january) == calendar.timegm((2026, 12, 31, 23, 59, 58))
    assert stamp_of("INFO 11-30 13:22:15 [x.py:1] text", NOW) == calendar.timegm((2026, 11, 30, 13, 22, 15))
    plog = "[ERROR] HCCL(12,python):2026-11-30-13:22:15.123.456 [x.cc:1] text"
    assert stamp_of(plog, NOW) == pytest.approx(calendar.timegm((2026, 11, 30, 13, 22, 15)) + 0.123)
    assert (
        stamp_of("2026-11-30 13:22:15,250 - mooncake", NOW) == calendar.timegm((2026, 11, 30, 13, 22, 15)) + 0.25
    )
    assert stamp_of("no time here", NOW) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(APIServer pid=1) INFO 11-30 13:22:15 [x.py:1] no error at all", ""),
        ("(APIServer pid=1) WARNING 11-30 13:22:15 [x.py:1] text", "warning"),
        ("(Worker_TP0 pid=1) ERROR 11-30 13:22:15 [x.py:1] text", "error"),
        ("ERROR:    [Errno 98] error while attempting to bind on address", "error"),
        ("Traceback (most recent call last):", "error"),
        ("(APIServer pid=1) Traceback (most recent call last):", "error"),
        ("RuntimeError: Engine core initialization failed.", "error"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig", "error"),
        ("vllm serve: error: argument --kv-transfer-config: 1 validation error", "error"),
        ("[ERROR] HCCL(12,python):2026-11-30-13:22:15.123.456 text", "error"),
        ("2026-11-30 13:22:32 NIXL ERROR   _api.py:405 text", "error"),
        ("2026-11-30 13:22:32 NIXL WARN    _api.py:405 text", "warning"),
        ("2026-11-30 13:22:32 NIXL INFO    _api.py:405 Backend UCX was instantiated, no ERROR", ""),
        ("2026-11-30 13:22:15,250 - mooncake - ERROR - text", "error"),
        ("[W1130 13:22:30.870214013 utils.cpp:68] Warning: NUMA binding", "warning"),
        ("[rank3]:[E1130 13:22:30.870214013 compiler_depend.ts:429] NPU out of memory", "error"),
        ("bash: line 1: 4711 Killed                  vllm serve", "error"),
        ('  File "/x/vllm/errors.py", line 3, in ErrorThing', ""),
        ('INFO:     127.0.0.1:57784 - "GET /health HTTP/1.1" 200 OK', ""),
        ("", ""),
    ],
)
def test_severity(line: str, expected: str) -> None:
    assert severity(line) == expected


LINES = [line for path in sorted((DATA / "vllm").glob("*.log")) for line in path.read_text().split("\n")][::7]


@given(st.one_of(st.text(max_size=200), st.sampled_from(LINES)), st.floats(0, 4e9))
def test_no_line_raises(line: str, near: float) -> None:
    prefix_of(line)
    stamp_of(line, near)
    assert severity(line) in ("error", "warning", "")
    StageReader().feed(line)
