"""Ports: collisions on a host, ranges from which others pick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from pdtui.text import spans
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Group
from pdtui.topology.plan import PortUse
from pdtui.topology.port_map import EXACT
from pdtui.topology.ports import (
    EPHEMERAL,
    hccl_range,
    ports_per_npu,
    transfer_engine_range,
    transfer_engine_rpc_range,
)
from pdtui.topology.rules.registry import Context, by_version, error, npu_rule, rule, warning

DOCUMENTED_PER_NPU = 1000
"""Ports that vLLM-Ascend's guide reserves for each NPU: from so many Mooncake picked until 0.3.7."""

ALWAYS_PER_NPU = 100
"""Ports for each NPU from which every version of Mooncake picks."""

Clash = tuple[PortUse, PortUse]


def owner_of(use: PortUse) -> str:
    """Return the group (or `proxy`) that a port belongs to."""
    return use.owner.split("/")[0]


def path_of(use: PortUse) -> Path:
    """Return where a port is written in the file."""
    return ("proxy", "port") if use.use == "proxy" else ("groups", owner_of(use), f"{use.use}_port")


@rule("R11")
def in_range(context: Context) -> Iterator[Problem]:
    """Every port that follows from the file exists (R11)."""
    seen = set()
    for use in context.plan.ports:
        if use.use in EXACT and use.last > 65535 and path_of(use) not in seen:
            seen.add(path_of(use))
            message = f"{use.owner} would need {use.use} port {use.last}; the highest is 65535, so begin lower"
            yield error("R11", message, path_of(use))
    if context.topology.has_npus:
        for group in context.topology.groups.values():
            yield from _ranges_exist(context, group)


def _ranges_exist(context: Context, group: Group) -> Iterator[Problem]:
    first, last = transfer_engine_range(context.topology, group)
    if last > 65535:
        message = (
            f"ASCEND_BASE_PORT {first} leaves no room for {ports_per_npu(context.release)} ports for each of "
            f"{context.topology.npus_per_node} NPUs below 65536"
        )
        yield error("R11", message, context.where(group, "env", "ASCEND_BASE_PORT"))
    first, last = transfer_engine_rpc_range(group)
    if first > last or last > 65535:
        message = f"MC_MIN_RPC_PORT {first} and MC_MAX_RPC_PORT {last} are no range of ports"
        key = "MC_MAX_RPC_PORT" if "MC_MAX_RPC_PORT" in group.env else "MC_MIN_RPC_PORT"
        yield error("R11", message, context.where(group, "env", key))


@rule("R11", "R13", "R33", "R72")
def collisions(context: Context) -> Iterator[Problem]:
    """No two of the ports on one host are the same (R11, R13, R33, R72)."""
    uses = sorted(
        (use for use in context.plan.ports if use.use in EXACT), key=lambda use: (use.host, use.first, use.last)
    )
    clashes: dict[tuple[str, str, str, str, str], list[Clash]] = {}
    for host, on_host in groupby(uses, key=lambda use: use.host):
        for one, other in _overlaps(list(on_host)):
            key = (host, one.use, owner_of(one), other.use, owner_of(other))
            clashes.setdefault(key, []).append((one, other))
    for found in clashes.values():
        yield _collision(context, found)


def _overlaps(uses: list[PortUse]) -> Iterator[Clash]:
    """Yield overlapping pairs of uses sorted by their first port, the one that comes first in the file first."""
    open_: list[PortUse] = []
    for use in uses:
        open_ = [other for other in open_ if other.last >= use.first]
        for other in open_:
            yield other, use
        open_.append(use)


def _collision(context: Context, found: list[Clash]) -> Problem:
    one, other = found[0]
    topology = context.topology
    order = [*topology.groups, "proxy"]
    if order.index(owner_of(one)) > order.index(owner_of(other)):
        one, other = other, one
    shared = spans(port for a, b in found for port in range(max(a.first, b.first), min(a.last, b.last) + 1))
    node = next(name for name, node in topology.nodes.items() if node.address == one.host)
    where = f"{node} ({one.host})" if node != one.host else node
    kinds = {one.use, other.use}
    remedy = f"change {'.'.join(map(str, path_of(other)))} or {'.'.join(map(str, path_of(one)))}"
    if kinds == {"kv"}:
        roles = {topology.groups[owner_of(use)].role for use in (one, other)}
        need = max(_kv_ports(context, use) for use in (one, other))
        rule_id = "R33" if len(roles) > 1 else "R13"
        remedy = f"put the two kv_port at least {need} apart"
    else:
        rule_id = "R72" if "proxy" in kinds else "R11"
    message = f"on {where}, {_use(one)} and {_use(other)} both take port {shared}; {remedy}"
    return error(rule_id, message, path_of(other))


def _kv_ports(context: Context, use: PortUse) -> int:
    group = context.topology.groups[owner_of(use)]
    return group.dp_size * (group.npus_per_rank if context.topology.has_npus else 1)


def _use(use: PortUse) -> str:
    return "the proxy" if use.use == "proxy" else f"{use.use} of {use.owner}"


@npu_rule("P5", "P8", "R14", "R15")
def transfer_engine(context: Context) -> Iterator[Problem]:
    """Ports keep out of the ranges from which Mooncake's transfer engine picks (R14, R15, P5, P8)."""
    topology, npus = context.topology, context.topology.npus_per_node
    always, documented, others, handshake = _Found(), _Found(), _Found(), _Found()
    for uses, groups in _hosts(context):
        kv = [use for use in uses if use.use == "kv"]
        for group in groups:
            base, last = transfer_engine_range(topology, group)
            narrow = base + ALWAYS_PER_NPU * npus
            always.add(kv, (base, narrow - 1))
            documented.add(kv, (narrow, base + DOCUMENTED_PER_NPU * npus - 1))
            others.add([use for use in uses if use.use != "kv"], (base, last))
            handshake.add(uses, transfer_engine_rpc_range(group))
    for key, (first, _), ports in always:
        yield error("R14", _picked(context, first, ports), key)
    for key, (first, last), ports in documented:
        message = (
            f"kv ports {ports} lie below {last + 1}, which the guide reserves for the transfer engine; that of "
            f"vllm-ascend {topology.vllm_ascend} stays below {first}, older ones do not"
            if ports_per_npu(context.release) == ALWAYS_PER_NPU
            else _picked(context, first - ALWAYS_PER_NPU * npus, ports)
        )
        yield by_version(context, "R15", message, key)
    for key, (first, _), ports in others:
        yield warning("P8", f"port {ports} lies where {_range(context, first)}; choose another", key)
    for key, (first, last), ports in handshake:
        message = f"port {ports} lies in {first}-{last}, from which the transfer engine picks its own"
        yield warning("P5" if key[-1] == "kv_port" else "P8", message, key)


def _range(context: Context, base: int) -> str:
    each, npus = ports_per_npu(context.release), context.topology.npus_per_node
    return f"the transfer engine picks its own: [{base}, {base + each * npus}), {each} for each of {npus} NPUs"


def _picked(context: Context, base: int, ports: str) -> str:
    movable = ports_per_npu(context.release) == ALWAYS_PER_NPU
    return (
        f'kv ports {ports} lie where {_range(context, base)}; ranks fail now and then with "Address already in '
        f'use". Take a kv_port from {base + DOCUMENTED_PER_NPU * context.topology.npus_per_node} up'
        f"{', or move ASCEND_BASE_PORT' if movable else ''}"
    )


class _Found:
    """Ports that lie in a range, by where they are written."""

    def __init__(self) -> None:
        self._ports: dict[tuple[Path, tuple[int, int]], list[int]] = {}

    def add(self, uses: Iterable[PortUse], span: tuple[int, int]) -> None:
        """Note the ports of `uses` that lie in a range."""
        for use in uses:
            low, high = max(span[0], use.first), min(span[1], use.last)
            if low <= high:
                self._ports.setdefault((path_of(use), span), []).extend(range(low, high + 1))

    def __iter__(self) -> Iterator[tuple[Path, tuple[int, int], str]]:
        """Yield (where it is written, range, ports as text)."""
        for (key, span), ports in self._ports.items():
            yield key, span, spans(ports)


def _hosts(context: Context) -> list[tuple[list[PortUse], list[Group]]]:
    """Return (exact port uses, groups) of every host that has ranks."""
    topology = context.topology
    uses: dict[str, list[PortUse]] = {}
    groups: dict[str, list[Group]] = {}
    for use in context.plan.ports:
        if use.use in EXACT:
            uses.setdefault(use.host, []).append(use)
    for host, name in dict.fromkeys((rank.host, rank.group) for rank in context.plan.ranks):
        groups.setdefault(host, []).append(topology.groups[name])
    return [(uses.get(host, []), on_host) for host, on_host in groups.items()]


@npu_rule("R17", "R18")
def hccl(context: Context) -> Iterator[Problem]:
    """HCCL's ports exist and are free (R17), and groups on one host have their own (R18)."""
    topology = context.topology
    found = _Found()
    high: set[str] = set()
    for uses, groups in _hosts(context):
        bases: dict[int, Group] = {}
        for group in groups:
            first, last = hccl_range(topology, group)
            if last > 65535 and group.name not in high:
                high.add(group.name)
                message = f"HCCL_IF_BASE_PORT {first} leaves no room for {topology.npus_per_node} NPUs below 65536"
                yield error("R17", message, context.where(group, "env", "HCCL_IF_BASE_PORT"))
            found.add(uses, (first, last))
            yield from _engine_near(context, group, (first, last))
            if not _talks(context, group):
                continue
            if first in bases:
                message = (
                    f"{bases[first].name} and {group.name} share a host and HCCL's ports from {first} on; give "
                    "one of them another HCCL_IF_BASE_PORT"
                )
                yield warning("R18", message, ("groups", group.name), on_key=True)
            bases.setdefault(first, group)
    for key, (first, last), ports in found:
        yield error("R17", f"port {ports} lies in {first}-{last}, HCCL's range on this host; choose another", key)


def _engine_near(context: Context, group: Group, hccl: tuple[int, int]) -> Iterator[Problem]:
    engine = transfer_engine_range(context.topology, group)
    if max(engine[0], hccl[0]) <= min(engine[1], hccl[1]):
        message = (
            f"HCCL's ports {hccl[0]}-{hccl[1]} and those from which the transfer engine picks, "
            f"{engine[0]}-{engine[1]}, overlap in {group.name}; move ASCEND_BASE_PORT or HCCL_IF_BASE_PORT"
        )
        key = "ASCEND_BASE_PORT" if "ASCEND_BASE_PORT" in group.env else "HCCL_IF_BASE_PORT"
        yield warning("R17", message, context.where(group, "env", key))


def _talks(context: Context, group: Group) -> bool:
    """Whether the ranks of a group use HCCL: one NPU that stands for itself has nobody to talk to."""
    return not (context.topology.is_apart(group) and group.npus_per_rank == 1)


@rule("R16")
def ephemeral(context: Context) -> Iterator[Problem]:
    """Fixed ports are not among those that the kernel hands out, unless reserved (R16)."""
    inside = [use for use in context.plan.ports if use.use in EXACT and use.last >= EPHEMERAL[0]]
    inside = [use for use in inside if use.first <= EPHEMERAL[1]]
    if not inside:
        return
    ports = spans(port for use in inside for port in range(use.first, use.last + 1))
    order = list(context.topology.groups)
    first = min(inside, key=lambda use: order.index(owner_of(use)) if owner_of(use) in order else len(order))
    lie = f"port {ports} lies" if ports.isdecimal() else f"ports {ports} lie"
    message = (
        f"{lie} in the kernel's ephemeral range {EPHEMERAL[0]}-{EPHEMERAL[1]}: a client may hold one "
        f"when a rank starts. On each node: sysctl -w net.ipv4.ip_local_reserved_ports={ports.replace(' ', '')}"
    )
    yield warning("R16", message, path_of(first))


@rule("R20")
def starting_ports(context: Context) -> Iterator[Problem]:
    """Ranks that start on one node do not look for free ports in the same place at the same time (R20)."""
    topology = context.topology
    told = set()
    for group in topology.groups.values():
        node, ranks = max(group.ranks_per_node.items(), key=lambda item: item[1])
        said, where = group.env.get("VLLM_PORT"), context.where(group, "env", "VLLM_PORT")
        if ranks > 1 and isinstance(said, str) and "$" not in said and where not in told:
            told.add(where)
            message = (
                f"VLLM_PORT {said} is one for the {ranks} ranks of {group.name} on {node}: each takes it for its "
                "own, and they meet there; delete it (the API port is api_port)"
            )
            yield warning("R20", message, where)
    most = max(Counter(rank.node for rank in context.plan.ranks).values(), default=0)
    if topology.has_npus and topology.start.stagger == 0 and most > 1:
        message = (
            f"with stagger 0 the {most} ranks of a node start at once, and those that look for a free port at the "
            "same instant collide; leave it out, and it is 0.5 s"
        )
        yield warning("R20", message, ("start", "stagger"))
