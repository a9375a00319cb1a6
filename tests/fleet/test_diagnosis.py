from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.console.describe import diagnosis_rows
from pdtui.fleet.diagnosis import Atlas, RankExit, diagnose
from pdtui.fleet.diagnostician import Diagnostician
from pdtui.fleet.handle import LogLine
from pdtui.fleet.snapshot import Diagnosis, RankState, RankStatus
from pdtui.readings.lines import LineSplitter
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology.load import load_checked
from pdtui.topology.model import Role
from pdtui.topology.planner import make_plan
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_node import MemoryLink, MemoryNode

PLAN = make_plan(load_checked(Path(__file__).parents[2] / "sample_configs" / "deepseek-r1-2p1d.yaml"))
LOGS = Path(__file__).parents[1] / "readings" / "data" / "vllm"
NOW = 1_796_048_000.0
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:43001"
OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
WORK = "Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: "
HCCL = "RuntimeError: EI0006: Getting socket times out."


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(seq, NOW, text) for seq, text in enumerate(texts)]


def at(second: int, text: str, level: str = "ERROR") -> str:
    return f"(EngineCore_DP0 pid=9) {level} 11-30 13:{second // 60:02d}:{second % 60:02d} [core.py:1] {text}"


def file(name: str) -> list[LogLine]:
    return lines(*LineSplitter().feed((LOGS / name).read_bytes()))


def failed(*ranks: str, status: int = 1) -> Mapping[str, RankExit]:
    return {rank: RankExit(status, NOW) for rank in ranks}


def one(texts: Sequence[LogLine], status: int | None = 1, rank: str = "decode/0") -> Diagnosis:
    return diagnose({rank: texts}, {rank: RankExit(status, NOW)}, PLAN)[rank]


@pytest.mark.parametrize(
    ("name", "signature", "words"),
    [
        ("fail/api_port_in_use.log", "api-port-in-use", "API port 7100 is taken"),
        ("fail/ascend_connector_upstream.log", "unsupported-connector", "MooncakeConnectorV1"),
        ("fail/dp_rank_out_of_range.log", "dp-rank-range", "DP rank 2"),
        ("fail/json_trailing_comma.log", "json-argument", "Invalid JSON: trailing comma at line 1 column 138"),
        ("fail/kv_cache_too_small.log", "kv-cache-too-small", "1792 tokens fit, max-model-len is 4096"),
        ("fail/kv_role_bad.log", "json-argument", "kv_role: Input should be 'kv_producer'"),
        ("fail/max_model_len_too_big.log", "max-model-len", "40000 is more than the model can take: 4096"),
        ("fail/model_path_missing.log", "model-path", "/path_to_weight/DeepSeek-r1_w8a8_mtp"),
        ("fail/quantization_ascend.log", "unknown-quantization", "ascend"),
        ("fail/unknown_flag.log", "unknown-flag", "--enable-expert-paralel"),
        ("decode_killed_by_bogus_block_ids.log", "bad-kv-parameters", "KV parameters"),
    ],
)
def test_captured_failures_are_explained_with_their_line_and_a_remedy(
    name: str, signature: str, words: str
) -> None:
    result = one(file(name))
    assert result.signature == signature
    assert words in result.summary
    assert result.line
    assert result.remedy
    assert result.first_cause == ""


@pytest.mark.parametrize(
    ("name", "signature", "words"),
    [
        ("ep-p-rank0.log", "gloo-peer", "it lost its group"),
        ("fail/dp_rank1_alone.log", "told-to-end", "somebody else told it to end (SIGTERM)"),
        ("plain_startup.log", "told-to-end", "somebody else told it to end"),
        ("fail/dp_address_not_local.log", "", "exit status 1, no error in the log"),
        ("pd_decode_startup.log", "", "exit status 1, no error in the log"),
    ],
)
def test_of_other_captured_ends_it_is_said_what_can_be(name: str, signature: str, words: str) -> None:
    result = one(file(name))
    assert (result.signature, result.summary) == (signature, words)


def test_what_is_no_reason_for_an_end_hides_none() -> None:
    def elsewhere(second: int, text: str) -> str:
        return at(second, text).replace("core.py:1", "worker.py:9")

    expired = elsewhere(1, "Force freed expired request: cmpl-1")
    assert one(lines(expired), status=-9).summary.startswith("killed by SIGKILL")
    known = one(lines(expired, at(2, "EngineCore failed to start."), at(3, "ValueError: no such thing")))
    assert known.summary == "ValueError: no such thing"
    assert one(lines(expired)).signature == "kv-expired"
    failed_fetch = elsewhere(1, "NIXL transfer failure: handshake_failed | Context: {}")
    its_error = elsewhere(1, "RuntimeError: Remote NIXL agent engine ID mismatch.")
    gone = at(9, "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", "WARNING")
    dead = at(9, "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
    killed = one(lines(failed_fetch, its_error, gone, dead), status=0)
    assert killed.summary == "its engine ended without a word"
    assert "dmesg" in killed.remedy


def test_what_a_refused_value_is_stands_in_the_line() -> None:
    assert "Invalid JSON: trailing comma" in one(file("fail/json_trailing_comma.log")).line
    assert "kv_producer" in one(file("fail/kv_role_bad.log")).line


def test_who_lost_its_group_points_to_the_rank_where_it_began() -> None:
    tails = {
        "decode/9": lines(at(10, "WorkerProc hit an exception."), at(10, OOM), at(11, DEAD)),
        "decode/17": lines(at(12, GLOO), at(13, DEAD)),
        "decode/3": lines(at(12, DEAD)),
        "decode/4": lines(),
    }
    found = diagnose(tails, failed(*tails), PLAN)
    origin = found["decode/9"]
    assert origin.signature == "npu-out-of-memory"
    assert origin.first_cause == ""
    assert "NPU 9 of node3 is out of memory" in origin.summary
    for rank in ("decode/17", "decode/3", "decode/4"):
        assert found[rank].first_cause == "decode/9"
        assert found[rank].summary == f"lost its group: decode/9: {origin.summary}"
        assert found[rank].line == origin.line
        assert found[rank].remedy == origin.remedy


def test_another_group_is_not_blamed() -> None:
    found = diagnose({"p1/0": lines(at(1, OOM)), "decode/0": lines(at(12, GLOO))}, failed("decode/0"), PLAN)
    assert found["decode/0"].first_cause == ""
    assert "lost its group" in found["decode/0"].summary


def test_a_rank_that_waited_for_a_peer_names_the_peer_that_broke() -> None:
    tails = {"decode/0": lines(at(500, HCCL)), "decode/1": lines(at(510, OOM))}
    found = diagnose(tails, failed(*tails), PLAN)
    assert found["decode/0"].first_cause == "decode/1"
    assert "did not answer" in found["decode/0"].summary
    alone = diagnose({"decode/0": lines(at(500, HCCL))}, failed("decode/0"), PLAN)["decode/0"]
    assert (alone.signature, alone.first_cause) == ("hccl-connect", "")


def test_the_same_mistake_everywhere_is_everyones_own() -> None:
    text = "  Value error, Unknown quantization method: ascend. Must be one of x"
    tails = {f"decode/{i}": lines(at(i, "starting", "INFO"), text) for i in range(4)}
    found = diagnose(tails, failed(*tails), PLAN)
    assert {d.first_cause for d in found.values()} == {""}
    assert {d.signature for d in found.values()} == {"unknown-quantization"}


def test_clocks_of_nodes_are_put_right() -> None:
    tails = {"decode/0": lines(at(100, OOM)), "decode/20": lines(at(90, HCCL), at(95, OOM))}
    assert (
        diagnose(tails, failed(*tails), PLAN)["decode/0"].summary
        == "NPU 0 of node3 is out of memory (2.00 GiB wanted)"
    )
    tails = {"decode/0": lines(at(100, "ValueError: odd")), "decode/20": lines(at(95, "KeyError: 'x'"))}
    assert diagnose(tails, failed(*tails), PLAN)["decode/0"].first_cause == "decode/20"
    shifted = diagnose(tails, failed(*tails), PLAN, offsets={"decode/20": -30.0})
    assert shifted["decode/0"].first_cause == ""
    assert shifted["decode/20"].first_cause == "decode/0"


def test_a_killed_rank_wrote_nothing_and_its_group_points_to_it() -> None:
    tails = {"decode/5": lines(at(9, "Engine 005: Avg", "INFO")), "decode/6": lines(at(12, GLOO), at(13, DEAD))}
    exits = {"decode/5": RankExit(-9, NOW), "decode/6": RankExit(1, NOW + 1)}
    found = diagnose(tails, exits, PLAN)
    assert found["decode/5"].summary == "killed by SIGKILL, no error in its log"
    assert "dmesg" in found["decode/5"].remedy
    assert found["decode/6"].first_cause == "decode/5"
    assert "SIGKILL" in found["decode/6"].summary


def test_a_worker_that_was_killed_is_the_origin_of_its_group() -> None:
    died = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
    tails = {
        "decode/5": lines(at(9, died), at(10, DEAD)),
        "decode/6": lines(at(12, GLOO), at(12, died), at(13, DEAD)),
    }
    found = diagnose(tails, failed(*tails), PLAN)
    assert found["decode/5"].signature == "process-died"
    assert found["decode/6"].first_cause == "decode/5"


def test_a_failed_npu_explains_what_the_logs_do_not() -> None:
    down = Reason(Verdict.FAILED, "link DOWN", "hccn_tool", "link status: DOWN", NOW, "check the cable")
    sick = {"decode/9": ("node3 NPU 9", down)}
    tails = {"decode/9": lines(at(12, HCCL)), "decode/17": lines(at(11, HCCL)), "decode/3": lines(at(13, GLOO))}
    found = diagnose(tails, failed(*tails), PLAN, sick=sick)
    assert found["decode/9"].summary == "node3 NPU 9: link DOWN"
    assert (found["decode/9"].first_cause, found["decode/9"].remedy) == ("", "check the cable")
    assert found["decode/17"].first_cause == "decode/9"
    assert found["decode/3"].summary == "lost its group: decode/9: node3 NPU 9: link DOWN"
    known = diagnose({**tails, "decode/3": lines(at(5, OOM))}, failed(*tails), PLAN, sick=sick)
    assert known["decode/17"].first_cause == "decode/3"


def test_an_unknown_exception_is_shown_as_it_is() -> None:
    result = one(lines(at(1, "Traceback (most recent call last):"), at(1, "KeyError: 'odd'"), at(2, DEAD)))
    assert result.summary == "KeyError: 'odd'"
    assert result.line == "KeyError: 'odd'"
    assert result.signature == ""


def test_without_a_match_the_last_error_line_and_without_one_the_exit_status() -> None:
    assert one(lines(at(1, "something went astray"), "INFO bye")).summary == "something went astray"
    assert one(lines("all well"), status=3).summary == "exit status 3, no error in the log"
    assert one(lines(), status=0).summary == "exit status 0, no error in the log"
    assert "not known" in one(lines(), status=None).summary
    stalled = diagnose({"decode/0": lines("all well")}, {"decode/0": RankExit(alive=True)}, PLAN)
    assert stalled["decode/0"].summary == "no error in its log"


def test_old_errors_of_a_long_run_are_not_the_cause() -> None:
    hours = f"(E pid=9) ERROR 11-30 08:00:00 [x.py:1] {OOM}"
    result = one(lines(hours, at(100, "KeyError: 'now'")))
    assert result.summary == "KeyError: 'now'"


def test_ports_are_named_by_the_port_map() -> None:
    rank = PLAN.by_id["decode/3"]
    port = rank.kv_ports[0]
    text = f"zmq.error.ZMQError: Address already in use (addr='tcp://{rank.host}:{port}')"
    result = one(lines(text), rank="decode/3")
    assert f"{port}: kv of decode/3" in result.summary


def test_addresses_are_named_by_rank() -> None:
    rank = PLAN.by_id["decode/3"]
    atlas = Atlas(PLAN, {"192.168.2.190": (rank.node, rank.devices[0])})
    assert atlas.who(f"{rank.host}:{rank.api_port}") == "decode/3"
    assert atlas.who(f"{rank.host}:{rank.kv_ports[0]}") == "decode/3"
    assert atlas.who("192.168.2.190") == f"decode/3, {rank.node} NPU {rank.devices[0]}"
    assert atlas.who(rank.host) == rank.node
    assert atlas.who("203.0.113.9:1") == ""
    text = f"ERROR Failed to connect to segment: {rank.host}:{rank.kv_ports[0]}, status: 103900"
    assert "decode/3 (" in one(lines(text), rank="p1/0").summary


def status(rank: str, state: RankState = RankState.FAILED) -> RankStatus:
    return RankStatus(
        rank,
        rank.partition("/")[0],
        Role.DECODE,
        "node3",
        (0,),
        7100,
        state,
        NOW,
        exit_status=1,
        ended=NOW,
        run=1,
        log=f"/log/{rank}",
    )


async def test_logs_of_a_group_are_fetched_once_and_all_point_to_the_first() -> None:
    clock = ManualClock(NOW)
    node = MemoryNode("node3", clock)
    link = MemoryLink(node)
    link.refresh()
    node.append("/log/decode/9", f"{at(10, OOM)}\n".encode())
    for rank in range(4):
        node.append(f"/log/decode/{rank}", f"{at(12, GLOO)}\n{at(13, DEAD)}\n".encode())
    ranks = {rank: status(rank) for rank in ("decode/9", *(f"decode/{i}" for i in range(4)))}
    diagnostician = Diagnostician({"node3": link}, PLAN, clock=clock, ranks=lambda: ranks)
    asked = [asyncio.create_task(diagnostician(rank)) for rank in ranks]
    for _ in range(60):
        await clock.advance(0.5)
        await settle()
    found = dict(zip(ranks, await asyncio.gather(*asked), strict=True))
    assert all(found.values())
    assert {rank: d.first_cause for rank, d in found.items() if d} == {
        "decode/9": "", **{f"decode/{i}": "decode/9" for i in range(4)}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            (
                at(0, f"{WORK}1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, NPU KV cache usage: 3.0%", "INFO"),
                at(10, f"{WORK}470.4 tokens/s, Running: 12 reqs, Waiting: 40 reqs, Deferred: 2 reqs, "
                "Preemptions: 5, NPU KV cache usage: 97.2%", "INFO"),
                at(10, "KV Transfer metrics: Num successful transfers=7, Num failed transfers=1, "
                "Num KV expired reqs=3, Num notifs after expiry=2", "INFO"),
                at(12, OOM),
            ),
            "13:00:10: 12 running, 40 waiting (2 for KV), KV cache 97 % full, 5 preempted, 470 tokens/s out, "
            "1 of 8 KV transfers failed, gave up KV 3 times, 2 fetched too late",
        ),
        (
            (
                at(0, "KV Transfer metrics: Num successful transfers=7, Num failed transfers=1", "INFO"),
                at(10, f"{WORK}0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs", "INFO"),
            ),
            "13:00:10: 0 running, 0 waiting, 0 tokens/s out",
        ),
        ((at(12, OOM),), ""),
    ],
)  # fmt: skip
async def test_what_a_rank_said_last_of_its_work_goes_with_its_cause(texts: Sequence[str], words: str) -> None:
    clock = ManualClock(NOW)
    node = MemoryNode("node3", clock)
    link = MemoryLink(node)
    link.refresh()
    node.append("/log/decode/9", "\n".join((*texts, "")).encode())
    ranks = {"decode/9": status("decode/9")}
    diagnostician = Diagnostician({"node3": link}, PLAN, clock=clock, ranks=lambda: ranks)
    asked = asyncio.create_task(diagnostician("decode/9"))
    for _ in range(20):
        await clock.advance(0.5)
        await settle()
    found = await asked
    assert found is not None
    assert found.last_work == words
    shown = [row.text for row in diagnosis_rows(replace(ranks["decode/9"], diagnosis=found))]
    assert (words in shown) is bool(words)


async def test_a_consequence_waits_a_moment_for_its_cause() -> None:
    clock = ManualClock(NOW)
    node = MemoryNode("node3", clock)
    link = MemoryLink(node)
    link.refresh()
    node.append("/log/decode/9", f"{at(10, OOM)}\n".encode())
    node.append("/log/decode/0", f"{at(12, GLOO)}\n".encode())
    ranks = {"decode/0": status("decode/0"), "decode/9": status("decode/9", RankState.READY)}
    diagnostician = Diagnostician({"node3": link}, PLAN, clock=clock, ranks=lambda: ranks)
    asked = asyncio.create_task(diagnostician("decode/0"))
    await clock.advance(1)
    await settle()
    ranks["decode/9"] = status("decode/9")
    for _ in range(20):
        await clock.advance(0.5)
        await settle()
    result = await asked
    assert result is not None
    assert result.first_cause == "decode/9"


async def test_an_error_like_any_other_waits_for_ranks_that_were_not_asked_yet() -> None:
    clock = ManualClock(NOW)
    node = MemoryNode("node3", clock)
    link = MemoryLink(node)
    link.refresh()
    node.append("/log/decode/9", f"{at(10, OOM)}\n".encode())
    node.append("/log/decode/0", f"{at(12, 'RuntimeError: Connection closed by peer engine 0')}\n".encode())
    ranks = {"decode/0": status("decode/0"), "decode/9": status("decode/9", RankState.UNKNOWN)}
    diagnostician = Diagnostician({"node3": link}, PLAN, clock=clock, ranks=lambda: ranks)
    asked = asyncio.create_task(diagnostician("decode/0"))
    await clock.advance(1)
    await settle()
    ranks["decode/9"] = status("decode/9")
    for _ in range(20):
        await clock.advance(0.5)
        await settle()
    result = await asked
    assert result is not None
    assert result.summary == "lost its group: decode/9: NPU 9 of node3 is out of memory (2.00 GiB wanted)"


def test_a_rank_that_lost_its_group_to_a_signal_names_who_was_killed() -> None:
    tails = {"decode/3": lines("all well"), "decode/0": lines(at(12, GLOO), at(13, DEAD))}
    exits = {"decode/3": RankExit(-9, NOW), "decode/0": RankExit(1, NOW)}
    found = diagnose(tails, exits, PLAN)
    assert found["decode/0"].summary.startswith("lost its group: decode/3 killed by SIGKILL")
