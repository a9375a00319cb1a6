from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.console.glyphs import GlyphSet
from pdtui.console.screens.preflight import PreflightScreen
from pdtui.errors import ActionRefused
from pdtui.fleet.intents import Acknowledge, Unacknowledge
from pdtui.fleet.preflight.events import Ended, PreflightEvent
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PingCell
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import RankState
from tests.console.driving import Console, console
from tests.console.test_hostile_text import EVIL, assert_clean
from tests.support.fake_fleet import FakeFleet, stopped
from tests.support.preflights import CABLE, HANG, LEFT, LINK, preflight

NODES = ("node1", "node2", "node3", "node4")


def fleet_with(*wrong: Result, unreached: str = "", nodes: int = 4) -> FakeFleet:
    fleet = FakeFleet.healthy(nodes=nodes)
    fleet.preflight_events = preflight(tuple(fleet.topology.nodes), wrong, unreached=unreached)
    return fleet


class SlowFleet(FakeFleet):
    """Says what it has to say event by event, when it may."""

    steps = 0
    closed = False

    async def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
        self.preflights.append(request)
        try:
            for number, event in enumerate(self.preflight_events):
                while number >= self.steps:  # noqa: ASYNC110 - a test moves it on
                    await asyncio.sleep(0.005)
                yield event
        finally:
            self.closed = True


def shown(screen: Console) -> PreflightScreen:
    found = screen.app.screen
    assert isinstance(found, PreflightScreen)
    return found


async def ran(screen: Console) -> str:
    """Press p twice: open, run; returns the screen when the run has ended."""
    await screen.press("p", "p")
    while screen.app.main.preflights.running:
        await screen.pilot.pause()
    await screen.pilot.pause()
    return screen.text


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_what_is_wrong_is_said_in_words_first_beside_a_matrix(size: tuple[int, int]) -> None:
    async with console(fleet_with(LINK, HANG, LEFT, unreached="node4"), size=size) as screen:
        await screen.press("p")
        assert "No preflight has run since this console was opened." in screen.text
        assert "p run" in screen.lines()[-1]
        await screen.press("escape")
        text = await ran(screen)
        assert screen.fleet.preflights == [PreflightRequest()]
        assert "✖ 2" in screen.lines()[0]
        assert "took" in screen.lines()[0]
        order = [text.index(words) for words in ("connection refused", "link DOWN", "hangs: no answer", "3.1 GB")]
        assert order == sorted(order), "the worst first"
        assert "node4  clock container host-network shm +33  not run: node4 is not" in text, "one reason, one line"
        ssh = screen.line("✖ ssh")
        assert ssh.split("ssh")[1].split()[:6] == ["[", "]", "·", "·", "·", "✖"]
        assert "start sshd" in text, "the first one is open"


async def test_results_come_in_while_it_runs_and_leaving_ends_nothing() -> None:
    fleet = SlowFleet.healthy()
    fleet.preflight_events = preflight(NODES, [LINK])
    assert isinstance(fleet, SlowFleet)
    async with console(fleet) as screen:
        fleet.steps = 4
        await screen.press("p", "p")
        await screen.press("x")
        for _ in range(100):
            if "1 of 4 nodes" in screen.text:
                break
            await screen.pilot.pause(0.01)
        assert "1 of 4 nodes" in screen.lines()[0]
        assert "hccn_tool -i 0 -link -g  7 s" in screen.text, "what it waits for, and for how long"
        assert screen.line(" container ").split()[1:5] == ["~", "·", "~", "~"]
        assert "link DOWN" not in screen.text
        await screen.press("escape")
        assert "─ Ranks" in screen.text
        fleet.steps = 99
        while screen.app.main.preflights.running:
            await screen.pilot.pause(0.01)
        await screen.press("p")
        assert "link DOWN" in screen.text


async def test_cancelling_ends_it_on_the_nodes_and_keeps_what_is_known() -> None:
    fleet = SlowFleet.healthy()
    fleet.preflight_events = preflight(NODES, [LINK])
    assert isinstance(fleet, SlowFleet)
    async with console(fleet) as screen:
        fleet.steps = 5
        await screen.press("p", "p", "p")
        assert "a preflight runs; X cancels it" in screen.text
        while len(screen.app.main.preflights.run.answered) < 2:  # type: ignore[union-attr]
            await screen.pilot.pause(0.01)
        await screen.press("X")
        assert "cancelled" in screen.lines()[0]
        assert fleet.closed
        assert "link DOWN" in screen.text
        assert len(fleet.preflights) == 1
        await screen.press("slash")
        await screen.type("shm")
        assert "Nothing is wrong in what was answered; the rest is not known." in screen.text


async def test_a_cell_opens_with_all_that_is_said_there() -> None:
    async with console(fleet_with(LINK, HANG)) as screen:
        await ran(screen)
        await screen.press("tab")
        shown(screen).matrix.go_to(9)
        await screen.press("right", "right", "enter")
        assert "─ node2  link ─" in screen.text
        assert "link status: DOWN" in screen.text
        assert "hccn_tool -i 9 -link -g" in screen.text
        assert CABLE[:20] in screen.text
        assert "hangs" not in screen.text.split("node2  link")[1]
        await screen.press("y")
        assert "link status: DOWN" in screen.app.clipboard
        await screen.press("escape")
        assert "hangs" in screen.text
        await screen.press("escape")
        assert "─ Ranks" in screen.text


async def test_a_check_alone_and_what_is_not_good_are_asked_again_and_compared() -> None:
    fleet = fleet_with(LINK, HANG)
    async with console(fleet) as screen:
        await ran(screen)
        assert "n only new" not in screen.lines()[-1]
        assert "r link again" in screen.lines()[-1]
        fleet.preflight_events = preflight(NODES, [LEFT], checks=("link", "tools", "hbm"))
        await screen.press("R")
        await screen.pilot.pause()
        assert [request.only for request in fleet.preflights] == [(), ("link", "tools")]
        assert "new, warn: NPU 0-7: 3.1 GB in use" in screen.text
        assert "No longer wrong:" in screen.text
        assert screen.line("node2/9  link")
        assert screen.line(" ssh ").split()[-4:] != ["~"] * 4, "what was not asked again stays"
        await screen.press("n")
        assert "New since the run before" in screen.text
        await screen.press("escape", "slash")
        await screen.type("shm")
        assert "Nothing is wrong in what the filter leaves; elsewhere 1 are." in screen.text
        await screen.press("ctrl+u")
        await screen.type("hbm")
        await screen.press("enter")
        assert "  ssh" not in screen.text
        await screen.press("p")
        assert [request.only for request in fleet.preflights[2:]] == [("hbm",)], "what the filter leaves"


async def test_marked_ranks_or_the_node_under_the_cursor_can_be_asked_alone() -> None:
    fleet = fleet_with()
    async with console(fleet) as screen:
        await screen.press("space", "p")
        assert "p run on node3" in screen.lines()[-1]
        await screen.press("p")
        await screen.pilot.pause()
        assert fleet.preflights[-1].targets == ("@node3",)
        await screen.press("w")
        assert "p run on all 4 nodes" in screen.lines()[-1]


async def test_the_cell_of_pings_shows_who_reached_whom() -> None:
    fleet = fleet_with()
    last = fleet.preflight_events[-1]
    assert isinstance(last, Ended)
    pings = tuple(
        PingCell("node1/0", f"{node}/0", "hccs", outcome, "")
        for node, outcome in (("node3", Outcome.PASS), ("node4", Outcome.FAIL))
    )
    fleet.preflight_events[-1] = Ended(replace(last.report, pings=pings))
    async with console(fleet) as screen:
        await ran(screen)
        await screen.press("tab")
        shown(screen).matrix.go_to(20)
        await screen.press("right", "enter")
        assert "─ node1  ping ─" in screen.text
        assert screen.line("pings from").split()[-4:] == ["to", "node3", "to", "node4"]
        assert screen.line("1/1").split()[-3:] == ["node1", "1/1", "0/1"]


async def test_pings_ask_first_and_say_what_they_disturb() -> None:
    fleet = fleet_with()
    async with console(fleet) as screen:
        await screen.press("p", "P")
        assert "36 ranks are running." in screen.text
        await screen.press("enter")
        assert fleet.preflights == [], "the focus is on Cancel"
        await screen.press("P", "tab", "enter")
        await screen.pilot.pause()
        assert fleet.preflights[-1] == PreflightRequest((), ("ping",), "force")
        fleet.publish(stopped(fleet.snapshot))
        await screen.press("P")
        assert "No rank is running" in screen.text


async def test_a_read_only_console_looks_but_does_not_ping() -> None:
    fleet = FakeFleet.healthy(read_only=True)
    fleet.preflight_events = preflight(NODES, [LINK])
    async with console(fleet) as screen:
        assert "link DOWN" in await ran(screen)
        await screen.press("P")
        assert "ping NPUs: the console is read-only" in screen.text
        await screen.press("a")
        assert "acknowledge: the console is read-only" in screen.text


async def test_64_nodes_scroll_both_ways_under_fixed_names() -> None:
    async with console(fleet_with(LINK, nodes=64), size=(80, 24)) as screen:
        await ran(screen)
        await screen.press("tab")
        assert "nodes 1-17 of 64" in screen.text
        shown(screen).matrix.column = 29
        await screen.press("right", "end")
        line = screen.line("ephemeral-ports")
        assert line.startswith("▸  ephemeral-ports")
        assert "nodes 14-30 of 64  checks" in screen.text
        titles = screen.lines()[2].split()
        assert titles[0] == "all"
        assert titles[-1] == "30"


@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
async def test_outcomes_are_told_apart_without_colour(glyphs: GlyphSet) -> None:
    async with console(fleet_with(LINK, HANG, LEFT, unreached="node4"), glyphs=glyphs, size=(160, 50)) as screen:
        await ran(screen)
        rows = [line for line in screen.lines() if line[3:8].strip() in ("link", "tools", "hbm")]
        signs = [row[3:].split()[2] for row in rows]
        assert signs == (["?", "✖", "▲"] if glyphs == "unicode" else ["?", "X", "!"])
        if glyphs == "ascii":
            assert all(line.isascii() for line in screen.lines())


async def test_a_report_is_written_for_people_and_for_programs(tmp_path: Path) -> None:
    async with console(fleet_with(LINK)) as screen:
        await ran(screen)
        await screen.press("o")
        assert "written: " in screen.text
        folder = tmp_path / "state" / "pdtui" / "saved"
        (page,) = folder.glob("*.md")
        (data,) = folder.glob("*.json")
        assert "link DOWN" in page.read_text()
        read = json.loads(data.read_text())
        assert any(one["outcome"] == "fail" and one["subject"] == "node2/9" for one in read["results"])


async def test_a_run_that_is_refused_says_why_and_keeps_the_last_one() -> None:
    class Refusing(FakeFleet):
        async def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
            raise ActionRefused("another preflight runs", kind="blocked")
            yield  # pragma: no cover

    async with console(Refusing.healthy()) as screen:
        await screen.press("p", "p")
        await screen.pilot.pause()
        assert "another preflight runs" in screen.text
        assert screen.app.main.preflights.run is None


async def test_hostile_text_in_results() -> None:
    evil = Result("link", "node2/9", Outcome.FAIL, EVIL, EVIL, LINK.evidence, EVIL)
    中文 = Result("model", "node3", Outcome.WARN, "模型路径不一致：权重文件缺少三个分片", "重新同步")
    async with console(fleet_with(evil, 中文), size=(80, 24)) as screen:
        await ran(screen)
        assert_clean(screen)
        await screen.press("down", "enter")
        assert_clean(screen)
        assert "权重文件缺少" in screen.text


async def test_a_result_is_acknowledged_with_a_reason_and_taken_back() -> None:
    fleet = fleet_with(LINK, HANG)
    async with console(fleet) as screen:
        await ran(screen)
        await screen.press("a")
        assert "node2/9  link  fail: link DOWN" in screen.text.split("acknowledge")[1]
        await screen.press("enter")
        assert fleet.acknowledged == [], "a reason is needed"
        await screen.type("spare part")
        await screen.press("down", "enter")
        await screen.pilot.pause()
        assert fleet.acknowledged == [Acknowledge("node2/9:link", "spare part", 72 * 3600.0)]
        assert "acknowledged: node2/9:link; a takes it back" in screen.text
        while "known, fail: link DOWN" not in screen.text:
            await screen.pilot.pause(0.05)
        await screen.press("end")
        assert "by ops@jump until " in screen.text
        assert "a tell again" in screen.lines()[-1]
        await screen.press("a")
        await screen.pilot.pause()
        assert fleet.acknowledged[-1] == Unacknowledge("node2/9:link")


async def test_for_how_long_is_seen_on_a_small_screen_too() -> None:
    async with console(fleet_with(LINK), size=(60, 20)) as screen:
        await ran(screen)
        await screen.press("a", "down", "down")
        await screen.pilot.pause()
        assert f"{screen.app.look.glyphs.cursor} until it is taken back" in screen.text


async def test_what_is_the_same_on_many_nodes_is_one_finding_and_acknowledged_as_one() -> None:
    same = [Result("cann", node, Outcome.FAIL, "no CANN where ranks start", "install it") for node in NODES]
    fleet = fleet_with(*same, LINK)
    async with console(fleet) as screen:
        await ran(screen)
        assert screen.line("node1-4  cann  fail: no CANN where ranks start")
        await screen.press("down", "a")
        await screen.type("known")
        await screen.press("enter")
        await screen.pilot.pause()
        assert [one.key for one in fleet.acknowledged] == [f"{node}:cann" for node in NODES]
        assert "acknowledged: node1:cann (+3)" in screen.text


async def test_no_rank_started_yet_says_that_preflight_comes_first() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(stopped(fleet.snapshot))
    async with console(fleet) as screen:
        assert "S starts all, after p preflight" in screen.line("─ Ranks")
        assert all(rank.state is RankState.STOPPED for rank in fleet.snapshot.ranks)
        await screen.press("p")
        assert isinstance(screen.app.screen, PreflightScreen)
        await screen.press("question_mark")
        assert "again what is not good" in screen.text
        assert "restart failed" not in screen.text
