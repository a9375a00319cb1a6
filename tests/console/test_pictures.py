"""A few whole pictures: what assertions on lines do not see, colours above all. Taken on one Python only."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pdtui.console.app import ConsoleApp, Options
from pdtui.fleet.snapshot import Alarm, RankState
from tests.support.fake_fleet import NOW, FakeFleet, with_operation, with_rank
from tests.support.manual_clock import ManualClock
from tests.support.preflights import HANG, LEFT, LINK, preflight

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="pictures are compared on the oldest Python that is supported"
)


def make(fleet: FakeFleet, theme: str = "dark") -> ConsoleApp:
    fleet.write_log("decode/9", "INFO Added request cmpl-1", "WARNING 链路不稳定 link flapping")
    fleet.write_log("decode/9", "HCCL_EI0006 connect timeout, peer 10.0.3.23", severity="error")
    return ConsoleApp(fleet, Options(theme=theme, interval=0), clock=ManualClock())


@pytest.mark.parametrize("theme", ["dark", "light", "ansi16"])
def test_a_bad_night(snap_compare: Any, theme: str) -> None:
    assert snap_compare(make(FakeFleet.faulty(), theme), terminal_size=(120, 40))


def test_eighty_by_twenty_four(snap_compare: Any) -> None:
    assert snap_compare(make(FakeFleet.faulty()), terminal_size=(80, 24), press=["shift+tab"])


def test_confirming_on_a_protected_cluster(snap_compare: Any) -> None:
    fleet = FakeFleet.faulty(protected=True)
    fleet.publish(with_operation(fleet.snapshot))
    assert snap_compare(make(fleet), terminal_size=(120, 40), press=["R"])


def test_a_cluster_without_npus(snap_compare: Any) -> None:
    fleet = FakeFleet.cpu(nodes=3, prefill=1, decode=4)
    made = with_rank(fleet.snapshot, "d/6", state=RankState.FAILED, exit_status=1, since=NOW - 42, metrics=None)
    made = with_rank(made, "d/7", state=RankState.STARTING, stage="weights 63 %", since=NOW - 70, metrics=None)
    held = Alarm(
        "kv-held", "warning", "its KV cache is 97 % full and nothing runs", "see whether decode runs", NOW
    )
    fleet.publish(with_rank(made, "p/0", alarms=(held,)))
    keys = ["shift+tab", "up", "left", "space", "left", "left", "left", "m"]
    assert snap_compare(make(fleet), terminal_size=(120, 40), press=keys)


def test_a_preflight(snap_compare: Any) -> None:
    fleet = FakeFleet.healthy()
    nodes = ("node1", "node2", "node3", "node4")
    fleet.preflight_events = preflight(nodes, [LINK, HANG, LEFT], unreached="node4")
    assert snap_compare(make(fleet), terminal_size=(120, 40), press=["p", "p", "wait:400"])
