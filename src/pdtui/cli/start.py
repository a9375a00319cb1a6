"""`pdtui start`: start ranks and wait until they are ready."""

from __future__ import annotations

from pathlib import Path

import click

from pdtui.cli import actions, options
from pdtui.cli.live import with_fleet
from pdtui.errors import UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, StartRanks


@click.command("start")
@options.file
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--dry-run", is_flag=True, help="Print what would run, per rank, and what stands against it.")
@options.reason
@options.break_lease
@options.override
@options.timeout
@options.as_json
def command(
    file: Path,
    targets: tuple[str, ...],
    dry_run: bool,
    reason: str,
    break_lease: str,
    override: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
) -> int:
    """Start ranks of FILE that do not run, and wait until they are ready. Without a TARGET: all.

    TARGET: decode/17, decode/0-7, decode, @node3, role:prefill, failed, all. Exit status: 1 when a target did not
    get there. Interrupted, the ranks are left as they are.
    """
    if override and not reason:
        raise UsageError("--override needs --reason")

    async def work(fleet: Fleet) -> int:
        ids = actions.targets_of(fleet, targets or ("all",))
        if not ids:
            return actions.nothing_to_do(targets, as_json=as_json, verb="start")
        intent = StartRanks(ids, reason=reason, override=override, breaking=Breaking(break_lease))
        if dry_run:
            return await actions.dry_run(fleet, intent, as_json=as_json)
        if override:
            actions.check_override(intent, await fleet.preview(intent))
        return await actions.carry_out(fleet, intent, as_json=as_json)

    return with_fleet(file, work, ready_deadline=timeout, targets=targets or ("all",), groups=True)
