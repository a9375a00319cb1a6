"""What `pdtui preflight` tells on stderr: on a terminal one line that moves, elsewhere a line for each node."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from types import TracebackType
from typing import Self

import click

from pdtui.clock import Clock
from pdtui.fleet.preflight.events import AcrossProgress, Began, NodeEnded, NodeProgress, PreflightEvent
from pdtui.fleet.preflight.grouping import in_short
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.fleet.preflight.report import counts_words
from pdtui.text import clean_line, width

TICK = 0.5
"""Seconds between two looks of the line that moves."""

QUIET = 10.0
"""Seconds after which it is told what is waited for, where no line moves."""

_NOTED = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WARN)


class Narrator:
    """Follows the events of a preflight. A context manager: leaving it takes the moving line away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moves = sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
        self._nodes: dict[str, NodeProgress] = {}
        self._ended: dict[str, float] = {}
        self._across = ""
        self._began = 0.0
        self._told = 0.0
        self._shown = ""
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._began = self._told = self._clock.monotonic()
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self._paint("")

    def take(self, event: PreflightEvent) -> None:
        """Follow one event."""
        match event:
            case Began():
                self._nodes = {name: NodeProgress(name, 0, 0) for name in event.nodes}
                self._line(f"looking over {in_short(event.nodes)}")
            case NodeProgress():
                self._nodes[event.node] = event
            case NodeEnded():
                self._ended[event.node] = self._clock.monotonic() - self._began
                self._line(_node_words(event, self._ended[event.node], len(self._ended), len(self._nodes)))
            case AcrossProgress():
                self._across = f"between the nodes: {event.what}, {event.done} of {event.total}"
            case _:
                pass

    def interrupted(self) -> None:
        """Say what was done and what was not, and that nothing is left behind."""
        open_nodes = [name for name in self._nodes if name not in self._ended]
        self._line(f"interrupted: {len(self._ended)} of {len(self._nodes)} nodes done")
        if open_nodes:
            self._line(f"not done: {self._waits(open_nodes)}")
        self._line("what was out was ended on the nodes; nothing was changed there")

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK)
            if self._moves:
                self._paint(self._words())
            elif self._clock.monotonic() - self._told >= QUIET:
                self._line(self._words())

    def _words(self) -> str:
        open_nodes = [name for name in self._nodes if name not in self._ended]
        seconds = self._clock.monotonic() - self._began
        if not open_nodes:
            return f"{seconds:.0f} s  {self._across or 'judging'}"
        done = sum(one.done for one in self._nodes.values())
        total = sum(one.total for one in self._nodes.values())
        nodes = f"{len(self._ended)}/{len(self._nodes)} nodes"
        return f"{seconds:.0f} s  {nodes}, {done}/{total} answers, waiting: {self._waits(open_nodes)}"

    def _waits(self, names: list[str]) -> str:
        """Return who is waited for, the one whose call has been out longest with that call."""
        out = [self._nodes[name] for name in names if self._nodes[name].waits_for]
        if not out:
            return in_short(names)
        first = min(out, key=lambda one: one.since)
        seconds = max(0.0, self._clock.wall() - first.since)
        others = [name for name in names if name != first.node]
        rest = f", {in_short(others)}" if others else ""
        return f"{first.node} ({clean_line(first.waits_for)}, {seconds:.0f} s){rest}"

    def _line(self, words: str) -> None:
        self._paint("")
        self._told = self._clock.monotonic()
        click.echo(_fitted(words) if self._moves else words, err=True)

    def _paint(self, words: str) -> None:
        """Show the moving line, or take it away."""
        if not self._moves or words == self._shown:
            return
        self._shown = words = _fitted(words)
        click.echo(f"\r\x1b[K{words}", err=True, nl=False)


def _fitted(words: str) -> str:
    """Return as much as one line of the terminal takes."""
    room = shutil.get_terminal_size().columns - 1
    while width(words) > room:
        words = words[:-2] + "…"
    return words


def _node_words(event: NodeEnded, seconds: float, done: int, total: int) -> str:
    """Return a line on a node that has ended: counts, and what is not good."""
    counts = dict.fromkeys(Outcome, 0)
    for one in event.results:
        counts[one.outcome] += 1
    bad = [one for one in event.results if one.outcome in _NOTED]
    first = f"  {bad[0].check}: {bad[0].summary}" if bad else ""
    said = counts_words(counts) if event.results else "answered"
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return f"[{done}/{total}] {event.node}  {seconds:.1f} s  {said}{first}{more}"
