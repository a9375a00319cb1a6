"""What is to be said of a topology file and of the nodes that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pdtui.cli.doctor.items import Item, Section, counted, fail, ok, warn
from pdtui.fleet.examination import NodeExamination, Trouble
from pdtui.remote.messages.commands import Facts
from pdtui.topology.findings import Severity
from pdtui.topology.load import Loaded, one_line
from pdtui.topology.model import Topology

LARGE_OFFSET = 0.5
"""Seconds between two clocks from which on the console shows it too."""

SLOW = 0.5
"""Seconds of a round trip that a person feels."""


def file_section(file: Path, loaded: Loaded, digest: str) -> Section:
    """Say which file it is and what `check` finds in it."""
    topology = loaded.topology
    counts = Counter(finding.severity for finding in loaded.findings)
    said = f"{counted(counts[Severity.ERROR], 'error')}, {counted(counts[Severity.WARNING], 'warning')}"
    if accepted := sum(bool(finding.accepted) for finding in loaded.findings):
        said += f", {accepted} accepted"
    items = [ok("path", str(file.absolute())), ok("sha256", digest)]
    if topology is not None:
        nodes = counted(len(topology.nodes), "node")
        what = f"{topology.platform}, {topology.engine}, {topology.transfer}, {nodes}"
        items.append(ok("cluster", f"{topology.name}: {what}"))
    remedy = f"pdtui check {file} lists all"
    if loaded.errors:
        items.append(fail("findings", f"{said}; the first: {one_line(loaded.errors[0])}", remedy))
    elif counts[Severity.WARNING]:
        items.append(warn("findings", said, remedy))
    else:
        items.append(ok("findings", said))
    return Section("file", tuple(items))


def nodes_section(topology: Topology, found: Sequence[NodeExamination]) -> Section:
    """Say of every node whether it can be used."""
    return Section("nodes", tuple(item for one in found for item in _node(topology, one)))


def _node(topology: Topology, found: NodeExamination) -> Iterator[Item]:
    name, runtime = found.name, topology.runtime
    if found.host is not None:
        yield ok(name, _host(topology, found, found.host))
    if runtime.container and found.ranks is not None:
        yield ok(name, f"container {runtime.container}: {_who(found.ranks)}")
    if found.connection is not None:
        yield _fails(name, found.connection)
        return
    if found.ranks is not None and not found.ranks.state_dir_error and found.state is None:
        yield ok(name, f"records and logs in {found.ranks.state_dir}, which takes a start")
    if found.state is not None:
        yield _fails(name, found.state)
    if found.round_trip is not None and found.round_trip > SLOW:
        yield warn(name, "answers slowly", f"pdtui --slow {topology.path} paints and reads less")
    if found.clock_offset is not None and abs(found.clock_offset) >= LARGE_OFFSET:
        side = "ahead of" if found.clock_offset > 0 else "behind"
        off = f"its clock is {abs(found.clock_offset):.1f} s {side} ours"
        yield warn(name, off, "pdtui reckons with it; chrony or ntpd keep clocks together")
    for condition in found.conditions:
        level = fail if condition.id == "no-state" else warn
        yield level(name, condition.message, condition.remedy)


def _fails(name: str, trouble: Trouble) -> Item:
    return fail(name, "; ".join(trouble.message.splitlines()), "; ".join(trouble.remedy.splitlines()))


def _who(facts: Facts) -> str:
    return f"{facts.user}@{facts.hostname}, Python {facts.python}, agent's protocol {facts.protocol}"


def _host(topology: Topology, found: NodeExamination, facts: Facts) -> str:
    node = topology.nodes[found.name]
    parts = [f"{'this machine' if node.host == 'local' else node.host}: {_who(facts)}"]
    if node.ssh.sudo:
        parts.append("through sudo")
    if found.connected_after is not None:
        parts.append(f"connected after {found.connected_after:.1f} s")
    if found.round_trip is not None:
        parts.append(f"answers in {found.round_trip * 1000:.1f} ms")
    if found.clock_offset is not None:
        parts.append(f"clock {found.clock_offset:+.2f} s")
    return ", ".join(parts)
