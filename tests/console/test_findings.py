from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.fleet.intents import Acknowledge
from pdtui.fleet.snapshot import Acknowledgement, Headline, NodeState
from pdtui.readings.verdict import Reason, Verdict
from tests.console.driving import console
from tests.support.fake_fleet import NOW, FakeFleet, with_node, with_npu

LONG = "\n".join(f"tx_pkt_num_{n} : {n}" for n in range(30))
REASONS = (
    Reason(
        Verdict.FAILED,
        "link DOWN",
        "hccn_tool -i 9 -link -g",
        "link status: DOWN",
        NOW - 12,
        "change the cable",
        "link-down",
        "The RoCE port of this NPU has no carrier.",
    ),
    Reason(Verdict.DEGRADED, "87 C", "npu-smi info", LONG, NOW - 3, "look at the fans", "hot", "It throttles."),
    Reason(Verdict.UNKNOWN, "net health: busy", "hccn_tool -i 9 -net_health -g", "", NOW - 3, "", "no-answer", ""),
)


def with_reasons() -> FakeFleet:
    fleet = FakeFleet.healthy()
    made = with_npu(fleet.snapshot, "node3", 9, verdict=Verdict.FAILED, reasons=REASONS)
    fleet.publish(replace(made, headline=Headline("node3 NPU 9 failed: link DOWN", "node3/9", "error")))
    return fleet


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.parametrize("way", [("enter", "i"), ("enter", "d", "i")], ids=["headline", "describe"])
async def test_every_reason_opens_with_all_that_is_known_of_it(
    size: tuple[int, int], way: tuple[str, ...]
) -> None:
    async with console(with_reasons(), size=size) as screen:
        await screen.press(*way)
        screen.app.main.enter_area("detail")
        await screen.pilot.pause()
        assert "node3 NPU 9  failed: link DOWN" in screen.text
        for words in (
            "The RoCE port of this",
            "change the cable",
            "hccn_tool -i 9 -link -g",
            "link status: DOWN",
            "12 s ago",
        ):
            assert words in screen.text
        assert "node3 NPU 9  degraded: 87 C" in screen.text
        assert "It throttles." not in screen.text, "one is open at a time where they have no room together"
        await screen.press("down")
        assert "It throttles." in screen.text
        assert "change the cable" not in screen.text
        await screen.press("y")
        assert "tx_pkt_num_29 : 29" in screen.app.clipboard, "whole, also what is not in view"
        assert "what helps: look at the fans" in screen.app.clipboard
        await screen.press("enter")
        assert "─ Ranks" not in screen.text, "enter gives a finding the whole screen"
        while "net health: busy" not in screen.text or "no output" not in screen.text:
            await screen.press("down")


async def test_a_finding_that_is_read_stays_open_when_others_come() -> None:
    fleet = with_reasons()
    async with console(fleet) as screen:
        await screen.press("enter", "enter", "down")
        assert "It throttles." in screen.text
        more = Reason(Verdict.FAILED, "vnic DOWN", "hccn_tool -i 9 -vnic -g", "DOWN", NOW, "", "vnic-down", "")
        fleet.publish(with_npu(fleet.snapshot, "node3", 9, reasons=(more, *REASONS)))
        await screen.pilot.pause()
        assert "It throttles." in screen.text
        assert screen.app.main.finding_list.chosen == 2


async def test_a_healthy_npu_has_nothing_to_say_but_its_values_and_how_old_they_are() -> None:
    fleet = FakeFleet.healthy()
    async with console(fleet) as screen:
        await screen.press("shift+tab", "i")
        assert "healthy: nothing to say." in screen.text
        for label, value in (("link", "UP"), ("net health", "Success"), ("vnic", "UP"), ("HBM", "59.0 / 65.5 GB")):
            assert screen.line(f"│   {label}  ").endswith(value)
        assert "2 s ago" in screen.line("  oldest value  ")
        assert "table 15 s, ports 30 s" in screen.line("  read every  ")
        fleet.publish(with_npu(fleet.snapshot, "node3", 0, address="10.0.3.1", next_try=NOW + 35))
        await screen.pilot.pause()
        assert screen.line("│   address  ").endswith("10.0.3.1")
        assert "in 35 s; c tries now" in screen.line("  next try  ")
        fleet.publish(with_node(fleet.snapshot, "node3", state=NodeState.RECONNECTING, error="refused"))
        await screen.pilot.pause()
        assert "was healthy; its node does not answer now." in screen.text


async def test_a_reason_is_acknowledged_shown_with_who_and_why_and_listed_in_the_events() -> None:
    fleet = with_reasons()
    async with console(fleet) as screen:
        await screen.press("enter", "a")
        await screen.type("cable ordered")
        await screen.press("enter")
        await screen.pilot.pause()
        assert fleet.acknowledged == [Acknowledge("node3/9:link-down", "cable ordered", 8 * 3600.0)]
        assert "known, failed: link DOWN" in screen.text
        assert "node3 NPU 9  degraded: 87 C   " in screen.line("i: reasons"), "what nobody knows of comes first"
        assert "by ops@jump until " in screen.text
        await screen.press("E")
        assert "acknowledged (1)" in screen.text
        assert "node3/9:link-down  by ops@jump" in screen.text


async def test_nodes_that_lack_an_acknowledgement_are_named() -> None:
    fleet = with_reasons()
    fleet.unspread = {"node4": "unreachable"}
    known = Acknowledgement("node3/9:link-down", "spare part", "ops@jump", NOW, NOW + 3600)
    fleet.publish(replace(fleet.snapshot, acknowledgements=(known,)))
    async with console(fleet) as screen:
        await screen.press("enter", "enter", "end", "a")
        await screen.pilot.pause()
        assert "no longer acknowledged: node3/9:link-down; not yet on node4" in screen.text
