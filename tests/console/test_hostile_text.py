"""Text from outside may hold markup and escape sequences: nothing crashes, nothing gets through."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pdtui.console.lines import Line
from pdtui.errors import ActionRefused, ProxyError
from pdtui.fleet.intents import Blocker
from pdtui.fleet.snapshot import Alarm, Diagnosis, Event, Headline, NodeState, RankState, Snapshot
from pdtui.proxy.interface import AskProgress
from pdtui.readings.verdict import Reason, Verdict
from tests.console.driving import Console, console
from tests.support.fake_fleet import FakeFleet, faulty, with_node, with_npu, with_operation, with_rank

EVIL = "[/b][red]x[/][@click=app.quit]\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e$[bold]\ttab\n\\[中文"
_BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def poisoned(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with hostile text in every field that is text from outside."""
    made = faulty(snapshot)
    reason = Reason(Verdict.FAILED, EVIL, EVIL, EVIL, None, EVIL)
    made = with_npu(made, "node3", 9, reasons=(reason,), link=EVIL, net_health=EVIL, vnic=EVIL, health=EVIL)
    made = with_npu(made, "node3", 9, processes=((1, EVIL, 2),))
    made = with_node(made, "node1", host=EVIL, facts=EVIL, tool_error=EVIL)
    made = with_node(made, "node2", state=NodeState.FAILED, error=EVIL, remedy=EVIL)
    diagnosis = Diagnosis(EVIL, EVIL, EVIL, EVIL, EVIL)
    made = with_rank(
        made,
        "decode/9",
        diagnosis=diagnosis,
        stage=EVIL,
        by=EVIL,
        log=EVIL,
        health=EVIL,
        difference=(EVIL,),
        state=RankState.FAILED,
    )
    made = with_rank(made, "p2/1", stage=EVIL)
    made = with_rank(made, "decode/4", alarms=(Alarm("kv-held", "error", EVIL, EVIL, 0.0),))
    made = with_operation(made)
    operation = replace(made.operations[0], by=EVIL, error=EVIL, targets=(EVIL,))
    steps = tuple(replace(step, label=EVIL, detail=EVIL) for step in operation.steps)
    return replace(
        made,
        headline=Headline(EVIL, EVIL, "error"),
        events=(Event(0.0, "error", EVIL, EVIL),),
        operations=(replace(operation, steps=steps),),
    )


def assert_clean(screen: Console) -> None:
    for line in screen.lines():
        assert not _BAD.search(line), repr(line)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (200, 50)])
async def test_hostile_text_everywhere(size: tuple[int, int]) -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(poisoned(fleet.snapshot))
    fleet.write_log("decode/9", EVIL, severity="error")
    fleet.blockers = (Blocker(EVIL, EVIL, EVIL),)
    async with console(fleet, size=size) as screen:
        assert_clean(screen)
        for key in ("d", "m", "i", "E", "l", "question_mark", "escape", "colon", "escape", "R", "c", "escape"):
            await screen.press(key)
            assert_clean(screen)
        await screen.press("shift+tab", "shift+tab", "up", "up", "i")
        assert_clean(screen)
        assert screen.app.is_running


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_hostile_text_in_the_grid_of_ranks(size: tuple[int, int]) -> None:
    fleet = FakeFleet.cpu(nodes=3)
    alarm = Alarm("computes-prompts", "error", EVIL, EVIL, 0.0)
    made = with_rank(fleet.snapshot, "d/0", alarms=(alarm,))
    made = with_rank(made, "d/1", state=RankState.FAILED, diagnosis=Diagnosis(EVIL), metrics=None)
    made = with_rank(made, "p/1", state=RankState.STARTING, stage=EVIL, metrics=None)
    made = with_node(made, "node3", state=NodeState.FAILED, error=EVIL, remedy=EVIL)
    fleet.publish(replace(made, headline=Headline(EVIL, EVIL, "error")))
    async with console(fleet, size=size) as screen:
        await screen.press("shift+tab", "up", "up")
        for keys in (("down",), ("left",), ("d",), ("m",), ("shift+tab", "down"), ("i",)):
            await screen.press(*keys)
            assert_clean(screen)
        assert screen.app.is_running


async def test_hostile_answers_and_errors() -> None:
    fleet = FakeFleet.healthy()
    fleet.answer = [AskProgress(text=EVIL), AskProgress(text=EVIL, done=True, finish_reason=EVIL, prefill=EVIL)]
    async with console(fleet) as screen:
        await screen.press("t", "h", "i", "enter")
        assert_clean(screen)
        fleet.ask_error = ProxyError(EVIL, status=502, remedy=EVIL)
        await screen.press("h", "enter")
        assert_clean(screen)
        assert "no answer:" in screen.text
        await screen.press("escape")
        fleet.refusal = ActionRefused(EVIL, kind="blocked", remedy=EVIL)
        await screen.press("x")
        assert_clean(screen)
        assert screen.app.is_running


def test_a_line_is_clean_whatever_is_added() -> None:
    line = Line().add(EVIL).column(EVIL, 30).pad_to(120)
    assert not _BAD.search(line.text)
    assert line.strip(50).cell_length == 50
    assert "[/b]" in line.text
