"""Our own polling fills the logs of idle ranks: the view leaves its lines out, and says so."""

from __future__ import annotations

from tests.console.driving import Console, console
from tests.support.fake_fleet import FakeFleet

CHECKS = (
    'INFO:     127.0.0.1:48610 - "GET /health HTTP/1.1" 200 OK',
    '(APIServer pid=130) INFO:     127.0.0.1:48618 - "GET /metrics HTTP/1.1" 200 OK',
    '(APIServer pid=130) INFO:     127.0.0.1:48618 - "GET /metrics HTTP/1.1" 307 Temporary Redirect',
)
TRAFFIC = (
    'INFO:     192.0.0.7:5001 - "POST /v1/completions HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:48620 - "GET /health HTTP/1.1" 503 Service Unavailable',
    "health and metrics are words too",
)


def fleet_with_checks() -> FakeFleet:
    fleet = FakeFleet.healthy()
    fleet.write_log("decode/0", "Application startup complete.", *CHECKS * 20, *TRAFFIC, *CHECKS * 20)
    return fleet


def shown(screen: Console) -> list[str]:
    return [line.strip("▸ ") for line in screen.app.main.log_view.lines_shown if line.strip()]


async def test_health_checks_that_went_well_are_left_out_and_counted() -> None:
    async with console(fleet_with_checks(), size=(160, 50)) as screen:
        await screen.press("l")
        assert shown(screen) == ["Application startup complete.", *TRAFFIC]
        assert "120 health checks hidden" in screen.text
        screen.fleet.write_log("decode/0", *CHECKS, "one more")
        await screen.settle()
        assert shown(screen)[-2:] == [TRAFFIC[-1], "one more"]
        assert "123 health checks hidden" in screen.text


async def test_a_key_shows_them_and_hides_them_again() -> None:
    async with console(fleet_with_checks(), size=(160, 50)) as screen:
        await screen.press("l")
        assert "h show health checks" in screen.lines()[-1]
        await screen.press("h")
        assert shown(screen)[-1] == "Redirect", "the end of the last one"
        assert "hidden" not in screen.text
        assert "h hide health checks" in screen.lines()[-1]
        await screen.press("h")
        assert shown(screen)[-1] == TRAFFIC[-1]


async def test_an_idle_log_says_that_there_is_nothing_else() -> None:
    fleet = FakeFleet.healthy()
    fleet.write_log("decode/0", *CHECKS * 3)
    async with console(fleet, size=(160, 50)) as screen:
        assert "Nothing but 9 health checks; h shows them." in screen.text


async def test_search_and_filter_go_over_what_is_shown_and_tell_of_the_rest() -> None:
    async with console(fleet_with_checks(), size=(160, 50)) as screen:
        await screen.press("l", "slash")
        await screen.type("GET")
        await screen.press("enter")
        assert "1/1 found" in screen.text, "only the 503"
        await screen.press("slash", "ctrl+u")
        await screen.type("307")
        await screen.press("enter")
        assert "Not found: 307; 40 hidden health checks have; h shows them." in screen.text
        await screen.press("escape", "ampersand")
        await screen.type("metrics")
        await screen.press("enter")
        assert shown(screen) == [TRAFFIC[-1]]
        await screen.press("plus")
        assert shown(screen) == list(TRAFFIC), "its neighbours are lines that are shown"
        await screen.press("ampersand", "ctrl+u")
        await screen.type("307")
        await screen.press("enter")
        assert "No held line has 307. 40 hidden health checks have; h shows them." in screen.text
        await screen.press("h")
        assert "No held line has" not in screen.text
        assert shown(screen)[-1] == "Redirect"


async def test_next_error_and_scrolling_step_over_them() -> None:
    fleet = fleet_with_checks()
    fleet.write_log("decode/0", "it broke", severity="error")
    fleet.write_log("decode/0", *CHECKS * 30)
    fleet.write_log("decode/0", "it broke again", severity="error")
    async with console(fleet, size=(160, 50)) as screen:
        await screen.press("l", "n")
        assert "▸it broke" in screen.text
        await screen.press("n")
        assert "▸it broke again" in screen.text
        await screen.press("home")
        assert shown(screen)[0] == "Application startup complete."
        await screen.press("down", "down")
        assert screen.app.main.log_view.follow, "all of it fits"


async def test_what_is_copied_is_what_is_shown() -> None:
    async with console(fleet_with_checks(), size=(160, 50)) as screen:
        assert screen.app.main.log_view.visible_text() == "\n".join(("Application startup complete.", *TRAFFIC))
