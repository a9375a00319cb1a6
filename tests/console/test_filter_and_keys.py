from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.console.actions import ACTIONS, BY_ID, Situation, bindings
from pdtui.console.rank_order import RankFilter, device_list, natural, order
from pdtui.console.screens.preflight import PreflightScreen
from pdtui.console.selection import Selection
from pdtui.console.strings import S
from pdtui.errors import UsageError
from pdtui.fleet.snapshot import RankState
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet, with_rank


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state:failed", ["decode/9", "decode/10"]),
        ("state:failed node:node3 !decode/10", ["decode/9"]),
        ("outdated", ["decode/3"]),
        ("flag:out", ["decode/3"]),
        ("group:p1", ["p1/0", "p1/1"]),
        ("role:prefill !state:ready", ["p2/1"]),
        ("node:node3 npu:7", ["decode/7"]),
        ("id:decode/1", ["decode/1"]),
        ("link", ["decode/9"]),
        ("!decode", ["p2/1", "p1/0", "p1/1", "p2/0"]),
    ],
)
def test_filters(text: str, expected: list[str]) -> None:
    ranks = order(FakeFleet.faulty().snapshot.ranks)
    rank_filter = RankFilter.parse(text)
    assert [rank.id for rank in ranks if rank_filter.matches(rank)] == expected


def test_an_unknown_field_is_said() -> None:
    with pytest.raises(UsageError, match="no field nod; fields: state node"):
        RankFilter.parse("nod:node3")


def test_order_is_natural() -> None:
    assert sorted(["decode/10", "decode/2", "p1/0"], key=natural) == ["decode/2", "decode/10", "p1/0"]


def test_devices_are_written_short() -> None:
    assert [device_list(d) for d in ((), (3,), (0, 1, 2, 3), (0, 2, 4))] == ["", "3", "0-3", "0,2,4"]


async def test_filtering_while_typing_and_taking_it_back() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("slash")
        await screen.type("state:failed")
        assert "/state:failed  2 of 36" in screen.text
        await screen.press("enter")
        assert screen.app.main.selection.area == "ranks"
        await screen.press("slash")
        await screen.type(" nowhere")
        assert "No rank matches state:failed nowhere." in screen.text
        await screen.press("escape")
        assert "2 of 36" in screen.text
        await screen.press("escape")
        assert " of 36" in screen.text
        assert len(screen.app.main.ranks.rows) == 36


async def test_a_filter_with_an_unknown_field_keeps_the_list_and_says_so() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("slash")
        await screen.type("nod:x")
        await screen.press("enter")
        assert "no field nod" in screen.text


def test_every_action_has_a_name_a_group_and_keys_that_clash_with_none_in_its_scope() -> None:
    used: dict[tuple[str, str], str] = {}
    for action in ACTIONS:
        assert action.label
        assert action.group in S.groups
        for key in action.keys:
            assert (action.scope, key) not in used
            used[(action.scope, key)] = action.id
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert len(bindings("screen")) == sum(action.scope == "screen" for action in ACTIONS)


def test_everything_dangerous_is_off_when_read_only() -> None:
    snapshot = FakeFleet.faulty().snapshot
    situation = Situation(snapshot, Selection(rank="decode/0", node="node3", npu=0), read_only=True)
    dangerous = {action.id for action in ACTIONS if action.danger}
    assert dangerous == {"start", "stop", "restart", "restart_failed", "cancel_operation", "shell"} | {
        "container_up",
        "container_down",
        "container_recreate",
        "acknowledge",
        "preflight_acknowledge",
        "preflight_pings",
    }
    for action in ACTIONS:
        assert not (action.danger and action.available(situation).enabled)


@pytest.mark.parametrize(
    ("failed", "moe", "label"),
    [
        (("decode/9",), True, "restart failed (group decode, 32 ranks)"),
        (("decode/9", "p1/0"), True, "restart failed (34 ranks)"),
        (("decode/9",), False, "restart failed (1 rank)"),
    ],
)
def test_restart_failed_says_how_many_ranks_it_restarts(failed: tuple[str, ...], moe: bool, label: str) -> None:
    snapshot = FakeFleet.healthy().snapshot
    for rank in failed:
        snapshot = with_rank(snapshot, rank, state=RankState.FAILED)
    assert BY_ID["restart_failed"].available(Situation(snapshot, Selection(), moe=moe)).label == label


async def test_every_action_of_the_registry_can_be_done() -> None:
    async with console(FakeFleet.healthy()) as screen:
        for action in ACTIONS:
            owner = PreflightScreen if action.scope == "preflight" else screen.app.main
            assert callable(getattr(owner, f"do_{action.id}"))


async def test_help_says_that_it_scrolls_and_where_a_key_means_what() -> None:
    async with console(FakeFleet.faulty(), size=(100, 120)) as screen:
        await screen.press("question_mark")
        lines = [line.strip("│ ") for line in screen.lines()]
        assert "scroll" not in screen.text, "all of it is in view"
        assert "enter or esc closes" in screen.text
        test = next(number for number, line in enumerate(lines) if "In the prompt of the test" in line)
        assert "enter             send" in lines[test + 1]
        typed = next(number for number, line in enumerate(lines) if "While a filter or a search is typed" in line)
        assert "enter             keep" in lines[typed + 1]
        await screen.press("escape")
        await screen.pilot.resize_terminal(80, 24)
        await screen.press("question_mark")
        assert "enter or esc closes   up, down scroll" in screen.text
        assert "1-16 of" in screen.text
        await screen.press("pagedown")
        assert "6-21 of" in screen.text


async def test_help_lists_every_key_and_why_not() -> None:
    async with console(FakeFleet.healthy(), size=(120, 84)) as screen:
        await screen.press("question_mark")
        assert "restart failed  (no rank has failed)" in screen.text
        for action in ACTIONS:
            assert action.shown_key in screen.text or action.scope == "preflight"
        await screen.press("escape")
        assert "─ Ranks" in screen.text


async def test_the_palette_does_what_its_line_says_and_jumps() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("colon")
        await screen.type("go to rank p2/1")
        await screen.settle()
        await screen.press("enter", "enter")
        await screen.settle()
        assert screen.app.main.selection.rank == "p2/1"
        await screen.press("colon")
        await screen.type("show group p1")
        await screen.settle()
        await screen.press("enter", "enter")
        await screen.settle()
        assert [rank.id for rank in screen.app.main.ranks.rows] == ["p1/0", "p1/1"]


async def test_tab_goes_round_the_areas_and_zoom_takes_the_screen() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("tab")
        assert screen.app.main.selection.area == "detail"
        await screen.press("z")
        assert "─ Ranks" not in screen.text
        await screen.press("escape")
        assert "─ Ranks" in screen.text
        await screen.press("tab", "tab", "shift+tab")
        assert screen.app.main.focused is screen.app.main.grid


async def test_the_mouse_puts_the_cursor() -> None:
    async with console(FakeFleet.healthy()) as screen:
        assert await screen.pilot.click("#ranks", offset=(10, 4))
        assert screen.app.main.selection.rank == "decode/4"
        assert await screen.pilot.click("#grid", offset=(17 + 9 * 3 + 1 + 1, 3))
        await screen.pilot.pause()
        assert (screen.app.main.selection.node, screen.app.main.selection.npu) == ("node3", 9)
        assert screen.app.main.selection.area == "grid"


async def test_own_keys_replace_the_registry_s(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "pdtui"
    folder.mkdir(parents=True)
    (folder / "keys.toml").write_text('stop = "ctrl+k"\nstopp = "y"\n')
    async with console(FakeFleet.healthy()) as screen:
        assert "unknown action 'stopp'; did you mean stop?" in screen.text
        assert "ctrl+k stop" in screen.lines()[-1]
        await screen.press("x")
        assert "─ stop" not in screen.text
        await screen.press("ctrl+k")
        assert "─ stop decode/0 ─" in screen.text
