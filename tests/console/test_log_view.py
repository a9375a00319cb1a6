from __future__ import annotations

from pathlib import Path

from tests.console.driving import Console, console
from tests.support.fake_fleet import FakeFleet


def fleet_with_log(lines: int = 200) -> FakeFleet:
    fleet = FakeFleet.healthy()
    fleet.write_log("decode/0", *(f"line {n} of the log" for n in range(lines)))
    return fleet


def log_lines(screen: Console) -> list[str]:
    return [line for line in screen.app.main.log_view.lines_shown if line]


async def test_the_log_follows_its_end() -> None:
    async with console(fleet_with_log()) as screen:
        assert log_lines(screen)[-1] == " line 199 of the log"
        screen.fleet.write_log("decode/0", "one more")
        await screen.settle()
        assert log_lines(screen)[-1] == " one more"


async def test_scrolled_up_it_keeps_its_place_also_when_old_lines_go() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "pageup", "pageup")
        first = log_lines(screen)[0]
        screen.fleet.write_log("decode/0", *(f"new {n}" for n in range(50)))
        screen.fleet.prune_log("decode/0", 40)
        await screen.settle()
        assert log_lines(screen)[0] == first
        assert " below" in screen.text
        await screen.press("end")
        assert log_lines(screen)[-1] == " new 49"


async def test_reaching_the_end_follows_again() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "up")
        assert not screen.app.main.log_view.follow
        await screen.press("down", "down")
        assert screen.app.main.log_view.follow


async def test_what_was_pruned_away_under_the_view_moves_it_to_the_oldest_line() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "home")
        screen.fleet.prune_log("decode/0", 100)
        await screen.settle()
        assert log_lines(screen)[0] == " line 100 of the log"


async def test_dropped_lines_are_said() -> None:
    fleet = fleet_with_log(50)
    fleet.dropped["decode/0"] = 1234
    async with console(fleet) as screen:
        await screen.press("l", "home")
        assert "1234 lines dropped" in log_lines(screen)[0]


async def test_search_finds_and_goes_on_with_n_and_back_with_capital_n() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "slash")
        await screen.type("line 5")
        await screen.press("enter")
        assert "1/11 found" in screen.text
        assert "n next match" in screen.lines()[-1]
        assert "▸line 5 of the log" in screen.text
        await screen.press("n")
        assert "▸line 50 of the log" in screen.text
        await screen.press("N", "N")
        assert "▸line 59 of the log" in screen.text, "round the corner"
        await screen.press("escape")
        assert "found" not in screen.text


async def test_a_search_without_a_result_says_so_and_a_broken_pattern_is_taken_literally() -> None:
    fleet = fleet_with_log()
    fleet.write_log("decode/0", "odd ( bracket")
    async with console(fleet) as screen:
        await screen.press("l", "slash")
        await screen.type("nowhere")
        await screen.press("enter")
        assert "Not found: nowhere" in screen.text
        screen.app.main.log_view.search("odd (")
        assert screen.app.main.log_view.jump(1)
        await screen.pilot.pause()
        assert "▸odd ( bracket" in screen.text


async def test_n_goes_to_the_next_error_when_nothing_is_searched_for() -> None:
    fleet = fleet_with_log(100)
    fleet.write_log("decode/0", "first error", severity="error")
    fleet.write_log("decode/0", *(f"after {n}" for n in range(60)))
    fleet.write_log("decode/0", "second error", severity="error")
    async with console(fleet) as screen:
        await screen.press("l", "n")
        assert "▸first error" in screen.text
        assert "✖ 1/2" in screen.text
        await screen.press("n")
        assert "▸second error" in screen.text


async def test_no_error_is_said() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "n")
        assert "No error in the lines held." in screen.text


async def test_the_filter_shows_lines_around_what_it_finds() -> None:
    async with console(fleet_with_log()) as screen:
        await screen.press("l", "ampersand")
        await screen.type("line 7[05] ")
        await screen.press("enter")
        assert log_lines(screen) == [" line 70 of the log", " line 75 of the log"]
        await screen.press("plus")
        shown = log_lines(screen)
        assert shown[0] == " line 68 of the log"
        assert "line 70 " in shown[2]
        assert shown[-1] == " line 77 of the log"
        assert len(shown) == 10
        screen.fleet.write_log("decode/0", "another line 75 of them")
        await screen.settle()
        assert "120 lines not shown" in screen.text
        await screen.press("escape")
        assert "line 199" in screen.text


async def test_long_lines_wrap_under_themselves_or_are_cut_and_scrolled_sideways() -> None:
    fleet = FakeFleet.healthy()
    fleet.write_log("decode/0", "start " + "x" * 60 + " 中文日志 end")
    async with console(fleet) as screen:
        await screen.press("l")
        assert any(line.endswith("end") for line in log_lines(screen))
        await screen.press("w")
        assert len(log_lines(screen)) == 1
        assert "end" not in log_lines(screen)[0]
        await screen.press("right", "right")
        assert log_lines(screen)[0].endswith("中文日志 end")


async def test_times_are_shown_on_demand() -> None:
    async with console(fleet_with_log(3)) as screen:
        await screen.press("l", "T")
        assert log_lines(screen)[0].startswith(" 07:59:50.000 line 0")


async def test_another_rank_has_another_log_and_the_first_is_let_go() -> None:
    fleet = fleet_with_log()
    fleet.write_log("decode/1", "the other log")
    async with console(fleet) as screen:
        await screen.press("down")
        await screen.settle()
        assert log_lines(screen) == [" the other log"]
        assert fleet.unfollowed == ["decode/0"]


async def test_passing_by_follows_no_log() -> None:
    fleet = fleet_with_log()
    async with console(fleet) as screen:
        await screen.pilot.press("down", "down", "down")
        await screen.settle()
        assert fleet.followed == ["decode/0", "decode/3"]


async def test_why_nothing_comes_is_said() -> None:
    fleet = FakeFleet.healthy()
    fleet.log_error = "node3 is unreachable"
    async with console(fleet):
        pass
    async with console(fleet) as screen:
        assert log_lines(screen) == [" node3 is unreachable"]


async def test_the_log_is_saved_to_a_file_of_the_user(tmp_path: Path) -> None:
    async with console(fleet_with_log(3)) as screen:
        await screen.press("l", "o")
        assert "3 lines written to" in screen.text
    (path,) = (tmp_path / "state" / "pdtui" / "saved").iterdir()
    assert path.read_text() == "line 0 of the log\nline 1 of the log\nline 2 of the log\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name.startswith("deepseek-r1-2p1d-decode-0-")


async def test_the_log_is_copied_up_to_what_a_terminal_takes() -> None:
    async with console(fleet_with_log(3)) as screen:
        await screen.press("l", "y")
        assert screen.app.clipboard == "line 0 of the log\nline 1 of the log\nline 2 of the log"
        assert "3 lines sent to the terminal's clipboard" in screen.text
        screen.fleet.write_log("decode/0", *("y" * 999 for _ in range(100)))
        await screen.settle()
        await screen.press("y")
        assert screen.app.clipboard.count("\n") == 55
        assert "the last 56 lines that fit" in screen.text


async def test_many_lines_are_pulled_in_slices() -> None:
    fleet = fleet_with_log(50_000)
    asked: list[int] = []
    original = fleet.log_lines

    def counted(rank: str, first: int, count: int) -> object:
        asked.append(count)
        return original(rank, first, count)

    fleet.log_lines = counted  # type: ignore[method-assign, assignment]
    async with console(fleet):
        assert max(asked) <= 5_000


async def test_a_line_broken_at_a_blank_goes_on_without_it_and_matches_stay_in_place() -> None:
    fleet = FakeFleet.healthy()
    fleet.write_log("decode/0", "HCCL 通信失败：对端无响应 " * 6)
    async with console(fleet) as screen:
        assert not any(line.startswith("    ") for line in log_lines(screen))
        screen.app.main.log_view.search("HCCL")
        await screen.pilot.pause()
        theme = screen.app.look.styles
        view = screen.app.main.log_view
        marked = [segment.text for strip in view.draw(60, 20) for segment in strip if segment.style == theme.match]
        assert marked == ["HCCL"] * 6


async def test_who_wrote_a_line_is_dim_and_what_it_says_is_not() -> None:
    fleet = FakeFleet.healthy()
    fleet.write_log(
        "decode/0", "(EngineCore_DP0 pid=162) ERROR 11-30 15:30:16 [core.py:866] it broke", severity="error"
    )
    async with console(fleet, size=(200, 50)) as screen:
        view, styles = screen.app.main.log_view, screen.app.look.styles
        by_style = {segment.text.strip(): segment.style for segment in view.draw(100, 5)[0]}
        assert by_style["(EngineCore_DP0 pid=162) ERROR 11-30 15:30:16 [core.py:866]"] == styles.dim
        message = by_style["it broke"]
        assert message is not None
        assert message.color == styles.failed.color


async def test_after_a_restart_the_log_follows_again() -> None:
    fleet = fleet_with_log(100)
    fleet.write_log("decode/0", "it broke", severity="error")
    fleet.write_log("decode/0", *(f"after {n}" for n in range(60)))
    async with console(fleet) as screen:
        await screen.press("l", "n")
        assert not screen.app.main.log_view.follow
        await screen.press("escape", "r", "right", "enter")
        assert fleet.submitted
        await screen.settle()
        assert screen.app.main.log_view.follow


async def test_a_progress_bar_that_has_not_ended_is_the_last_line_while_following() -> None:
    fleet = fleet_with_log()
    fleet.partial["decode/0"] = "Loading safetensors checkpoint shards:  63%"
    async with console(fleet) as screen:
        assert log_lines(screen)[-2:] == [" line 199 of the log", " Loading safetensors checkpoint shards:  63%"]
        await screen.press("l", "up")
        assert "63%" not in screen.text
        await screen.press("end")
        fleet.partial["decode/0"] = "Loading safetensors checkpoint shards:  71%"
        await screen.settle()
        assert log_lines(screen)[-1].endswith("71%")
