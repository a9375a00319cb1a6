"""Clusters without NPUs: what their nodes lack, and vLLM for CPUs with NixlConnector as the real one behaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdtui.errors import UsageError
from pdtui.sim.simulation import Simulation
from pdtui.topology.load import load_checked
from tests.sim.support import DATA, FAST, Server, run, until
from tests.support.waiting import eventually

PROMPT = "Why are prefill and decode kept apart? " * 20
ASKS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEYS = [
    "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
    "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens",
    "remote_blocks_expiry_time", "transfer_mode", "remote_prefill_cached_tokens",
]  # fmt: skip
SOURCE = "vllm:prompt_tokens_by_source_total"
SAMPLES = Path(__file__).parents[2] / "sample_configs"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Simulation]:
    """Two nodes that are one machine in the user's file."""
    async with Simulation(DATA / "cpu.yaml", tmp_path / "sim", speed=FAST) as running:
        yield running


async def start(server: Server, role: str = "kv_both", *flags: str, lease: int = 30, side: int = 18601) -> None:
    """Start a server with the connector; its side channel is at its node's address."""
    extra = {"kv_lease_duration": lease}
    config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_connector_extra_config": extra}
    address = server.node.machine.address
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)}
    await server.start("--kv-transfer-config", json.dumps(config), *flags, env=env, setup="")


def dp(server: Server, rank: int) -> list[str]:
    return [
        *("--data-parallel-size", "2", "--data-parallel-rank", str(rank)),
        *("--data-parallel-address", server.node.machine.address, "--data-parallel-rpc-port", "18321"),
    ]


async def ask(server: Server, prompt: str = PROMPT, *, tokens: int = 12, **more: Any) -> tuple[int, Any]:
    return await server.post(
        "/v1/completions", {"model": "ds_r1", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
    )


async def prefill(server: Server, prompt: str = PROMPT) -> dict[str, Any]:
    _, reply = await ask(server, prompt, tokens=1, kv_transfer_params=ASKS)
    return dict(reply["kv_transfer_params"])


def text(reply: Any) -> str:
    return str(reply["choices"][0]["text"])


# -- nodes --


async def test_nodes_without_npus(cluster: Simulation) -> None:
    left, right = cluster.nodes.values()
    assert left.machine.address != right.machine.address
    for tool in ("npu-smi info", "hccn_tool -i 0 -link -g"):
        answer = await run(cluster, tool, "left")
        assert (answer.returncode, "command not found" in str(answer.stderr)) == (127, True)
    assert "Ascend" not in str((await run(cluster, "env", "left")).stdout)
    for spec in ("link left/0 down", "hang left npu-smi", "gone right/3"):
        with pytest.raises(UsageError, match="no NPUs"):
            await cluster.fault(spec)
    topology = load_checked(cluster.topology_path)
    assert topology.proxy is not None
    assert str(topology.proxy.advertise) == right.machine.address
    scripts = (await run(cluster, f"ls {' '.join(topology.runtime.setup)}", "left")).returncode
    assert scripts == 0


@pytest.mark.parametrize("name", ["cpu-1p1d", "cpu-2p2d-moe"])
async def test_the_samples_can_be_rehearsed(tmp_path: Path, name: str) -> None:
    async with Simulation(SAMPLES / f"{name}.yaml", tmp_path / "sim", speed=FAST) as simulation:
        assert Path(load_checked(simulation.topology_path).model.path, "config.json").is_file()


# -- the pull flow --


async def test_decode_pulls_what_prefill_keeps(cluster: Simulation) -> None:
    p, d = Server(cluster, "left", 18101), Server(cluster, "right", 18102)
    await start(p, "kv_producer", lease=2)
    await start(d, "kv_consumer", side=18611)
    await p.ready()
    await d.ready()
    right = text((await ask(p))[1])

    params = await prefill(p)
    assert list(params) == KEYS
    assert params["remote_port"] == 18601
    assert params["remote_host"] == p.node.machine.address
    assert [len(group) for group in params["remote_block_ids"]] == [2]
    used = "vllm:kv_cache_usage_perc"
    assert await p.metric(used) > 0
    assert await p.metric("vllm:num_requests_running") == 0
    status, reply = await ask(d, kv_transfer_params=params)
    assert (status, text(reply)) == (200, right)
    assert await d.metric(SOURCE, source="local_compute") == 0
    assert await d.metric(SOURCE, source="external_kv_transfer") == reply["usage"]["prompt_tokens"]
    assert await p.metric(used) == 0

    # The lease ends; as long as nobody writes to the blocks they hold what they held.
    params = await prefill(p)
    expired = "vllm:nixl_num_kv_expired_reqs_total"
    await eventually(lambda: "Releasing expired KV blocks" in p.log)
    assert await p.metric(expired) == 1
    assert text((await ask(d, kv_transfer_params=params))[1]) == right
    await ask(p, "Something else, and long enough. " * 30)
    status, reply = await ask(d, kv_transfer_params=params)
    assert status == 200
    assert text(reply) != right
    assert await p.metric("vllm:nixl_num_notifications_after_expiry_total") == 2
    assert "Potentially invalid KV blocks for unrecognized request" in p.log

    # What goes wrong is the request's own.
    params = await prefill(p)
    status, reply = await ask(d, kv_transfer_params={**params, "remote_block_ids": [[10**7]]})
    assert (status, reply["error"]["message"]) == (500, "Internal server error")
    other = {**params, "remote_engine_id": "somebody-else"}
    assert (await ask(d, kv_transfer_params=other))[0] == 500
    await p.signal("KILL")
    await run(cluster, "pkill -KILL VLLM", "left")
    assert (await ask(d, kv_transfer_params=params))[0] == 500
    assert await d.health() == 200

    # But not this, and the server's end has status 0.
    status, reply = await ask(d, kv_transfer_params={"do_remote_prefill": True})
    assert (status, "EngineCore encountered an issue" in reply["error"]["message"]) == (500, True)
    assert await d.exit_status() == 0
    assert "AssertionError" in d.log


# -- groups and ends --


async def test_an_idle_rank_learns_of_its_peers_end_from_a_request(cluster: Simulation) -> None:
    zero, one = Server(cluster, "left", 18101), Server(cluster, "left", 18102)
    # Until all have met, TERM to `vllm serve` ends nothing.
    await start(one, "kv_both", *dp(one, 1))
    await eventually(lambda: "Enabled custom fusions" in one.log)
    await eventually_runs(cluster, "VLLM::EngineCore_DP1")
    await one.signal("TERM")
    await start(zero, "kv_both", *dp(zero, 0))
    await eventually(lambda: "Started DP Coordinator process" in zero.log)
    assert await one.exit_status() == 0
    assert "init engine" in one.log
    await zero.signal("KILL")
    await run(cluster, "pkill -KILL VLLM", "left")

    for rank, server in enumerate((zero, one)):
        await start(server, "kv_both", *dp(server, rank))
    await zero.ready()
    await one.ready()
    assert (await prefill(one))["remote_port"] == 18602
    assert await zero.health() == 200
    await run(cluster, "pkill -KILL -f 'VLLM::Worker_DP1'", "left")
    await one.exit_status()
    assert await zero.health() == 200
    status, _ = await ask(zero)
    assert status == 500
    assert await zero.exit_status() == 0
    assert "Connection closed by peer" in zero.log


async def eventually_runs(cluster: Simulation, title: str) -> None:
    async def there() -> bool:
        return (await run(cluster, f"pgrep -f {title}", "left")).returncode == 0

    await until(there, title)


async def test_term_waits_for_whoever_still_reads(cluster: Simulation) -> None:
    server = Server(cluster, "left", 18101)
    await start(server)
    await server.ready()
    async with aiohttp.ClientSession(server.url) as session:
        body = {"model": "ds_r1", "prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}
        async with session.post("/v1/completions", json=body) as reply:
            await reply.content.readany()
            await server.signal("TERM")
            await eventually(lambda: "Waiting for connections to close" in server.log)
            assert not server.status_path.exists()
    assert await server.exit_status() == 0


async def test_a_side_channel_port_in_use(cluster: Simulation) -> None:
    first, second = Server(cluster, "left", 18101), Server(cluster, "left", 18102)
    await start(first)
    await first.ready()
    await start(second)
    await eventually(lambda: "ZMQError: Address already in use" in second.log)
    await run(cluster, "pkill -TERM -f -- 'vllm serve.*--port 18102'", "left")
    assert await second.health() is None
    assert not second.status_path.exists()
    assert "nixl_handshake_listener" in second.log
