"""Run the console on a fake fleet and read the screen as an operator would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from pdtui.console.app import ConsoleApp, Options
from pdtui.console.glyphs import GlyphSet
from pdtui.topology.findings import Finding
from tests.support.fake_fleet import FakeFleet
from tests.support.manual_clock import ManualClock


@dataclass
class Console:
    """A running console."""

    app: ConsoleApp
    pilot: Pilot[Any]
    fleet: FakeFleet
    clock: ManualClock

    def lines(self) -> list[str]:
        """Return the rows of the screen, modal dialogs included."""
        compositor = self.app.screen._compositor
        return ["".join(segment.text for segment in strip).rstrip() for strip in compositor.render_strips()]

    @property
    def text(self) -> str:
        """The whole screen."""
        return "\n".join(self.lines())

    def line(self, part: str) -> str:
        """Return the one row that has `part`."""
        found = [line for line in self.lines() if part in line]
        assert len(found) == 1, f"{part!r} is in {len(found)} rows of\n{self.text}"
        return found[0]

    async def press(self, *keys: str) -> None:
        """Press keys and let everything settle."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        """Type text."""
        names = {
            " ": "space",
            ":": "colon",
            "/": "slash",
            "!": "exclamation_mark",
            "-": "minus",
            "?": "question_mark",
        }
        await self.press(*(names.get(char, char) for char in text))

    async def settle(self) -> None:
        """Let everything settle; the timers of the log too."""
        main = self.app.main
        while main._log_timer is not None:  # The cursor has to rest on a rank before its log is fetched.
            await self.pilot.pause(0.05)
        main._poll_log()
        await self.pilot.pause()

    async def tick(self) -> None:
        """Paint again, as the second's timer does."""
        self.app.main.paint_all()
        await self.pilot.pause()


@asynccontextmanager
async def console(
    fleet: FakeFleet,
    *,
    size: tuple[int, int] = (120, 40),
    theme: str | Path | None = None,
    glyphs: GlyphSet = "unicode",
    read_only: bool = False,
    no_color: bool = False,
    findings: Sequence[Finding] = (),
) -> AsyncIterator[Console]:
    """Run a console; the snapshot is applied at once, time stands still."""
    clock = ManualClock()
    options = Options(
        theme, glyphs, read_only, slow=False, no_color=no_color, interval=0, findings=tuple(findings)
    )
    app = ConsoleApp(fleet, options, clock=clock)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Console(app, pilot, fleet, clock)
