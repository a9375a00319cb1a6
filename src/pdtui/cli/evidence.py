"""`pdtui evidence`: keep on the nodes what explains how ranks are now."""

from __future__ import annotations

from pathlib import Path

import click

from pdtui.cli import actions, options
from pdtui.cli.live import narrate, with_fleet
from pdtui.cli.output import columns, print_json
from pdtui.fleet.fleet import Fleet


@click.command("evidence")
@options.file
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@options.as_json
def command(file: Path, targets: tuple[str, ...], as_json: bool) -> int:
    """Keep the evidence of ranks of FILE on their nodes, beside their runs, and print where.

    Ends of their logs and of the vendor's, npu-smi, links, dmesg, processes, their command without secrets. A
    restart of what has failed does the same first. Exit status: 1 when something could not be kept.
    """

    async def work(fleet: Fleet) -> int:
        ids = actions.targets_of(fleet, targets)
        saved = await fleet.save_evidence(ids)
        for rank_id in ids:
            if rank_id not in saved:
                narrate(f"{rank_id}: it was never started here")
        rows = [(rank_id, fleet.store.ranks[rank_id].node, one) for rank_id, one in saved.items()]
        if as_json:
            found = [{"id": i, "node": node, "folder": one.folder, "error": one.error} for i, node, one in rows]
            print_json({"schema_version": 1, "ranks": found})
        elif rows:
            table = [(i, node, one.folder or "-", one.error) for i, node, one in rows]
            click.echo("\n".join(columns(("RANK", "NODE", "FOLDER", "MISSING"), table)))
        return 0 if saved and not any(one.error for one in saved.values()) else 1

    return with_fleet(file, work, targets=targets)
