"""`pdtui diff`: what changes between two topology files, or between a file and what runs."""

from __future__ import annotations

from pathlib import Path

import click

from pdtui.cli.difference_text import as_dict, as_lines
from pdtui.cli.output import print_json
from pdtui.errors import FileError
from pdtui.topology.differences import compare_files
from pdtui.topology.load import Loaded, load, one_line
from pdtui.topology.model import Topology

RUNNING = "running"
"""What stands for what runs, in the place of a second file."""


@click.command("diff")
@click.argument("old", metavar="OLD", type=click.Path(path_type=Path))
@click.argument("new", metavar="NEW", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything that differs as JSON.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="With running: how long nodes may take for their first answers.",
)
def command(old: Path, new: Path, as_json: bool, wait: float) -> int:
    """Print what NEW makes run otherwise than OLD does, and which ranks must restart for it.

    Said once for all ranks of a group that change alike. Comments, order and other spellings of the same are no
    difference. Findings are told that NEW has and OLD has not.

    `pdtui diff FILE running` compares what runs on the nodes now with what FILE makes run, and changes nothing
    there: ranks of pdtui, those that were started by hand, those that do not run or are not in FILE. What nobody
    could be asked about is not known, and not the same. (./running is a file of that name.)

    Exit status: 0 the same, 1 something differs or is not known, 2 a file cannot be read.
    """
    if RUNNING in (str(old), str(new)):
        return _running(new if str(old) == RUNNING else old, as_json=as_json, wait=wait)
    before, after = _topology(old), _topology(new)
    found = compare_files(before[0], after[0], before[1].findings, after[1].findings)
    if as_json:
        print_json(as_dict(found, old=str(old), new=str(new)))
    else:
        click.echo("\n".join(as_lines(found, same="no difference in what runs")))
    return 0 if found.is_empty else 1


def _running(file: Path, *, as_json: bool, wait: float) -> int:
    """Compare a file with what its nodes run."""
    from pdtui.cli.live import with_fleet  # Two files are compared without what reaches nodes.
    from pdtui.fleet.fleet import Fleet

    async def work(fleet: Fleet) -> int:
        found = fleet.differences()
        if as_json:
            print_json(as_dict(found, old=RUNNING, new=str(file)))
        else:
            click.echo(
                "\n".join(as_lines(found, same=f"what runs is what {file} says", head=f"from what runs to {file}"))
            )
        return 0 if found.is_empty else 1

    return with_fleet(file, work, read_only=True, wait=wait, npus=False)


def _topology(path: Path) -> tuple[Topology, Loaded]:
    """Return a file's model; findings do not keep it back as long as there is one. Raises `FileError`."""
    loaded = load(path)
    if loaded.topology is None:
        raise FileError(
            f"{path}: nothing can be compared\n" + "\n".join(map(one_line, loaded.errors)),
            remedy=f"`pdtui check {path}` shows all findings",
        )
    return loaded.topology, loaded
