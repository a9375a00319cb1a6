from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.console.describe import command_lines
from pdtui.console.glyphs import GlyphSet
from pdtui.console.rank_rows import Arrangement, Place, arrange
from pdtui.fleet.intents import StopRanks
from pdtui.fleet.snapshot import Alarm, Condition, Diagnosis, GroupStatus, Headline, NodeState, RankState
from pdtui.topology.model import Role
from tests.console.driving import Console, console
from tests.support.fake_fleet import NOW, FakeFleet, with_node, with_rank

HELD = Alarm("kv-held", "warning", "its KV cache is 97 % full and nothing runs", "see whether decode runs", NOW)


def places(nodes: int, prefill: int, decode: int) -> list[Place]:
    """Return the ranks of two groups over all nodes."""
    return [
        (f"node{node}", group, f"{group}/{(node - 1) * each + number}", role)
        for group, each, role in (("p", prefill, Role.PREFILL), ("d", decode, Role.DECODE))
        for node in range(1, nodes + 1)
        for number in range(each)
    ]


def spots(made: Arrangement, width: int) -> list[str]:
    """Return the ranks in the order in which a mouse finds them from left to right, line by line."""
    found: list[str] = []
    for row in made.rows:
        for x in range(width):
            number = made.rank_at(row, x)
            if number is not None and (not found or found[-1] != row.ranks[number]):
                found.append(row.ranks[number])
    return found


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("sizes", [(3, 1), (3,), (4,)])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 0), (1, 1), (2, 8), (0, 32), (32, 32)])
def test_every_rank_has_a_place_of_its_own_in_any_width(
    width: int, sizes: tuple[int, ...], prefill: int, decode: int
) -> None:
    ranks = places(2, prefill, decode)
    made = arrange(("node1", "node2", "empty"), ranks, width, sizes)
    by_node = sorted((rank for rank in ranks), key=lambda rank: rank[0])
    assert spots(made, width) == [rank for _, _, rank, _ in by_node]
    assert [row.node for row in made.rows if row.first] == ["node1", "node2", "empty"]
    assert made.end + 8 <= width, "the age of the values has room"


def test_long_names_leave_room_for_the_ranks() -> None:
    node, group = "a-node-with-quite-a-long-name", "prefill-of-the-large-model-in-hall-three"
    ranks = [(node, group, f"{group}/{number}", Role.PREFILL) for number in range(32)]
    made = arrange((node,), ranks, 60, (3, 1))
    assert spots(made, 60 - 8) == [rank for _, _, rank, _ in ranks]
    assert [len(row.ranks) for row in made.rows] == [8, 8, 8, 8]


async def test_a_long_name_is_cut_and_the_numbers_behind_it_never() -> None:
    fleet = FakeFleet.cpu(nodes=1, prefill=0, decode=32)
    name = "decode-of-the-large-model-in-hall-three"
    ranks = tuple(replace(rank, id=rank.id.replace("d/", f"{name}/"), group=name) for rank in fleet.snapshot.ranks)
    fleet.publish(replace(fleet.snapshot, ranks=ranks))
    async with console(fleet, size=(60, 24)) as screen:
        await screen.press("shift+tab")
        assert "…/0-15 ✓" in screen.text
        assert "…/16-31 ✓" in screen.text


def test_a_node_has_one_line_while_its_ranks_fit_and_a_group_stays_together() -> None:
    nodes = tuple(f"node{number}" for number in range(1, 65))
    wide = arrange(nodes, places(64, 0, 8), 120, (3, 1))
    assert len(wide.rows) == 64
    assert (wide.cell, wide.figures) == (3, True)
    assert arrange(nodes, places(64, 0, 8), 62, (3, 1)).cell == 1
    broken = arrange(("node1",), places(1, 4, 40), 80, (3,))
    assert [[part.label for part in row.parts] for row in broken.rows] == [
        ["p/0-3"],
        ["d/0-15"],
        ["d/16-31"],
        ["d/32-39"],
    ]


async def test_a_healthy_cluster_without_npus_is_quiet_and_says_nothing_of_npus() -> None:
    async with console(FakeFleet.cpu(nodes=2, prefill=1, decode=2)) as screen:
        assert screen.lines()[1].startswith("─ Nodes  v: [state] running waiting KV % rank ─")
        assert screen.line("node1 P ").split()[:8] == ["▸", "node1", "P", "p/0", "✓", "D", "d/0-1", "[✓]"]
        assert screen.line("node2 P ").split() == [
            "node2", "P", "p/1", "✓", "D", "d/2-3", "✓", "✓", "14", "41", "%", "1", "s",
        ]  # fmt: skip
        assert "run 6   kv 41 %   470 tok/s" in screen.line("node1 d/0  ready")
        for word in ("NPU", "HBM", "max C", "health", "✖", "▲"):
            assert word not in screen.text
        await screen.press("question_mark")
        for _ in range(4):
            assert "NPU" not in screen.text.replace("npu:", "NPU")
            await screen.press("pagedown")


async def test_the_palette_has_nothing_of_npus() -> None:
    async with console(FakeFleet.cpu()) as screen:
        await screen.press("colon")
        await screen.type("health")
        await screen.pilot.pause()
        assert "c      health" not in screen.text


async def test_arrows_go_from_rank_to_rank_and_keys_act_on_it() -> None:
    fleet = FakeFleet.cpu(nodes=2, prefill=1, decode=2)
    fleet.write_log("d/3", "hello from d/3")
    async with console(fleet) as screen:
        await screen.press("shift+tab", "down", "right")
        assert screen.app.main.selection.rank == "d/3"
        assert screen.app.main.ranks.rank == "d/3"
        assert "s shell node2" in screen.lines()[-1]
        await screen.press("d")
        assert "Nothing" not in screen.text
        assert "─ d/3 log [describe]" in screen.text
        await screen.press("l")
        await screen.settle()
        assert "hello from d/3" in screen.text
        await screen.press("escape", "shift+tab", "x")
        await screen.press("tab", "enter")
        assert fleet.submitted == [StopRanks(("d/3",))]


async def test_a_filter_knows_no_npus() -> None:
    async with console(FakeFleet.cpu(nodes=2)) as screen:
        await screen.press("slash")
        await screen.type("npu:3")
        await screen.press("enter")
        assert "no field npu; fields: state node role group id flag" in screen.text


async def test_enter_on_a_rank_opens_its_detail() -> None:
    async with console(FakeFleet.cpu(nodes=2), size=(80, 24)) as screen:
        await screen.press("shift+tab", "down", "m", "shift+tab", "shift+tab", "enter")
        assert "─ d/1 log describe [metrics]" in screen.text


async def test_a_click_selects_and_marks_show_in_both_lists() -> None:
    async with console(FakeFleet.cpu(nodes=2, prefill=2, decode=4)) as screen:
        x = screen.line("node2 P ").index("d/4-7") + len("d/4-7") + 1 + 2 * 3
        assert await screen.pilot.click("#grid", offset=(x + 1, 2))
        await screen.pilot.pause()
        assert screen.app.main.selection.rank == "d/6"
        await screen.press("space", "left", "space")
        assert list(screen.app.main.selection.marks) == ["d/6", "d/5"]
        assert "x stop 2 marked" in screen.lines()[-1]
        assert "*✓" in screen.line("node2 P ")
        assert "*✓ d/6" in screen.line(" d/6 ")
        await screen.press("space")
        assert list(screen.app.main.selection.marks) == ["d/6"]


def with_troubles(fleet: FakeFleet) -> None:
    made = with_rank(fleet.snapshot, "d/0", state=RankState.FAILED, exit_status=1, metrics=None)
    made = with_rank(made, "d/1", state=RankState.STARTING, stage="weights 63 %", metrics=None)
    made = with_rank(made, "p/0", alarms=(HELD,))
    made = with_node(made, "node2", state=NodeState.RECONNECTING, attempt=2, next_try=NOW + 4, error="refused")
    fleet.publish(made)


@pytest.mark.parametrize(
    ("glyphs", "row"), [("unicode", "▲   D d/0-1 ✖◐"), ("narrow", "!   D d/0-1 ✖~"), ("ascii", "!   D d/0-1 X~")]
)
async def test_states_are_told_by_signs_in_every_set(glyphs: GlyphSet, row: str) -> None:
    fleet = FakeFleet.cpu(nodes=2, prefill=1, decode=2)
    with_troubles(fleet)
    async with console(fleet, size=(60, 24), glyphs=glyphs, no_color=True) as screen:
        await screen.press("shift+tab")
        assert f"node1 P p/0 {row}" in screen.text
        assert "try 2 in 4 s  refused" in screen.line("node2 P ")
        signs = row.replace("◐", "").split()
        assert f"{signs[-1][0]} 1  {signs[0]} 1" in screen.line("Nodes")


async def test_the_cursor_stays_on_its_rank_in_another_mode_and_another_width() -> None:
    async with console(FakeFleet.cpu(nodes=2, prefill=4, decode=32), size=(120, 40)) as screen:
        await screen.press("shift+tab", "down", "end", *["right"] * 20)
        here = screen.app.main.selection.rank
        assert here == "d/52"
        await screen.press("v", "v", "v", "v")
        assert screen.app.main.grid.spot.rank == here
        await screen.pilot.resize_terminal(70, 24)
        await screen.pilot.pause()
        assert screen.app.main.grid.spot.rank == here
        assert screen.line("▸").split()[1:3] == ["D", "d/48-55"]
        await screen.press(*["left"] * 12)
        assert screen.app.main.selection.rank == "d/40", "from the first of a line to the last of the one above"
        assert all(len(line) <= 70 for line in screen.lines())


async def test_other_values_stand_in_the_cells() -> None:
    fleet = FakeFleet.cpu(nodes=1, prefill=1, decode=2)
    rank = fleet.snapshot.rank("d/1")
    assert rank is not None
    assert rank.metrics is not None
    fleet.publish(with_rank(fleet.snapshot, "d/1", metrics=replace(rank.metrics, running=1234, kv_usage=1.0)))
    async with console(fleet) as screen:
        await screen.press("v")
        assert screen.line("▸ node1").split()[:8] == ["▸", "node1", "P", "p/0", "2", "D", "d/0-1", "6"]
        assert " 999 " in screen.line("▸ node1")
        await screen.press("v", "v")
        assert screen.line("▸ node1").split()[4:9] == ["12", "D", "d/0-1", "41", "99"]


async def test_c_tries_a_node_again_and_is_not_offered_while_all_answer() -> None:
    fleet = FakeFleet.cpu(nodes=2)
    async with console(fleet) as screen:
        await screen.press("c")
        assert fleet.polled == []
        assert "every node answers" in screen.text
        fleet.publish(
            with_node(fleet.snapshot, "node2", state=NodeState.FAILED, error="no route", remedy="ping it")
        )
        await screen.pilot.pause()
        assert "c try again" in screen.lines()[-1]
        await screen.press("shift+tab", "down")
        assert screen.line("no route  ping").endswith("c: try again")
        await screen.press("c")
        assert fleet.polled == [("node2",)]


async def test_a_node_without_ranks_is_a_selection_too() -> None:
    fleet = FakeFleet.cpu(nodes=1)
    node = fleet.snapshot.nodes[0]
    idle = replace(node, name="proxy-node", roles=(), conditions=(Condition("logout", "ends ranks", "loginctl"),))
    fleet.publish(replace(fleet.snapshot, nodes=(node, idle), headline=Headline("x", "proxy-node", "warning")))
    async with console(fleet) as screen:
        await screen.press("enter")
        selection = screen.app.main.selection
        assert (selection.area, selection.node, selection.rank) == ("grid", "proxy-node", "")
        assert "ends ranks  loginctl" in screen.text
        assert "go there" not in screen.text


async def test_sixty_four_nodes_scroll() -> None:
    async with console(FakeFleet.cpu(nodes=64, prefill=0, decode=8), size=(80, 24)) as screen:
        await screen.press("shift+tab", "end")
        assert "node64 D d/504-511" in screen.text
        assert "of 64" in screen.line("─ Nodes")


async def test_only_rows_that_changed_are_repainted() -> None:
    async with console(FakeFleet.cpu(nodes=4, decode=8)) as screen:
        grid = screen.app.main.grid
        before = list(grid._painted)
        screen.fleet.publish(with_rank(screen.fleet.snapshot, "d/9", state=RankState.FAILED, exit_status=1))
        await screen.pilot.pause()
        same = [old is new for old, new in zip(before, grid._painted, strict=True)]
        assert same[1:5] == [True, False, True, True]


async def seen(screen: Console, *keys: str) -> str:
    await screen.press(*keys)
    return screen.text


async def test_an_alarm_is_in_the_row_the_grid_and_in_describe() -> None:
    fleet = FakeFleet.cpu(nodes=1, decode=2)
    made = with_rank(fleet.snapshot, "p/0", alarms=(HELD,))
    fleet.publish(replace(made, headline=Headline(f"p/0 {HELD.message}", "p/0", "warning")))
    async with console(fleet) as screen:
        assert screen.lines()[1].startswith(" ▲ p/0 its KV cache is 97 % full")
        assert "ready      3h12m  KV held  run 2" in screen.line("▲ p/0 node1")
        assert "▲ 1" in screen.line("─ Nodes")
        text = await seen(screen, "end", "enter")
        assert "[metrics]" in text, "the figures say more than a log that has nothing of it"
        assert "see whether decode runs" in text
        text = await seen(screen, "d")
        assert HELD.message in text
        assert "finished prompts keep their KV" in text, "it means"
        assert HELD.message in (await seen(screen, "i"))
        await screen.press("slash")
        await screen.type("nothing runs")
        assert [rank.id for rank in screen.app.main.ranks.rows] == ["p/0"]


async def test_a_rank_that_failed_is_told_before_a_warning_of_its_node_and_after_its_loss() -> None:
    fleet = FakeFleet.cpu(nodes=1, decode=2)
    warned = with_node(fleet.snapshot, "node1", conditions=(Condition("logout", "ranks end at logout", "linger"),))
    fleet.publish(warned)
    async with console(fleet) as screen:
        assert "ranks end at logout" in screen.text
        failed = with_rank(warned, "d/0", state=RankState.FAILED, exit_status=1, metrics=None)
        fleet.publish(failed)
        await screen.pilot.pause()
        assert "exit 1" in screen.line("node1 d/0  failed")
        fleet.publish(with_rank(warned, "d/0", alarms=(HELD,)))
        await screen.pilot.pause()
        assert HELD.message in screen.line("node1 d/0  ready")
        fleet.publish(with_node(failed, "node1", state=NodeState.FAILED, error="host key has changed"))
        await screen.pilot.pause()
        assert "node1 d/0  failed" not in screen.text
        assert "host key has changed" in screen.text


def test_a_command_is_shown_as_a_shell_reads_it() -> None:
    argv = ("vllm", "serve", "~/models/it's tiny", "--host", "~/not a path", "--enable-x")
    assert command_lines(argv) == [
        """vllm serve ~/'models/it'"'"'s tiny'""",
        "--host '~/not a path'",
        "--enable-x",
    ]


@pytest.mark.parametrize(("glyphs", "sign"), [("unicode", "▲"), ("narrow", "!"), ("ascii", "!")])
async def test_a_rank_whose_group_is_lost_does_not_look_ready(glyphs: GlyphSet, sign: str) -> None:
    fleet = FakeFleet.cpu(nodes=1, decode=3)
    well = fleet.snapshot
    group = GroupStatus("d", Role.DECODE, 3, must_restart=("d/0", "d/2"))
    async with console(fleet, glyphs=glyphs, no_color=True) as screen:
        assert "no group" not in screen.text
        made = with_rank(well, "d/1", state=RankState.FAILED, exit_status=-9, metrics=None)
        fleet.publish(replace(made, groups=(group,)))
        await screen.pilot.pause()
        cells = screen.line("node1 P ").split("d/0-2")[1].split()[:3]
        assert cells == [f"[{sign}]", "X" if glyphs == "ascii" else "✖", sign]
        assert f"{sign} 2" in screen.line("─ Nodes" if glyphs == "unicode" else "Nodes")
        assert [rank.id for rank in screen.app.main.ranks.rows] == ["d/1", "d/0", "d/2", "p/0"]
        for rank in ("d/0", "d/2"):
            assert screen.line(f"{sign} {rank} node1").split("node1")[1].split()[:2] == ["no", "group"]
        assert "never gets its group back; restart d" in screen.line("node1 d/0  no group")
        await screen.press("i")
        assert "─ d/0 log describe metrics [findings]" in screen.text or glyphs != "unicode"
        assert "Nothing is wrong here" not in screen.text
        assert screen.text.count("lost: this rank still runs") == 2, (
            "in the line below the grid and in the findings"
        )
        fleet.publish(well)
        await screen.pilot.pause()
        assert "no group" not in screen.text


async def test_the_title_of_findings_names_the_node_where_they_are_its() -> None:
    fleet = FakeFleet.cpu(nodes=1, decode=2)
    warned = with_node(fleet.snapshot, "node1", conditions=(Condition("logout", "ranks end at logout", "linger"),))
    async with console(fleet) as screen:
        await screen.press("i")
        assert "─ d/0 log describe metrics [findings]" in screen.text
        fleet.publish(warned)
        await screen.pilot.pause()
        assert "─ node1 log describe metrics [findings]" in screen.text
        why = Diagnosis("killed by SIGKILL")
        fleet.publish(with_rank(warned, "d/0", state=RankState.FAILED, metrics=None, diagnosis=why))
        await screen.pilot.pause()
        assert "─ d/0 log describe metrics [findings]" in screen.text


async def test_enter_is_not_promised_while_something_is_typed() -> None:
    fleet = FakeFleet.cpu(nodes=1, decode=2)
    fleet.publish(replace(fleet.snapshot, headline=Headline("p/0 failed", "p/0", "error")))
    async with console(fleet) as screen:
        assert "enter: go there" in screen.text
        await screen.press("t")
        assert "p/0 failed" in screen.text
        assert "enter: go there" not in screen.text
        await screen.press("escape")
        assert "enter: go there" in screen.text
        await screen.press("slash")
        assert "enter: go there" not in screen.text
