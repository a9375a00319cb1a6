"""The `pdtui` command: finds commands by name and imports only the one that runs.

`pdtui FILE` is `pdtui console FILE`. Exit status: 0 done, 1 the command's own «not good», 2 usage errors and
unreadable files, 130 interrupted. stdout is data, stderr is narration.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import keyword
import os
import sys
from typing import Any

import click

from pdtui import __version__
from pdtui.cli.lasting import lasting
from pdtui.errors import FileError, PdtuiError, UsageError
from pdtui.text import clean_line, did_you_mean

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})
"""Errors of a disk that takes no more."""

COMMANDS = {
    "console": "open the console on a topology file (also: pdtui FILE)",
    "demo": "the console over a simulated cluster",
    "check": "static findings of a topology file",
    "plan": "ranks, devices, commands and the port map",
    "diff": "what changes between two topology files, or between a file and what runs",
    "render": "the scripts that do by hand what the file says",
    "import": "scripts of today, a whole guide, or what runs on hosts now, as a topology file",
    "schema": "JSON Schema of the topology file",
    "preflight": "live checks over the nodes before something is started",
    "status": "nodes, NPUs and ranks now",
    "start": "start ranks and wait for them",
    "stop": "stop ranks and wait for them",
    "restart": "restart ranks and wait for them",
    "container": "make, stop and make anew the container of ranks on the nodes",
    "watch": "watch without a screen: changes as lines, a hook, Prometheus",
    "ack": "acknowledge a known trouble: it is told no longer, for a while",
    "logs": "logs of ranks",
    "evidence": "keep on the nodes what explains how ranks are now",
    "exec": "a command where ranks or nodes live",
    "read": "what saved text of hccn_tool, npu-smi or hccn.conf says, as JSON",
    "journal": "who did what, and with what result",
    "ask": "one completion through the proxy",
    "doctor": "what this machine can do, where things are, what a bug report needs",
}
"""Name -> help; the module is `pdtui.cli.<name>`, `_` behind a word of Python; the click command is `command`."""


OWN_OPTIONS = ("--version", "-h", "--help")
"""What stands before a command; all other options belong to one."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        name = f"pdtui.cli.{cmd_name}{'_' * keyword.iskeyword(cmd_name)}"
        with contextlib.nullcontext() if name in sys.modules else lasting():
            module = importlib.import_module(name)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take options before a file for those of `console`: `pdtui --read-only FILE`."""
        if args and args[0].startswith("-") and args[0] not in OWN_OPTIONS and COMMANDS.keys().isdisjoint(args):
            args = ["console", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take a first word that is no command for the file of `console`."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            _refuse_typo(args[0])
            return super().resolve_command(ctx, ["console", *args])
        return super().resolve_command(ctx, args)


def _refuse_typo(word: str) -> None:
    """Raise `UsageError` for a first word that is neither a command nor a file."""
    if os.path.lexists(word):
        return
    guess = did_you_mean(word, COMMANDS) or "; pdtui --help lists the commands"
    raise UsageError(f"no command or file named {clean_line(word)}{guess}")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pdtui")
def root() -> None:
    """Operate vLLM-Ascend prefill/decode clusters from one file.

    pdtui FILE opens the console; everything that it can do can be scripted with the commands below.
    """


def _print_any_text() -> None:
    """Let a terminal show what its encoding has, and let files and pipes have UTF-8, whatever the locale is."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream is sys.stdout and not stream.isatty():
            # Scripts, topology files and JSON: exact, with the names of files that are no text.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
        else:
            stream.reconfigure(errors="replace")


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; prints errors of pdtui without a traceback and exits."""
    _print_any_text()
    try:
        # None: as the output is.
        colour = False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
        status = root.main(args=argv, prog_name="pdtui", standalone_mode=False, color=colour)
        if sys.stdout is not None:
            sys.stdout.flush()  # Else what does not fit on the disk is told by the interpreter, after its fashion.
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (UsageError, FileError) as error:
        click.echo(f"pdtui: {error}", err=True)
        sys.exit(2)
    except PdtuiError as error:
        click.echo(f"pdtui: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in {*_FULL, errno.EPIPE}:
            raise
        with contextlib.suppress(OSError):
            sys.stdout.close()  # Gives up what it still holds.
        if error.errno in _FULL:  # Nobody who closes a pipe wants to hear of it.
            click.echo(f"pdtui: cannot write: {error.strerror}", err=True)
        sys.exit(1)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "pdtui":
            raise  # A defect of ours.
        click.echo(f"pdtui: a package cannot be imported: {clean_line(str(error))}", err=True)
        click.echo("`pdtui doctor` says which packages are missing or broken, and how to install them", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
