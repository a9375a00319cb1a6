"""The whole way by command line: a cluster comes up, answers, survives, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.served import PDTUI, Served, rank_processes, serve
from tests.support.processes import carrying

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420), pytest.mark.xdist_group("commands")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("served")) as served:
        done = served.run("start", "FILE", "all")
        assert done.returncode == 0, done.stderr
        yield served


def host_pid(cluster: Served, marker: str, name: str) -> int:
    """Return the pid, as this machine counts, of the process of a rank whose command line holds `name`."""
    found = [process for process in carrying(marker, str(cluster.root)) if name in process.command]
    assert found, f"no process {name} of {marker}"
    return found[0].pid


def keeper_pid(cluster: Served, rank: str) -> int:
    """Return the pid, as this machine counts, of a rank's keeper."""
    folder = f"/{rank.replace('/', '.')}"
    found = [process for process in carrying(folder, str(cluster.root)) if "keeper" in process.command]
    assert found, f"no keeper of {rank}"
    return found[0].pid


def wait_for_state(cluster: Served, rank: str, *states: str, within: float = 60.0) -> dict[str, Any]:
    deadline = time.monotonic() + within
    while True:
        found = cluster.ranks()[rank]
        if found["state"] in states:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_healthy_cluster_is_reported_healthy_and_ready(cluster: Served) -> None:
    done = cluster.run("status", "FILE", "--json")
    status = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert status["schema_version"] == 1
    assert [node["name"] for node in status["nodes"]] == ["node1", "node2", "node3", "node4"]
    for node in status["nodes"]:
        assert node["state"] == "connected"
        assert [npu["id"] for npu in node["npus"]] == list(range(16))
        assert {npu["verdict"] for npu in node["npus"]} == {"healthy"}
        assert all(npu["link"] == "UP" and npu["hbm_total_mb"] == 65536 for npu in node["npus"])
    assert {rank["state"] for rank in status["ranks"]} == {"ready"}
    assert len(status["ranks"]) == 12


def test_ask_is_answered_through_prefill_and_decode(cluster: Served) -> None:
    done = cluster.run("ask", "FILE", "Who are you?", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert answer["text"].strip()
    assert answer["prefill"].startswith("p")
    assert answer["decode"].startswith("decode/")


def test_starting_again_starts_nothing(cluster: Served) -> None:
    before = {rank: status["pid"] for rank, status in cluster.ranks().items()}
    done = cluster.run("start", "FILE", "all")
    assert done.returncode == 0, done.stderr
    assert {rank: status["pid"] for rank, status in cluster.ranks().items()} == before


def test_server_killed_from_outside_is_failed_and_its_group_out_of_service_until_restarted(
    cluster: Served,
) -> None:
    # As with real vLLM, SIGKILL of the server alone leaves its engine, so the other ranks live on.
    os.kill(host_pid(cluster, "PDTUI_RANK=demo:decode/3", "vllm serve"), signal.SIGKILL)
    dead = wait_for_state(cluster, "decode/3", "failed")
    assert dead["exit_status"] == -9
    assert cluster.run("status", "FILE").returncode == 1
    refused = cluster.run("ask", "FILE", "hello")
    assert refused.returncode == 1
    assert "decode" in refused.stderr
    restart_failed(cluster)


def test_engine_killed_from_outside_takes_its_group_with_it(cluster: Served) -> None:
    os.kill(host_pid(cluster, "PDTUI_RANK=demo:decode/3", "VLLM::EngineCore"), signal.SIGKILL)
    wait_for_state(cluster, "decode/0", "failed")
    ranks = cluster.ranks()
    assert {ranks[f"decode/{n}"]["state"] for n in range(8)} == {"failed"}
    assert {ranks[rank]["state"] for rank in ranks if rank.startswith("p")} == {"ready"}
    restart_failed(cluster)


def restart_failed(cluster: Served) -> None:
    done = cluster.run("restart", "FILE", "failed")
    assert done.returncode == 0, done.stderr
    assert {rank["state"] for rank in cluster.ranks().values()} == {"ready"}
    assert cluster.run("ask", "FILE", "hello").returncode == 0


def test_link_set_down_shows_with_the_next_reading(cluster: Served) -> None:
    cluster.fault("link node3/9 down")
    try:
        node3 = cluster.json("status", "FILE")["nodes"][2]
        npu = node3["npus"][9]
        assert npu["link"] == "DOWN"
        assert npu["verdict"] in {"failed", "degraded"}
        assert {other["verdict"] for other in node3["npus"] if other["id"] != 9} == {"healthy"}
    finally:
        cluster.fault("link node3/9 up")


def test_rank_whose_keeper_was_killed_runs_on_and_is_not_started_twice(cluster: Served) -> None:
    pid = cluster.ranks()["decode/5"]["pid"]
    os.kill(keeper_pid(cluster, "decode/5"), signal.SIGKILL)
    unkept = wait_for_state(cluster, "decode/5", "unkept")
    assert unkept["pid"] == pid
    done = cluster.run("start", "FILE", "decode/5")
    assert cluster.ranks()["decode/5"]["pid"] == pid, done.stderr


def test_logs_can_be_read(cluster: Served) -> None:
    done = cluster.run("logs", "FILE", "decode/0", "-n", "400")
    assert done.returncode == 0, done.stderr
    assert "Application startup complete" in done.stdout


def test_stop_all_leaves_no_process_port_or_held_lock(cluster: Served) -> None:
    plan = cluster.json("plan", "FILE")
    done = cluster.run("stop", "FILE", "all")
    assert done.returncode == 0, done.stderr
    assert rank_processes(cluster.root) == []
    for rank in plan["ranks"]:
        with socket.socket() as probe:
            assert probe.connect_ex((rank["host"], rank["api_port"])) != 0, rank["id"]
    locks = subprocess.run(
        ["lslocks", "--noheadings", "--output", "PATH"], capture_output=True, text=True, check=False
    )
    assert [line for line in locks.stdout.splitlines() if str(cluster.root) in line and "demo/" in line] == []
    assert {rank["state"] for rank in cluster.ranks().values()} == {"stopped"}


def test_ten_starts_at_once_start_each_rank_once(cluster: Served) -> None:
    def start(_: int) -> subprocess.CompletedProcess[str]:
        return cluster.run("start", "FILE", "p1", timeout=240.0)

    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(start, range(10)))
    told = [done.stderr for done in results if done.returncode]
    assert {done.returncode for done in results} <= {0, 1}, told
    assert len(told) < 10
    assert all("in another operator's hands" in words for words in told), told
    servers = [command for command in rank_processes(cluster.root) if "vllm serve" in command]
    assert len(servers) == 2, servers
    assert cluster.run("stop", "FILE", "p1").returncode == 0


def test_a_start_whose_console_was_killed_is_seen_and_stopped_by_the_next(cluster: Served) -> None:
    process = subprocess.Popen(
        [PDTUI, "start", cluster.topology, "p2"],
        env=cluster.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_state(cluster, "p2/0", "starting", "ready")
    process.kill()
    process.wait()
    assert cluster.ranks()["p2/0"]["state"] in {"starting", "ready"}
    done = cluster.run("stop", "FILE", "p2", "--break-lease", "its console was killed")
    assert done.returncode == 0, done.stderr
    assert rank_processes(cluster.root) == []
