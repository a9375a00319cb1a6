"""`pdtui ack`: tell a known trouble no longer for a while, tell it again, or list what is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import click

from pdtui.cli import options
from pdtui.cli.live import SETTLE, narrate, narrate_unwritten, with_fleet
from pdtui.cli.output import columns, print_json
from pdtui.cli.status import acknowledgement, read_all
from pdtui.errors import UsageError
from pdtui.fleet.conditions import CONDITIONS
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import Acknowledge, Unacknowledge
from pdtui.fleet.preflight.check import ORDER
from pdtui.fleet.snapshot import Acknowledgement, AlarmId, RankState, Snapshot
from pdtui.fleet.troubles import NODE_IDS, Trouble, troubles, until
from pdtui.readings.reasons import KINDS, kind_of
from pdtui.text import clean_line, did_you_mean

KNOWN_IDS = frozenset({*KINDS, *ORDER, *get_args(AlarmId), *map(str, RankState), *NODE_IDS, *CONDITIONS}) - {
    "ready",
    "unknown",
}
"""What an acknowledgement can be about: reasons of NPUs, checks, alarms, states of ranks and nodes."""

SEVERAL = 3
"""NPUs of a node with the same trouble that are listed one by one."""

EXAMPLES = "a KEY is SUBJECT:ID: node3/9:link-down, node3/*:hot, decode/17:failed, node3:unreachable, p1/0:kv-held"


@click.command("ack")
@options.file
@click.argument("key", required=False, default="")
@click.option("--reason", default="", help="Why it is known; every list shows it.")
@click.option(
    "--for",
    "seconds",
    type=options.Span(),
    default="8h",
    show_default=True,
    metavar="TIME",
    help="For how long: 90m, 8h, 3d; 90d at most.",
)
@click.option("--remove", is_flag=True, help="Take it back: it is told again.")
@options.as_json
def command(file: Path, key: str, reason: str, seconds: float, remove: bool, as_json: bool) -> int:
    """Acknowledge a trouble of FILE's cluster: headline, bell, hooks and exit status leave it out until it ends.

    KEY is what `pdtui ack FILE` lists: the subject and what is wrong with it, as node3/9:link-down,
    decode/17:failed or node3:lldp (a check); node3/*:hot is for all NPUs of a node. The same NPU with another
    reason is told.
    Without KEY: lists what is wrong and what is acknowledged. It is kept on the nodes, for all consoles.
    """
    if remove and not key:
        raise UsageError("--remove needs a KEY")
    if key and not remove and not reason.strip():
        raise UsageError("an acknowledgement needs --reason TEXT")
    if not key and reason:
        raise UsageError(f"--reason needs a KEY; {EXAMPLES}")

    async def work(fleet: Fleet) -> int:
        await read_all(fleet, SETTLE)
        fleet.store.publish()
        if not key:
            show(fleet.snapshot, as_json=as_json)
            return 0
        check_key(key, fleet.snapshot, remove=remove)
        intent = Unacknowledge(key) if remove else Acknowledge(key, reason, seconds)
        missing = await fleet.acknowledge(intent)
        narrate_unwritten(fleet.journal_error)
        _report(key, fleet.snapshot, missing, as_json=as_json)
        return 0

    return with_fleet(file, work, read_only=not key)


def check_key(key: str, snapshot: Snapshot, *, remove: bool) -> None:
    """Refuse a key that can be no trouble of this cluster. Raises `UsageError` with what may have been meant."""
    known = [one.key for one in snapshot.acknowledgements]
    if remove:
        if key not in known:
            raise UsageError(f"{clean_line(key)} is not acknowledged{did_you_mean(key, known)}")
        return
    present = [trouble.key for trouble in troubles(snapshot)]
    if key in present:
        return
    subject, _, name = key.rpartition(":")
    if not subject:
        there = [one for one in present if one.startswith(f"{key}:")]
        guess = f"; there is {' and '.join(there[:3])}" if there else did_you_mean(key, present)
        raise UsageError(f"{clean_line(key)!r} names no trouble{guess}; {EXAMPLES}")
    if subject not in _subjects(snapshot):
        guess = did_you_mean(key, present) or did_you_mean(subject, _subjects(snapshot))
        raise UsageError(f"no node, NPU, rank or group {clean_line(subject)!r}{guess}")
    if not _is_known(name):
        guess = did_you_mean(key, present) or did_you_mean(name, KNOWN_IDS)
        raise UsageError(f"nothing is called {clean_line(name)!r}{guess}")


def _is_known(name: str) -> bool:
    try:
        kind_of(name)
    except KeyError:
        return name in KNOWN_IDS
    return True


def _subjects(snapshot: Snapshot) -> frozenset[str]:
    """Return all that something can be wrong with."""
    nodes = [name for node in snapshot.nodes for name in (node.name, f"{node.name}/*")]
    npus = [f"{node.name}/{npu.id}" for node in snapshot.nodes for npu in node.npus]
    ranks = [name for rank in snapshot.ranks for name in (rank.id, f"{rank.group}/*", rank.group)]
    return frozenset((*nodes, *npus, *ranks))


def _report(key: str, snapshot: Snapshot, missing: Mapping[str, str], *, as_json: bool) -> None:
    given = next((one for one in snapshot.acknowledgements if one.key == key), None)
    if as_json:
        shown = acknowledgement(given, snapshot) if given is not None else None
        print_json({"schema_version": 1, "key": key, "acknowledgement": shown, "missing": dict(missing)})
    elif given is None:
        click.echo(f"{key} is told again")
    else:
        click.echo(f"{key} is acknowledged until {until(given)}{_nothing(given, snapshot)}")
    for node, why in missing.items():
        narrate(f"{node} does not have it yet ({why}); it gets it from the next console that reaches it")


def _nothing(given: Acknowledgement, snapshot: Snapshot) -> str:
    there = any(snapshot.acknowledged(trouble.key) is given for trouble in troubles(snapshot))
    return "" if there else "; nothing of that kind is wrong now"


def show(snapshot: Snapshot, *, as_json: bool) -> None:
    """Print what is acknowledged, and what is wrong and is not."""
    found = troubles(snapshot)
    told = [trouble for trouble in found if snapshot.acknowledged(trouble.key) is None]
    if as_json:
        listed = [
            {**asdict(trouble), "key": trouble.key, "acknowledged": trouble not in told} for trouble in found
        ]
        known = [acknowledgement(one, snapshot) for one in snapshot.acknowledgements]
        print_json({"schema_version": 1, "acknowledgements": known, "troubles": listed})
        return
    if snapshot.acknowledgements:
        rows = list(_rows(snapshot, found))
        click.echo("\n".join(columns(("ACKNOWLEDGED", "UNTIL", "BY", "REASON", "NOW"), rows)))
    else:
        click.echo("nothing is acknowledged")
    if told:
        click.echo("")
        click.echo("\n".join(columns(("WRONG NOW", "WHAT"), _told_rows(told))))


def _rows(snapshot: Snapshot, found: Sequence[Trouble]) -> Iterable[Sequence[str]]:
    for one in snapshot.acknowledgements:
        about = [trouble for trouble in found if snapshot.acknowledged(trouble.key) is one]
        more = f", and {len(about) - 1} more" if len(about) > 1 else ""
        check = one.key.rpartition(":")[2] in ORDER and "/" not in one.key
        now = f"{about[0].summary}{more}" if about else "see pdtui preflight" if check else "not wrong now"
        yield one.key, until(one), one.by, one.reason, now


def _told_rows(told: Sequence[Trouble]) -> Iterable[Sequence[str]]:
    """Return what is wrong by the key that acknowledges it; the same on several NPUs of a node in one row."""
    groups: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in told:
        place = one.subject.rpartition("/")[0] if one.kind == "npu" else one.subject
        groups.setdefault((one.kind, place, one.id), []).append(one)
    for (_, place, name), same in groups.items():
        if len(same) <= SEVERAL:
            yield from ((one.key, one.summary) for one in same)
        else:
            yield f"{place}/*:{name}", f"{same[0].summary} ({len(same)} NPUs)"
