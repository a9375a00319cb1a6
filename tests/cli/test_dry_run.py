"""What `--dry-run` and `--override` say of what stands in the way, over nodes in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdtui.cli.actions import check_override, dry_run
from pdtui.errors import ActionRefused, UsageError
from pdtui.fleet.intents import Breaking, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import RankState
from pdtui.remote.messages.processes import Listener
from tests.fleet.cluster import ALL, DECODE, Cluster
from tests.fleet.test_unmanaged import put
from tests.support.memory_node import Behaviour


async def test_a_blocker_is_passed_over_by_its_name_and_by_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path)
    cluster.nodes["node1"].listeners.append(Listener("0.0.0.0", 7100, 77, "python3 x.py"))
    async with cluster.fleet() as fleet:
        start = StartRanks(ALL)
        assert await cluster.drive(dry_run(fleet, start, as_json=False)) == 1
        assert "blocked: port:node1:7100: " in capsys.readouterr().err
        over = StartRanks(ALL, override=("port:node1:7100",), reason="it goes away")
        assert await cluster.drive(dry_run(fleet, over, as_json=False)) == 0
        assert "passed over: port:node1:7100: " in capsys.readouterr().err
        typo = StartRanks(ALL, override=("port:node1:7101",), reason="it goes away")
        with pytest.raises(UsageError, match="did you mean port:node1:7100") as refused:
            check_override(typo, await cluster.drive(fleet.preview(typo)))
        assert refused.value.remedy == "in the way: port:node1:7100"
        cluster.nodes["node1"].listeners.clear()
        with pytest.raises(UsageError, match=r"no blocker port:node1:7100; nothing was done"):
            await cluster.drive(dry_run(fleet, over, as_json=False))
    assert not any(node.starts for node in cluster.nodes.values())


async def test_it_says_who_else_works_there_and_ends_as_the_action_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, protected="true")
    for node in cluster.nodes.values():
        node.behaviour = lambda _spec: Behaviour(ready_after=30.0)
    async with cluster.fleet(by="ann@desk") as ann, cluster.fleet(by="bob@home") as bob:
        start = await cluster.drive(ann.submit(StartRanks(DECODE)))
        await cluster.until(lambda: {cluster.states(bob)[rank] for rank in DECODE} == {RankState.STARTING})
        stop = StopRanks(("decode/0",))
        assert await cluster.drive(dry_run(bob, stop, as_json=True)) == 1
        told = capsys.readouterr()
        assert "refused: ann@desk starts group decode on node3 for " in told.err
        assert [lease["by"] for lease in json.loads(told.out)["leases"]] == ["ann@desk"]
        over = StopRanks(("decode/0",), breaking=Breaking("fire"))
        assert await cluster.drive(dry_run(bob, over, as_json=False)) == 0
        told = capsys.readouterr()
        assert "taken over: ann@desk starts group decode" in told.err
        assert "tiny is protected" in told.err  # The rest of its group would fail: it touches the group.
        await cluster.drive(ann.cancel(start))
    async with cluster.fleet(read_only=True) as watcher:
        assert await cluster.drive(dry_run(watcher, StopRanks(("decode/0",)), as_json=False)) == 1
        assert "read-only" in capsys.readouterr().err


async def test_it_tells_what_was_started_by_hand_to_end_only_where_that_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path)
    put(cluster, "p1/0")
    async with cluster.fleet() as fleet:
        await cluster.until(lambda: cluster.states(fleet)["p1/0"] is RankState.UNMANAGED)
        assert await cluster.drive(dry_run(fleet, StopRanks(ALL), as_json=False)) == 0
        told = capsys.readouterr()
        assert "p1/0: started by hand, left" in told.err
        assert "pid 100" not in told.out + told.err
        for intent in (StopRanks(("p1/0",)), RestartRanks(ALL)):
            with pytest.raises(ActionRefused, match="p1/0: unmanaged"):
                await cluster.drive(dry_run(fleet, intent, as_json=False))
        named = StopRanks(ALL, unmanaged=("p1/0",))
        assert await cluster.drive(dry_run(fleet, named, as_json=False)) == 0
        assert "p1/0 on node1: pid 100" in capsys.readouterr().out
