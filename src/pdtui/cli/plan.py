"""`pdtui plan`: what a topology file comes to: ranks, devices, commands, ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from pdtui.cli import changes, plan_polling, plan_ports
from pdtui.cli.output import columns, print_json
from pdtui.errors import UsageError
from pdtui.text import clean_line
from pdtui.topology.compare import ranks_compared
from pdtui.topology.load import load_checked
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan, PortUse, RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.port_map import HostPorts, PortRow, joined, span
from pdtui.topology.redact import redacted
from pdtui.topology.script import command_line, run_script


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("nodes", metavar="[@NODE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print ranks and port map as JSON.")
@click.option(
    "--ports", is_flag=True, help="Print who binds which port instead, and what lies near; @NODE: of some."
)
@click.option("--rank", metavar="RANK", help="Print the start script of one rank, such as decode/17.")
@click.option("--commands", is_flag=True, help="Print every rank's command and environment too.")
@click.option("--diff", nargs=2, metavar="RANK RANK", help="Print what differs between two ranks instead.")
@click.option("--polling", is_flag=True, help="Print how often the NPU tools of a node are called instead.")
@click.option("--consoles", type=click.IntRange(1, 100), help="With --polling: how many watch at once (1).")
@click.option(
    "--call-seconds",
    type=click.FloatRange(0.001, 60),
    help="With --polling: how long a call of a tool is taken to last (0.5).",
)
def command(
    file: Path,
    nodes: tuple[str, ...],
    as_json: bool,
    ports: bool,
    rank: str | None,
    commands: bool,
    diff: tuple[str, str] | None,
    polling: bool,
    consoles: int | None,
    call_seconds: float | None,
) -> int:
    """Print what FILE comes to: ranks with their devices and ports, and the port map of every host.

    Values of secrets are shown as ***.
    """
    asked = {
        "--ports": ports,
        "--rank": rank is not None,
        "--commands": commands,
        "--diff": bool(diff),
        "--polling": polling,
    }
    _one_view(asked, as_json=as_json)
    if nodes and not ports:
        raise UsageError("@NODE goes with --ports")
    if not polling and (consoles is not None or call_seconds is not None):
        raise UsageError("--consoles and --call-seconds go with --polling")
    topology = plan_ports.drawn(file) if ports else load_checked(file)
    plan = make_plan(topology)
    if polling:
        _polling(topology, as_json=as_json, consoles=consoles or 1, seconds=call_seconds or 0.5)
    elif ports:
        _ports(topology, plan_ports.chosen(topology, plan, nodes), as_json=as_json)
    elif diff:
        _diff(topology, (_rank(plan, diff[0]), _rank(plan, diff[1])), as_json=as_json)
    elif rank is not None:
        click.echo(run_script(_shown(_rank(plan, rank)), topology.runtime), nl=False)
    elif as_json:
        print_json(as_dict(plan))
    else:
        click.echo("\n".join(_text(topology, plan, commands=commands)))
    return 0


def _one_view(asked: Mapping[str, bool], *, as_json: bool) -> None:
    """Refuse what cannot be printed together; JSON has every command anyway, and a script is no JSON."""
    views = [option for option, is_asked in asked.items() if is_asked]
    if len(views) > 1:
        raise UsageError(f"{' and '.join(views)} do not go together")
    if as_json and {"--rank", "--commands"} & set(views):
        raise UsageError(
            f"{views[0]} and --json do not go together", remedy="--json alone has every rank's command"
        )


def _rank(plan: Plan, rank_id: str) -> RankPlan:
    if rank_id not in plan.by_id:
        raise UsageError(f"there is no rank {clean_line(rank_id)}", remedy=f"ranks are {_some(plan)}")
    return plan.by_id[rank_id]


def _diff(topology: Topology, ranks: tuple[RankPlan, RankPlan], *, as_json: bool) -> None:
    found = ranks_compared(topology, *ranks)
    if as_json:
        print_json(changes.two_ranks_as_dict(ranks, found))
    else:
        click.echo("\n".join(changes.of_two_ranks(topology, ranks, found)))


def _ports(topology: Topology, hosts: Sequence[HostPorts], *, as_json: bool) -> None:
    if as_json:
        print_json(plan_ports.as_dict(topology, hosts))
    else:
        click.echo("\n".join(plan_ports.text(topology, hosts)))


def _polling(topology: Topology, *, as_json: bool, consoles: int, seconds: float) -> None:
    if as_json:
        print_json(plan_polling.as_dict(topology, consoles=consoles, seconds=seconds))
    else:
        click.echo("\n".join(plan_polling.text(topology, consoles=consoles, seconds=seconds)))


def as_dict(plan: Plan) -> dict[str, object]:
    """Return a plan as what `--json` prints: an interface."""
    ranks = [_shown(rank) for rank in plan.ranks]
    return {
        "schema_version": 1,
        "ranks": [
            {
                "id": rank.id,
                "group": rank.group,
                "role": rank.role.value,
                "node": rank.node,
                "host": rank.host,
                "dp_rank": rank.dp_rank,
                "devices": list(rank.devices),
                "api_port": rank.api_port,
                "kv_ports": list(rank.kv_ports),
                "argv": list(rank.argv),
                "env": dict(rank.env),
            }
            for rank in ranks
        ],
        "ports": [asdict(use) for use in plan.ports],
    }


def _shown(rank: RankPlan) -> RankPlan:
    argv, env = redacted(rank.argv, rank.env)
    return replace(rank, argv=argv, env=env)


def _some(plan: Plan) -> str:
    ids = [rank.id for rank in plan.ranks]
    return ", ".join(ids if len(ids) < 8 else [*ids[:4], "...", ids[-1]])


def _text(topology: Topology, plan: Plan, *, commands: bool) -> list[str]:
    lines = [
        f"{topology.name}: {topology.transfer} ({topology.flow.value}), {topology.engine}",
        "",
        *columns(
            ("RANK", "ROLE", "NODE", "HOST", *(("NPUS",) if topology.has_npus else ()), "API", "KV"),
            (_rank_row(rank, has_npus=topology.has_npus) for rank in plan.ranks),
        ),
    ]
    if commands:
        for rank in map(_shown, plan.ranks):
            env = [f"{name}={value}" for name, value in rank.env.items()]
            lines += [
                "",
                f"{rank.id} on {rank.node}",
                *(f"  {line}" for line in env),
                f"  {command_line(rank.argv)}",
            ]
    return [*lines, "", *columns(("HOST", "PORTS", "USE", "OWNER"), _port_rows(plan.ports))]


def _port_rows(ports: Sequence[PortUse]) -> list[tuple[str, str, str, str]]:
    """Return the port map with neighbouring ports joined, so that it fits a screen."""
    order = {use.host: index for index, use in reversed(list(enumerate(ports)))}
    found = sorted(joined(ports), key=lambda item: (order[item[0].host], item[0].first))
    rows = [(use.host, PortRow(use.first, use.last, use.use, owners)) for use, owners in found]
    return [(host, row.ports, row.use, row.owner) for host, row in rows]


def _rank_row(rank: RankPlan, *, has_npus: bool) -> tuple[str, ...]:
    devices = span(rank.devices[0], rank.devices[-1]) if _contiguous(rank.devices) else _comma(rank.devices)
    kv = span(rank.kv_ports[0], rank.kv_ports[-1]) if rank.kv_ports else "-"
    npus = (devices,) if has_npus else ()
    return rank.id, rank.role.value, rank.node, rank.host, *npus, str(rank.api_port), kv


def _comma(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _contiguous(numbers: Sequence[int]) -> bool:
    return bool(numbers) and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
