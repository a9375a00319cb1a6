from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pdtui.console.screens.dialog import QuitScreen
from pdtui.errors import ActionRefused
from pdtui.fleet.intents import Blocker, ChangeContainers, RestartRanks, StartRanks, StopRanks
from pdtui.fleet.snapshot import OperationStatus, OperationStep, RankState
from pdtui.topology.model import Runtime
from tests.console.driving import console
from tests.support.fake_fleet import (
    FakeFleet,
    faulty,
    healthy,
    make_plan,
    make_topology,
    stopped,
    with_operation,
    with_rank,
)
from tests.support.waiting import eventually

DECODE = tuple(f"decode/{n}" for n in range(32))


async def test_a_restart_says_what_it_touches_and_cancel_has_the_focus() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("R")
        assert "─ restart decode ─" in screen.text
        assert "32 ranks on node3, node4 restart." in screen.text
        assert "decode is the only decode group" in screen.text
        assert "drain the proxy (212 requests in flight" in screen.text
        assert "In a MoE group one dead rank means the group." in screen.text
        await screen.press("enter")
        assert "─ restart decode ─" not in screen.text
        assert screen.fleet.submitted == []


@pytest.mark.parametrize("no_color", [False, True])
async def test_a_dialog_says_how_to_choose_and_what_enter_means_now(no_color: bool) -> None:
    async with console(FakeFleet.faulty(), no_color=no_color) as screen:
        await screen.press("R")
        assert "tab, left, right choose   enter does it   esc cancels" in screen.text
        assert "▸[ Cancel ]" in screen.text
        assert "[ Restart ]" not in screen.text
        await screen.press("right")
        assert "▸[ Restart ]" in screen.text
        assert "[ Cancel ]" not in screen.text
        await screen.press("left", "enter")
        assert "nothing was done" in screen.lines()[-2]
        assert screen.fleet.submitted == []
        await screen.press("R", "escape")
        assert "nothing was done" in screen.lines()[-2]


async def test_a_restart_is_submitted_with_the_whole_group() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("R", "right", "enter")
        assert screen.fleet.submitted == [RestartRanks(("decode/9", "decode/10"))]


async def test_this_rank_only_is_the_second_choice() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("r")
        assert "▸ whole group (32 ranks)" in screen.text
        await screen.press("g")
        assert "▸ only decode/9" in screen.text
        assert "1 ranks on node3 restart" in screen.text
        await screen.press("right", "enter")
        assert screen.fleet.submitted == [RestartRanks(("decode/9",), whole_group=False)]


async def test_several_groups_can_be_restarted_one_after_the_other() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("end", "space", "up", "up", "space", "r")
        assert "one group after the other" in screen.text
        await screen.press("g", "g", "right", "enter")
        (intent,) = screen.fleet.submitted
        assert isinstance(intent, RestartRanks)
        assert intent.rolling
        assert {rank.partition("/")[0] for rank in intent.ids} == {"p1", "p2"}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_progress_shows_who_has_arrived_where_and_what_each_operation_says(size: tuple[int, int]) -> None:
    async with console(FakeFleet.healthy(), size=size) as screen:
        assert "progress" not in screen.lines()[-1]
        snapshot = screen.fleet.snapshot
        changes = {"state": RankState.STARTING, "started": snapshot.made_at - 60, "health": ""}
        for rank, stage in (("decode/1", "KV cache"), ("decode/2", "configuration")):
            snapshot = with_rank(snapshot, rank, stage=stage, **changes)
        screen.fleet.publish(with_operation(snapshot))
        await screen.pilot.pause()
        assert "P progress" in screen.lines()[-1]
        await screen.press("P")
        text = screen.text
        assert "[progress]" in text
        assert "decode  30 of 32 ready" in text
        assert "without 2" in screen.line("met its group")
        assert "decode/2 on node3: configuration" in text
        assert "restart 4 ranks  running" in text


async def test_a_protected_cluster_wants_its_name_typed() -> None:
    async with console(FakeFleet.faulty(protected=True)) as screen:
        await screen.press("R")
        assert "Type deepseek-r1-2p1d to confirm:" in screen.text
        await screen.press("right", "enter")
        assert screen.fleet.submitted == []
        await screen.press("escape", "R", "tab")
        await screen.type("deepseek-r1-2p1")
        await screen.press("enter")
        assert screen.fleet.submitted == []
        assert "─ restart decode ─" in screen.text
        await screen.press("escape", "R", "tab")
        await screen.type("deepseek-r1-2p1d")
        await screen.press("enter")
        assert screen.fleet.submitted == [RestartRanks(("decode/9", "decode/10"), confirm="deepseek-r1-2p1d")]


@pytest.mark.parametrize("name", ["deepseek-r1", "cog-1", "2p1d"])
async def test_the_name_may_be_typed_while_cancel_has_the_focus(name: str) -> None:
    topology = make_topology(name=name, protected=True)
    plan = make_plan(topology)
    async with console(FakeFleet(topology, plan, faulty(healthy(topology, plan)))) as screen:
        await screen.press("R", "C")
        assert "kill -TERM 4010" in screen.text
        await screen.press("C", "G")
        assert "▸ only decode/9 decode/10" in screen.text
        await screen.press("G")
        assert "C shows the commands." in screen.text
        assert "▸[ Cancel ]" in screen.text
        await screen.type(name)
        assert f"Type {name} to confirm: {name}" in screen.text
        await screen.press("enter")
        assert screen.fleet.submitted == [RestartRanks(("decode/9", "decode/10"), confirm=name)]


async def test_blockers_are_shown_and_passed_over_only_with_a_reason() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(stopped(fleet.snapshot))
    fleet.blockers = (Blocker("port:node3:7100", "port 7100 on node3 is taken by python[1234]", "kill 1234"),)
    async with console(fleet) as screen:
        await screen.press("S")
        assert "port 7100 on node3 is taken by python[1234]" in screen.text
        assert "kill 1234" in screen.text
        await screen.press("right", "enter")
        assert fleet.submitted == [], "blocked"
        await screen.press("escape", "S", "o")
        await screen.type("stale socket")
        await screen.press("enter")
        (intent,) = fleet.submitted
        assert isinstance(intent, StartRanks)
        assert intent.override == ("port:node3:7100",)
        assert intent.reason == "stale socket"
        assert len(intent.ids) == 36


async def test_what_cannot_hurt_needs_no_dialog() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(stopped(fleet.snapshot))
    async with console(fleet) as screen:
        await screen.press("S")
        (intent,) = fleet.submitted
        assert isinstance(intent, StartRanks)
        assert "Cancel" not in screen.text


async def test_marks_are_what_an_action_is_about() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("space", "space")
        assert "2 marked" in screen.text
        assert "x stop 2 marked" in screen.lines()[-1]
        await screen.press("x", "right", "enter")
        assert screen.fleet.submitted == [StopRanks(("decode/0", "decode/1"))]
        await screen.press("escape")
        assert "marked" not in screen.text


async def test_a_range_is_marked_up_to_the_cursor() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("space", "down", "down", "M")
        assert tuple(screen.app.main.ranks.marks) == ("decode/0", "decode/1", "decode/2", "decode/3")


async def test_marked_failed_ranks_can_be_started() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_rank(fleet.snapshot, "p1/0", state=RankState.FAILED, exit_status=1))
    async with console(fleet) as screen:
        await screen.press("space", "S")
        assert fleet.submitted == [StartRanks(("p1/0",))]


async def test_the_commands_are_shown_on_demand() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("r", "c")
        assert "kill -TERM 4000" in screen.text
        await screen.press("c")
        assert "kill -TERM" not in screen.text


async def test_a_refusal_is_said_in_words() -> None:
    fleet = FakeFleet.faulty()
    fleet.refusal = ActionRefused(
        "node3 is leased by ann@jump (restart decode, since 12:01)", kind="conflict", remedy="wait"
    )
    async with console(fleet) as screen:
        await screen.press("R")
        assert "node3 is leased by ann@jump (restart decode, since 12:01)  wait" in screen.text
        assert fleet.submitted == []


async def test_keys_pressed_while_a_preview_is_under_way_open_no_second_dialog() -> None:
    fleet = FakeFleet.faulty()
    fleet.preview_gate = asyncio.Event()
    async with console(fleet) as screen:
        await screen.press("r")
        assert "looking at what restart touches" in screen.lines()[-2]
        await screen.press("x")
        await screen.press("R")
        assert "still looking at the action before" in screen.lines()[-2]
        fleet.preview_gate.set()
        await screen.settle()
        assert "─ restart decode ─" in screen.text
        await screen.press("escape")
        assert "─ restart decode ─" not in screen.text
        assert fleet.submitted == []


async def test_a_refusal_after_the_dialog_is_said_too() -> None:
    fleet = FakeFleet.faulty()
    async with console(fleet) as screen:
        await screen.press("R")
        fleet.refusal = ActionRefused("protected: the name is missing", kind="protected")
        await screen.press("right", "enter")
        assert "protected: the name is missing" in screen.text


async def test_read_only_shows_what_it_forbids_and_why() -> None:
    fleet = FakeFleet.faulty(read_only=True)
    async with console(fleet) as screen:
        assert "READ-ONLY" in screen.lines()[0]
        assert "R restart failed" in screen.lines()[-1]
        for key in ("R", "r", "s"):
            await screen.press(key)
            assert "the console is read-only" in screen.lines()[-2]
        assert fleet.submitted == []


async def test_a_read_only_console_on_a_fleet_that_is_not() -> None:
    async with console(FakeFleet.faulty(), read_only=True) as screen:
        await screen.press("R")
        assert "the console is read-only" in screen.text


async def test_what_cannot_be_done_says_why() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("R")
        assert "no rank has failed" in screen.lines()[-2]
        await screen.press("S")
        assert "no rank is stopped" in screen.lines()[-2]
        await screen.press("X")
        assert "no operation runs" in screen.lines()[-2]


async def test_an_operation_is_cancelled_and_quitting_asks() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_operation(fleet.snapshot))
    async with console(fleet) as screen:
        await screen.press("X")
        assert fleet.cancelled == ["op-1"]
        await screen.press("q")
        assert "restart 4 ranks is running. It ends when this console does" in screen.text
        await screen.press("enter")
        assert screen.app.is_running
        await screen.press("q", "right", "enter")
        assert screen.app.return_value == 0


async def test_the_question_before_leaving_says_when_the_operation_has_ended() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_operation(fleet.snapshot))
    async with console(fleet) as screen:
        await screen.press("q")
        fleet.publish(with_operation(fleet.snapshot, state="done"))
        async with asyncio.timeout(60):
            while "restart 4 ranks has ended." not in screen.text:
                await screen.pilot.pause(0.05)
        assert "is running" not in screen.text
        await screen.press("right", "enter")
        assert screen.app.return_value == 0


async def test_a_question_in_the_moment_of_leaving_does_not_make_the_end_a_failure() -> None:
    async with console(FakeFleet.healthy()) as screen:
        screen.app.exit(129)
        screen.app.push_screen(QuitScreen(screen.app.look, "restart 4 ranks", lambda: False))
        await eventually(lambda: not screen.app.is_running)
    assert screen.app.return_value == 129
    assert screen.app.crash_line == ""


async def test_the_keys_that_freeze_and_free_a_terminal_end_nothing() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("ctrl+s", "ctrl+q")
        await screen.press("p", "ctrl+s", "ctrl+q")
        await screen.pilot.pause()
        assert screen.app.is_running
        assert "No preflight has run" in screen.text


async def test_quitting_asks_nothing_when_nothing_runs() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("q")
        assert screen.app.return_value == 0


async def test_ctrl_c_is_visible_and_harmless() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("ctrl+c")
        assert "ctrl+c does nothing here; q quits" in screen.text
        await screen.press("t", "ctrl+c")
        assert screen.app.return_value is None


async def test_health_is_read_now() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("c", "shift+tab", "c")
        assert screen.fleet.polled == [(), ("node3",)]


async def test_reading_the_health_is_said_until_it_is_read() -> None:
    fleet = FakeFleet.healthy()
    fleet.poll_gate = asyncio.Event()
    async with console(fleet) as screen:
        await screen.press("c")
        await screen.clock.advance(20)
        await screen.tick()
        assert "reading the health of all nodes" in screen.lines()[-2]
        fleet.poll_gate.set()
        await screen.pilot.pause()
        assert "reading the health" not in screen.text
        assert "read the health of all nodes" in screen.lines()[-2]
        await screen.clock.advance(20)
        await screen.tick()
        assert "the health" not in screen.lines()[-2]


async def test_what_is_said_about_an_operation_goes_when_that_ends() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_operation(fleet.snapshot))
    async with console(fleet) as screen:
        await screen.press("X")
        assert "asked to stop where it is: restart 4 ranks" in screen.lines()[-2]
        fleet.publish(with_operation(fleet.snapshot, state="cancelled"))
        await screen.pilot.pause()
        assert "asked to stop" not in screen.text


async def test_writing_an_empty_log_says_what_the_key_is_for() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("l", "o")
        assert "o writes the lines of the log to a file; there are none" in screen.lines()[-2]


async def test_a_dialog_fits_into_eighty_by_twenty_four() -> None:
    async with console(FakeFleet.faulty(protected=True), size=(80, 24)) as screen:
        await screen.press("R", "C")
        text = screen.text
        assert "Type deepseek-r1-2p1d to confirm:" in text
        assert "[ Cancel ]" in text
        assert "of 34" in text
        assert " type the name   tab chooses   enter does it   esc cancels   up, down scroll" in text
        await screen.press("pagedown")
        assert "kill -TERM 4010" in screen.text


def contained() -> FakeFleet:
    """Return a fleet whose ranks run in containers."""
    topology = replace(make_topology(), runtime=Runtime("vllm-ascend", image="vllm-ascend:1"))
    plan = make_plan(topology)
    return FakeFleet(topology, plan, healthy(topology, plan))


async def test_containers_of_the_node_under_the_cursor_and_of_marked_ranks() -> None:
    async with console(contained()) as screen:
        await screen.press("U")
        assert "─ container up on node3 ─" in screen.text
        assert "node3: make and start it from vllm-ascend" in screen.text
        assert "▸[ Cancel ]" in screen.text
        await screen.press("c")
        assert "docker run -d --name vllm-ascend" in screen.text
        await screen.press("right", "enter")
        assert screen.fleet.submitted == [ChangeContainers("container up", ("node3",))]
        await screen.press("slash")
        await screen.type("decode/")
        await screen.press("enter", "space", "M", "D")
        assert "─ container down on " in screen.text
        await screen.press("escape")


async def test_a_container_with_ranks_in_it_ends_for_a_reason_only() -> None:
    fleet = contained()
    fleet.container_blockers = (Blocker("ranks:node3", "decode/0-15 live in a container", "pdtui stop"),)
    async with console(fleet) as screen:
        await screen.press("C")
        assert "decode/0-15 live in a container" in screen.text
        await screen.press("right", "enter")
        assert fleet.submitted == []
        await screen.press("escape", "C", "o")
        await screen.type("new image")
        await screen.press("enter")
        (intent,) = fleet.submitted
        assert isinstance(intent, ChangeContainers)
        assert (intent.verb, intent.override, intent.reason) == (
            "container recreate",
            ("ranks:node3",),
            "new image",
        )


async def test_no_container_no_action() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("D")
        assert "ranks run on the hosts themselves" in screen.text
        assert screen.fleet.submitted == []


async def test_an_operation_on_containers_counts_nodes() -> None:
    fleet = contained()
    nodes = ("node1", "node2", "node3")
    steps = (OperationStep("node1", "done", "made and started"), OperationStep("node2", "running", "stops"))
    operation = OperationStatus("op-1", "container recreate", nodes, "ops@desk", 0.0, "running", steps)
    async with console(fleet) as screen:
        fleet.publish(replace(fleet.snapshot, operations=(operation,)))
        await eventually(lambda: "container recreate 3 nodes" in screen.text)
        await screen.press("P")
        assert "node1  made and started" in screen.text
