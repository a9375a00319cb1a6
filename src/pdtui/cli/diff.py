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
def command(old: Path, new: Path, as_json: bool) -> int:
    """Print what NEW makes run otherwise than OLD does, and which ranks must restart for it.

    Said once for all ranks of a group that change alike. Comments, order and other spellings of the same are no
    difference. Findings are told that NEW has and OLD has not.

    Exit status: 0 the same, 1 something differs, 2 a file cannot be read.
    """
    before, after = _topology(old), _topology(new)
    found = compare_files(before[0], after[0], before[1].findings, after[1].findings)
    if as_json:
        print_json(as_dict(found, old=str(old), new=str(new)))
    else:
        click.echo("\n".join(as_lines(found, same="no difference in what runs")))
    return 0 if found.is_empty else 1


def _topology(path: Path) -> tuple[Topology, Loaded]:
    """Return a file's model; findings do not keep it back as long as there is one. Raises `FileError`."""
    loaded = load(path)
    if loaded.topology is None:
        raise FileError(
            f"{path}: nothing can be compared\n" + "\n".join(map(one_line, loaded.errors)),
            remedy=f"`pdtui check {path}` shows all findings",
        )
    return loaded.topology, loaded
