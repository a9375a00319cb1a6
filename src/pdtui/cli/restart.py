"""`pdtui restart`: stop what runs of some ranks, then start them all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pdtui.cli import actions, options
from pdtui.cli.live import with_fleet
from pdtui.errors import UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, RestartRanks


@click.command("restart")
@options.file
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--only", is_flag=True, help="Only these ranks, not the whole MoE group that they belong to.")
@click.option("--rolling", is_flag=True, help="One group after the other; the others of its role keep serving.")
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@options.reason
@options.break_lease
@options.override
@options.confirm
@options.unmanaged
@options.grace
@options.drain
@options.timeout
@options.as_json
def command(
    file: Path,
    targets: tuple[str, ...],
    only: bool,
    rolling: bool,
    dry_run: bool,
    reason: str,
    break_lease: str,
    override: tuple[str, ...],
    confirm: str,
    unmanaged: bool,
    grace: float,
    drain: float,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Restart ranks of FILE and wait until they are ready. A rank of a MoE group means its whole group.

    TARGET: decode/17, decode/0-7, decode, @node3, role:prefill, failed, all. A rank that was started by hand is
    taken over when it or its group is named. Exit status: 1 when a target did not get there.
    """
    if override and not reason:
        raise UsageError("--override needs --reason")

    async def work(fleet: Fleet) -> int:
        ids = actions.targets_of(fleet, targets)
        if not ids:
            return actions.nothing_to_do(targets, as_json=as_json, verb="restart")
        intent = RestartRanks(
            ids,
            whole_group=not only,
            reason=reason,
            grace=grace,
            drain=drain,
            rolling=rolling,
            override=override,
            confirm=confirm,
            breaking=Breaking(break_lease),
            unmanaged=actions.meant(fleet, targets, unmanaged=unmanaged),
        )
        if dry_run:
            return await actions.dry_run(fleet, intent, as_json=as_json)
        intent = replace(intent, confirm=await actions.confirm(fleet, intent))
        return await actions.carry_out(fleet, intent, as_json=as_json)

    return with_fleet(file, work, ready_deadline=timeout, targets=targets, groups=True)
