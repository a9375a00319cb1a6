"""`pdtui render`: the scripts that operators would write by hand, from a topology file."""

from __future__ import annotations

from pathlib import Path

import click

from pdtui.cli.output import print_json
from pdtui.cli.rendered_folder import Written, write_folder
from pdtui.topology.load import load_checked
from pdtui.topology.render.files import Rendering, render


@click.command("render")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to."
)
@click.option("--force", is_flag=True, help="Write over files that are not as `pdtui render` left them.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(file: Path, folder: Path, force: bool, as_json: bool) -> int:
    """Write what FILE comes to as scripts, for servers without pdtui and for people who want to read them.

    \b
    DIR/README.md                        what to run where, in which order; what the scripts do not say
    DIR/NODE/start_container.sh          docker run, in the background; container_shell.sh: with a shell
    DIR/NODE/GROUP/run_dp_template.sh    one rank; the arguments are those of launch_online_dp.py
    DIR/NODE/GROUP/launch.sh             starts the group's ranks of that node
    DIR/NODE/proxy.sh                    vLLM-Ascend's proxy for the flow, with all ranks
    DIR/benchmark/                       AISBench's model configuration, pointing at the proxy

    A rank starts with the command and environment of `pdtui plan FILE --commands`. Secrets are not written down:
    the scripts take them from their environment. A second rendering replaces the first and removes what it no
    longer has; files that somebody else wrote or edited are never touched without --force.

    Exit status: 2 when FILE has errors, as `pdtui check` shows them, or DIR is not to be written.
    """
    rendering = render(load_checked(file))
    written = write_folder(folder, rendering.files, force=force)
    if as_json:
        print_json(as_dict(folder, rendering, written))
        return 0
    for rendered in rendering.files:
        click.echo(folder / rendered.path)
    if written.removed:
        names = ", ".join(written.removed) if len(written.removed) < 5 else f"{len(written.removed)} files"
        click.echo(f"removed {names}: no longer part of {file}", err=True)
    if written.kept:
        click.echo(f"left {', '.join(written.kept)}: edited by hand, and no longer part of {file}", err=True)
    for note in rendering.notes:
        click.echo(f"note: {note}", err=True)
    changed = "all as before" if not written.changed else f"{len(written.changed)} changed"
    click.echo(f"{folder}: {len(rendering.files)} files, {changed}; README.md says what to run where", err=True)
    return 0


def as_dict(folder: Path, rendering: Rendering, written: Written) -> dict[str, object]:
    """Return what was written as what `--json` prints: an interface."""
    return {
        "schema_version": 1,
        "folder": str(folder),
        "files": [
            {
                "path": file.path,
                "kind": file.kind,
                "executable": file.executable,
                "changed": file.path in written.changed,
            }
            for file in rendering.files
        ],
        "removed": list(written.removed),
        "kept": list(written.kept),
        "notes": list(rendering.notes),
    }
