"""`pdtui exec`: a command where a rank or a node lives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from pdtui.cli import options
from pdtui.cli.live import narrate, narrate_unwritten, operator, run
from pdtui.clock import SystemClock
from pdtui.errors import ActionRefused, AgentError, RemoteError, UsageError
from pdtui.fleet.commands import Commands, Place, places
from pdtui.fleet.journal import Journal, default_dir
from pdtui.fleet.polling import closing
from pdtui.remote.connections import Connections
from pdtui.remote.interface import Execution
from pdtui.text import decode
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan

UNREACHABLE = 255
"""Exit status when there is no connection, or it broke, as ssh has it."""

NOT_FOUND = 127
INTERRUPTED = 128 + signal.SIGINT
NOBODY_READS = 128 + signal.SIGPIPE
PIECE = 32768
_AFTER = "pdtui.exec"


class AfterDashes(click.Command):
    """A command whose words after `--` are somebody else's command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_AFTER] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command in the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARG...]"]


@click.command("exec", cls=AfterDashes)
@options.file
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("-T", "--no-tty", is_flag=True, help="No terminal, though this is one.")
@click.option("--read-only", is_flag=True, help="Refuse: a command may change things.")
@options.confirm
@click.pass_context
def command(
    ctx: click.Context, file: Path, targets: tuple[str, ...], no_tty: bool, read_only: bool, confirm: str
) -> int:
    """Run a command where ranks of FILE live, or on a node.

    TARGET decode/17, decode, role:prefill, all: in the container (if there is one), from an interactive login,
    with runtime.setup and the environment that the file gives to that rank. TARGET @node3: on the host itself.
    The command is argv; for a shell line say: -- sh -c 'LINE'.

    One target: output as it comes, stdin is the command's; a terminal if this is one. Several: at once, each line
    with its target, no stdin. Ctrl-C ends the command there. Exit status: the command's (128 + N for signal N), of
    several the highest; 255 with a message when a node cannot be reached, 2 when it was refused. Commands are in
    the journal, with what looks like a secret hidden. On a protected cluster several targets need --confirm NAME.
    """
    argv: tuple[str, ...] = ctx.meta[_AFTER]
    if not argv:
        raise UsageError("no command: pdtui exec FILE TARGET -- COMMAND")
    topology = load_checked(file)
    plan = make_plan(topology)
    where = places(targets, topology, plan)
    if not where:
        raise UsageError(f"nothing is there: {' '.join(targets)}")

    async def main() -> int:
        clock = SystemClock()
        journal = Journal(default_dir(topology.name), clock=clock, by=operator())
        async with Connections(topology, clock=clock, only={place.node for place in where}) as connections:
            commands = Commands(
                topology, plan, connections.links, clock=clock, journal=journal, read_only=read_only
            )
            try:
                commands.check(where, confirm)
            except ActionRefused as refused:
                # Exit status 1 is a command's own.
                raise UsageError(refused.message, remedy=refused.remedy) from None
            try:
                interrupts = _Interrupts()
                runs = [_Run(commands, place, argv, interrupts) for place in where]
                if len(runs) > 1:
                    return max(await asyncio.gather(*(run.several() for run in runs)))
                return await runs[0].alone(not no_tty and os.isatty(0) and os.isatty(1))
            finally:
                await commands.close()
                narrate_unwritten(journal.error)

    try:
        return run(main)
    except asyncio.CancelledError:
        narrate("interrupted; what still ran is ended there")
        return INTERRUPTED


class _Run:
    """One command in one place."""

    def __init__(self, commands: Commands, place: Place, argv: Sequence[str], interrupts: _Interrupts) -> None:
        self._commands = commands
        self._interrupts = interrupts
        self._place = place
        self._argv = argv
        self._begun = False

    async def alone(self, wants_tty: bool) -> int:
        """Run with this command's own streams."""

        async def run() -> int:
            size = shutil.get_terminal_size()
            spec = self._commands.spec(
                self._place,
                self._argv,
                (size.lines, size.columns) if wants_tty else None,
                os.environ.get("TERM", ""),
            )
            execution = await self._commands.begin(self._place, spec, self._argv)
            self._begun = True
            loop = asyncio.get_running_loop()
            with (
                _raw_terminal(wants_tty),
                self._interrupts.resize(execution, wants_tty),
                self._interrupts.reach(execution),
            ):
                threading.Thread(target=_feed, args=(execution, loop), daemon=True).start()
                async with closing(execution.output()) as output:
                    async for chunk in output:
                        # In a thread: a reader that is slow must not keep the connection from living.
                        await asyncio.to_thread(_write, 1 if chunk.stream == "out" else 2, chunk.data)
            return _status(execution)

        return await self._noted(run)

    async def several(self) -> int:
        """Run beside others: lines with their place, nothing to read."""

        async def run() -> int:
            execution = await self._commands.begin(
                self._place, self._commands.spec(self._place, self._argv, None), self._argv
            )
            self._begun = True
            rest = {"out": b"", "err": b""}
            loop = asyncio.get_running_loop()
            ending = loop.create_task(execution.end_input())
            with self._interrupts.reach(execution):
                async with closing(execution.output()) as output:
                    async for chunk in output:
                        *lines, rest[chunk.stream] = (rest[chunk.stream] + chunk.data).split(b"\n")
                        await asyncio.to_thread(self._echo, lines, chunk.stream)
            await ending
            for stream, line in rest.items():
                self._echo([line] if line else [], stream)
            return _status(execution)

        return await self._noted(run)

    def _echo(self, lines: Sequence[bytes], stream: str) -> None:
        text = "".join(f"{self._place.name:<10} {decode(line)}\n" for line in lines)
        if text:
            _write(2 if stream == "err" else 1, text.encode())

    async def _noted(self, run: Callable[[], Awaitable[int]]) -> int:
        result, status = "interrupted", UNREACHABLE
        try:
            status = await run()
            result = f"exit {status}"
        except BrokenPipeError:
            status, result = NOBODY_READS, "ended: nobody read its output"
        except AgentError as error:
            status = NOT_FOUND if error.code == "not_found" else 126
            result = error.message
            narrate(f"pdtui: {self._place.name}: {error.message}")
        except RemoteError as error:
            result = error.message
            what = "the connection broke; the command is ended there" if self._begun else "cannot be reached"
            remedy = f" ({'; '.join(error.remedy.splitlines())})" if error.remedy else ""
            narrate(f"pdtui: {self._place.name}: {what}: {error.message}{remedy}")
        finally:
            if self._begun:
                self._commands.end(self._place, self._argv, result)
        return status


def _status(execution: Execution) -> int:
    status = execution.status
    if status is None:
        return UNREACHABLE
    return status if status >= 0 else 128 - status


def _write(descriptor: int, data: bytes) -> None:
    """Write all; raises `BrokenPipeError` when nobody reads."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _feed(execution: Execution, loop: asyncio.AbstractEventLoop) -> None:
    """Give the command what is on stdin, piece by piece as it takes it. In a thread that may wait for ever."""
    with suppress(RuntimeError, RemoteError, OSError, asyncio.CancelledError):  # The command or the loop is gone.
        while data := os.read(0, PIECE):
            asyncio.run_coroutine_threadsafe(execution.write(data), loop).result()
        asyncio.run_coroutine_threadsafe(execution.end_input(), loop).result()


@contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Send every key to the far end, Ctrl-C too, and put the terminal back."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


class _Interrupts:
    """Passes Ctrl-C on to what runs: as it is, then as KILL. A third one, or one too early, ends this command."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._running: set[Execution] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pressed = 0
        self._loop.add_signal_handler(signal.SIGINT, self._press)

    @contextmanager
    def reach(self, execution: Execution) -> Iterator[None]:
        """Pass signals on to this one."""
        self._running.add(execution)
        try:
            yield
        finally:
            self._running.discard(execution)

    @contextmanager
    def resize(self, execution: Execution, wanted: bool) -> Iterator[None]:
        """Tell a command of each new size of the window."""
        if not wanted:
            yield
            return

        def tell() -> None:
            size = shutil.get_terminal_size()
            self._begin(execution.resize(size.lines, size.columns))

        self._loop.add_signal_handler(signal.SIGWINCH, tell)
        try:
            yield
        finally:
            self._loop.remove_signal_handler(signal.SIGWINCH)

    def _press(self) -> None:
        self._pressed += 1
        if self._main is not None and (self._pressed > 2 or not self._running):
            self._main.cancel()
        for execution in self._running:
            self._begin(execution.signal(signal.SIGINT if self._pressed == 1 else signal.SIGKILL))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        async def quietly() -> None:
            with suppress(RemoteError):  # Its output ends then, which says why.
                await work

        task = self._loop.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
