"""A few whole pictures: what assertions on lines do not see, colours above all. Taken on one Python only."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pdtui.console.app import ConsoleApp, Options
from tests.support.fake_fleet import FakeFleet, with_operation
from tests.support.manual_clock import ManualClock

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
