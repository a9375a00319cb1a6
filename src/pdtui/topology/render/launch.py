"""`launch.sh` of one group on one node: vLLM-Ascend's launcher where it can say it, else one line a rank."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdtui.topology.model import Group, Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.render.shell import LAUNCHER, SEVEN, TEMPLATE, head, script
from pdtui.topology.render.template import Template

EXAMPLES = "/vllm-workspace/vllm-ascend/examples"
"""Where vLLM-Ascend's images have its example scripts."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The script, and why it does not use the launcher."""

    text: str
    why: str
    """Empty where the launcher can say it."""


def launch(topology: Topology, group: Group, node: str, ranks: Sequence[RankPlan], template: Template) -> Launch:
    """Return what starts a group's ranks on one node."""
    argv = launcher_argv(template.runs)
    why = _why_not(topology, group, template, argv)
    lines = head(topology, _title(group, node, ranks), *([why] if why else []))
    lines += ['cd "$(dirname "$0")" || exit 1', f"# on {ranks[0].host}"]
    if why:
        lines += list(_by_rank(topology, ranks, template))
    else:
        lines.append(f"[ -e {LAUNCHER} ] || ln -s {EXAMPLES}/external_online_dp/{LAUNCHER} .")
        lines.append(shlex.join(argv))
    return Launch(script(lines), why)


def launcher_argv(runs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the command of the launcher for these runs of the template, if it is one that it can make."""
    first = runs[0]
    return (
        *("python3", LAUNCHER),
        *("--dp-size", first[2]),
        *("--tp-size", first[6]),
        *("--dp-size-local", str(len(runs))),
        *("--dp-rank-start", first[3]),
        *("--dp-address", first[4]),
        *("--dp-rpc-port", first[5]),
        *("--vllm-start-port", first[1]),
    )


def launcher_runs(options: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return what the launcher passes to the template for each rank (examples/external_online_dp)."""
    size, start = int(options["--tp-size"]), int(options["--dp-rank-start"])
    return tuple(
        (
            ",".join(map(str, range(index * size, (index + 1) * size))),
            str(int(options["--vllm-start-port"]) + index),
            options["--dp-size"],
            str(start + index),
            options["--dp-address"],
            options["--dp-rpc-port"],
            options["--tp-size"],
        )
        for index in range(int(options["--dp-size-local"]))
    )


def _why_not(topology: Topology, group: Group, template: Template, argv: Sequence[str]) -> str:
    """Return why the launcher cannot start these ranks, as a sentence; empty where it can."""
    reason = _obstacle(topology, group, template, argv)
    ranks = "these ranks" if len(template.runs) > 1 else "this rank"
    return f"{LAUNCHER} cannot start {ranks}: {reason}." if reason else ""


def _obstacle(topology: Topology, group: Group, template: Template, argv: Sequence[str]) -> str:
    if not topology.has_npus:
        return "it belongs to vLLM-Ascend, and there are no NPUs here"
    if topology.is_apart(group):
        if len(template.runs) > 1:
            return "they are instances of their own, with a KV port each and without data parallel flags"
        return "it always passes data parallel flags, and an instance that stands alone takes none"
    if template.more:
        return f"it passes seven arguments, and these ranks also differ in {', '.join(template.more)}"
    if not all(run[index].isdecimal() for run in template.runs for index in (1, 3, 6)):
        return "a port, number or size is none"
    runs = launcher_runs(dict(zip(argv[2::2], argv[3::2], strict=True)))
    columns = zip(zip(*runs, strict=True), zip(*template.runs, strict=True), strict=True)
    differ = [index for index, (theirs, ours) in enumerate(columns) if theirs != ours]
    if 0 in differ and group.npus_per_rank != group.tp_size:
        return "it counts tensor parallel NPUs only, and a rank has more"
    if 0 in differ:
        return "it gives each rank the next NPUs from 0 on, and these have others"
    return f"it counts up from the first rank, and these have another {SEVEN[differ[0]]}" if differ else ""


def _title(group: Group, node: str, ranks: Sequence[RankPlan]) -> str:
    numbers = [str(rank.dp_rank) for rank in ranks]
    which = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]} to {numbers[-1]}"
    return f"Starts {which} of {group.name} on {node} and waits for them."


def _by_rank(topology: Topology, ranks: Sequence[RankPlan], template: Template) -> list[str]:
    lines = ["trap 'kill $(jobs -p)' INT TERM"]
    stagger = topology.start.stagger
    for index, (rank, run) in enumerate(zip(ranks, template.runs, strict=True)):
        if index and stagger:
            lines.append(f"sleep {stagger:g}")
        lines.append(f"{shlex.join(('bash', TEMPLATE, *run))} > rank-{rank.dp_rank}.log 2>&1 &")
    return [*lines, "wait"]
