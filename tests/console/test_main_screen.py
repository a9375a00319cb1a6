from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.fleet.snapshot import Headline, NodeState, RankState
from pdtui.readings.verdict import Verdict
from tests.console.driving import console
from tests.support.fake_fleet import (
    NOW,
    FakeFleet,
    healthy,
    stopped,
    with_node,
    with_npu,
    with_operation,
    with_rank,
)


async def test_a_healthy_cluster_is_quiet() -> None:
    async with console(FakeFleet.healthy()) as screen:
        first = screen.lines()[0]
        assert "deepseek-r1-2p1d" in first
        assert "SERVING 3h12m" in first
        assert "P 4/4" in first
        assert "D 32/32" in first
        assert "in flight 212" in first
        assert "14.9k tok/s" in first
        assert "D TTFT 410 ms" in first, "decode's own mean, not that of a whole request"
        assert "4 nodes" in first
        assert "08:00:00" in first
        assert screen.lines()[1].startswith("─ NPUs")
        assert screen.line("node1 prefill").count("·") == 16
        for word in ("failed", "✖", "▲", "go there", "READ-ONLY"):
            assert word not in screen.text


async def test_what_is_wrong_is_said_in_one_sentence_and_enter_goes_there() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("end")
        assert "First cause: decode/9" in screen.lines()[1]
        assert screen.lines()[1].endswith("enter: go there")
        assert "node3 NPU 9" not in screen.lines()[8]
        await screen.press("enter")
        assert screen.app.main.selection.rank == "decode/9"
        assert "go there" not in screen.text
        assert screen.line("vnic link DOWN").endswith("i: reasons")


async def test_a_long_headline_takes_a_second_line_when_it_is_narrow() -> None:
    async with console(FakeFleet.faulty(), size=(80, 24)) as screen:
        assert "link down" in screen.lines()[1] + screen.lines()[2]


async def test_the_wrong_ones_are_first_then_what_starts_then_the_rest_by_id() -> None:
    async with console(FakeFleet.faulty()) as screen:
        ids = [rank.id for rank in screen.app.main.ranks.rows]
        assert ids[:6] == ["decode/9", "decode/10", "decode/20", "p2/1", "decode/0", "decode/1"]
        assert "exit 1" in screen.line("decode/9  node3")
        assert "signal 9" in screen.line("decode/10 node3")
        assert "weights 63 %" in screen.line("p2/1      node2")
        assert "was ready" in screen.line("? decode/20")
        assert "outdated" in screen.line("✓ decode/3 ")


async def test_the_selection_stays_on_its_rank_when_the_order_changes() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("down", "down")
        assert screen.app.main.selection.rank == "decode/2"
        broken = with_rank(screen.fleet.snapshot, "p1/0", state=RankState.FAILED, exit_status=1)
        screen.fleet.publish(broken)
        await screen.pilot.pause()
        assert screen.app.main.ranks.rows[0].id == "p1/0"
        assert screen.app.main.selection.rank == "decode/2"
        assert screen.line("▸ ✓").split()[2] == "decode/2"


async def test_the_columns_of_a_node_say_what_is_being_done_about_it() -> None:
    async with console(FakeFleet.faulty()) as screen:
        row = screen.line("node4 decode")
        assert row.count("?") == 16
        assert "41 s" in row
        assert "try 2 in 4 s  connection los" in row
        assert "84" in screen.line("node3 decode")
        assert screen.line("node3 decode").endswith("decode/0-15")
        assert "✖ 1  ▲ 1  ? 16" in screen.line("─ NPUs")


async def test_a_node_that_was_never_reached_says_why_and_what_helps() -> None:
    fleet = FakeFleet.healthy()
    failed = with_node(
        fleet.snapshot,
        "node2",
        state=NodeState.FAILED,
        error="unknown host key",
        remedy="ssh-keyscan 192.0.0.2",
        npus=(),
        observed_at=None,
    )
    fleet.publish(failed)
    async with console(fleet) as screen:
        assert screen.line("node2 prefill").endswith("   unknown host key")
        await screen.press("shift+tab", "up", "up", "up")
        await screen.press("down")
        line = screen.line("unknown host key  ssh-keyscan 192.0.0.2")
        assert line.endswith("c: try again")


async def test_the_grid_shows_other_values_and_its_cursor_takes_the_rank_with_it() -> None:
    async with console(FakeFleet.healthy()) as screen:
        await screen.press("shift+tab", "right", "right", "down")
        assert screen.app.main.selection.area == "grid"
        assert screen.app.main.selection.npu == 2
        assert screen.app.main.selection.rank == "decode/18"
        await screen.press("v")
        assert "[HBM]" in screen.text
        assert "[" not in screen.line("node3 decode"), "a cell of two figures has no room for a closing one"
        assert " 90 90 90 " in screen.line("node1 prefill")
        await screen.press("v", "v")
        assert " 46 47 48 " in screen.line("node1 prefill")
        await screen.press("v")
        assert "  0  1  2 " in screen.line("node3 decode")


async def test_only_rows_that_changed_are_repainted() -> None:
    async with console(FakeFleet.healthy()) as screen:
        grid = screen.app.main.grid
        before = list(grid._painted)
        screen.fleet.publish(with_npu(screen.fleet.snapshot, "node2", 3, verdict=Verdict.FAILED))
        await screen.pilot.pause()
        after = grid._painted
        assert [old is new for old, new in zip(before, after, strict=True)][1:] == [True, False, True, True]
        assert "✖" in after[2].text


async def test_values_grow_old_while_nothing_comes() -> None:
    async with console(FakeFleet.healthy()) as screen:
        assert screen.line("node1 prefill").split()[-4:-2] == ["2", "s"]
        await screen.clock.advance(61)
        await screen.tick()
        assert "1m03s" in screen.line("node1 prefill")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 27), (60, 15)])
async def test_a_small_terminal_shows_one_area_at_a_time(width: int, height: int) -> None:
    async with console(FakeFleet.faulty(), size=(width, height)) as screen:
        assert "─ Ranks" in screen.text
        assert "─ NPUs" not in screen.text
        await screen.press("shift+tab")
        assert "─ NPUs" in screen.text
        assert "─ Ranks" not in screen.text
        if width < 96:
            assert "node3 D  ········ ·✖··▲···" in screen.line("node3 D")
        await screen.press("l")
        assert "[log]" in screen.text
        await screen.press("escape")
        assert "─ Ranks" in screen.text
        assert all(len(line) <= width for line in screen.lines())


async def test_a_high_and_narrow_terminal_has_the_grid_above_the_ranks() -> None:
    async with console(FakeFleet.faulty(), size=(90, 50)) as screen:
        assert "─ NPUs" in screen.text
        assert "─ Ranks" in screen.text
        await screen.press("l")
        assert "─ NPUs" not in screen.text
        assert "[log]" in screen.text


async def test_a_wide_and_low_terminal_has_the_detail_beside_the_ranks() -> None:
    async with console(FakeFleet.faulty(), size=(160, 24)) as screen:
        assert "─ Ranks" in screen.text
        assert "[log]" in screen.text
        assert "─ NPUs" not in screen.text
        await screen.press("shift+tab")
        assert "─ NPUs" in screen.text
        assert "─ Ranks" not in screen.text


async def test_the_footer_of_eighty_columns_keeps_five_keys_and_help() -> None:
    async with console(FakeFleet.healthy(), size=(80, 24)) as screen:
        footer = screen.lines()[-1]
        assert footer.endswith("? help")
        for key in ("r restart", "x stop", "l log", "d describe", "t test"):
            assert key in footer


async def test_too_small_a_terminal_says_what_it_needs_and_recovers() -> None:
    async with console(FakeFleet.faulty(), size=(50, 12)) as screen:
        assert [line for line in screen.lines() if line] == ["50x12 is too small: 60x15 needed"]
        await screen.pilot.resize_terminal(120, 40)
        await screen.pilot.pause()
        assert "─ Ranks" in screen.text


async def test_a_huge_terminal_shows_diagnoses_beside_the_ranks() -> None:
    async with console(FakeFleet.faulty(), size=(300, 80)) as screen:
        assert "HCCL cannot reach its peer" in screen.line("decode/9  node3")
        assert "connection lost: no answer" in screen.line("node4 decode")


async def test_sixty_four_nodes_scroll() -> None:
    async with console(FakeFleet.healthy(nodes=64)) as screen:
        assert "node33 decode" in screen.text, "where the selected rank is"
        await screen.press("shift+tab", "home")
        assert "node1 " in screen.text
        assert "1-15 of 64" in screen.text
        await screen.press("end")
        assert "node64 decode" in screen.text
        assert "node1 prefill" not in screen.text


async def test_no_rank_runs_says_what_starts_them() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(stopped(fleet.snapshot))
    async with console(fleet, size=(120, 60)) as screen:
        assert "STOPPED" in screen.lines()[0]
        assert "No rank runs. S starts all 36, after p preflight." in screen.text
        assert "S start all (36 ranks)" in screen.lines()[-1]


async def test_an_operation_shows_how_many_ranks_are_where_and_then_how_it_ended() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_operation(fleet.snapshot))
    async with console(fleet) as screen:
        assert "◐ restart 4 ranks  running  1m15s  by ops@jump" in screen.text
        assert "✓ stop   ◐ start  1 of 4 ready" in screen.text
        assert "1 ready   1 KV cache   2 weights 31-63 %" in screen.text
        fleet.publish(with_operation(fleet.snapshot, state="done"))
        await screen.pilot.pause()
        assert "✓ restart 4 ranks  done" in screen.text
        assert "weights" not in screen.text
        await screen.clock.advance(30)
        await screen.tick()
        assert "restart 4 ranks  done" not in screen.text


async def test_on_a_small_screen_an_operation_is_one_line_and_a_failed_rank_is_counted() -> None:
    fleet = FakeFleet.healthy()
    made = with_operation(fleet.snapshot)
    steps = tuple(
        replace(step, state="failed", detail="exit 1") if step.label == "decode/3" else step
        for step in made.operations[0].steps
    )
    fleet.publish(replace(made, operations=(replace(made.operations[0], steps=steps),)))
    async with console(fleet, size=(80, 24)) as screen:
        line = screen.line("restart 4 ranks")
        assert line == " ◐ restart 4 ranks  1m15s  start  1 failed   1 ready   2 weights 31-63 %"


async def test_a_changed_file_and_a_protected_cluster_are_announced() -> None:
    fleet = FakeFleet.healthy(protected=True)
    fleet.publish(replace(fleet.snapshot, file_changed=True))
    async with console(fleet, size=(160, 40)) as screen:
        assert "PROTECTED" in screen.lines()[0]
        assert "file changed on disk" in screen.lines()[0]
        fleet.publish(replace(fleet.snapshot, file_broken="line 12: expected ','"))
        await screen.pilot.pause()
        assert "file broken on disk" in screen.lines()[0]
        assert "changed" not in screen.lines()[0]
        fleet.publish(replace(fleet.snapshot, file_changed=False, file_broken="", file_removed=True))
        await screen.pilot.pause()
        assert "file removed from disk" in screen.lines()[0]


async def test_events_and_metrics_and_findings_have_their_tabs() -> None:
    async with console(FakeFleet.faulty(), size=(160, 40)) as screen:
        await screen.press("E")
        assert "connection lost" in screen.line("node4  connection")
        await screen.press("i")
        assert "first cause" in screen.text
        assert "hccn_tool -i 9 -vnic -g" in screen.text
        assert "Check the optical module" in screen.text
        await screen.press("down", "down", "down", "down", "m")
        assert "requests running" in screen.text
        assert "KV cache used" in screen.text
        await screen.press("right_square_bracket", "left_square_bracket")
        assert "[metrics]" in screen.text


async def test_decode_ranks_that_compute_prompts_themselves_are_warned_about() -> None:
    fleet = FakeFleet.healthy()
    rank = fleet.snapshot.rank("decode/0")
    assert rank is not None
    assert rank.metrics is not None
    fleet.publish(with_rank(fleet.snapshot, "decode/0", metrics=replace(rank.metrics, local_prefill_tokens=512)))
    async with console(fleet, size=(160, 40)) as screen:
        await screen.press("m")
        assert "KV was not pulled" in screen.text


async def test_describe_shows_command_and_environment_but_no_secrets() -> None:
    async with console(FakeFleet.healthy(), size=(160, 60)) as screen:
        await screen.press("d")
        assert "vllm serve /models/ds" in screen.text
        assert "HCCL_IF_IP=192.0.0.3" in screen.text
        assert "HF_TOKEN=***" in screen.text
        assert "--api-key '***'" in screen.text
        assert "very-secret" not in screen.text
        assert "OMP_NUM_THREADS=10" in screen.text


async def test_describe_says_how_an_outdated_rank_differs() -> None:
    async with console(FakeFleet.faulty(), size=(160, 60)) as screen:
        screen.app.main.go_to_subject("decode/3")
        await screen.press("d")
        assert "runs otherwise than the file says" in screen.text
        assert "--max-num-seqs 40, file: 48" in screen.text


async def test_a_new_snapshot_arrives_from_another_thread() -> None:
    import threading

    fleet = FakeFleet.healthy()
    async with console(fleet) as screen:
        snapshot = with_rank(fleet.snapshot, "decode/5", state=RankState.FAILED, exit_status=-9, since=NOW)
        thread = threading.Thread(target=fleet.publish, args=(snapshot,))
        thread.start()
        thread.join()
        await screen.pilot.pause()
        assert "signal 9" in screen.line("✖ decode/5")


async def test_the_console_stops_listening_when_it_ends() -> None:
    fleet = FakeFleet.healthy()
    async with console(fleet):
        assert fleet._wake is not None
    assert fleet._wake is None
    fleet.publish(healthy(fleet.topology, fleet.plan))


async def test_enter_goes_to_the_first_cause_and_to_the_line_that_shows_it() -> None:
    fleet = FakeFleet.faulty()
    fleet.write_log("decode/9", *(f"before {n}" for n in range(100)))
    fleet.write_log("decode/9", "HCCL_EI0006 connect timeout, peer 10.0.3.23", severity="error")
    fleet.write_log("decode/9", *(f"after {n}" for n in range(100)))
    async with console(fleet) as screen:
        await screen.press("down", "down", "down", "enter")
        await screen.settle()
        assert screen.app.main.selection.rank == "decode/9"
        assert "▸HCCL_EI0006 connect timeout" in screen.text
        assert "after 99" not in screen.text, "it stays there"
        await screen.press("l", "end")
        assert "after 99" in screen.text


async def test_enter_on_a_headline_about_an_npu_shows_what_its_tool_said() -> None:
    fleet = FakeFleet.faulty()
    fleet.publish(replace(fleet.snapshot, headline=Headline("node3 NPU 9 failed", "node3/9", "error")))
    async with console(fleet) as screen:
        await screen.press("end", "enter")
        assert screen.app.main.selection.npu == 9
        assert "vnic link status: DOWN" in screen.text


def with_idle_npus(fleet: FakeFleet) -> None:
    """Take the ranks off NPUs 8 to 15 of node3, of which NPU 9 has failed."""
    made = fleet.snapshot
    for npu in range(8, 16):
        made = with_npu(made, "node3", npu, rank="")
    fleet.publish(replace(made, headline=Headline("node3 NPU 9 failed", "node3/9", "error")))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_the_first_enter_on_a_headline_about_an_idle_npu_goes_there_and_stays(size: tuple[int, int]) -> None:
    fleet = FakeFleet.faulty()
    with_idle_npus(fleet)
    async with console(fleet, size=size) as screen:
        await screen.press("end", "enter")
        assert "vnic link status: DOWN" in screen.text
        for _ in range(2):
            fleet.publish(replace(fleet.snapshot, revision=fleet.snapshot.revision + 1))
            await screen.pilot.pause()
        selection = screen.app.main.selection
        assert (selection.node, selection.npu, selection.rank) == ("node3", 9, "")
        assert "vnic link status: DOWN" in screen.text
        assert "go there" not in screen.text


async def test_the_first_enter_goes_to_the_npu_also_from_the_rank_that_is_planned_on_it() -> None:
    fleet = FakeFleet.faulty()
    fleet.publish(replace(fleet.snapshot, headline=Headline("node3 NPU 9 failed", "node3/9", "error")))
    async with console(fleet) as screen:
        assert screen.app.main.selection.rank == "decode/9"
        assert "enter: go there" in screen.text
        await screen.press("enter")
        assert screen.app.main.selection.area == "grid"
        assert "vnic link status: DOWN" in screen.text


async def test_the_cursor_moves_over_idle_npus_and_the_list_keeps_a_rank_for_its_own_keys() -> None:
    fleet = FakeFleet.healthy()
    with_idle_npus(fleet)
    async with console(fleet) as screen:
        await screen.press("shift+tab")
        for _ in range(10):
            await screen.press("right")
            fleet.publish(replace(fleet.snapshot, revision=fleet.snapshot.revision + 1))
            await screen.pilot.pause()
        assert screen.app.main.selection.npu == 10
        assert "node3 NPU 10" in screen.text
        await screen.press("escape")
        assert screen.app.main.selection.rank == screen.app.main.ranks.rank != ""


async def test_a_rank_row_is_whole_beside_the_detail_also_with_three_digits() -> None:
    async with console(FakeFleet.healthy(nodes=64)) as screen:
        assert any(line.startswith("▸ ✓ decode/0   node33 0") and " 470/s" in line for line in screen.lines())


async def test_nodes_that_fit_are_said_to_be_seen_right_after_a_change_of_the_area() -> None:
    async with console(FakeFleet.healthy(nodes=64), size=(80, 24)) as screen:
        await screen.press("shift+tab")
        await screen.pilot.pause()
        assert "33-50 of 64" in screen.text


async def test_the_footer_of_a_narrow_screen_counts_the_marks() -> None:
    async with console(FakeFleet.healthy(), size=(80, 24)) as screen:
        await screen.press("space", "down", "down", "M")
        assert "x stop 4 marked" in screen.lines()[-1]


async def test_values_of_a_lost_node_are_what_was() -> None:
    fleet = FakeFleet.healthy()
    fleet.publish(with_node(fleet.snapshot, "node4", state=NodeState.RECONNECTING, attempt=2, error="refused"))
    async with console(fleet) as screen:
        assert screen.line("node4 decode").count("?") == 16, "at once, not only when they are old"
        assert "? 16" in screen.line("─ NPUs")
        await screen.press("shift+tab", "down", "i")
        assert "was healthy" in screen.text


@pytest.mark.parametrize(("width", "speed"), [(110, "470/s"), (120, "470/s"), (240, "470 tok/s")])
async def test_the_speed_of_a_rank_has_a_unit(width: int, speed: str) -> None:
    async with console(FakeFleet.healthy(), size=(width, 40)) as screen:
        row = screen.line("✓ decode/0 ")
        assert f" {speed}" in row
        assert "…" not in row.partition("│")[0]


async def test_the_title_of_findings_names_whose_they_are() -> None:
    async with console(FakeFleet.faulty(), size=(160, 40)) as screen:
        await screen.press("i")
        assert "─ decode/9 " in screen.text
        await screen.press("down", "down", "down")
        assert screen.app.main.selection.rank == "p2/1"
        assert "node2 NPU 8 log describe metrics [findings]" in screen.line("─ Ranks")
        await screen.press("tab")
        assert "node2 NPU 8 log describe metrics [findings]" in screen.line("─ Ranks")


async def test_times_that_are_not_known_are_not_made_up() -> None:
    fleet = FakeFleet.healthy()
    made = stopped(fleet.snapshot)
    made = replace(made, serving=replace(made.serving, since=0.0))
    made = with_rank(made, "decode/0", since=0.0)
    made = with_rank(made, "decode/1", since=None)
    made = with_rank(made, "decode/2", state=RankState.FAILED, exit_status=1, since=0.0)
    fleet.publish(with_node(made, "node3", since=0.0))
    async with console(fleet, size=(160, 40)) as screen:
        assert " stopped        - " in screen.line("decode/0 ")
        assert " stopped        - " in screen.line("decode/1 ")
        assert "STOPPED   P 0/4" in screen.lines()[0]
        assert "exit 1" in screen.line("✖ decode/2 ")
        assert "08:00:00" not in screen.line("✖ decode/2 ")
        await screen.press("d")
        for wrong in ("d00h", "d08h", "20833d"):
            assert wrong not in screen.text


async def test_a_headline_leads_to_its_rank_also_when_the_filter_hides_it() -> None:
    async with console(FakeFleet.faulty()) as screen:
        await screen.press("slash")
        await screen.type("p1")
        await screen.press("enter", "enter")
        assert screen.app.main.ranks.rank == "decode/9"
        assert screen.app.main.selection.rank == "decode/9"


async def test_a_move_of_the_list_that_comes_after_a_jump_into_the_grid_does_not_undo_it() -> None:
    fleet = FakeFleet.faulty()
    with_idle_npus(fleet)
    async with console(fleet) as screen:
        screen.app.main.ranks.action_end(1)
        screen.app.main.go_to_subject("node3/9")
        await screen.pilot.pause()
        selection = screen.app.main.selection
        assert (selection.node, selection.npu, selection.rank) == ("node3", 9, "")
