"""`pdtui stop`: stop ranks and see that nothing of them is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pdtui.cli import actions, options
from pdtui.cli.live import with_fleet
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, StopRanks


@click.command("stop")
@options.file
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@options.reason
@options.break_lease
@options.confirm
@options.unmanaged
@options.grace
@options.drain
@options.as_json
def command(
    file: Path,
    targets: tuple[str, ...],
    dry_run: bool,
    reason: str,
    break_lease: str,
    confirm: str,
    unmanaged: bool,
    grace: float,
    drain: float,
    as_json: bool,
) -> int:
    """Stop ranks of FILE: TERM, KILL after the grace period, then check processes, ports and HBM.

    TARGET: decode/17, decode/0-7, decode, @node3, role:prefill, failed, all. A rank that was started by hand is
    stopped when it or its group is named. Exit status: 1 when a target did not get there.
    """

    async def work(fleet: Fleet) -> int:
        ids = actions.targets_of(fleet, targets)
        if not ids:
            return actions.nothing_to_do(targets, as_json=as_json, verb="stop")
        intent = StopRanks(
            ids,
            reason=reason,
            grace=grace,
            drain=drain,
            confirm=confirm,
            breaking=Breaking(break_lease),
            unmanaged=actions.meant(fleet, targets, unmanaged=unmanaged),
        )
        if dry_run:
            return await actions.dry_run(fleet, intent, as_json=as_json)
        intent = replace(intent, confirm=await actions.confirm(fleet, intent))
        return await actions.carry_out(fleet, intent, as_json=as_json)

    return with_fleet(file, work, targets=targets)
