"""The proxy: can everyone reach it."""

from __future__ import annotations

from collections.abc import Iterator

from pdtui.topology.findings import Problem
from pdtui.topology.model import Flow, Role
from pdtui.topology.rules.registry import Context, error, info, rule

WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - recognised, not bound


@rule("X1")
def present(context: Context) -> Iterator[Problem]:
    """Clients need a proxy (X1)."""
    if context.topology.proxy is None:
        yield info("X1", "no `proxy`: nothing brings requests to the ranks", ("groups",), on_key=True)


@rule("R73")
def advertised(context: Context) -> Iterator[Problem]:
    """The address that others are given is a real one (R73)."""
    topology, proxy = context.topology, context.topology.proxy
    if proxy is None:
        return
    path = ("proxy", "advertise")
    if proxy.advertise in WILDCARDS:
        address = topology.nodes[proxy.node].address
        message = f"{proxy.advertise} is where a server listens, nobody can connect to it; write {address}"
        yield error("R73", message, path)
        return
    if topology.flow is not Flow.LAYERWISE:
        return
    remote = {node for group in context.groups(Role.DECODE) for node in group.nodes} - {proxy.node}
    if not remote:
        return
    if proxy.advertise == "localhost" or (
        proxy.advertise.startswith("127.") and proxy.advertise != topology.nodes[proxy.node].address
    ):
        message = f"decode ranks on {min(remote)} call the proxy; {proxy.advertise} leads them to themselves"
        yield error("R73", message, path)
    if proxy.listen == "localhost" or (proxy.listen.startswith("127.") and proxy.listen != proxy.advertise):
        message = f"decode ranks on {min(remote)} call the proxy, but it listens on {proxy.listen} only"
        yield error("R73", message, ("proxy", "listen"))
