"""Somebody else works on the cluster: seen where one acts, and taken over from by one confirmation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.fleet.intents import Breaking, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import LeaseStatus
from tests.console.driving import console
from tests.support.fake_fleet import NOW, FakeFleet, stopped

LEASE = LeaseStatus(
    "l1",
    "bob@home",
    "10.0.0.9",
    "restart",
    "group decode",
    ("node3", "node4"),
    tuple(f"decode/{n}" for n in range(32)),
    NOW - 240,
)


def busy(fleet: FakeFleet) -> FakeFleet:
    """Return the fleet with another console at work."""
    fleet.publish(replace(fleet.snapshot, leases=(LEASE,)))
    fleet.leases = (LEASE,)
    return fleet


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_it_is_on_the_screen_while_it_lasts(size: tuple[int, int]) -> None:
    fleet = busy(FakeFleet.healthy())
    async with console(fleet, size=size) as screen:
        assert "restart group decode  4m" in screen.text
        assert "by bob@home from 10.0.0.9" in screen.text
        fleet.publish(replace(fleet.snapshot, leases=(), revision=fleet.snapshot.revision + 1))
        await screen.settle()
        assert "bob@home" not in screen.text


async def test_a_stop_takes_one_confirmation_and_cancel_has_the_focus() -> None:
    fleet = busy(FakeFleet.healthy())
    async with console(fleet) as screen:
        await screen.press("x")
        assert "In other hands:" in screen.text
        assert "bob@home from 10.0.0.9: restart group decode on node3 node4, for 4m" in screen.text
        assert "▸[ Cancel ]" in screen.text
        await screen.press("enter")
        assert fleet.submitted == []
        await screen.press("x", "right")
        assert "▸[ Take over, stop ]" in screen.text
        await screen.press("enter")
        (intent,) = fleet.submitted
        assert isinstance(intent, StopRanks)
        assert intent.breaking == Breaking("from the console", ("l1",))


async def test_a_restart_and_a_start_want_a_reason() -> None:
    fleet = busy(FakeFleet.healthy())
    async with console(fleet) as screen:
        await screen.press("r", "right", "enter")
        assert fleet.submitted == []
        await screen.press("escape", "r", "o")
        await screen.type("he is asleep")
        await screen.press("enter")
        (intent,) = fleet.submitted
        assert isinstance(intent, RestartRanks)
        assert intent.breaking == Breaking("he is asleep", ("l1",))
    fleet = FakeFleet.healthy()
    fleet.publish(stopped(fleet.snapshot))
    async with console(busy(fleet)) as screen:
        await screen.press("S")  # No dialog without another console: it hurts nobody.
        assert "In other hands:" in screen.text
        await screen.press("o")
        await screen.type("now")
        await screen.press("enter")
        (started,) = fleet.submitted
        assert isinstance(started, StartRanks)
        assert started.breaking.ids == ("l1",)
