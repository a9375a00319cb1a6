"""The vLLM stand-in started by hand: refusals, rendezvous, deaths, HTTP and the pull of KV."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import aiohttp
import pytest

from pdtui.sim.simulation import Simulation
from tests.sim.support import DATA, Server, kv_config, run, until, with_pool
from tests.support.waiting import eventually

PROMPT = "Why are prefill and decode kept apart?"
ASK_PREFILL: dict[str, Any] = {
    "model": "ds_r1",
    "prompt": PROMPT,
    "max_tokens": 1,
    "min_tokens": 1,
    "kv_transfer_params": {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    },
}
LOCAL = "vllm:prompt_tokens_by_source_total"


def dp(server: Server, rank: int, size: int = 2) -> list[str]:
    return [
        *("--data-parallel-size", str(size), "--data-parallel-rank", str(rank)),
        *("--data-parallel-address", server.node.machine.address, "--data-parallel-rpc-port", "12321"),
        "--enable-expert-parallel",
    ]


async def pair(simulation: Simulation, *, decode_env: dict[str, str] | None = None) -> tuple[Server, Server]:
    """Start a prefill and a decode server of one rank each."""
    prefill, decode = Server(simulation, "node1", 7100), Server(simulation, "node2", 7100)
    config = kv_config("kv_producer", 14000)
    await prefill.start("--enforce-eager", "--kv-transfer-config", config, env={"PDTUI_RANK": "small:p/0"})
    config = kv_config("kv_consumer", 14200)
    await decode.start("--kv-transfer-config", config, env={"PDTUI_RANK": "small:d/0", **(decode_env or {})})
    await prefill.ready()
    await decode.ready()
    return prefill, decode


# -- command lines and environments that are refused --


async def test_a_flag_that_does_not_exist(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--enable-expert-paralel")
    assert await server.exit_status() == 2
    real = (DATA / "unknown_flag.log").read_text(encoding="utf-8")
    assert real.splitlines()[-1] in server.log


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ('{"kv_connector": "MooncakeConnectorV1", "kv_port": "20001",}', "json_trailing_comma.log", 2),
        ('{"kv_connector": "MooncakeConnectorV1", "kv_role": "producer"}', "kv_role_bad.log", 4),
    ],
)
async def test_a_bad_kv_transfer_config(simulation: Simulation, text: str, name: str, line: int) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--kv-transfer-config", text)
    assert await server.exit_status() == 2
    real = (DATA / name).read_text(encoding="utf-8").splitlines()
    for words in real[1:3]:
        assert words in server.log
    reason = real[line - 1].split(" at ")[0].split(" [type")[0]
    assert reason in server.log
    assert "further information visit https://errors.pydantic.dev/" in server.log


async def test_a_model_that_is_not_there(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start(model="/path_to_weight/DeepSeek-r1_w8a8_mtp")
    assert await server.exit_status() == 1
    assert "HFValidationError: Repo id must be in the form" in server.log


async def test_no_start_without_the_environment(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start(setup="")
    assert await server.exit_status() == 1
    assert "libascend_hal.so: cannot open shared object file" in server.log
    assert "Failed to infer device type" in server.log


@pytest.mark.parametrize(
    ("flags", "devices", "words"),
    [
        (["--tensor-parallel-size", "4"], "0,1", "local_world_size (4) must be less than or equal to the number"),
        ([], "77", "Check whether device 77 exists"),
        (["--max-model-len", "400000"], "0", "User-specified max_model_len (400000) is greater than the derived"),
        (
            ["--data-parallel-size", "2", "--data-parallel-rank", "2"],
            "0",
            "data_parallel_rank (2) must be in the range [0, 2)",
        ),
        (
            ["--kv-transfer-config", kv_config("kv_producer", 14000, tp=8)],
            "0",
            "KV transfer 'prefill' config has a conflicting tp size",
        ),
        (
            ["--kv-transfer-config", '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}'],
            "0",
            "AssertionError",
        ),
        (
            ["--kv-transfer-config", '{"kv_connector": "Nonsense", "kv_role": "kv_both"}'],
            "0",
            "Unsupported connector",
        ),
    ],
)
async def test_settings_that_do_not_fit(
    simulation: Simulation, flags: list[str], devices: str, words: str
) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start(*flags, devices=devices)
    assert await server.exit_status() == 1
    assert words in server.log


async def test_hbm_that_others_hold(simulation: Simulation) -> None:
    await simulation.fault("hbm node1/0 40000")
    server = Server(simulation, "node1", 7100)
    await server.start()
    assert await server.exit_status() == 1
    assert re.search(r"Free memory on device \(2\d\.\d\d/64\.00 GiB\) on startup is less than desired", server.log)


# -- ports --


async def test_a_taken_api_port(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    with socket.create_server((server.node.machine.address, 7100)):
        await server.start()
        assert await server.exit_status() == 1
    assert "OSError: [Errno 98] Address already in use" in server.log


@pytest.mark.parametrize("config", [kv_config("kv_producer", 14000), with_pool(kv_config("kv_producer", 14000))])
async def test_a_taken_kv_port_is_an_error_and_no_exit(simulation: Simulation, config: str) -> None:
    server = Server(simulation, "node1", 7100)
    with socket.create_server((server.node.machine.address, 14000)):
        await server.start("--kv-transfer-config", config, env={"PDTUI_SIM_SPEED": "20"})
        await eventually(lambda: "zmq.error.ZMQError: Address already in use" in server.log)
        assert await server.health() is None
        assert not server.status_path.exists()
    await server.signal("TERM")
    assert await server.exit_status() == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            with_pool(kv_config("kv_producer", 14000)).replace("AscendStore", "Pool"),
            "Unsupported connector type: PoolConnector",
        ),
        ('{"kv_connector": "MultiConnector", "kv_role": "kv_producer"}', "assert ktcs is not None"),
        (
            with_pool(kv_config("kv_producer", 14000)).replace('"prefill"', '"p"'),
            'assert "prefill" in vllm_config',
        ),
    ],
)
async def test_children_that_it_cannot_run(simulation: Simulation, config: str, words: str) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--kv-transfer-config", config)
    assert await server.exit_status() == 1
    assert words in server.log


async def test_a_taken_rpc_port(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    with socket.create_server((server.node.machine.address, 12321)):
        await server.start(*dp(server, 0))
        assert await server.exit_status() == 1
    assert "zmq.error.ZMQError: Address already in use (addr='tcp://" in server.log


async def test_ports_are_bound_where_and_when_the_real_ones_are(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    config = kv_config("kv_producer", 14000, tp=2)
    await server.start("--tensor-parallel-size", "2", "--kv-transfer-config", config, devices="4,5")
    await eventually(lambda: "Starting to load model" in server.log)
    assert await server.health() is None
    await server.ready()
    address = server.node.machine.address
    for port in (14000, 14001):
        with pytest.raises(OSError, match="in use"):
            socket.create_server((address, port)).close()
    socket.create_server((address, 14002)).close()
    socket.create_server(("127.0.0.1", 14000)).close()


# -- a start as it looks --


async def test_the_log_of_a_start(simulation: Simulation) -> None:
    _, decode = await pair(simulation)
    milestones = [
        "Platform plugin ascend is activated",
        "non-default args: {",
        "Resolved architecture: DeepseekV3ForCausalLM",
        "Using max model len 40000",
        "Initializing a V1 LLM engine (v0.23.0) with config:",
        "Starting to load model ",
        "Loading safetensors checkpoint shards:   0% Completed | 0/24",
        "Loading safetensors checkpoint shards: 100% Completed | 24/24",
        "Loading weights took ",
        "Loading model weights took ",
        "Available KV cache memory: ",
        "Initializing Mooncake work",
        "Compile and warming up model for size 1",
        "Graph capturing finished in ",
        "The CPU allocation plan is as follows:",
        "init engine (profile, create kv cache, warmup model) took ",
        "Starting vLLM API server 0 on http://0.0.0.0:7100",
        "INFO:     Started server process [",
        "INFO:     Application startup complete.",
    ]
    places = [decode.log.find(milestone) for milestone in milestones]
    assert -1 not in places, milestones[places.index(-1)]
    assert places == sorted(places)
    assert re.search(
        r"^\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] ", decode.log, re.MULTILINE
    )
    assert "\rLoading safetensors" in decode.log_path.read_bytes().decode()


async def test_processes_and_hbm_are_there_and_gone_again(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--tensor-parallel-size", "2", *dp(server, 0, 1), devices="2,3")
    await server.ready()
    names = str((await run(simulation, "ps axo args")).stdout)
    assert "VLLM::EngineCore\n" in names
    assert "VLLM::Worker_TP0\n" in names
    assert "VLLM::Worker_TP1\n" in names
    table = str((await run(simulation, "npu-smi info")).stdout)
    assert table.count("VLLM::Worker_TP") == 2
    row = next(line for line in table.splitlines() if line.startswith("| 0     2 "))
    assert 50_000 < int(row.rpartition("0    / 0")[2].split("/")[0]) < 60_000
    await server.signal("TERM")
    assert await server.exit_status() == 0
    assert "[shutdown] API server: shutdown triggered" in server.log
    assert "[shutdown] EngineCore: exiting busy loop" in server.log
    assert "INFO:     Application shutdown complete." in server.log
    assert "VLLM" not in str((await run(simulation, "ps axo args | grep -v grep; npu-smi info")).stdout)


async def test_term_to_all_processes_at_once_is_an_orderly_end(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start(*dp(server, 0, 1))
    await server.ready()
    await run(simulation, "pkill -TERM -f 'VLLM::|bin/vllm serve'")
    assert await server.exit_status() == 0
    assert "died unexpectedly" not in server.log


async def test_kill_of_the_server_leaves_its_engine(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--kv-transfer-config", kv_config("kv_producer", 14000))
    await server.ready()
    await run(simulation, "pkill -KILL -f 'bin/vllm serve'")
    assert await server.exit_status() == 137
    left = str((await run(simulation, "ps axo args")).stdout)
    assert "VLLM::EngineCore" in left
    assert "VLLM::Worker" in left
    with pytest.raises(OSError, match="in use"):
        socket.create_server((server.node.machine.address, 14000)).close()
    await run(simulation, "pkill -KILL -f VLLM::EngineCore")

    async def gone() -> bool:
        return "VLLM::" not in str((await run(simulation, "ps axo args")).stdout)

    await until(gone)


async def test_a_killed_worker_takes_the_rank_down(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    await run(simulation, "pkill -KILL -f VLLM::Worker")
    assert await server.exit_status() == 0
    assert "Worker proc VllmWorker-0 died unexpectedly" in server.log
    assert "EngineDeadError" in server.log


# -- groups --


async def group(simulation: Simulation) -> list[Server]:
    servers = [Server(simulation, "node1", 7100 + rank) for rank in range(2)]
    for rank in (1, 0):
        env = {"PDTUI_RANK": f"small:p/{rank}"}
        await servers[rank].start(*dp(servers[rank], rank), devices=str(rank), env=env)
    return servers


async def test_ranks_wait_for_their_group_in_silence(simulation: Simulation) -> None:
    one, zero = Server(simulation, "node1", 7101), Server(simulation, "node1", 7100)
    await one.start(*dp(one, 1), devices="1")
    await eventually(lambda: "Using max model len" in one.log)
    assert "Initializing a V1 LLM engine" not in one.log
    await zero.start(*dp(zero, 0))
    for server in (zero, one):
        await server.ready()
    assert "Started DP Coordinator process (PID: " in zero.log
    assert "Started DP Coordinator" not in one.log
    assert "rank 1 in world size 2 is assigned as DP rank 1" in one.log


async def test_a_dead_rank_takes_its_group_with_it(simulation: Simulation) -> None:
    servers = await group(simulation)
    for server in servers:
        await server.ready()
    assert "SIGKILL" in await simulation.fault("crash p/1")
    assert await servers[1].exit_status() == 137
    assert await servers[0].exit_status() == 0
    assert "Connection closed by peer" in servers[0].log
    assert "vllm.v1.engine.exceptions.EngineDeadError" in servers[0].log


async def test_a_rank_that_dies_while_it_loads(simulation: Simulation) -> None:
    await simulation.fault("die-at-start p/1")
    servers = await group(simulation)
    assert [await server.exit_status() for server in servers] == [1, 1]
    assert "NPU out of memory" in servers[1].log
    assert "Engine core initialization failed" in servers[1].log
    assert "Connection closed by peer" in servers[0].log
    await simulation.fault("die-at-start p/1 off")
    servers = await group(simulation)
    for server in servers:
        await server.ready()


async def test_ranks_with_different_settings(simulation: Simulation) -> None:
    zero, one = Server(simulation, "node1", 7100), Server(simulation, "node1", 7101)
    await zero.start(*dp(zero, 0), "--max-num-seqs", "8")
    await one.start(*dp(one, 1), "--max-num-seqs", "16", devices="1")
    assert await zero.exit_status() == 1
    assert "Configuration mismatch detected for engine 1" in zero.log
    assert await one.exit_status() == 1


# -- HTTP --


async def test_endpoints_of_a_server(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    async with aiohttp.ClientSession(server.url) as session:
        async with session.get("/version") as reply:
            assert await reply.json() == {"version": "0.23.0"}
        async with session.get("/v1/models") as reply:
            (model,) = (await reply.json())["data"]
            assert (model["id"], model["max_model_len"]) == ("ds_r1", 40000)
        async with session.get("/ping") as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        async with session.get("/nothing") as reply:
            assert reply.status == 404
        async with session.get("/v1/completions") as reply:
            assert reply.status == 405
        async with session.get("/metrics") as reply:
            ours = series(await reply.text())
    real = series((DATA / "metrics_decode.txt").read_text(encoding="utf-8"))
    assert ours <= real | {"http_requests_total"}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total"):
        assert f"vllm:{name}" in ours


def series(text: str) -> set[str]:
    """Return the names of all series, without their labels."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}


async def test_refused_requests(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    status, body = await server.post("/v1/completions", {"model": "other", "prompt": "x"})
    words = "The model `other` does not exist. Valid aliases: ds_r1."
    assert (status, body["error"]["message"]) == (404, words)
    status, body = await server.post("/v1/completions", {"model": "ds_r1", "prompt": "a b c", "max_tokens": 40001})
    assert status == 400
    assert "cannot be greater than max_model_len=40000" in body["error"]["message"]
    status, body = await server.post("/v1/completions", {"model": "ds_r1", "prompt": "word " * 40001})
    assert status == 400
    assert "maximum context length is 40000 tokens" in body["error"]["message"]
    status, body = await server.post("/v1/chat/completions", {"model": "ds_r1", "messages": "hello"})
    assert status == 400
    async with aiohttp.ClientSession(server.url) as session, session.post("/v1/completions", data="{") as reply:
        assert reply.status == 400


async def test_completions_and_chat(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    body = {"model": "ds_r1", "prompt": PROMPT, "max_completion_tokens": 7}
    status, reply = await server.post("/v1/completions", body)
    assert status == 200
    # /v1/completions does not know max_completion_tokens.
    assert reply["usage"]["completion_tokens"] == 16
    assert reply["choices"][0]["finish_reason"] == "length"
    assert (await server.post("/v1/completions", body))[1]["choices"] == reply["choices"]
    chat = {"model": "ds_r1", "messages": [{"role": "user", "content": "你好，为什么要分离？"}]}
    _, reply = await server.post("/v1/chat/completions", {**chat, "max_completion_tokens": 7, "max_tokens": 20})
    assert reply["usage"]["completion_tokens"] == 7
    assert re.search("[\u4e00-\u9fff]", reply["choices"][0]["message"]["content"])
    _, reply = await server.post("/v1/chat/completions", chat)
    assert reply["choices"][0]["finish_reason"] == "stop"


async def test_a_stream_is_the_same_text(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    body = {"model": "ds_r1", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 30}
    _, whole = await server.post("/v1/chat/completions", body)
    events = await stream(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 30
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 30 + ["length"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]


async def stream(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    """Return the data of all events of a stream."""
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.post(path, json={**body, "stream": True}) as reply,
    ):
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = await reply.text()
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


async def test_a_client_that_leaves_aborts_its_request(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start()
    await server.ready()
    body = {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 20000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession(server.url) as session:
        reply = await session.post("/v1/completions", json=body)
        await reply.content.readany()
        assert await server.metric("vllm:num_requests_running") == 1
        reply.close()

    async def idle() -> bool:
        return await server.metric("vllm:num_requests_running") == 0

    await until(idle)
    assert await server.metric("vllm:request_success_total", finished_reason="abort") == 1
    assert await server.metric("vllm:kv_cache_usage_perc") == 0


async def test_more_requests_than_the_engine_takes_wait(simulation: Simulation) -> None:
    server = Server(simulation, "node1", 7100)
    await server.start("--max-num-seqs", "1")
    await server.ready()
    await simulation.fault("stall node1:7100")
    body = {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 4}
    asks = [asyncio.create_task(server.post("/v1/completions", body)) for _ in range(2)]

    async def one_waits() -> bool:
        running = await server.metric("vllm:num_requests_running")
        return (running, await server.metric("vllm:num_requests_waiting")) == (1, 1)

    await until(one_waits)
    assert await server.health() == 200
    await simulation.fault("stall node1:7100 off")
    assert [status for status, _ in await asyncio.gather(*asks)] == [200, 200]


# -- the pull flow --


async def test_decode_pulls_what_prefill_made(simulation: Simulation) -> None:
    prefill, decode = await pair(simulation)
    _, plain = await decode.post("/v1/completions", {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 12})
    assert await decode.metric(LOCAL, source="local_compute") == plain["usage"]["prompt_tokens"]
    assert "This request will not utilize KVTransfer" in decode.log

    status, first = await prefill.post("/v1/completions", ASK_PREFILL)
    params = first["kv_transfer_params"]
    assert status == 200
    assert set(params) == {
        *("do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_host"),
        *("remote_port", "last_token_id", "remote_pcp_size", "remote_dcp_size", "remote_multi_nodes_meta_mapping"),
        *("num_prompt_blocks", "remote_request_id", "remote_ptp_size", "remote_block_size"),
    }
    assert (params["remote_host"], params["remote_port"]) == (prefill.node.machine.address, 14000)
    assert await prefill.metric("vllm:kv_cache_usage_perc") > 0
    assert await prefill.metric("vllm:num_requests_running") == 0

    body = {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 12, "kv_transfer_params": params}
    status, second = await decode.post("/v1/completions", body)
    assert status == 200
    assert second["choices"] == plain["choices"]
    assert second["choices"][0]["text"].startswith(first["choices"][0]["text"])
    assert await decode.metric(LOCAL, source="external_kv_transfer") == first["usage"]["prompt_tokens"]
    assert await prefill.metric("vllm:kv_cache_usage_perc") == 0
    assert "KV cache transfer for request" in decode.log

    # Blocks that are gone are pulled all the same: another text, and status 200.
    lates = await asyncio.gather(*(decode.post("/v1/completions", body) for _ in range(20)))
    assert {status for status, _ in lates} == {200}
    assert second["choices"][0]["text"] not in {late["choices"][0]["text"] for _, late in lates}


async def test_prefill_gives_nothing_unless_asked(simulation: Simulation) -> None:
    prefill, _ = await pair(simulation)
    _, reply = await prefill.post("/v1/completions", {"model": "ds_r1", "prompt": PROMPT, "max_tokens": 1})
    assert reply["kv_transfer_params"] is None
    chat = {"model": "ds_r1", "messages": [{"role": "user", "content": "x"}], "max_tokens": 500}
    asked = {**chat, "kv_transfer_params": ASK_PREFILL["kv_transfer_params"]}
    _, reply = await prefill.post("/v1/chat/completions", asked)
    # It ended by itself: only a request cut by its length leaves blocks to pull.
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["kv_transfer_params"] is None


async def test_prefill_that_is_gone_is_status_500(simulation: Simulation) -> None:
    prefill, decode = await pair(simulation)
    _, first = await prefill.post("/v1/completions", ASK_PREFILL)
    await simulation.fault("crash p/0")
    body = {"model": "ds_r1", "prompt": PROMPT, "kv_transfer_params": first["kv_transfer_params"]}
    status, reply = await decode.post("/v1/completions", body)
    assert (status, reply["error"]["type"]) == (500, "InternalServerError")
    events = await stream(decode, "/v1/completions", body)
    assert json.loads(events[0])["error"]["code"] == 500
    assert await decode.health() == 200


async def test_an_empty_block_list_kills_decode(simulation: Simulation) -> None:
    prefill, decode = await pair(simulation)
    _, first = await prefill.post("/v1/completions", ASK_PREFILL)
    params = {**first["kv_transfer_params"], "remote_block_ids": []}
    status, _ = await decode.post(
        "/v1/completions", {"model": "ds_r1", "prompt": PROMPT, "kv_transfer_params": params}
    )
    assert status == 500
    assert await decode.exit_status() == 0
    assert "AssertionError" in decode.log


async def test_blocks_are_freed_when_nobody_pulls(simulation: Simulation) -> None:
    prefill = Server(simulation, "node1", 7100)
    env = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "0.1"}
    await prefill.start("--kv-transfer-config", kv_config("kv_producer", 14000), env=env)
    await prefill.ready()
    await prefill.post("/v1/completions", ASK_PREFILL)
    await eventually(lambda: "Force freed expired request: cmpl-" in prefill.log)
    assert await prefill.metric("vllm:kv_cache_usage_perc") == 0
