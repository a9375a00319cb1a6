"""`pdtui journal`: who did what, when, from where, and with what result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from pdtui.cli import options
from pdtui.cli.live import narrate, operator, with_fleet
from pdtui.cli.output import print_json
from pdtui.clock import SystemClock
from pdtui.errors import RemoteError, UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.journal import LIMIT, Journal, Parsed, default_dir, key_of, merge, parse
from pdtui.fleet.targets import in_short, resolve
from pdtui.fleet.watching.watch import TRANSITIONS
from pdtui.text import clean_line
from pdtui.topology.load import load_checked
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan
from pdtui.topology.planner import make_plan

DEFAULT_LINES = 50
READ_TIMEOUT = 20.0
"""Seconds that a node has to send its journal."""

READ_BYTES = 2 * LIMIT
"""All that a journal may hold."""

NEWS_BYTES = 1 << 17
"""Read of each journal at each look of `--follow`."""

HERE_INTERVAL = 1.0
NODES_INTERVAL = 3.0

_PLAIN = frozenset(
    (
        "id",
        "at",
        "who",
        "from",
        "event",
        "received",
        "operation",
        "ranks",
        "rank",
        "node",
        "nodes",
        "result",
        "state",
    )
)
"""Fields that have a place of their own in a line, or are for programs."""

Entry = Mapping[str, object]


class Since(click.ParamType[float]):
    """`90s`, `30m`, `2h`, `3d`, or a local time as `2026-11-30 17:00`; becomes seconds since the epoch."""

    name = "TIME"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it, or fail with a usage error."""
        if isinstance(value, float):
            return value
        if (seconds := options.span_seconds(value)) is not None:
            return time.time() - seconds
        for shape in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"):
            try:
                return time.mktime(time.strptime(value.strip(), shape))
            except (ValueError, OverflowError):
                continue
        self.fail(f"{clean_line(value)!r} is no time: 30m, 2h, 3d, or 2026-11-30 17:00", param, ctx)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are asked for."""

    targets: tuple[str, ...]
    ranks: frozenset[str]
    nodes: frozenset[str]
    since: float

    def holds(self, entry: Entry) -> bool:
        """Return whether an entry is one of them."""
        at = entry.get("at")
        if not isinstance(at, int | float) or at < self.since:
            return False
        return (
            not self.targets or bool(self.ranks & set(ranks_of(entry))) or bool(self.nodes & set(nodes_of(entry)))
        )


@dataclass
class Reader:
    """Reads the journals, and remembers what it has told."""

    topology: Topology
    wanted: Wanted
    fleet: Fleet | None = None
    transitions: bool = False
    """Also what `pdtui watch` has written here."""
    told: set[str] = field(default_factory=set)
    bad: dict[str, int] = field(default_factory=dict)

    async def entries(self, limit: int, *, nodes: bool = True) -> Sequence[Entry]:
        """Return what is asked for, oldest first."""
        here = self._here(limit)
        there = await self._nodes(limit) if self.fleet is not None and nodes else []
        return [entry for entry in merge(here, there) if self.wanted.holds(entry)]

    def news(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return those that were not told before."""
        fresh = [entry for entry in entries if key_of(entry) not in self.told]
        self.told.update(map(key_of, fresh))
        return fresh

    def _take(self, where: str, data: bytes, limit: int) -> Sequence[Entry]:
        read: Parsed = parse(data, cut=len(data) >= limit)
        self.bad[where] = read.bad
        return read.entries

    def _here(self, limit: int) -> Sequence[Entry]:
        names = ("journal", TRANSITIONS) if self.transitions else ("journal",)
        return [entry for name in names for entry in self._read(name, limit)]

    def _read(self, name: str, limit: int) -> Sequence[Entry]:
        journal = Journal(default_dir(self.topology.name), clock=SystemClock(), by=operator(), name=name)
        try:
            return self._take(str(journal.path), journal.tail(limit), limit)
        except OSError as error:
            narrate(f"{journal.path}: {error.strerror}")
            return ()

    async def _nodes(self, limit: int) -> Sequence[tuple[float, Sequence[Entry]]]:
        read = await asyncio.gather(*(self._node(node, limit) for node in self.topology.nodes))
        return [one for one in read if one is not None]

    async def _node(self, node: str, limit: int) -> tuple[float, Sequence[Entry]] | None:
        assert self.fleet is not None  # noqa: S101
        agent = self.fleet.agent(node)
        if agent is None:
            return None  # Said when it was found to be so.
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                offset = await agent.clock_offset()
                data = await agent.journal_tail(self.topology.name, limit=limit)
        except (RemoteError, TimeoutError) as error:
            narrate(f"{node}: its journal cannot be read: {error or 'no answer'}")
            return None
        return offset, self._take(node, data, limit)

    def complain(self) -> None:
        """Say how many lines were no entries."""
        for where, count in self.bad.items():
            if count:
                narrate(f"{where}: {count} line{'s' if count > 1 else ''} could not be read")


@click.command("journal")
@options.file
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--transitions", is_flag=True, help="Also what `pdtui watch` saw change, as far as it ran here.")
@click.option("--nodes", is_flag=True, help="Also what the nodes hold: actions of other consoles.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=DEFAULT_LINES,
    show_default=True,
    help="The newest entries to print.",
)
@click.option("--since", type=Since(), default=0.0, help="Only newer ones: 30m, 2h, 3d, 2026-11-30 17:00.")
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted.")
@options.as_json
def command(
    file: Path,
    targets: tuple[str, ...],
    transitions: bool,
    nodes: bool,
    lines: int,
    since: float,
    follow: bool,
    as_json: bool,
) -> int:
    """Print who did what on the cluster of FILE: when, from where, on what, why, with what result.

    Kept here ($XDG_STATE_HOME/pdtui) of what was done from this machine, and on the nodes of what was done on them
    from anywhere; --nodes puts both in one order on this machine's clock. TARGET: decode/17, decode, @node3,
    role:prefill, all. With --follow, --json prints an entry a line.
    """
    topology = load_checked(file)
    wanted = _wanted(targets, topology, make_plan(topology), since)

    async def work(fleet: Fleet | None) -> int:
        reader = Reader(topology, wanted, fleet, transitions)
        entries = reader.news(await reader.entries(READ_BYTES))
        shown = entries[-lines:] if lines else ()
        reader.complain()
        if as_json and not follow:
            print_json({"schema_version": 1, "entries": list(shown), "bad_lines": sum(reader.bad.values())})
            return 0
        show = _as_json if as_json else as_line
        for entry in shown:
            click.echo(show(entry))
        if follow:
            await _follow(reader, show)
        return 0

    if nodes:
        return with_fleet(file, work, read_only=True, npus=False)
    return asyncio.run(_local(work))


async def _local(work: Callable[[Fleet | None], Awaitable[int]]) -> int:
    return await work(None)


async def _follow(reader: Reader, show: Callable[[Entry], str]) -> None:
    clock = SystemClock()
    asked = clock.monotonic()
    while True:
        await clock.sleep(HERE_INTERVAL)
        nodes = clock.monotonic() - asked >= NODES_INTERVAL
        asked = clock.monotonic() if nodes else asked
        for entry in reader.news(await reader.entries(NEWS_BYTES, nodes=nodes)):
            click.echo(show(entry))


def _wanted(targets: Sequence[str], topology: Topology, plan: Plan, since: float) -> Wanted:
    if "failed" in targets:
        raise UsageError("the journal does not know what is failed now: name the ranks or the group")
    ranks = resolve(targets, topology, plan) if targets else ()
    nodes = (target[1:] for target in targets if target.startswith("@"))
    return Wanted(tuple(targets), frozenset(ranks), frozenset(nodes), since)


def _as_json(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=True)


def ranks_of(entry: Entry) -> tuple[str, ...]:
    """Return the ranks that an entry names."""
    ranks = entry.get("ranks")
    found = ranks if isinstance(ranks, list) else [entry.get("rank")]
    return tuple(clean_line(rank) for rank in found if isinstance(rank, str))


def nodes_of(entry: Entry) -> tuple[str, ...]:
    """Return the nodes that an entry names."""
    nodes = entry.get("nodes")
    found = nodes if isinstance(nodes, list) else [entry.get("node")]
    return tuple(node for node in found if isinstance(node, str) and node)


def as_line(entry: Entry) -> str:
    """Return an entry as one line: when, who from where, what, on what, why and with what result."""
    at = entry.get("at")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at if isinstance(at, int | float) else 0))
    origin = _text(entry.get("from"))
    who = f"{_text(entry.get('who')) or '-'}{f' ({origin})' if origin not in ('', 'local') else ''}"
    if entry.get("event") == "transition":
        mark = "known" if entry.get("acknowledged") is True else "WORSE" if entry.get("worse") is True else ""
        return f"{when}  {mark:5}  {_text(entry.get('subject'))}  {_text(entry.get('summary'))}"
    what = _text(entry.get("event"))
    result = entry.get("result")  # Of an operation a mapping of its ranks, which are in its error as well.
    if state := _text(entry.get("state")) or (result if isinstance(result, str) else ""):
        what = f"{what}: {_text(state)}"
    on = in_short(ranks_of(entry)) or ", ".join(f"@{_text(node)}" for node in nodes_of(entry))
    details = [_detail(key, value) for key, value in entry.items() if key not in _PLAIN]
    return "  ".join(part for part in (when, who, what, on, "; ".join(filter(None, details))) if part)


def _detail(key: str, value: object) -> str:
    if value in ("", None, [], {}):
        return ""
    if key == "seconds" and isinstance(value, int | float):
        return f"after {value:.0f} s"
    if key == "until" and isinstance(value, int | float):
        return f"until {time.strftime('%m-%d %H:%M', time.localtime(value))}"
    if key == "folders" and isinstance(value, dict) and len(value) > 1:
        rank, folder = next(iter(value.items()))
        return f"{len(value)} folders: {_text(rank)} {_text(folder)} …"
    if key == "lease" and isinstance(value, dict):
        by, origin, verb, what = (_text(value.get(name)) for name in ("by", "from", "verb", "what"))
        return f"of {by}{f' ({origin})' if origin not in ('', 'local') else ''}: {verb} {what}"
    if isinstance(value, dict):
        words = ", ".join(f"{_text(name)} {_text(item)}" for name, item in value.items())
    elif isinstance(value, list):
        words = ", ".join(map(_text, value))
    else:
        words = _text(value)
    return f"{_text(key)}: {words}"


def _text(value: object) -> str:
    return clean_line(value if isinstance(value, str) else "" if value is None else str(value))
