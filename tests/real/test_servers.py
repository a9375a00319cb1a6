"""One prefill and one decode server of real vLLM under pdtui: started, asked, broken, restarted, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdtui.proxy.settings import ProxySettings
from pdtui.text import clean
from tests.real.cluster import SEEN, RealCluster, answer, counter, eventually, streamed, text_of
from tests.real.conftest import Serving
from tests.real.prompts import CHAT, COMPLETIONS, PROMPTS
from tests.real.proxied import proxied
from tests.support.sshd import Sshd, running_sshd

pytestmark = [pytest.mark.real, pytest.mark.timeout(900), pytest.mark.xdist_group("real")]

BY_SOURCE = "vllm:prompt_tokens_by_source_total"

LINES = {
    "configuration": "Resolved architecture",
    "engine": "Initializing a V1 LLM engine",
    "weights": "Starting to load model",
    "weights %": "Loading safetensors checkpoint shards:",
    "weights 100 %": "Loading weights took",
    "KV cache": "KV cache size",
    "KV link": "Initializing NIXL wrapper",
    "engine ready": "init engine",
    "API server": "Starting vLLM server",
    "ready": "Application startup complete",
}
"""Where the log of vLLM 0.32 says what is shown as a stage."""


def test_stages_shown_while_starting_are_those_of_the_log_in_its_order(serving: Serving) -> None:
    plan = serving.cluster.plan()
    for rank in plan:
        log = log_of(serving.cluster, rank)
        shown = [stage for stage in serving.stages[rank] if stage not in {"process", "warm-up"}]
        places = []
        for stage in shown:
            percent = re.fullmatch(r"weights (\d+) %", stage)
            name = "weights %" if percent and stage not in LINES else stage
            assert name in LINES, f"{stage}: no stage of this version; {shown}"
            places.append(log.index(LINES[name]))
        assert places == sorted(places), (rank, shown)
        assert {"configuration", "engine"} <= set(shown), shown


def log_of(cluster: RealCluster, rank: str) -> str:
    """Return a rank's log as it lies on the disk."""
    return Path(cluster.ranks()[rank]["log"]).read_text(encoding="utf-8", errors="replace")


def test_decode_pulls_every_prompt_and_answers_as_one_server_alone(serving: Serving) -> None:
    prefill, decode = serving.url("p/0"), serving.url("d/0")
    pulled = counter(decode, BY_SOURCE, source="external_kv_transfer")
    computed = counter(decode, BY_SOURCE, source="local_compute")
    prefilled = counter(prefill, BY_SOURCE, source="local_compute")
    prompts = 0
    with proxied(serving.cluster) as url:
        for name, (path, body) in PROMPTS.items():
            whole = answer(url, path, body)
            assert text_of(whole) == serving.texts[name], name
            assert streamed(url, path, body) == serving.texts[name], f"{name}, streamed"
            prompts += 2 * whole["usage"]["prompt_tokens"]
    assert prompts > 2000
    eventually(
        lambda: counter(decode, BY_SOURCE, source="external_kv_transfer") - pulled == prompts,
        within=30.0,
        what=f"decode counts {prompts} pulled tokens",
    )
    assert counter(decode, BY_SOURCE, source="local_compute") == computed
    assert counter(prefill, BY_SOURCE, source="local_compute") - prefilled == prompts
    shown = serving.cluster.ranks()
    assert shown["d/0"]["metrics"]["local_prefill_tokens"] == 0
    assert shown["d/0"]["metrics"]["external_share"] > 0.9
    assert shown["p/0"]["metrics"]["external_share"] in {0, None}
    assert shown["d/0"]["alarms"] == shown["p/0"]["alarms"] == []


@pytest.mark.parametrize("name", ["short", "chinese"])
@pytest.mark.parametrize("stream", [True, False])
def test_ask_answers_as_one_server_alone(serving: Serving, name: str, stream: bool) -> None:
    asked = ask(serving.cluster, name, stream=stream)
    assert asked["text"] == clean(serving.texts[name])
    assert (asked["prefill"], asked["decode"]) == ("p/0", "d/0")
    assert asked["tokens"] == 48


def ask(cluster: RealCluster, name: str, *, stream: bool = True, file: Path | None = None) -> dict[str, object]:
    """Return what `pdtui ask` says to one of the prompts."""
    path, body = PROMPTS[name]
    prompt = body["messages"][0]["content"] if path == CHAT else body["prompt"]
    options = ["--max-tokens", "48", "--temperature", "0", "--json"]
    options += ["--completion"] if path == COMPLETIONS else []
    options += [] if stream else ["--no-stream"]
    asked: dict[str, object] = json.loads(cluster.must("ask", "FILE", prompt, *options, file=file))
    return asked


@pytest.mark.parametrize("blocks", [[], [[]], [[1, 2, 3]]])
def test_transfer_parameters_of_a_client_reach_no_server(serving: Serving, blocks: list[object]) -> None:
    # An empty list that reaches a real decoder ends its whole engine.
    path, body = PROMPTS["short"]
    poison = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": blocks}
    poison |= {"remote_engine_id": "nobody", "remote_host": "127.0.0.1", "remote_port": 1}
    with proxied(serving.cluster) as url:
        replied = answer(url, path, {**body, "kv_transfer_params": poison})
        assert text_of(replied) == serving.texts["short"]
        assert text_of(answer(url, path, body)) == serving.texts["short"]
    assert {rank["state"] for rank in serving.cluster.ranks().values()} == {"ready"}


def test_pull_after_the_lease_is_not_sent(serving: Serving) -> None:
    # The way to the first D opens only after P has given the blocks up; vLLM would answer a pull that is sent then
    # with status 200 and, once other prompts lie there, with another text.
    held: list[str] = []

    async def hold(rank: str) -> None:
        if rank.startswith("d/") and not held:
            held.append(rank)
            await asyncio.sleep(1.5 * serving.lease_s)

    path, body = PROMPTS["long"]
    prefill, decode, done = serving.url("p/0"), serving.url("d/0"), "vllm:request_success_total"
    before = [counter(one, done) for one in (prefill, decode)]
    settings = ProxySettings(lease_s=serving.lease_s, resolve_s=10 * serving.lease_s)
    with proxied(serving.cluster, hold=hold, settings=settings) as url:
        replied = answer(url, path, body)
    assert held
    assert text_of(replied) == serving.texts["long"]
    eventually(
        lambda: [counter(one, done) for one in (prefill, decode)] == [before[0] + 2, before[1] + 1],
        within=30.0,
        what="P has prefilled anew in place of the late pull, and D was asked once",
    )


async def test_killed_server_and_killed_engine_are_told_and_restarted_over_ssh(
    serving: Serving, tmp_path: Path
) -> None:
    cluster = serving.cluster
    server, engine = cluster.process("p/0", "vllm serve"), cluster.process("d/0", "VLLM::EngineCore")
    os.kill(server, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    async with running_sshd(tmp_path) as sshd:
        there = over_ssh(cluster, sshd)
        await asyncio.to_thread(killed_are_told, cluster, there)
        await asyncio.to_thread(cluster.must, "restart", "FILE", "failed", file=there)
        asked = await asyncio.to_thread(ask, cluster, "chinese", file=there)
    assert asked["text"] == clean(serving.texts["chinese"])
    ranks = cluster.ranks()
    assert {rank["state"] for rank in ranks.values()} == {"ready"}
    assert not {server, engine} & {process.pid for process in cluster.processes()}


def killed_are_told(cluster: RealCluster, file: Path) -> None:
    """Check what is said of a rank whose server, and of one whose engine was killed."""
    seen = eventually(lambda: all_failed(cluster, file), within=SEEN, what="both ranks have failed")
    assert seen["p/0"]["exit_status"] == -9
    assert "SIGKILL" in words(seen["p/0"]) or "kill" in words(seen["p/0"]).lower(), seen["p/0"]
    assert "engine" in words(seen["d/0"]).lower(), seen["d/0"]
    refused = cluster.run("ask", "FILE", "hello", file=file)
    assert refused.returncode == 1
    assert refused.stderr.strip()


def over_ssh(cluster: RealCluster, sshd: Sshd) -> Path:
    """Write the same cluster's file with its node behind SSH."""
    tree = yaml.safe_load(cluster.file.read_text(encoding="utf-8"))
    tree["ssh"] = {
        "user": sshd.options.user,
        "port": sshd.port,
        "key": str(sshd.folder / "id"),
        "known_hosts": str(sshd.folder / "known_hosts"),
        "config": str(sshd.folder / "ssh_config"),
    }
    for node in tree["nodes"].values():
        node["host"] = "127.0.0.1"
    file = cluster.file.with_name("over-ssh.yaml")
    file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return file


def all_failed(cluster: RealCluster, file: Path) -> dict[str, dict[str, Any]]:
    """Return the ranks when every one has failed and is explained."""
    ranks = cluster.ranks(file)
    return ranks if all(rank["state"] == "failed" and rank["diagnosis"] for rank in ranks.values()) else {}


def words(rank: dict[str, object]) -> str:
    """Return everything that is said of why a rank has failed."""
    return json.dumps(rank["diagnosis"])


def test_killed_worker_is_told_and_stop_all_leaves_no_process_port_or_held_lock(serving: Serving) -> None:
    cluster = serving.cluster
    os.kill(cluster.process("d/0", "VLLM::Worker"), signal.SIGKILL)
    failed = cluster.wait_for("d/0", lambda rank: rank["state"] == "failed" and bool(rank["diagnosis"]))
    assert "worker" in words(failed).lower(), failed
    assert cluster.ranks()["p/0"]["state"] == "ready"
    plan = cluster.plan()
    cluster.must("stop", "FILE", "all")
    assert cluster.processes() == []
    for rank in plan.values():
        for port in (rank["api_port"], *rank["kv_ports"]):
            with socket.socket() as probe:
                assert probe.connect_ex((rank["host"], port)) != 0, (rank["id"], port)
    locks = subprocess.run(
        ["lslocks", "--noheadings", "--output", "PATH"], capture_output=True, text=True, check=False
    )
    assert str(cluster.state) not in locks.stdout
    ranks = cluster.ranks()
    assert ranks["p/0"]["state"] == "stopped"
    assert ranks["d/0"]["state"] == "failed", "it had failed before, and nobody has started it since"
    assert [rank["pid"] for rank in ranks.values()] == [None, None]
