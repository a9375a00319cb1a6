"""Two prefill and two decode ranks of a real mixture of experts, with expert parallelism: by hand, or at night."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.real.cluster import RealCluster, eventually, make_cluster
from tests.real.conftest import ended
from tests.support.real_vllm import RealVllm

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("real"),
    pytest.mark.skipif(not os.environ.get("PDTUI_REAL_MOE"), reason="PDTUI_REAL_MOE is not set: takes 7 GB"),
]

START = 600.0


@pytest.fixture(scope="module")
def moe(real: RealVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with ended(make_cluster(tmp_path_factory.mktemp("moe"), real, "cpu-2p2d-moe.yaml", suffix="-moe")) as cluster:
        cluster.must("start", "FILE", "all", within=START)
        yield cluster


def texts(cluster: RealCluster) -> dict[str, str]:
    """Return greedy answers through changing pairs of ranks."""
    answers = {}
    for prompt in ("Who are you?", "How many eggs?", "你是谁？"):
        options = ("--temperature", "0", "--completion", "--max-tokens", "24", "--json")
        answers[prompt] = json.loads(cluster.must("ask", "FILE", prompt, *options))["text"]
    return answers


def test_groups_answer_and_one_killed_rank_takes_its_group_which_restarts_as_a_whole(moe: RealCluster) -> None:
    before = texts(moe)
    assert all(before.values())
    os.kill(moe.process("d/1", "VLLM::EngineCore"), signal.SIGKILL)

    eventually(lambda: moe.ranks()["d/1"]["state"] == "failed", within=60.0, what="d/1 has failed")
    refused = moe.run("ask", "FILE", "hello")
    assert refused.returncode == 1
    assert "decode" in refused.stderr, refused.stderr
    done = moe.run("restart", "FILE", "failed", within=START)
    assert done.returncode == 0, done.stderr
    assert {rank["state"] for rank in moe.ranks().values()} == {"ready"}
    assert "d/0" in done.stdout, "the group restarts as one"
    assert "p/0" not in done.stdout
    assert texts(moe) == before


def test_stop_leaves_nothing_and_rank_one_alone_is_told_to_wait_for_rank_zero(moe: RealCluster) -> None:
    moe.must("stop", "FILE", "all")
    assert moe.processes() == []
    alone = moe.run(
        *("start", "FILE", "p/1", "--override", "group:p", "--reason", "to see it wait", "--timeout", "60")
    )
    assert alone.returncode == 1
    assert "p/0" in alone.stdout.splitlines()[-1], alone.stdout
    assert "wait" in alone.stdout.splitlines()[-1], alone.stdout
    moe.must("stop", "FILE", "all", "--grace", "3")
    assert moe.processes() == []
