"""What `pdtui status` prints of a snapshot: columns by platform and by room, alarms, and the JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pdtui.cli.rank_table import rank_table
from pdtui.cli.status import as_dict, as_text
from pdtui.fleet.snapshot import Alarm, ForeignProcess, NodeState, RankState
from pdtui.fleet.troubles import healthy
from tests.support.fake_fleet import NOW, FakeFleet, with_node, with_rank

ALARM = Alarm("computes-prompts", "error", "computes prompts itself", "send clients to the proxy", NOW - 9)


def test_a_cluster_without_npus_has_no_column_of_npus() -> None:
    made = FakeFleet.cpu(nodes=2, prefill=1, decode=2).snapshot
    made = with_rank(made, "d/0", state=RankState.FAILED, exit_status=1, metrics=None)
    gone = {"state": NodeState.RECONNECTING, "error": "no answer"}
    other = ForeignProcess(77, "alice", "python3 x.py", NOW, ports=(18202,), hits=("d/1",))
    made = with_node(with_node(made, "node2", **gone), "node1", foreign=(other,))
    text = "\n".join(as_text(made, npus=False))
    for word in ("NPU", "HBM", "MAX C", "0/0"):
        assert word not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["NODE", "HOST", "STATE", "READY", "NOTE"] in rows
    assert ["node2", "192.0.0.2", "reconnecting", "3/3", "no", "answer"] in rows
    assert ["node1", "192.0.0.1", "connected", "2/3"] in rows
    assert ["NOT", "OF", "THIS", "CLUSTER", "NODE", "USER", "SINCE", "PORTS", "IN", "THE", "PLACE", "OF",
            "COMMAND"] in rows  # fmt: skip
    assert next(row for row in rows if row[:2] == ["pid", "77"])[-4:] == ["18202", "d/1", "python3", "x.py"]
    assert made.nodes[0].npus == ()
    assert as_dict(made)["schema_version"] == 1, "only keys were added"


@pytest.mark.parametrize(
    ("width", "figures"),
    [
        (None, ["RUN", "WAIT", "KV", "IN/S", "OUT/S", "TTFT", "TPOT"]),
        (200, ["RUN", "WAIT", "KV", "IN/S", "OUT/S", "TTFT", "TPOT"]),
        (100, ["RUN", "WAIT", "KV", "IN/S", "OUT/S"]),
        (60, []),
    ],
)
def test_figures_have_columns_as_far_as_there_is_room(width: int | None, figures: list[str]) -> None:
    ranks = FakeFleet.cpu(nodes=1, prefill=1, decode=1).snapshot.ranks
    long = replace(ranks[0], flags=("outdated",), difference=("--max-num-seqs 40, file: 48",))
    lines = rank_table([long, ranks[1]], width)
    head = lines[0].split()
    assert head[5:-1] == figures, "a figure that no rank has gets no column"
    assert lines[0].index("NOTE") == lines[1].index("outdated")
    if figures:
        assert lines[2].split()[6:10] == ["6", "0", "41", "%"]


def test_an_alarm_is_a_note_and_an_error_makes_the_cluster_unhealthy() -> None:
    made = FakeFleet.cpu(nodes=1, prefill=1, decode=2).snapshot
    assert healthy(made)
    assert healthy(with_rank(made, "d/1", alarms=(replace(ALARM, severity="warning"),)))
    made = with_rank(made, "d/1", alarms=(ALARM,))
    assert not healthy(made)
    table = rank_table(made.ranks, None)
    assert table[1].startswith("d/1 "), "what is wrong comes first"
    assert table[1].endswith("computes prompts itself")
    found: Any = json.loads(json.dumps(as_dict(made)))
    ranks = {rank["id"]: rank for rank in found["ranks"]}
    assert ranks["d/0"]["alarms"] == []
    assert ranks["d/1"]["alarms"] == [
        {
            "id": "computes-prompts",
            "severity": "error",
            "message": "computes prompts itself",
            "remedy": "send clients to the proxy",
            "since": NOW - 9,
        }
    ]
    assert {"external_share", "preemptions", "acceptance", "tpot_s"} <= set(ranks["d/1"]["metrics"])


def test_an_ascend_cluster_keeps_its_columns() -> None:
    lines = as_text(FakeFleet.healthy().snapshot)
    assert lines[2].split() == ["NODE", "HOST", "STATE", "NPUS", "HBM", "MAX", "C", "NOTE"]
    assert lines[3].split()[:6] == ["node1", "192.0.0.1", "connected", "16/16", "ok", "90"]
