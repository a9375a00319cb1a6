"""`pdtui watch`: a line for each change, a journal of them, a hook, Prometheus; for weeks, without a screen."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from pdtui.cli import options
from pdtui.cli.line_writer import LineWriter
from pdtui.cli.live import SETTLE, narrate, operator, with_fleet
from pdtui.cli.status import read_all
from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.journal import default_dir
from pdtui.fleet.snapshot import NodeState, Snapshot
from pdtui.fleet.transitions import Transition
from pdtui.fleet.troubles import Trouble, troubles
from pdtui.fleet.watching.hook import LIMIT, Hook, parse_command
from pdtui.fleet.watching.watch import Watch, as_json, summary
from pdtui.topology.redact import redacted_text

PORT = 9741
"""Where Prometheus finds it unless another port is named."""

SHOWN = 8
"""Troubles that the summary at the start names."""


@click.command("watch")
@options.file
@click.option(
    "--json", "json_lines", is_flag=True, help="A line of JSON for each change, the state at the start first."
)
@click.option("--only", type=click.Choice(["worse"]), default=None, help="Tell (and hand to the hook) only these.")
@click.option(
    "--hook", default="", metavar="COMMAND", help="Run it for each change, without a shell, JSON on stdin."
)
@click.option(
    "--hook-timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=LIMIT,
    show_default=True,
    metavar="SECONDS",
    help="How long a run of the hook may take.",
)
@click.option(
    "--prometheus",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=PORT,
    default=None,
    metavar="[PORT]",
    help=f"Answer scrapes on 127.0.0.1 (port {PORT}; 0: any).",
)
def command(
    file: Path,
    json_lines: bool,
    only: Literal["worse"] | None,
    hook: str,
    hook_timeout: float,
    prometheus: int | None,
) -> int:
    """Watch FILE's cluster without a screen until it is ended: a line on stdout for each change.

    Nodes, NPUs, ranks, alarms, the service, and the file itself. Changes are kept in $XDG_STATE_HOME/pdtui (`pdtui
    journal FILE --transitions`). What is acknowledged is marked, and never handed to the hook. Ranks are not
    touched. Exit status: 0 after SIGTERM, 130 after Ctrl-C.
    """
    words = parse_command(hook) if hook else ()

    async def work(fleet: Fleet) -> int:
        await read_all(fleet, SETTLE)
        fleet.store.publish()
        return await _watch(
            fleet,
            json_lines=json_lines,
            only_worse=only == "worse",
            hook=words,
            limit=hook_timeout,
            port=prometheus,
        )

    status = with_fleet(file, work, wait=SETTLE)
    return 0 if status == 128 + signal.SIGTERM else status


async def _watch(
    fleet: Fleet, *, json_lines: bool, only_worse: bool, hook: tuple[str, ...], limit: float, port: int | None
) -> int:
    clock, loop = SystemClock(), asyncio.get_running_loop()
    broken: asyncio.Future[OSError] = loop.create_future()

    def failed(error: OSError) -> None:  # Once: its thread has ended then.
        loop.call_soon_threadsafe(broken.set_result, error)

    writer, narrator = LineWriter(failed), LineWriter(lambda _: None, descriptor=2)
    runner = Hook(hook, clock=clock, tell=narrator.write, limit=limit) if hook else None
    watch = Watch(
        fleet,
        clock=clock,
        by=operator(),
        folder=default_dir(fleet.topology.name),
        tell=lambda one: writer.write(as_json(one, fleet.topology.name) if json_lines else as_line(one)),
        complain=narrator.write,
        only_worse=only_worse,
        hook=runner,
    )
    with _scraped(fleet, watch, runner, port):
        snapshot = fleet.snapshot
        writer.write(json.dumps(summary(snapshot), ensure_ascii=False) if json_lines else as_summary(snapshot))
        watching = asyncio.ensure_future(watch.run())
        try:
            await asyncio.wait((watching, broken), return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                raise broken.result()
            await watching
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if lost := writer.close():
                narrator.write(f"{lost} lines were not written: nobody read them")
            narrator.close()
    return 0


@contextmanager
def _scraped(fleet: Fleet, watch: Watch, hook: Hook | None, port: int | None) -> Iterator[None]:
    """Answer Prometheus meanwhile, if that is asked for."""
    if port is None:
        yield
        return
    from pdtui.fleet.watching.exporter import Exporter, serve

    exporter = Exporter(
        lambda: fleet.store.snapshot,
        SystemClock().wall,
        transitions=watch.counts,
        hook_runs=hook.runs if hook is not None else None,
        hook_waiting=lambda: hook.waiting if hook is not None else 0,
    )
    server, thread = serve(exporter, port)
    narrate(f"Prometheus: http://{server.server_address[0]!s}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def as_line(one: Transition) -> str:
    """Return a transition as a line: when, whether it is worse (or known), of what, what."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
    mark = "known" if one.acknowledged else "WORSE" if one.worse else ""
    return f"{when}  {mark:5}  {one.subject}  {one.summary}"


def as_summary(snapshot: Snapshot) -> str:
    """Return the present state as one line."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.made_at))
    serving, nodes = snapshot.serving, snapshot.nodes
    here = sum(node.state is NodeState.CONNECTED for node in nodes)
    found = troubles(snapshot)
    told = [one for one in found if snapshot.acknowledged(one.key) is None]
    parts = [
        f"{snapshot.cluster} {serving.word}",
        f"P {serving.prefill_ready}/{serving.prefill_total} D {serving.decode_ready}/{serving.decode_total}",
        f"{here}/{len(nodes)} nodes",
        _wrong(told, _taken_along(snapshot)),
        f"{len(found) - len(told)} acknowledged" if len(found) > len(told) else "",
    ]
    return f"{when}  watching: {', '.join(filter(None, parts))}"


def _taken_along(snapshot: Snapshot) -> frozenset[str]:
    """Return the ranks that another one took with it: naming that one is enough."""
    return frozenset(
        rank.id
        for rank in snapshot.ranks
        if rank.diagnosis is not None and rank.diagnosis.first_cause not in ("", rank.id)
    )


def _wrong(told: list[Trouble], taken: frozenset[str]) -> str:
    if not told:
        return "nothing wrong"
    order = ("error", "warning", "info")
    roots = [one for one in told if not (one.kind == "rank" and one.subject in taken)] or told
    first = sorted(roots, key=lambda one: order.index(one.severity))[:SHOWN]
    more = f", and {len(told) - len(first)} more" if len(told) > len(first) else ""
    return f"{len(told)} wrong ({'; '.join(f'{one.subject} {redacted_text(one.summary)}' for one in first)}{more})"
