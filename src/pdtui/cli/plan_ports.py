"""`pdtui plan --ports`: who binds which port on each host, and what lies near."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from pdtui.cli.output import columns
from pdtui.errors import FileError, UsageError
from pdtui.text import clean_line, did_you_mean
from pdtui.topology.load import load, one_line
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan
from pdtui.topology.port_map import CLOSE, HostPorts, PortRow, alike, port_map_of, span

_INDENT = "  "


def drawn(file: Path) -> Topology:
    """Return what a file says, also when it has errors: where ports collide, the map shows where.

    Raises `FileError` when there is no model.
    """
    loaded = load(file)
    if loaded.topology is None:
        first = one_line(loaded.errors[0]) if loaded.errors else ""
        raise FileError(f"{file}: {first}", remedy=f"`pdtui check {file}` shows all findings")
    if loaded.errors:
        count = len(loaded.errors)
        what, them = (f"{count} errors", "them") if count > 1 else ("1 error", "it")
        click.echo(f"{file}: {what}: `pdtui check {file}` shows {them}", err=True)
    return loaded.topology


def chosen(topology: Topology, plan: Plan, targets: Sequence[str]) -> list[HostPorts]:
    """Return the maps of the nodes `@name`, of all without any. Raises `UsageError` for another word."""
    names = [target.removeprefix("@") for target in targets]
    for target, name in zip(targets, names, strict=True):
        if not target.startswith("@"):
            raise UsageError(f"{clean_line(target)} is no node; write @NODE")
        if name not in topology.nodes:
            near = did_you_mean(name, topology.nodes)
            raise UsageError(f"there is no node {clean_line(name)}{near}")
    return [host for host in port_map_of(topology, plan) if not names or host.node in names]


def as_dict(topology: Topology, hosts: Sequence[HostPorts]) -> dict[str, object]:
    """Return the maps as what `--json` prints: an interface."""
    like = {host.node: bundle[0].node for bundle in alike(topology, hosts) for host in bundle[1:]}
    return {
        "schema_version": 1,
        "hosts": [
            {
                "node": host.node,
                "host": host.host,
                "like": like.get(host.node),
                "ports": [
                    {
                        "first": row.first,
                        "last": row.last,
                        "use": row.use,
                        "range": row.is_range,
                        "bound": row.bound,
                        "owners": list(row.owners),
                        "near": [asdict(near) for near in row.near],
                    }
                    for row in host.rows
                ],
            }
            for host in hosts
        ],
    }


def text(topology: Topology, hosts: Sequence[HostPorts]) -> list[str]:
    """Return the maps as lines; hosts that are equal but for ranks and KV ports share one table."""
    lines: list[str] = []
    for bundle in alike(topology, hosts):
        lines += [*([""] if lines else []), *_bundle(bundle)]
    return lines


def _bundle(bundle: Sequence[HostPorts]) -> Iterator[str]:
    first, others = bundle[0], bundle[1:]
    yield f"{first.node} ({first.host})" if first.node != first.host else first.node
    rows = ((row.ports, row.use, row.owner or "-", near_words(row)) for row in first.rows)
    yield from (_INDENT + line for line in columns(("PORTS", "USE", "OWNER", "NEAR"), rows))
    if not others:
        return
    if not any(row.owners for row in first.rows):
        yield f"{_INDENT}the same: {', '.join(host.node for host in others)}"
        return
    yield f"{_INDENT}the same but for ranks and KV ports:"
    table = columns(("NODE", "HOST", "RANKS", "KV"), (_differing(host) for host in others))
    yield from (_INDENT * 2 + line for line in table)


def _differing(host: HostPorts) -> tuple[str, str, str, str]:
    ranks = [row.owner for row in host.rows if row.use == "api"]
    kv = [row.ports for row in host.rows if row.use == "kv"]
    return host.node, host.host, " ".join(ranks), " ".join(kv)


def near_words(row: PortRow) -> str:
    """Return what lies near as text: `also kv of d/0..3`, `in ephemeral`, `2679 below 15000-17000`.

    What is farther than ports that somebody would move by is left out where the row lies inside another range.
    """
    words = [] if row.bound or row.is_range else ["nobody listens"]
    words += [
        f"COLLIDES with {near.use} of {near.owner}" if near.owner else f"in {near.use}"
        for near in row.near
        if near.where == "inside"
    ]
    words += [
        f"{near.distance} {near.where} {span(near.first, near.last)}"
        for near in row.near
        if near.where != "inside" and (near.distance <= CLOSE or not words)
    ]
    return ", ".join(words)
