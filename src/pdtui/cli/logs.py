"""`pdtui logs`: the logs of ranks, several merged on one clock."""

from __future__ import annotations

import asyncio
import errno
import re
import select
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path

import click

from pdtui.cli.actions import no_rank, targets_of
from pdtui.cli.live import narrate, with_fleet
from pdtui.clock import SystemClock
from pdtui.errors import RemoteError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.handle import LogLine
from pdtui.fleet.logs import Merger, follow_merged, log_source, read_tail
from pdtui.fleet.polling import closing
from pdtui.fleet.snapshot import RankStatus

DEFAULT_LINES = 100
BYTES_A_LINE = 400
"""Fetched for each line that is asked for; vLLM's lines are about half as long."""

LEAST_BYTES = 65536
READ_TIMEOUT = 20.0
CLOSED_INTERVAL = 0.5
"""Seconds between two looks whether anybody reads what is followed."""

_RUN = re.compile(r"/run-(\d+)/log$")


@click.command("logs")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=DEFAULT_LINES,
    show_default=True,
    help="Lines of each rank to begin with.",
)
@click.option("--previous", is_flag=True, help="The run before the last one.")
def command(file: Path, targets: tuple[str, ...], follow: bool, lines: int, previous: bool) -> int:
    """Print the logs of ranks of FILE; several are merged in the order of their times, each line with its rank.

    TARGET: decode/17, decode/0-7, decode, @node3, role:prefill, failed, all. Exit status: 1 when a log could not
    be read.
    """
    if follow and previous:
        raise click.UsageError("--follow and --previous exclude each other: a previous run writes no more")

    async def work(fleet: Fleet) -> int:
        ids = targets_of(fleet, targets)
        if not ids:
            narrate(f"nothing to show: {no_rank(targets)}")
            return 0
        offsets = {rank_id: _offset(fleet, rank_id) for rank_id in ids}
        if follow:
            return await _while_read(_follow(fleet, ids, lines, offsets))
        return await _print(fleet, ids, lines, offsets, previous=previous)

    return with_fleet(file, work, read_only=True, npus=False, targets=targets)


async def _print(
    fleet: Fleet, ids: Sequence[str], lines: int, offsets: Mapping[str, float], *, previous: bool
) -> int:
    read = await asyncio.gather(*(_read(fleet, rank_id, lines, previous=previous) for rank_id in ids))
    held = {rank_id: found for rank_id, found in zip(ids, read, strict=True) if found is not None}
    for rank_id, line in Merger(offsets).merge({rank_id: found[-lines:] for rank_id, found in held.items()}):
        _echo(rank_id, line, prefix=len(ids) > 1)
    return 0 if len(held) == len(ids) else 1


async def _read(fleet: Fleet, rank_id: str, lines: int, *, previous: bool) -> Sequence[LogLine] | None:
    """Return a rank's last lines; None, narrated, when they cannot be read."""
    status = fleet.store.ranks[rank_id]
    agent = fleet.agent(status.node)
    path = _previous(status) if previous else status.log
    if agent is None:
        narrate(f"{rank_id}: {status.node} is unreachable")
        return None
    if not path:
        none = f"there is no {'previous ' if previous else ''}log: it has not been started"
        narrate(f"{rank_id}: {none if previous else status.log_note or none}")
        return None
    if status.log_note and not previous:
        narrate(f"{rank_id}: {status.log_note}")
    source = log_source(status, 0.0)
    if lines == 0:
        return ()
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            tail = max(LEAST_BYTES, lines * BYTES_A_LINE)
            found = await read_tail(agent, path, clock=SystemClock(), tail=tail * (16 if source.pids else 1))
            return [line for line in found if source.mine(line.text)]
    except TimeoutError:
        narrate(f"{rank_id}: {status.node} gave no answer within {READ_TIMEOUT:.0f} s")
    except RemoteError as error:
        narrate(f"{rank_id}: {error.message}")
    return None


def _previous(status: RankStatus) -> str:
    """Return where the log of the run before is; each run has a folder with its number (agent, `RankDir`)."""
    match = _RUN.search(status.log)
    if match is None or int(match[1]) < 2:
        return ""
    return f"{status.log[: match.start()]}/run-{int(match[1]) - 1}/log"


async def _while_read(work: Coroutine[None, None, int]) -> int:
    """Do `work` while somebody reads stdout. Raises `BrokenPipeError` when nobody does, written to or not."""
    working = asyncio.ensure_future(work)
    tasks = (working, asyncio.ensure_future(_stdout_closed()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise BrokenPipeError(errno.EPIPE, "nobody reads stdout")
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stdout_closed() -> None:
    """Return when the other end of stdout is gone: `logs -f | head` ends though no more lines come."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # Errors and hang-ups are always reported.
    while not poller.poll(0):
        await SystemClock().sleep(CLOSED_INTERVAL)


async def _follow(fleet: Fleet, ids: Sequence[str], lines: int, offsets: Mapping[str, float]) -> int:
    told: dict[str, str] = {}
    merged = follow_merged(fleet, ids, clock=SystemClock(), last=lines, offsets=offsets)
    async with closing(merged) as batches:
        async for batch in batches:
            for rank_id, line in batch:
                _echo(rank_id, line, prefix=len(ids) > 1)
            for rank_id in ids:
                error = fleet.log(rank_id).error
                if error and told.get(rank_id, "") != error:
                    narrate(f"{rank_id}: {error}")
                told[rank_id] = error
    return 0


def _offset(fleet: Fleet, rank_id: str) -> float:
    status = fleet.store.ranks[rank_id]
    return fleet.store.nodes[status.node].clock_offset


def _echo(rank_id: str, line: LogLine, *, prefix: bool) -> None:
    click.echo(f"{rank_id:<10} {line.text}" if prefix else line.text)
