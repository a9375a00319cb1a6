"""The reference proxy of vLLM-Ascend's examples for a cluster: which script, with which arguments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pdtui.topology.model import Flow, ProxySettings, Role, Topology
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.render.launch import EXAMPLES
from pdtui.topology.render.shell import head, script

SCRIPTS = {
    Flow.PULL: "load_balance_proxy_server_example.py",
    Flow.LAYERWISE: "load_balance_proxy_layerwise_server_example.py",
}
"""Flow -> script."""

FOLDER = "disaggregated_prefill_v1"
"""Where vLLM-Ascend's examples have them."""


def reference_argv(topology: Topology, proxy: ProxySettings, plan: Plan) -> tuple[str, ...]:
    """Return the command of the reference proxy: one host and one port for each rank, prefill and decode apart.

    In the layerwise flow decode ranks call the proxy back under `--host`, so that is the address to be reached at.
    """
    prefill, decode = backends(plan, Role.PREFILL), backends(plan, Role.DECODE)
    return (
        *("python3", SCRIPTS[topology.flow]),
        *("--port", str(proxy.port)),
        *("--host", proxy.advertise if topology.flow is Flow.LAYERWISE else proxy.listen),
        *("--prefiller-hosts", *(rank.host for rank in prefill)),
        *("--prefiller-ports", *(str(rank.api_port) for rank in prefill)),
        *("--decoder-hosts", *(rank.host for rank in decode)),
        *("--decoder-ports", *(str(rank.api_port) for rank in decode)),
    )


def backends(plan: Plan, role: Role) -> tuple[RankPlan, ...]:
    """Return the ranks of a role in the order of the plan."""
    return tuple(rank for rank in plan.ranks if rank.role is role)


def proxy_script(topology: Topology, proxy: ProxySettings, plan: Plan) -> str:
    """Return `proxy.sh`, which runs the reference proxy in its terminal."""
    name = SCRIPTS[topology.flow]
    way = "prefill first, decode pulls" if topology.flow is Flow.PULL else "decode first, prefill pushes"
    return script(
        [
            *head(topology, f"vLLM-Ascend's proxy for this cluster ({way}), on {proxy.node}."),
            'cd "$(dirname "$0")" || exit 1',
            f"[ -e {name} ] || ln -s {EXAMPLES}/{FOLDER}/{name} .",
            "unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY",
            f"# on {topology.nodes[proxy.node].address}",
            _by_lines(reference_argv(topology, proxy, plan)),
        ]
    )


def _by_lines(argv: Sequence[str]) -> str:
    """Return the command as the guides write it: a line a flag, below it hosts one a line, ports in one."""
    lines = [shlex.join(argv[:2])]
    flag = ""
    for word in argv[2:]:
        if word.startswith("--"):
            flag = word
            lines.append(f"  {flag}")
        elif flag in {"--port", "--host"} or (not lines[-1].startswith("  --") and flag.endswith("-ports")):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(f"    {shlex.quote(word)}")
    return " \\\n".join(lines)
