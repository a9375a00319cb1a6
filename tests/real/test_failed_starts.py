"""Servers that cannot come up: `pdtui start` ends with status 1 and says the true cause."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.cluster import make_cluster
from tests.real.conftest import ended
from tests.support.real_vllm import RealVllm

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.xdist_group("real")]


def test_bad_flag_and_missing_model_are_named(real: RealVllm, tmp_path: Path) -> None:
    # Both in one start, since each costs a quarter of a minute of processor time.
    def change(tree: dict[str, Any]) -> None:
        tree["model"]["path"] = str(tmp_path / "no-such-model")
        tree["groups"]["d"]["args"] = {"max-num-sequences": 4}

    with ended(make_cluster(tmp_path, real, "cpu-1p1d.yaml", change=change)) as cluster:
        done = cluster.run("start", "FILE", "all")
        assert done.returncode == 1, done.stderr
        lines = {line.split()[0]: line for line in done.stdout.splitlines()}
        assert "--max-num-sequences" in lines["d/0"], lines
        assert "no-such-model" in lines["p/0"], lines
        cluster.must("stop", "FILE", "all")
        assert cluster.processes() == []


def test_bad_json_in_a_flag_is_told_with_its_line_before_anything_starts(real: RealVllm, tmp_path: Path) -> None:
    # vLLM would say so after a quarter of a minute.
    def change(tree: dict[str, Any]) -> None:
        tree["groups"]["d"]["args"] = {"additional-config": '{"a": 1,}'}

    cluster = make_cluster(tmp_path, real, "cpu-1p1d.yaml", change=change)
    line = 1 + next(
        n for n, text in enumerate(cluster.file.read_text().splitlines()) if "additional-config" in text
    )
    refused = cluster.run("start", "FILE", "all")
    assert refused.returncode == 2
    assert f"{cluster.file}:{line}:" in refused.stderr
    assert "no valid JSON at character 9" in refused.stderr
    assert cluster.processes() == []


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Hold a port on loopback."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        held.listen()
        yield


def test_taken_side_channel_port_blocks_a_start_and_is_named_when_that_is_passed_over(
    real: RealVllm, tmp_path: Path
) -> None:
    with ended(make_cluster(tmp_path, real, "cpu-1p1d.yaml")) as cluster:
        port = cluster.plan()["p/0"]["kv_ports"][0]
        with listening(port):
            refused = cluster.run("start", "FILE", "p")
            assert refused.returncode == 1
            assert f"port {port}" in refused.stderr
            assert f"pid {os.getpid()}" in refused.stderr
            assert cluster.processes() == []
            passed = cluster.run(
                *("start", "FILE", "p", "--override", f"port:laptop:{port}", "--reason", "to see what vLLM does"),
                *("--timeout", "240"),
            )
            assert passed.returncode == 1, passed.stderr
            # The server neither comes up nor ends.
            assert "does not come up" in passed.stdout
            assert str(port) in passed.stdout
            assert f"pid {os.getpid()}" in passed.stdout, "who holds it"
        cluster.must("stop", "FILE", "all", "--grace", "3")  # TERM does not end it.
        assert cluster.processes() == []


def test_rank_one_alone_of_a_moe_group_is_refused(real: RealVllm, tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, real, "cpu-2p2d-moe.yaml")
    refused = cluster.run("start", "FILE", "p/1")
    assert refused.returncode == 1
    assert "p/0 does not run" in refused.stderr, refused.stderr
    assert "start p" in refused.stderr
    assert cluster.processes() == []
