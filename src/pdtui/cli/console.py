"""`pdtui FILE`: the console on a topology file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdtui.cli.check import table
from pdtui.cli.lasting import lasting
from pdtui.clock import SystemClock
from pdtui.errors import FileError
from pdtui.topology.findings import Finding, Severity
from pdtui.topology.load import load
from pdtui.topology.model import Topology
from pdtui.topology.planner import make_plan

if TYPE_CHECKING:
    from pdtui.console.glyphs import GlyphSet


@click.command("console")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--read-only", is_flag=True, help="refuse everything that changes the cluster")
@click.option("--theme", default=None, metavar="NAME|FILE", help="dark, light, ansi16, one of your own, or a file")
@click.option(
    "--glyphs",
    type=click.Choice(["unicode", "narrow", "ascii"]),
    default=None,
    help="narrow: for terminals that draw some signs two cells wide",
)
@click.option("--quiet", is_flag=True, help="no bell when something gets worse (in the console: B)")
@click.option("--slow", is_flag=True, help="for bad links: paint once a second, no mouse")
def command(
    file: Path, read_only: bool, quiet: bool, theme: str | None, glyphs: GlyphSet | None, slow: bool
) -> int:
    """Open the console on a topology file."""
    from pdtui.console.terminal import prepare_textual, require_terminal

    topology, findings = _load(file)
    require_terminal(f"pdtui status {shlex.quote(str(file))}")
    prepare_textual(slow=slow)
    with lasting():
        from pdtui.cli.live import console_on, operator
        from pdtui.console.app import run_console
        from pdtui.fleet.engine import EngineThread

    plan = make_plan(topology)
    read_only = read_only or topology.safety.read_only
    engine = EngineThread(topology, plan, clock=SystemClock(), read_only=read_only, by=operator())

    def show(handle: EngineThread) -> int:
        return run_console(
            handle, theme=theme, read_only=read_only, quiet=quiet, glyphs=glyphs, slow=slow, findings=findings
        )

    return console_on(engine, show)


def _load(file: Path) -> tuple[Topology, tuple[Finding, ...]]:
    """Return the checked topology and its warnings; prints them and raises `FileError` when there are errors."""
    loaded = load(file)
    errors = [finding for finding in loaded.findings if finding.severity is Severity.ERROR]
    if loaded.topology is None or errors:
        for line in table(loaded.findings):
            click.echo(line, err=True)
        raise FileError(f"{file}: {len(errors)} error(s); no console", remedy=f"pdtui check {file}")
    return loaded.topology, loaded.findings
