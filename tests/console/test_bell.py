from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.console.bell import GAP, QUIET_AT_FIRST, Bell, notification
from pdtui.fleet.snapshot import Acknowledgement
from pdtui.fleet.transitions import Transition
from pdtui.readings.verdict import Reason, Verdict
from tests.console.driving import console
from tests.console.test_hostile_text import EVIL
from tests.support.fake_fleet import NOW, FakeFleet, with_npu
from tests.support.manual_clock import ManualClock

DOWN = Reason(
    Verdict.FAILED, "link DOWN", "hccn_tool -i 9 -link -g", "link status: DOWN", NOW, "cable", "link-down"
)


def change(subject: str, summary: str = "link DOWN", *, worse: bool = True, known: bool = False) -> Transition:
    return Transition(NOW, "npu", subject, "healthy", "failed", worse, summary, f"{subject}:x", known)


@pytest.mark.parametrize(
    ("environ", "sequence"),
    [
        ({"TERM": "xterm-256color"}, "\x1b]9;pdtui c: x\a"),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/t,1,0"}, "\x1bPtmux;\x1b\x1b]9;pdtui c: x\a\x1b\\"),
        ({"TERM": "screen"}, "\x1bP\x1b]9;pdtui c: x\a\x1b\\"),
    ],
)
def test_a_notification_passes_what_stands_before_the_terminal(environ: dict[str, str], sequence: str) -> None:
    assert notification("pdtui c: x", environ) == sequence


def test_remote_text_ends_no_notification_and_begins_no_other() -> None:
    sequence = notification(f"pdtui c: {EVIL}{'x' * 999}", {})
    assert sequence.startswith("\x1b]9;pdtui c: ")
    assert sequence.count("\x1b") == 1
    assert sequence.index("\a") == len(sequence) - 1
    assert len(sequence) < 220


async def test_it_rings_once_for_what_comes_together_and_only_for_what_is_worse_and_not_known() -> None:
    clock, rung = ManualClock(), list[str]()
    bell = Bell(rung.append, clock, "c", {})
    bell.take([change("node1/0")])
    await clock.advance(QUIET_AT_FIRST)
    bell.ring()
    assert rung == [], "whoever has just opened it is looking"
    bell.take([change("node3/9", worse=False), change("node3/8", known=True)])
    assert rung == []
    bell.take([change("node3/9")])
    assert rung == ["\a\x1b]9;pdtui c: node3/9 link DOWN\a"]
    bell.take([change("node3/8")])
    bell.take([change("node3/7")])
    assert len(rung) == 1
    await clock.advance(GAP)
    bell.ring()
    assert rung[1:] == ["\a\x1b]9;pdtui c: node3/8 link DOWN (+1 more)\a"]
    await clock.advance(GAP)
    bell.on = False
    bell.take([change("node3/6")])
    assert len(rung) == 2


async def test_the_console_rings_for_an_npu_that_fails_unless_that_is_known() -> None:
    fleet = FakeFleet.healthy()
    well = fleet.snapshot
    async with console(fleet) as screen:
        rung: list[str] = []
        screen.app.main.bell = Bell(rung.append, screen.clock, "c", {})
        await screen.clock.advance(QUIET_AT_FIRST)
        failed = with_npu(well, "node3", 9, verdict=Verdict.FAILED, reasons=(DOWN,))
        known = Acknowledgement("node3/9:link-down", "spare part", "ops", NOW, NOW + 999)
        fleet.publish(replace(failed, acknowledgements=(known,)))
        await screen.pilot.pause()
        assert rung == []
        fleet.publish(replace(well, revision=3))
        await screen.pilot.pause()
        fleet.publish(replace(failed, revision=4))
        await screen.pilot.pause()
        assert len(rung) == 1
        assert "node3/9 NPU healthy -> failed: link DOWN, carries decode/9" in rung[0]
        await screen.press("B")
        assert "the bell is off" in screen.text
        assert not screen.app.main.bell.on
