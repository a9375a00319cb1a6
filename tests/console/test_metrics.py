from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.console.glyphs import ASCII, UNICODE
from pdtui.console.history import KEPT, MetricsHistory, sparkline
from pdtui.console.metrics_rows import metrics_rows
from pdtui.console.rows import Row
from pdtui.fleet.snapshot import RankMetrics, RankState, RankStatus, Snapshot
from tests.console.driving import console
from tests.support.fake_fleet import NOW, FakeFleet, with_rank

FULL = RankMetrics(
    running=3,
    waiting=2,
    kv_usage=0.635,
    generation_tokens_per_s=470.0,
    prompt_tokens_per_s=12_300.0,
    ttft_s=0.41,
    ttft_at=NOW - 40,
    tpot_s=0.021,
    tpot_at=NOW,
    local_prefill_tokens=0,
    observed_at=NOW,
    interval_s=5.0,
    preemptions=7,
    preempted=2,
    acceptance=0.82,
    accepted_length=2.6,
    acceptance_by_position=(0.91, 0.73),
    external_share=0.998,
    expired_leases=0,
    late_pulls=1,
    failed_transfers=0,
    errors=0,
    aborts=4,
)


def rank_with(metrics: RankMetrics | None, rank_id: str = "d/0") -> RankStatus:
    rank = FakeFleet.cpu().snapshot.rank(rank_id)
    assert rank is not None
    return replace(rank, metrics=metrics)


def shown(rows: list[Row]) -> dict[str, str]:
    return {row.label: row.text for row in rows}


def test_every_figure_of_a_decode_rank_is_there_with_its_age() -> None:
    rows = metrics_rows(rank_with(FULL), (), UNICODE, 60, NOW + 3)
    found = shown(rows)
    assert found["requests running"] == "3"
    assert found["requests waiting"] == "2"
    assert found["KV cache used"] == "63.5 %"
    assert found["prompt tokens/s"] == "12.3k"
    assert found["tokens/s out"] == "470"
    assert found["time to first token"] == "410 ms  43 s ago", "no request has begun since"
    assert found["time per token"] == "21 ms"
    assert found["drafts accepted"] == "82 %  2.6 a step  (91 73)"
    assert found["preemptions"] == "7  +2 now"
    assert found["prompt KV from prefill"] == "100 %"
    assert found["prompt computed here"] == "0"
    assert found["leases expired"] == "0"
    assert found["read"] == "08:00:00  3 s ago, over 5 s"
    styles = {row.label: row.style for row in rows}
    assert styles["pulled too late"] == "warning", "answers may be wrong"
    assert styles["leases expired"] == "dim"


def test_a_prefill_rank_has_no_figures_that_mean_nothing_there() -> None:
    found = shown(metrics_rows(rank_with(replace(FULL, local_prefill_tokens=900), "p/0"), (), UNICODE, 60, NOW))
    assert "time per token" not in found
    assert "prompt KV from prefill" not in found
    assert found["prompt computed here"] == "900"


def test_what_a_version_does_not_say_is_left_out() -> None:
    found = shown(metrics_rows(rank_with(RankMetrics(running=1, observed_at=NOW)), (), UNICODE, 60, NOW))
    assert {label for label in found if label} == {"requests running", "read"}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 1, 2, 4, 8], "▁▂▃▅█"),
        ([0, 0.001, 8], "▁▂█"),
        ([None, 0, 0], " ▁▁"),
        ([], ""),
    ],
)
def test_a_sparkline_shows_nothing_as_the_lowest_and_the_most_as_the_highest(
    values: list[float | None], line: str
) -> None:
    assert sparkline(values, UNICODE.spark) == line


def test_a_share_is_drawn_against_the_whole() -> None:
    assert sparkline([0.5, 0.1, 1.0], ASCII.spark, top=1.0) == "=.#"


def following(snapshot: Snapshot, count: int) -> MetricsHistory:
    """Return the history of readings of d/0, one each five seconds, the newest at `NOW`."""
    history = MetricsHistory()
    for number in range(count):
        at = NOW - 5 * (count - 1 - number)
        reading = replace(FULL, running=number, observed_at=at)
        for _ in range(2):  # Snapshots come more often than readings.
            history.add(with_rank(snapshot, "d/0", metrics=reading))
    return history


def test_history_is_drawn_where_it_has_room_and_ends_when_the_server_is_stopped() -> None:
    snapshot = FakeFleet.cpu().snapshot
    history = following(snapshot, 8)
    rank = rank_with(replace(FULL, running=7))
    wide = shown(metrics_rows(rank, history.of("d/0"), UNICODE, 60, NOW))
    assert wide["requests running"] == "7         ▁▂▃▄▅▆▇█"
    assert wide["lines show the last"] == "35 s"
    assert wide["time to first token"].split() == ["410", "ms", "40", "s", "ago"], "no reading had one of its own"
    assert wide["preemptions"] == "7  +2 now ████████"
    long = rank_with(replace(FULL, accepted_length=3.14159, acceptance_by_position=(0.91, 0.73, 0.5)))
    assert shown(metrics_rows(long, history.of("d/0"), UNICODE, 60, NOW))["drafts accepted"] == (
        "82 %  3.1 a step  (91 73 50)"
    ), "a history that has no room is cut, the oldest first"
    narrow = shown(metrics_rows(rank, history.of("d/0"), UNICODE, 40, NOW))
    assert narrow["requests running"] == "7"
    assert "lines show the last" not in narrow
    assert len(following(snapshot, KEPT + 9).of("d/0")) == KEPT
    history.add(with_rank(snapshot, "d/0", metrics=None, state=RankState.STOPPED))
    assert not history.of("d/0")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RankState.FAILED, "last read 40 s ago, before it failed"),
        (RankState.UNHEALTHY, "last read 40 s ago, before it stopped answering"),
        (RankState.LOST, "last read 40 s ago, before its node was lost"),
    ],
)
def test_the_last_figures_of_a_rank_that_failed_stay_and_are_marked_as_old(state: RankState, words: str) -> None:
    snapshot = FakeFleet.cpu().snapshot
    history = following(snapshot, 8)
    gone = with_rank(snapshot, "d/0", metrics=None, state=state)
    history.add(gone)
    rows = metrics_rows(gone.rank("d/0"), history.of("d/0"), UNICODE, 60, NOW + 40)
    assert (rows[1].text, rows[1].style) == (words, "warning")
    assert shown(rows)["requests running"] == "7         ▁▂▃▄▅▆▇█"
    assert shown(rows)["read"] == "08:00:00  40 s ago, over 5 s"
    assert "text" not in {row.style for row in rows if row.label == "requests running"}, "not as what is true now"
    again = with_rank(snapshot, "d/0", metrics=replace(FULL, running=1, observed_at=NOW + 60), run=99)
    history.add(again)
    assert [one.running for one in history.of("d/0")] == [1], "another run has its own"


@pytest.mark.parametrize("state", list(RankState))
def test_without_any_figures_the_tab_says_why_for_the_state(state: RankState) -> None:
    [_, row] = metrics_rows(replace(rank_with(None), state=state), (), UNICODE, 60, NOW)
    assert row.text.startswith("No metrics")
    waits = state in (RankState.UNKNOWN, RankState.STARTING)
    assert ("yet" in row.text) is waits, "only where some will come"


async def test_the_metrics_tab_follows_and_the_list_has_as_many_figures_as_fit() -> None:
    fleet = FakeFleet.cpu()
    fleet.publish(with_rank(fleet.snapshot, "d/0", metrics=FULL))
    async with console(fleet, size=(200, 40)) as screen:
        row = screen.line("▸ ✓ d/0 ").partition("│")[0]
        assert "run 3  kv 64 %   470/s  wait 2   ttft 410 ms" in row
        await screen.press("m")
        for number in range(4):
            metrics = replace(FULL, running=number, observed_at=NOW + 5 * (number + 1))
            fleet.publish(with_rank(fleet.snapshot, "d/0", metrics=metrics))
            await screen.pilot.pause()
        assert screen.line("requests running").endswith("3         █▁▄▆█")
        await screen.pilot.resize_terminal(120, 40)
        await screen.pilot.pause()
        assert "…" not in screen.line("▸ ✓ d/0 ").partition("│")[0]


async def test_the_last_figures_of_a_failed_rank_count_nowhere_else() -> None:
    fleet = FakeFleet.cpu()
    fleet.publish(with_rank(fleet.snapshot, "d/0", metrics=replace(FULL, running=77)))
    async with console(fleet) as screen:
        await screen.press("m")
        assert "run 77" in screen.text
        fleet.publish(with_rank(fleet.snapshot, "d/0", metrics=None, state=RankState.FAILED, exit_status=-9))
        await screen.pilot.pause()
        assert "before it failed" in screen.line("last read")
        assert screen.text.count("77") == 1, "not in the list, the grid or the header"
