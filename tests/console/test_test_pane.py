from __future__ import annotations

import asyncio

from pdtui.errors import ProxyError
from pdtui.fleet.snapshot import RankState
from pdtui.proxy.interface import AskProgress
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet, with_rank

DONE = AskProgress(
    request_id="r",
    text="I am DeepSeek-R1, 一个智能助手.",
    done=True,
    status=200,
    prefill="p1/1",
    decode="decode/22",
    queue_s=0.002,
    prefill_s=0.212,
    transfer_s=0.031,
    ttft_s=0.25,
    tokens=64,
    tokens_per_s=24.1,
    finish_reason="stop",
)


async def test_a_completion_shows_its_answer_and_what_each_leg_took() -> None:
    fleet = FakeFleet.healthy()
    fleet.answer = [AskProgress(text="I am"), DONE]
    async with console(fleet, size=(240, 40)) as screen:
        await screen.press("t")
        assert "test  via embedded proxy  ds_r1" in screen.text
        await screen.type("Who?")
        await screen.press("enter")
        assert fleet.asked[0].prompt == "Who?"
        assert "> Who?" in screen.text
        assert "一个智能助手" in screen.text
        assert (
            "p1/1 -> decode/22   queue 2 ms   prefill 212 ms   transfer 31 ms   first token 250 ms   "
            "24.1 tok/s   64 tokens   stop"
        ) in screen.text


async def test_the_answer_streams_and_escape_cancels_it() -> None:
    fleet = FakeFleet.healthy()
    fleet.answer = [AskProgress(text="I am"), DONE]
    fleet.ask_gate = asyncio.Event()
    async with console(fleet) as screen:
        await screen.press("t", "h", "i", "enter")
        assert "I am" in screen.text
        assert "first token" not in screen.text
        await screen.press("escape")
        assert "cancelled" in screen.text
        assert screen.app.main.selection.tab == "test"
        await screen.press("escape")
        assert screen.app.main.selection.area == "ranks"


async def test_a_failure_is_said_in_words() -> None:
    fleet = FakeFleet.healthy()
    fleet.answer = [DONE]
    fleet.ask_error = ProxyError("no decode group is whole", status=503, remedy="R restarts it")
    async with console(fleet) as screen:
        await screen.press("t", "h", "i", "enter")
        assert "no answer: no decode group is whole" in screen.text
        assert "R restarts it" in screen.text


async def test_an_empty_prompt_asks_nothing() -> None:
    fleet = FakeFleet.healthy()
    async with console(fleet) as screen:
        await screen.press("t", "space", "enter")
        assert fleet.asked == []


async def test_escape_cancels_the_answer_and_then_leaves_and_the_footer_says_which() -> None:
    fleet = FakeFleet.healthy()
    fleet.answer = [AskProgress(text="I am"), AskProgress(text="I am here", done=True)]
    fleet.ask_gate = asyncio.Event()
    async with console(fleet) as screen:
        await screen.press("t", "q", "x", "S")
        assert "> qxS" in screen.text, "letters are typed"
        assert "esc leave" in screen.lines()[-1]
        await screen.press("enter")
        assert "esc cancel the answer" in screen.lines()[-1]
        assert "Answering; esc cancels it." in screen.text
        await screen.press("escape")
        assert "cancelled" in screen.text
        assert "esc leave" in screen.lines()[-1]
        await screen.press("escape")
        assert screen.app.main.selection.area == "ranks"


async def test_an_answer_that_does_not_come_says_what_helps() -> None:
    fleet = FakeFleet.healthy()
    made = with_rank(fleet.snapshot, "decode/9", state=RankState.FAILED)
    fleet.publish(with_rank(made, "decode/10", state=RankState.STARTING))
    fleet.answer = [AskProgress(done=True, status=503, error="no decode rank is usable: 0 of 8 ready")]
    async with console(fleet) as screen:
        await screen.press("t", "h", "i", "enter")
        assert "no answer: no decode rank is usable: 0 of 8 ready" in screen.text
        assert "what helps  esc R restarts what failed (32 ranks)" in screen.text, "a MoE group, as a whole"
        assert "1 rank still starting" in screen.text


async def test_the_footer_of_the_prompt_offers_no_key_that_is_typed_there() -> None:
    async with console(FakeFleet.healthy()) as screen:
        assert screen.lines()[-1].endswith(": palette ? help")
        await screen.press("t")
        assert "palette" not in screen.lines()[-1]
        assert "help" not in screen.lines()[-1]
        await screen.press("escape")
        assert screen.lines()[-1].endswith(": palette ? help")


async def test_leaving_shows_again_what_was_shown_before_for_the_rank_that_is_selected_then() -> None:
    fleet = FakeFleet.faulty()
    fleet.write_log("decode/10", "RuntimeError: lost its group")
    async with console(fleet) as screen:
        await screen.press("d", "t", "escape")
        assert "[describe]" in screen.text
        await screen.press("l", "escape", "t", "escape", "down")
        await screen.settle()
        assert "RuntimeError: lost its group" in screen.text


async def test_a_rank_selected_beside_the_test_shows_its_log() -> None:
    fleet = FakeFleet.faulty()
    fleet.write_log("decode/10", "RuntimeError: lost its group")
    async with console(fleet) as screen:
        await screen.press("t", "shift+tab", "down")
        await screen.settle()
        assert "RuntimeError: lost its group" in screen.text


async def test_leaving_on_a_small_screen_comes_back_to_the_ranks() -> None:
    async with console(FakeFleet.healthy(), size=(80, 24)) as screen:
        await screen.press("t", "escape")
        assert "─ Ranks" in screen.text
