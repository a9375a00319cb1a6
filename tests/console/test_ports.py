"""The port map in the console: of the node under the cursor, of all, filtered, and who is there now."""

from __future__ import annotations

from typing import get_args, get_type_hints

from pdtui.console.port_rows import port_rows
from pdtui.console.strings import S
from pdtui.fleet.snapshot import ForeignProcess, NodeState, RankState, Snapshot
from pdtui.topology.plan import PortUse
from pdtui.topology.port_map import EPHEMERAL_USE, port_map_of
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet, stopped, with_node, with_rank


def shown(fleet: FakeFleet, snapshot: Snapshot, only: str = "") -> dict[str, str]:
    """Return what stands beside each range of ports of a decode node."""
    rows = port_rows(port_map_of(fleet.topology, fleet.plan), snapshot, "node3", only)
    return {row.label: row.text for row in rows if row.label.strip()}


async def test_ports_of_the_node_under_the_cursor_then_of_all_then_filtered() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("b")
        node = screen.app.main.selection.node
        assert f"{node} [ports]" in screen.text
        assert "16 of 16 answer" in screen.line("7100-7115")
        await screen.press("b")
        assert "all nodes [ports]" in screen.text
        await screen.press("tab", "slash")
        await screen.type("7101 p2")
        assert "p2/0..1" in screen.line("7100-7101")
        assert "7100-7115" not in screen.text
        await screen.press("enter", "escape")
        assert "/7101" not in screen.text
        await screen.press("slash")
        await screen.type("nowhere")
        assert "No port is like that." in screen.text
        await screen.press("escape")
        assert "7100-7115" in screen.text
        await screen.press("escape", "b")
        assert f"{node} [ports]" in screen.text


async def test_it_takes_the_screen_of_a_small_terminal() -> None:
    async with console(FakeFleet.healthy(), size=(80, 24)) as screen:
        await screen.press("b")
        assert "kept free: nobody listens" in screen.line("36000-36015")
        await screen.press("b", "slash")
        await screen.type("36000 p2")
        assert "2 of 2 ranks run" in screen.line("36000-36015")
        assert "in 32768-60999, ephemeral: for clients" in screen.text


def test_who_is_there_now_as_far_as_the_snapshot_knows() -> None:
    fleet = FakeFleet.healthy()
    snapshot = with_rank(fleet.snapshot, "decode/3", state=RankState.FAILED, health="")
    assert shown(fleet, snapshot)["7100-7115"].endswith("15 of 16 answer")
    held = ForeignProcess(pid=77, command="nginx -g", ports=(7103,))
    snapshot = with_node(snapshot, "node3", foreign=(held,))
    assert shown(fleet, snapshot)["7100-7115"].endswith("7103 held by nginx -g (77)")
    assert shown(fleet, snapshot, "7103").keys() == {"7100-7115"}
    snapshot = with_node(snapshot, "node3", state=NodeState.RECONNECTING)
    assert shown(fleet, snapshot)["7100-7115"].endswith("not known now")
    by_hand = with_rank(fleet.snapshot, "decode/3", state=RankState.UNMANAGED)
    assert shown(fleet, by_hand)["7100-7115"].endswith("16 of 16 answer, 1 started by hand")
    assert shown(fleet, stopped(fleet.snapshot))["7100-7115"].endswith("nobody answers")
    assert shown(fleet, stopped(fleet.snapshot))["12321"].endswith("no rank runs")


def test_every_use_of_a_port_has_a_name() -> None:
    uses = get_args(get_type_hints(PortUse)["use"])
    assert {*uses, EPHEMERAL_USE} == S.port_uses.keys()
