"""The proxy: can everyone reach it."""

from __future__ import annotations

from collections.abc import Iterator

from pdtui.topology.findings import Problem
from pdtui.topology.model import Flow, Group, Role
from pdtui.topology.reference import API_KEY_FLAG, API_KEY_VARIABLE
from pdtui.topology.rules.registry import Context, error, info, npu_rule, rule, warning
from pdtui.topology.versions import Release

WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - recognised, not bound

LAYERWISE_RECOMPUTE: Release = (0, 22, 1)
"""From this vllm-ascend on its layerwise proxy loses what a recomputed request had generated."""

DEV_MODE = "VLLM_SERVER_DEV_MODE"


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
    if proxy.advertise in {"localhost", "::1"} or (
        proxy.advertise.startswith("127.") and proxy.advertise != topology.nodes[proxy.node].address
    ):
        message = f"decode ranks on {min(remote)} call the proxy; {proxy.advertise} leads them to themselves"
        yield error("R73", message, path)
    if proxy.listen == "localhost" or (proxy.listen.startswith("127.") and proxy.listen != proxy.advertise):
        message = f"decode ranks on {min(remote)} call the proxy, but it listens on {proxy.listen} only"
        yield error("R73", message, ("proxy", "listen"))


@rule("R75")
def bracketed(context: Context) -> Iterator[Problem]:
    """The reference proxy is not given an IPv6 address that it would write into a URL as it is (R75)."""
    topology, proxy = context.topology, context.topology.proxy
    if proxy is None or proxy.kind != "reference" or topology.flow is not Flow.LAYERWISE:
        return
    if ":" in proxy.advertise:
        message = (
            f"the reference proxy tells decode ranks http://{proxy.advertise}:{proxy.port}/..., without brackets, "
            "which is no URL; use an IPv4 address, or kind: pdtui"
        )
        yield warning("R75", message, ("proxy", "advertise"))


@npu_rule("X9", "X10")
def recompute(context: Context) -> Iterator[Problem]:
    """The proxy understands a request that decode gives back to be computed again (X9, X10)."""
    topology, proxy = context.topology, context.topology.proxy
    group = next((group for group in context.groups(Role.DECODE) if _recomputes(group)), None)
    if proxy is None or group is None:
        return
    where = context.where(group, "args", "additional-config")
    if proxy.kind == "external":
        message = (
            f'decode ranks of {group.name} may end a request with "recomputed"; the external proxy must send it '
            "again, or clients get answers that are cut short"
        )
        yield info("X9", message, where)
    if proxy.kind == "reference" and topology.flow is Flow.LAYERWISE and context.release >= LAYERWISE_RECOMPUTE:
        message = (
            f"decode ranks of {group.name} may give requests back (recompute_scheduler_enable), which the "
            f"layerwise reference proxy of {topology.vllm_ascend} answers with wrong text or never; take it out"
        )
        yield warning("X10", message, where)


def _recomputes(group: Group) -> bool:
    config = group.args.get("additional-config")
    nested = config.get("scheduler_config") if isinstance(config, dict) else None
    parts = [part for part in (config, nested) if isinstance(part, dict)]
    return any(part.get("recompute_scheduler_enable") is True for part in parts)


@rule("X11")
def developer_endpoints(context: Context) -> Iterator[Problem]:
    """Ranks do not open vLLM's development endpoints unasked (X11)."""
    for group in context.topology.groups.values():
        if group.env.get(DEV_MODE) in {"1", "true", "True"}:
            message = (
                f"{DEV_MODE} opens /sleep, /reset_prefix_cache and more to everyone who reaches a rank's port; "
                "delete it unless something needs them"
            )
            yield info("X11", message, context.where(group, "env", DEV_MODE), on_key=True)


@rule("X8")
def keys_of_ranks(context: Context) -> Iterator[Problem]:
    """A request with one API key is taken by both roles (X8)."""
    first, *others = context.topology.groups.values()
    key = _api_key(first)
    for group in others:
        if (own := _api_key(group)) != key:
            lacking, named = (first, group) if key is None else (group, first)
            differ = (
                f"{lacking.name} has no API key, {named.name} has one"
                if None in (key, own)
                else f"{first.name} and {group.name} have different API keys"
            )
            message = f"{differ}; a request carries one for both: write it once, in `defaults`"
            yield warning("X8", message, ("groups", group.name), on_key=True)
            return


def _api_key(group: Group) -> object:
    return group.args.get(API_KEY_FLAG, group.env.get(API_KEY_VARIABLE))
