"""`pdtui demo`: the console, or any other command, over a simulated cluster."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from pdtui.assets import asset_dir
from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused, FileError, SimulationError, UsageError
from pdtui.topology.load import load_checked

if TYPE_CHECKING:
    from pdtui.console.glyphs import GlyphSet
    from pdtui.fleet.fleet import Fleet
    from pdtui.fleet.snapshot import Snapshot

SETTLE_SECONDS = 30.0
"""For the first answers of all nodes."""

_REFUSED = 2
"""Status of a simulator that was given what it cannot read."""

JOURNAL = "journal"
"""In the root folder: a rehearsal must not stand in the journal of the cluster that it rehearses."""


@click.command("demo")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--serve", is_flag=True, help="no console: print the topology file to use, and stay until Ctrl-C")
@click.option("--stopped", is_flag=True, help="start no ranks")
@click.option(
    "--root", type=click.Path(path_type=Path), help="folder for everything (kept); default: a temporary one"
)
@click.option("--speed", type=click.FloatRange(0.01, 1000), default=1.0, help="divides the durations of a start")
@click.option(
    "--netns",
    is_flag=True,
    help="each node with a network of its own, the file's addresses and OpenSSH's sshd",
)
@click.option("--fault", "spec", metavar="SPEC", help="switch a fault of the demo that runs, see --faults")
@click.option("--faults", is_flag=True, help="list the faults and end")
@click.option(
    "--scenario",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="faults to begin with and faults that come at their times, see sample_configs/scenarios",
)
@click.option("--theme", default=None, metavar="NAME|FILE", help="of the console")
@click.option("--glyphs", type=click.Choice(["unicode", "narrow", "ascii"]), default=None, help="of the console")
def command(
    file: Path | None,
    serve: bool,
    stopped: bool,
    root: Path | None,
    speed: float,
    netns: bool,
    spec: str | None,
    faults: bool,
    scenario: Path | None,
    theme: str | None,
    glyphs: GlyphSet,
) -> int:
    """Open the console over a simulated cluster: yours (FILE), or a small one that serves DeepSeek in 2P1D.

    Nodes, tools, ranks and their faults are simulated on this machine; nothing else is. While it runs, another
    shell can break it: pdtui demo --fault 'link node3/9 down' (`heal node3` or `heal all` mends it; --faults lists
    everything that can be broken). With --scenario faults come by themselves, each at its time.
    """
    if faults:
        from pdtui.sim.faults import describe

        click.echo(describe())
        return 0
    if spec is not None:
        if file is not None or serve or scenario is not None:
            raise UsageError("--fault is for a demo that runs already", remedy="leave FILE and --serve out")
        from pdtui.sim.control import send_fault

        click.echo(send_fault(spec, root), err=True)
        return 0
    path = file or asset_dir("sample_configs") / "demo.yaml"
    topology = load_checked(path)
    if scenario is not None:
        from pdtui.sim.scenario import read_scenario

        read_scenario(scenario, topology.nodes)
    if not serve:
        from pdtui.console.terminal import prepare_textual, require_terminal

        require_terminal("pdtui demo --serve")
        prepare_textual(slow=False)
    with _simulation(path, root, speed, netns=netns, scenario=scenario, narrate=serve) as (topology_path, process):
        if serve:
            return _serve(topology_path, process, start=not stopped)
        return _console(topology_path, start=not stopped, theme=theme, glyphs=glyphs)


@contextlib.contextmanager
def _simulation(
    path: Path, root: Path | None, speed: float, *, netns: bool, scenario: Path | None, narrate: bool
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Run the simulator in a session of its own; it also ends when this process is killed."""
    with contextlib.ExitStack() as stack:
        # SIGINT too: a shell that starts us in the background has it ignored.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _interrupt))
        if root is None:
            root = Path(tempfile.mkdtemp(prefix="pdtui-demo-"))
            # The last word, also when the simulator was killed and could not clean up.
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        argv = [sys.executable, "-m", "pdtui.sim", str(path), "--root", str(root), "--speed", str(speed)]
        argv += ["--netns"] if netns else []
        argv += ["--scenario", str(scenario)] if scenario else []
        process = subprocess.Popen(
            [*argv, "--narrate"] if narrate else argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stack.callback(_end, process)
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line:
            status = process.wait()
            if status == _REFUSED:
                raise FileError("the simulator does not take this file", remedy="what it says stands above")
            raise SimulationError(f"the simulator ended with status {status}")
        yield Path(line), process


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # A terminal that goes may say so several times, and once is enough.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[str]) -> None:
    """End the simulator: it takes every process of the cluster with it.

    A hang-up meanwhile changes nothing; Ctrl-C or TERM end it at once, its nodes with it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if process.stdin:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
    # What is left takes a moment, and would stay for ever.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _serve(path: Path, process: subprocess.Popen[str], *, start: bool) -> int:
    """Print the file, bring the ranks up, and stay."""
    try:
        click.echo(str(path))
        sys.stdout.flush()
        if start:
            asyncio.run(_bring_up(path))
        click.echo(f"the simulated cluster is there; try: pdtui status {path}", err=True)
        click.echo("it ends with Ctrl-C", err=True)
        status = process.wait()
    except KeyboardInterrupt:
        return 0
    raise SimulationError(f"the simulator ended with status {status}")


async def _bring_up(path: Path) -> None:
    """Start every rank and say how it goes."""
    from pdtui.cli.live import operator
    from pdtui.fleet.executor import DaemonExecutor
    from pdtui.fleet.fleet import Fleet
    from pdtui.topology.planner import make_plan

    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    topology = load_checked(path)
    journal = path.parent / JOURNAL
    async with Fleet(
        topology, make_plan(topology), clock=SystemClock(), read_only=False, by=operator(), journal_dir=journal
    ) as fleet:
        narrator = _Narrator()
        end = fleet.subscribe(lambda: narrator.tell(fleet.snapshot))
        try:
            done = await fleet.wait(await _submit_start(fleet))
            fleet.store.publish()
            narrator.tell(fleet.snapshot)
        except ActionRefused as refused:
            click.echo(f"not started: {refused}", err=True)
            return
        finally:
            end()
    if done.state != "done":
        click.echo(f"the start ended as {done.state}: {done.error}", err=True)


async def _submit_start(fleet: Fleet) -> str:
    """Begin to start every rank once the nodes have answered; returns the operation. Raises `ActionRefused`."""
    from pdtui.fleet.intents import StartRanks

    await fleet.settled(SETTLE_SECONDS, npus=False)
    ids = tuple(rank.id for rank in fleet.plan.ranks)
    return await fleet.submit(StartRanks(ids, reason="demo", confirm=fleet.topology.name))


async def _start_behind(fleet: Fleet) -> None:
    """Start every rank while a console looks on; a refusal is an event there."""
    try:
        await _submit_start(fleet)
    except ActionRefused as refused:
        fleet.store.event("error", "demo", f"the ranks were not started: {refused}")


class _Narrator:
    """Says on stderr where the ranks are, whenever that changes."""

    def __init__(self) -> None:
        self._said = ""

    def tell(self, snapshot: Snapshot) -> None:
        """Say it, if it is new."""
        counts = Counter(str(rank.state) for rank in snapshot.ranks)
        line = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        if line != self._said:
            self._said = line
            click.echo(f"ranks: {line}", err=True)


def _console(path: Path, *, start: bool, theme: str | None, glyphs: GlyphSet) -> int:
    """Open the console; ranks come up while it is open."""
    from pdtui.cli.live import console_on, operator
    from pdtui.console.app import run_console
    from pdtui.fleet.engine import EngineThread
    from pdtui.topology.planner import make_plan

    topology = load_checked(path)
    plan = make_plan(topology)
    engine = EngineThread(
        topology,
        plan,
        clock=SystemClock(),
        read_only=topology.safety.read_only,
        by=operator(),
        journal_dir=path.parent / JOURNAL,
    )

    def show(handle: EngineThread) -> int:
        if start and not handle.read_only:
            handle.begin(_start_behind)
        return run_console(handle, theme=theme, read_only=handle.read_only, glyphs=glyphs)

    return console_on(engine, show)
