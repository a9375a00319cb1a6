"""What `start`, `stop` and `restart` share: ask, submit, narrate, and say what became of each rank."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from pdtui.cli.live import clock_time, narrate, narrate_unwritten
from pdtui.cli.output import columns, print_json
from pdtui.errors import UsageError
from pdtui.fleet.arrivals import coming_up, in_one_line
from pdtui.fleet.by_hand import not_meant
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import ChangeContainers, Intent, Preview, RestartRanks, StopRanks
from pdtui.fleet.leases import lease_words
from pdtui.fleet.rolling import PHASE as ROLLING
from pdtui.fleet.snapshot import OperationStatus, OperationStep, Snapshot
from pdtui.fleet.targets import in_short, resolve
from pdtui.text import did_you_mean

SILENCE = 30.0
"""Seconds after which it is said again how far all is, or without a change what runs still."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

ENDED = ("done", "failed", "skipped")
"""How the words of a step begin that has ended."""

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def targets_of(fleet: Fleet, targets: Sequence[str]) -> tuple[str, ...]:
    """Return the ids that the targets name. Raises `UsageError`."""
    return resolve(targets, fleet.topology, fleet.plan, fleet.store.ranks.values())


def meant(fleet: Fleet, targets: Sequence[str], *, unmanaged: bool) -> tuple[str, ...]:
    """Return the ranks that may be stopped though they were started by hand: their rank or group was named."""
    plan = fleet.plan
    if unmanaged:
        return tuple(plan.by_id)
    named = resolve(
        [target for target in targets if "/" in target], fleet.topology, plan, fleet.store.ranks.values()
    )
    groups = {*targets, *(plan.by_id[rank_id].group for rank_id in named if rank_id in plan.by_id)}
    whole = fleet.topology.model.kind == "moe"
    return tuple(
        rank.id for rank in plan.ranks if rank.id in named or (rank.group in (groups if whole else targets))
    )


def nothing_to_do(targets: Sequence[str], *, as_json: bool, verb: str) -> int:
    """Say that the targets name nothing now (`failed`, and nothing has)."""
    narrate(f"nothing to {verb}: {no_rank(targets)}")
    if as_json:
        print_json({"schema_version": 1, "verb": verb, "state": "done", "error": "", "ranks": []})
    return 0


def no_rank(targets: Sequence[str]) -> str:
    """Say why targets that exist name no rank."""
    return f"no rank {' or '.join(_as_said(target) for target in dict.fromkeys(targets))}"


def _as_said(target: str) -> str:
    if target == "failed":
        return "has failed"
    if target.startswith("@"):
        return f"is on {target[1:]}"
    return f"has the role {target[5:]}" if target.startswith("role:") else f"is {target}"


async def preview_of(fleet: Fleet, intent: Intent) -> Preview:
    """Say what an intent would do, without ranks that were started by hand and that the targets do not mean.

    Those are told. Raises `ActionRefused` where nothing else is left, and for a restart.
    """
    preview = await fleet.preview(intent)
    if not isinstance(intent, StopRanks | RestartRanks):
        return preview
    unmeant = [rank_id for rank_id in preview.unmanaged if rank_id not in intent.unmanaged]
    if not unmeant:
        return preview
    if isinstance(intent, RestartRanks) or set(unmeant) >= set(preview.ids):
        raise not_meant(unmeant)
    narrate(f"{in_short(unmeant)}: started by hand, left alone: name the rank or its group, or say --unmanaged")
    touched = await fleet.preview(replace(intent, ids=tuple(one for one in preview.ids if one not in unmeant)))
    return replace(touched, needs_name=preview.needs_name)


async def dry_run(fleet: Fleet, intent: Intent, *, as_json: bool) -> int:
    """Print what would run; exit status 1 when it would be refused. Raises `ActionRefused`, `UsageError`."""
    preview = await preview_of(fleet, intent)
    check_override(intent, preview)
    _tell(preview)
    override = intent.override if not isinstance(intent, StopRanks) else ()
    for blocker in preview.blockers:
        remedy = f" ({blocker.remedy})" if blocker.remedy else ""
        word = "passed over" if blocker.id in override else "blocked"
        narrate(f"{word}: {blocker.id}: {blocker.message}{remedy}")
    refused = any(blocker.id not in override for blocker in preview.blockers)
    for lease in preview.leases:
        word = "taken over" if intent.breaking.covers(lease.id) else "refused"
        narrate(f"{word}: {lease_words(lease, time.time())}")
        refused = refused or not intent.breaking.covers(lease.id)
    if preview.needs_name and intent.confirm != fleet.topology.name:
        narrate(f"{fleet.topology.name} is protected: it would ask for that name (--confirm)")
    if fleet.read_only:
        narrate("refused: read-only: nothing is started or stopped from here")
        refused = True
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "verb": preview.verb,
                "nodes" if isinstance(intent, ChangeContainers) else "ranks": list(preview.ids),
                "steps": list(preview.steps),
                "commands": list(preview.commands),
                "unmanaged": list(preview.unmanaged),
                "blockers": [
                    {"id": one.id, "message": one.message, "remedy": one.remedy} for one in preview.blockers
                ],
                "leases": [asdict(lease) for lease in preview.leases],
            }
        )
    else:
        for line in preview.commands:
            click.echo(line)
    return 1 if refused else 0


def check_override(intent: Intent, preview: Preview) -> None:
    """Raise `UsageError` for a blocker to be passed over that does not stand against it."""
    wanted = intent.override if not isinstance(intent, StopRanks) else ()
    known = [blocker.id for blocker in preview.blockers]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        guess = did_you_mean(unknown[0], known)
        raise UsageError(
            f"no blocker {', '.join(unknown)}{guess}; nothing was done",
            remedy=f"in the way: {', '.join(known)}" if known else "nothing stands in the way: leave it out",
        )


async def confirm(fleet: Fleet, intent: Intent) -> str:
    """Say what will follow, and return the name that a protected cluster wants.

    Asks for the name on a terminal. Raises `UsageError`.
    """
    preview = await preview_of(fleet, intent)
    check_override(intent, preview)
    name = fleet.topology.name
    _tell(preview)
    if not preview.needs_name or intent.confirm == name:
        return intent.confirm
    if intent.confirm:
        raise UsageError(f"{intent.confirm!r} is not the cluster's name; nothing was done")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{name} is protected: {preview.title} needs the cluster's name", remedy=f"--confirm {name}"
        )
    click.echo(f"Type {name} to {preview.title}: ", err=True, nl=False)
    typed = (await _line()).strip()
    if typed != name:
        raise UsageError("not confirmed; nothing was done")
    return typed


async def carry_out(fleet: Fleet, intent: Intent, *, as_json: bool) -> int:
    """Submit, narrate on stderr, print the result; exit status 1 when a target did not get there.

    Raises `ActionRefused`. Interrupted, it cancels what has not begun, and says of each rank how it is left.
    """
    show = _print_nodes if isinstance(intent, ChangeContainers) else _print_result
    operation = await fleet.submit(intent)
    try:
        status = await _narrated(fleet, operation)
    except asyncio.CancelledError:
        status = await _interrupted(fleet, operation)
        show(fleet, status, as_json=as_json)
        return INTERRUPTED
    show(fleet, status, as_json=as_json)
    return 0 if status.state == "done" else 1


async def _interrupted(fleet: Fleet, operation: str) -> OperationStatus:
    """Cancel an operation after Ctrl-C and wait for its end; a second Ctrl-C leaves at once."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    narrate("cancelling: what has not begun does not begin; Ctrl-C again leaves at once")
    await fleet.cancel(operation)
    return await fleet.wait(operation)


def _tell(preview: Preview) -> None:
    narrate(f"{preview.title}: {preview.consequence}")
    if preview.note:
        narrate(preview.note)
    for warning in preview.warnings:
        narrate(f"warning: {warning}")
    for line in preview.processes:
        narrate(f"started by hand: {line}")


async def _line() -> str:
    """Read a line from the terminal without holding up the loop; Ctrl-C ends the wait."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not ready.done():
            ready.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, take)
    try:
        return await ready
    finally:
        loop.remove_reader(sys.stdin)


async def _narrated(fleet: Fleet, operation: str) -> OperationStatus:
    news = asyncio.Event()
    end = fleet.subscribe(news.set)
    waiting = asyncio.ensure_future(fleet.wait(operation))
    waiting.add_done_callback(lambda _: news.set())
    told: dict[str, tuple[str, str]] = {}
    spoken = tabled = time.monotonic()
    try:
        while not waiting.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await news.wait()
            news.clear()
            for status in fleet.snapshot.operations:
                if status.id == operation and _narrate_steps(status, told):
                    spoken = time.monotonic()
                if status.id == operation and time.monotonic() - tabled > SILENCE:
                    tabled = time.monotonic()
                    if not _narrate_arrivals(fleet.snapshot, status) and tabled - spoken > SILENCE:
                        _narrate_slowest(status)
        status = await waiting
        _narrate_steps(status, told)
        return status
    finally:
        waiting.cancel()
        end()


def _narrate_arrivals(snapshot: Snapshot, status: OperationStatus) -> bool:
    """Say how many ranks of each group that comes up have reached which stage, and who is last since when."""
    targets = frozenset(status.targets)
    groups = coming_up(rank for rank in snapshot.ranks if rank.id in targets)
    for group in groups:
        narrate(f"{clock_time(snapshot.made_at)}  {group.group:<12}  {in_one_line(group)}")
    return bool(groups)


def _narrate_slowest(status: OperationStatus) -> None:
    """Say what runs still, so that a long stop is no silence."""
    for step in [step for step in status.steps if step.state == "running"][:2]:
        narrate(f"{clock_time(time.time())}  {step.label:<12}  {_words(step)}")


def _narrate_steps(status: OperationStatus, told: dict[str, tuple[str, str]]) -> bool:
    """Print what has changed but for numbers, one line for ranks with the same news; returns whether any had."""
    ranks: dict[str, list[str]] = {}
    phases: list[tuple[str, str]] = []
    for step in status.steps:
        key = (step.state, step.detail if step.label == ROLLING else NUMBER.sub("#", step.detail))
        if step.state == "waiting" or told.get(step.label) == key:
            continue
        told[step.label] = key
        if step.label in status.targets:
            ranks.setdefault(_words(step), []).append(step.label)
        else:
            phases.append((step.label, _words(step)))
    at = clock_time(status.ended or time.time())
    last = [phases.pop()] if phases and phases[-1][1].startswith(ENDED) else []
    for label, words in (*phases, *((in_short(ids), words) for words, ids in ranks.items()), *last):
        narrate(f"{at}  {label:<12}  {words}")
    return bool(ranks or phases)


def _words(step: OperationStep) -> str:
    if step.state == "running":
        return step.detail or "running"
    return f"{step.state}: {step.detail}" if step.detail else step.state


def _print_result(fleet: Fleet, status: OperationStatus, *, as_json: bool) -> None:
    narrate_unwritten(fleet.journal_error)
    steps = {step.label: step for step in status.steps}
    ranks = [(rank_id, steps[rank_id]) for rank_id in status.targets]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "verb": status.verb,
                "state": status.state,
                "error": status.error,
                "ranks": [
                    {
                        "id": rank_id,
                        "node": _node_of(fleet, rank_id),
                        "ok": step.state == "done",
                        "detail": step.detail,
                    }
                    for rank_id, step in ranks
                ],
            }
        )
        return
    rows = [
        (rank_id, _node_of(fleet, rank_id), "ok" if step.state == "done" else step.state, step.detail)
        for rank_id, step in sorted(ranks, key=lambda pair: pair[1].state == "done")
    ]
    click.echo("\n".join(columns(("RANK", "NODE", "RESULT", "DETAIL"), rows)))
    if status.error:
        narrate(f"{status.verb} {status.state}: {status.error}")


def _print_nodes(fleet: Fleet, status: OperationStatus, *, as_json: bool) -> None:
    """Print what became of each node's container."""
    narrate_unwritten(fleet.journal_error)
    steps = {step.label: step for step in status.steps}
    nodes = [(name, steps[name]) for name in status.targets]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "verb": status.verb,
                "state": status.state,
                "error": status.error,
                "container": fleet.topology.runtime.container,
                "nodes": [
                    {"node": name, "ok": step.state == "done", "detail": step.detail} for name, step in nodes
                ],
            }
        )
        return
    rows = [
        (name, "ok" if step.state == "done" else step.state, step.detail)
        for name, step in sorted(nodes, key=lambda pair: pair[1].state == "done")
    ]
    click.echo("\n".join(columns(("NODE", "RESULT", "DETAIL"), rows)))
    if status.error and status.state != "failed":
        narrate(f"{status.verb} {status.state}: {status.error}")


def _node_of(fleet: Fleet, rank_id: str) -> str:
    planned = fleet.plan.by_id.get(rank_id)
    return planned.node if planned is not None else rank_id.partition("@")[2]
