"""`pdtui container`: the container that ranks run in, made, stopped and made anew on the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pdtui.cli import actions, options
from pdtui.cli.live import with_fleet
from pdtui.errors import UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Breaking, ChangeContainers, ContainerVerb
from pdtui.fleet.preflight.request import nodes_asked
from pdtui.topology.load import load_checked
from pdtui.topology.render.container import container_argv

_TARGETS = "TARGET: @node3, decode, decode/17, role:prefill, all; their nodes, without one all of them."


@click.group("container")
def command() -> None:
    """Make, stop and make anew the container of ranks on the nodes of FILE.

    It is made as `runtime` says, with the words that `pdtui render` writes, and runs detached.
    """


_pull = click.option("--pull", is_flag=True, help="Fetch the image where it is missing.")

_override = click.option(
    "--override",
    multiple=True,
    metavar="BLOCKER",
    help="Let what lives in the container end with it, such as ranks:node3; needs --reason.",
)

_dry_run = click.option("--dry-run", is_flag=True, help="Print the commands of each node.")


def _with(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


_common = _with(
    options.file,
    click.argument("targets", nargs=-1, metavar="[TARGET...]"),
    _dry_run,
    options.reason,
    options.break_lease,
    options.as_json,
)


@command.command("up", epilog=_TARGETS)
@_common
@_pull
def up(
    file: Path, targets: tuple[str, ...], dry_run: bool, reason: str, break_lease: str, as_json: bool, pull: bool
) -> int:
    """Make the container where it is missing, and start it where it does not run.

    One that runs as the file says is left alone; one that differs is told with the difference, and left alone,
    too: `recreate` makes it anew. Exit status: 1 when a node did not get there.
    """
    intent = ChangeContainers("container up", (), pull=pull, reason=reason, breaking=Breaking(break_lease))
    return _carry_out(file, targets, intent, dry_run=dry_run, as_json=as_json)


@command.command("down", epilog=_TARGETS)
@_common
@_override
@options.confirm
def down(
    file: Path,
    targets: tuple[str, ...],
    dry_run: bool,
    reason: str,
    break_lease: str,
    as_json: bool,
    override: tuple[str, ...],
    confirm: str,
) -> int:
    """Stop and remove the container; refused while ranks, other servers or users of its NPUs live in it.

    Exit status: 1 when a node did not get there.
    """
    return _end("container down", file, targets, dry_run, reason, break_lease, as_json, override, confirm, False)


@command.command("recreate", epilog=_TARGETS)
@_common
@_override
@options.confirm
@_pull
def recreate(
    file: Path,
    targets: tuple[str, ...],
    dry_run: bool,
    reason: str,
    break_lease: str,
    as_json: bool,
    override: tuple[str, ...],
    confirm: str,
    pull: bool,
) -> int:
    """Make the container anew; refused as `down`, and where the image is missing.

    The old one is kept as NAME-before-pdtui until the new one runs and pdtui is in it, and runs again otherwise.
    Exit status: 1 when a node did not get there.
    """
    return _end(
        "container recreate", file, targets, dry_run, reason, break_lease, as_json, override, confirm, pull
    )


def _end(
    verb: ContainerVerb,
    file: Path,
    targets: tuple[str, ...],
    dry_run: bool,
    reason: str,
    break_lease: str,
    as_json: bool,
    override: tuple[str, ...],
    confirm: str,
    pull: bool,
) -> int:
    if override and not reason:
        raise UsageError("--override needs --reason")
    intent = ChangeContainers(
        verb, (), pull=pull, reason=reason, override=override, confirm=confirm, breaking=Breaking(break_lease)
    )
    return _carry_out(file, targets, intent, dry_run=dry_run, as_json=as_json)


def _carry_out(
    file: Path, targets: tuple[str, ...], intent: ChangeContainers, *, dry_run: bool, as_json: bool
) -> int:
    topology = load_checked(file)
    for node in topology.nodes:
        container_argv(topology, node)  # What the file cannot say is told before a node is asked.

    async def work(fleet: Fleet) -> int:
        asked = replace(
            intent, nodes=tuple(nodes_asked(targets, fleet.topology, fleet.plan, fleet.store.ranks.values()))
        )
        if dry_run:
            return await actions.dry_run(fleet, asked, as_json=as_json)
        asked = replace(asked, confirm=await actions.confirm(fleet, asked))
        return await actions.carry_out(fleet, asked, as_json=as_json)

    return with_fleet(file, work, npus=intent.verb != "container up", targets=targets)
