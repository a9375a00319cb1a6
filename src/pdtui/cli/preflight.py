"""`pdtui preflight`: live checks over the nodes before something is started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import click

from pdtui.cli import options
from pdtui.cli.live import narrate, narrate_unwritten, operator, run, with_fleet
from pdtui.cli.output import print_json
from pdtui.cli.preflight_progress import Narrator
from pdtui.clock import SystemClock
from pdtui.errors import FileError, UsageError
from pdtui.fleet.acknowledging import acknowledged
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.journal import Journal, default_dir
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.check import chosen
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.compare import Comparison, compare
from pdtui.fleet.preflight.desk import PreflightDesk
from pdtui.fleet.preflight.events import Ended, PreflightEvent
from pdtui.fleet.preflight.markdown import markdown_of
from pdtui.fleet.preflight.report import PreflightReport, read_report
from pdtui.fleet.preflight.request import Pings, PreflightRequest, nodes_asked
from pdtui.fleet.preflight.text import comparison_of, text_of
from pdtui.fleet.snapshot import Acknowledgement
from pdtui.remote.connections import Connections
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the checks and end, before a FILE is asked for."""
    if wanted and not context.resilient_parsing:
        load()
        for one in chosen(()):
            click.echo(f"{one.id:20} {one.title}")
        context.exit()


@click.command("preflight")
@options.file
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--only", metavar="CHECK[,CHECK...]", default="", help="Only these checks; `--list` names them.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Print the checks and end."
)
@click.option(
    "--pings",
    type=click.Choice(["auto", "force", "full", "off"]),
    default="auto",
    show_default=True,
    help="Pings between NPUs: not on devices that a process uses (auto), there too (force), every pair (full).",
)
@click.option("--all", "every", is_flag=True, help="Also print everything that is as it should be.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE.md",
    help="Write the report as Markdown.",
)
@click.option(
    "--compare",
    "compare_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="OLD.json",
    help="Say what has changed since an earlier run (its --json).",
)
@click.option("--allow-unknown", is_flag=True, help="Exit 0 also when something is unknown.")
@options.as_json
def command(
    file: Path,
    targets: tuple[str, ...],
    only: str,
    pings: Pings,
    every: bool,
    report_path: Path | None,
    compare_path: Path | None,
    allow_unknown: bool,
    as_json: bool,
) -> int:
    """Look over the nodes of FILE: everything that must be right before ranks start. Changes nothing on them.

    TARGET: decode/17, decode, @node3, role:prefill, proxy, failed, all: their nodes. Without: all nodes.
    Exit status: 1 when a check failed or could not be answered, unless that is acknowledged (pdtui ack).
    """
    load()
    request = PreflightRequest(targets, tuple(word.strip() for word in only.split(",") if word.strip()), pings)
    chosen(request.only)
    old = read_report(compare_path) if compare_path is not None else None
    if report_path is not None and not report_path.absolute().parent.is_dir():
        raise UsageError(f"--report {report_path}: there is no folder {report_path.parent}")
    report = _Run(file, request, as_json=as_json, every=every, report_path=report_path).carry_out()
    if isinstance(report, int):
        return report
    changes = compare(old, report, str(compare_path)) if old is not None else None
    # The file first: stdout may be a pipe that is closed by now. What was found is shown though a disk is full.
    unwritten = _write(report_path, markdown_of(report, changes)) if report_path is not None else ""
    _show(report, changes, as_json=as_json, every=every)
    if unwritten:
        raise FileError(unwritten)
    return 0 if report.good(allow_unknown=allow_unknown) else 1


def _show(report: PreflightReport, changes: Comparison | None, *, as_json: bool, every: bool) -> None:
    if as_json:
        compared = {title.replace(" ", "_"): list(lines) for title, lines in changes.parts} if changes else None
        print_json({**report.as_json(), **({"changes": compared} if compared is not None else {})})
        return
    for line in text_of(report, every=every):
        click.echo(line)
    if changes is not None:
        click.echo("")
        for line in comparison_of(changes):
            click.echo(line)


def _write(path: Path, text: str) -> str:
    """Write a report; returns why that could not be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"the report is not written: {path}: {error.strerror}"
    narrate(f"report written to {path}")
    return ""


class _Run:
    """One preflight from the command line."""

    def __init__(
        self, file: Path, request: PreflightRequest, *, as_json: bool, every: bool, report_path: Path | None
    ) -> None:
        self._file = file
        self._request = request
        self._as_json = as_json
        self._every = every
        self._report_path = report_path
        self._report: PreflightReport | None = None

    def carry_out(self) -> PreflightReport | int:
        """Run it to its report; an exit status when it was interrupted by a signal."""
        if "failed" in self._request.targets:  # Who has failed is known only after a look at the ranks.
            status = with_fleet(self._file, self._on_fleet, read_only=True, npus=False)
        else:
            status = run(self._alone)
        return self._report if self._report is not None and self._report.complete else status

    async def _on_fleet(self, fleet: Fleet) -> int:
        status = await self._follow(fleet.preflight(self._request), lambda: fleet.last_preflight)
        self._mark(fleet.snapshot.acknowledgements)
        return status

    async def _alone(self) -> int:
        """Reach only the nodes that are asked, and ask nothing else of them."""
        topology = load_checked(self._file)
        plan = make_plan(topology)
        nodes = nodes_asked(self._request.targets, topology, plan)
        clock = SystemClock()
        journal = Journal(default_dir(topology.name), clock=clock, by=operator())
        async with Connections(topology, clock=clock, only=nodes) as connections:
            desk = PreflightDesk(topology, plan, connections.links, clock=clock, by=operator(), journal=journal)
            status = await self._follow(desk.run(self._request, nodes), lambda: desk.last)
            self._mark(await acknowledged(connections.links, topology, plan, clock=clock, journal=journal))
        narrate_unwritten(journal.error)
        return status

    def _mark(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        if self._report is not None:
            self._report = self._report.with_known(acknowledgements)

    async def _follow(
        self, events: AsyncIterator[PreflightEvent], last: Callable[[], PreflightReport | None]
    ) -> int:
        narrator = Narrator(SystemClock())
        try:
            async with narrator, closing(events) as found:
                async for event in found:
                    narrator.take(event)
                    if isinstance(event, Ended):
                        self._report = event.report
        except asyncio.CancelledError:
            narrator.interrupted()
            report = last()
            if (
                report is not None
                and self._report_path is not None
                and (unwritten := _write(self._report_path, markdown_of(report)))
            ):
                narrate(unwritten)
            if report is not None and not self._as_json:
                for line in text_of(report, every=self._every):
                    click.echo(line)
            raise
        return 0
