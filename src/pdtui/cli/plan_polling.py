"""What watching costs a node: calls of the vendor tools by query, from the pace that the monitor keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdtui.cli.output import columns
from pdtui.fleet.polling import Pace, calls_per_minute
from pdtui.readings.commands import Query, argv_of
from pdtui.topology.model import Platform, Topology

_A2_A3: tuple[Platform, ...] = ("a2", "a3")


@dataclass(frozen=True, slots=True)
class Cost:
    """One query of a node, in steady state."""

    query: Query
    command: str
    every: float
    """Seconds between two calls of one device."""
    calls: float
    """A minute, of all devices of the node."""


def costs(topology: Topology, *, consoles: int, roce: bool) -> tuple[Cost, ...]:
    """Return what a node of a topology is asked; `roce`: its RoCE plane is in use."""
    pace, platform, devices = Pace(), topology.platform, topology.npus_per_node
    found = calls_per_minute(pace, platform, devices, roce=roce, consoles=consoles)
    return tuple(
        Cost(query, _command(query, platform), pace.interval(query, roce=roce), calls)
        for query, calls in found.items()
    )


def _command(query: Query, platform: Platform) -> str:
    argv = argv_of(query, platform, None if query is Query.TABLE else 0)
    return " ".join("N" if before == "-i" else "C" if before == "-c" else word for before, word in _pairs(argv))


def _pairs(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return zip(("", *argv), argv, strict=False)


def _cases(topology: Topology) -> tuple[tuple[str, bool], ...]:
    """Return the states of a node that cost differently: on A3 RoCE may not be in use."""
    if topology.platform == "a3":
        return (("RoCE in use", True), ("RoCE not in use", False))
    return (("", True),)


def as_dict(topology: Topology, *, consoles: int, seconds: float) -> dict[str, object]:
    """Return what `--json` prints: an interface. `seconds`: of one call."""
    return {
        "schema_version": 1,
        "platform": topology.platform,
        "nodes": len(topology.nodes),
        "npus_per_node": topology.npus_per_node,
        "consoles": consoles,
        "call_seconds": seconds,
        "cases": [
            {
                "roce_in_use": roce if topology.platform in _A2_A3 else None,
                "queries": [
                    {
                        "query": cost.query.value,
                        "command": cost.command,
                        "every_seconds": cost.every,
                        "calls_per_minute": round(cost.calls, 3),
                        "tool_seconds_per_minute": round(cost.calls * seconds, 3),
                    }
                    for cost in found
                ],
                "calls_per_minute": round(sum(cost.calls for cost in found), 3),
                "tool_seconds_per_minute": round(sum(cost.calls for cost in found) * seconds, 3),
            }
            for _, roce in _cases(topology)
            for found in (costs(topology, consoles=consoles, roce=roce),)
        ],
    }


def text(topology: Topology, *, consoles: int, seconds: float) -> list[str]:
    """Return what people read. `seconds`: of one call."""
    if not topology.has_npus:
        return ["no NPU tools are asked: the platform is cpu"]
    who = "one console" if consoles == 1 else f"{consoles} consoles, which share what they read"
    lines = [
        f"each of {len(topology.nodes)} nodes, {topology.npus_per_node} NPUs ({topology.platform}), {who}; "
        f"a call is taken to last {seconds:g} s",
    ]
    for title, roce in _cases(topology):
        found = costs(topology, consoles=consoles, roce=roce)
        calls = sum(cost.calls for cost in found)
        rows = [
            (cost.command, _span(cost.every), f"{cost.calls:.1f}", f"{cost.calls * seconds:.1f}") for cost in found
        ]
        total = ("all", "", f"{calls:.1f}", f"{calls * seconds:.1f}")
        lines += ["", *((title,) if title else ())]
        lines += columns(("COMMAND", "EVERY", "CALLS/MIN", "TOOL SECONDS/MIN"), [*rows, total])
        lines.append(f"on average {calls * seconds / 60:.2f} tools run on a node at a time")
    lines += ["", "/etc/hccn.conf is read once in half an hour, without a tool; pings are sent by preflight only"]
    return lines


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"
