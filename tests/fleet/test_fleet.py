"""A fleet over nodes in memory: what a console shows and does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pdtui.errors import ActionRefused, ConnectError
from pdtui.fleet.intents import RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import NodeState, RankState
from pdtui.remote.interface import HttpReply, Listener, ProcessInfo, RankSpec
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.support.memory_node import Behaviour


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_start_all_makes_everything_ready(cluster: Cluster) -> None:
    async with cluster.fleet() as fleet:
        assert set(cluster.states(fleet).values()) == {RankState.STOPPED}
        assert fleet.snapshot.serving.word == "STOPPED"
        operation = await cluster.drive(fleet.wait(await fleet.submit(StartRanks(ALL))))
        assert operation.state == "done", operation.error
        await cluster.clock.advance(1)
        snapshot = fleet.snapshot
        assert {rank.state for rank in snapshot.ranks} == {RankState.READY}
        assert snapshot.serving.word == "SERVING"
        assert (snapshot.serving.prefill_ready, snapshot.serving.decode_ready) == (2, 4)
        assert snapshot.headline is None
        assert all(rank.by == "ann@desk" and rank.run == 1 and rank.pid for rank in snapshot.ranks)
        assert [step.state for step in operation.steps if step.label in ALL] == ["done"] * 6
    first = [spec.rank for spec in cluster.nodes["node3"].starts]
    assert first[0] == "decode/0"
