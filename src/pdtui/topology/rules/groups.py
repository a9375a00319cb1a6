"""Groups: ranks over nodes, NPUs, where a group meets."""

from __future__ import annotations

from collections.abc import Iterator

from pdtui.text import spans
from pdtui.topology.findings import Problem
from pdtui.topology.model import Group
from pdtui.topology.planner import placement, rank_devices
from pdtui.topology.rules.registry import Context, cpu_rule, error, info, npu_rule, rule, warning

NPU_PORTS = "HCCL_NPU_SOCKET_PORT_RANGE"
"""Variable that lets HCCL choose its port on an NPU; without it there is one for all, 16666."""

SUPER_POD = "HCCL_LOGIC_SUPERPOD_ID"
"""Variable that says to which super pod a server belongs."""


@rule("R01", "R02")
def coverage(context: Context) -> Iterator[Problem]:
    """The ranks of a group cover 0..dp_size-1 exactly once (R01, R02)."""
    for name, group in context.topology.groups.items():
        path = ("groups", name)
        given = context.file.groups[name].ranks
        if given is None:
            if group.dp_size < len(group.nodes):
                message = f"{len(group.nodes)} nodes for {group.dp_size} ranks: {name} has nodes without a rank"
                yield error("R01", message, (*path, "nodes"))
            elif group.dp_size % len(group.nodes):
                message = (
                    f"{group.dp_size} ranks cannot be spread equally over {len(group.nodes)} nodes; "
                    f"change dp_size, or say `ranks: {{{group.nodes[0]}: N, ...}}`"
                )
                yield error("R02", message, (*path, "dp_size"))
            continue
        for index, node in enumerate(group.nodes):
            if node not in given:
                message = f"`ranks` says nothing about {node}; give it a number or take it out of `nodes`"
                yield error("R01", message, (*path, "nodes", index))
        total = sum(group.ranks_per_node.values())
        if total != group.dp_size:
            what = "too many" if total > group.dp_size else "the others would be waited for without end"
            message = f"`ranks` of {name} add up to {total}, but dp_size is {group.dp_size}: {what}"
            yield error("R02", message, (*path, "ranks"), on_key=True)


@npu_rule("R05", "R06", "R07")
def sizes(context: Context) -> Iterator[Problem]:
    """The ranks of a node fit on its NPUs (R05), and all ids exist there (R07)."""
    npus = context.topology.npus_per_node
    for name, group in context.topology.groups.items():
        for node, ranks in group.ranks_per_node.items():
            need, have = ranks * group.npus_per_rank, len(group.devices[node])
            if need > have:
                given = context.file.groups[name].devices is not None
                source = "`devices` has" if given else f"a server of platform {context.topology.platform} has"
                message = (
                    f"{name} needs {need} NPUs on {node} ({ranks} ranks with {group.npus_per_rank} each), "
                    f"but {source} {have}; lower tp_size or dp_size, or use more nodes"
                )
                yield error("R05", message, ("groups", name, "tp_size"))
        for node, ids in group.devices.items():
            where = _devices_path(context, name, node)
            if wrong := [number for number in ids if number >= npus]:
                message = f"NPU {spans(wrong)} does not exist on {node}: ids go from 0 to {npus - 1}"
                yield error("R07", message, where)
            if len(set(ids)) < len(ids):
                twice = [number for number in ids if ids.count(number) > 1]
                yield error("R06", f"NPU {spans(twice)} is listed twice for {name} on {node}", where)


def _devices_path(context: Context, group: str, node: str) -> tuple[str, ...]:
    path = ("groups", group, "devices")
    return (*path, node) if isinstance(context.file.groups[group].devices, dict) else path


@npu_rule("R06", "R19")
def devices_apart(context: Context) -> Iterator[Problem]:
    """No NPU is taken by two groups (R06), unless both name it and can share its ports (R19)."""
    topology = context.topology
    taken: dict[tuple[str, int], str] = {}
    for name, group in topology.groups.items():
        clashes: dict[tuple[str, str], list[int]] = {}
        for node, _, local_rank in placement(group):
            for device in rank_devices(group, node, local_rank):
                owner = taken.setdefault((topology.nodes[node].address, device), name)
                if owner != name:
                    clashes.setdefault((node, owner), []).append(device)
        for (node, owner), ids in clashes.items():
            yield _taken_twice(context, (topology.groups[owner], group), f"NPU {spans(ids)} of {node}")


def _taken_twice(context: Context, groups: tuple[Group, Group], npus: str) -> Problem:
    one, other = groups
    path: tuple[str, ...] = ("groups", other.name)
    path = (*path, "devices") if context.document.has((*path, "devices")) else path
    message = f"{npus} is taken by {one.name} and by {other.name}"
    if not all(context.file.groups[group.name].devices is not None for group in groups):
        return error("R06", f"{message}; give each group its own with `devices:`", path)
    if lacking := [group.name for group in groups if not group.env.get(NPU_PORTS)]:
        message += f"; if that is meant, both need a variable {NPU_PORTS}, such as auto: {' and '.join(lacking)} "
        return error("R19", f"{message}{'have' if len(lacking) > 1 else 'has'} none", path)
    return warning("R06", f"{message}, which share its ports; its memory must do for both", path)


@cpu_rule("R07")
def no_devices(context: Context) -> Iterator[Problem]:
    """No NPUs are given out where there are none (R07)."""
    for name, part in context.file.groups.items():
        if part.devices is not None:
            message = f"`devices` of {name} names NPUs, but a server of platform cpu has none; delete it"
            yield error("R07", message, ("groups", name, "devices"), on_key=True)


@rule("F11", "R04")
def meeting_point(context: Context) -> Iterator[Problem]:
    """A group meets at an address of the node of rank 0, reachable from its other nodes (R04)."""
    topology = context.topology
    for name, part in context.file.groups.items():
        group = topology.groups[name]
        if part.dp_address is None or topology.is_apart(group):
            continue
        first = next(iter(placement(group)), None)
        if first is None:
            continue
        derived = topology.nodes[first[0]].address
        path = ("groups", name, "dp_address")
        if part.dp_address == derived:
            yield info("F11", f"`dp_address` says what follows from `nodes` anyway ({derived}); delete it", path)
            continue
        loopback = part.dp_address == "localhost" or part.dp_address.startswith("127.")
        if loopback and len(group.nodes) > 1:
            message = (
                f"{part.dp_address} leads every node to itself, but {name} has nodes {', '.join(group.nodes)}"
            )
            yield error("R04", f"{message}; delete `dp_address`, it is {derived} then", path)
        else:
            message = f"`dp_address` is {part.dp_address}, but rank 0 of {name} runs on {first[0]}, {derived}"
            yield error("R04", f"{message}; delete it, or change the order of `nodes`", path)


@rule("F11", "T11")
def single_ranks(context: Context) -> Iterator[Problem]:
    """A group of one rank runs without data parallel flags (T11)."""
    for name, group in context.topology.groups.items():
        if context.topology.model.kind == "dense" or group.dp_size > 1:
            continue
        for key, value in group.args.items():
            where = context.where(group, "args", key)
            if key == "data-parallel-size" and value == 1:
                yield info("F11", f"`{key}` follows from dp_size anyway; delete it", where, on_key=True)
            elif key.startswith("data-parallel"):
                message = (
                    f"`{key}` in {name}, whose dp_size is 1: vLLM refuses data parallel flags for a single rank"
                )
                yield error("T11", f"{message}; delete it, or raise dp_size", where, on_key=True)


@rule("F11", "T11")
def dense_instances(context: Context) -> Iterator[Problem]:
    """A dense model runs as independent instances, without data parallel settings (T11)."""
    if context.topology.model.kind != "dense":
        return
    for name, part in context.file.groups.items():
        for key in ("rpc_port", "dp_address"):
            if getattr(part, key) is not None:
                message = f"`{key}` has no effect: ranks of a dense model are independent instances"
                yield info("T11", message, ("groups", name, key))
        for key in context.topology.groups[name].args:
            where = context.where(context.topology.groups[name], "args", key)
            if key == "data-parallel-size" and context.topology.groups[name].args[key] == 1:
                yield info("F11", f"`{key}` is 1 anyway: instances are independent; delete it", where, on_key=True)
            elif key.startswith("data-parallel"):
                message = (
                    f"`{key}` with a dense model: vLLM refuses it or falls back to rank 0 in every instance; "
                    "delete it, or set model.kind to moe"
                )
                yield error("T11", message, where, on_key=True)


@rule("T13")
def offline_parallel(context: Context) -> Iterator[Problem]:
    """Variables of the old launcher do not stand where vLLM takes them for offline data parallelism (T13)."""
    for name, group in context.topology.groups.items():
        for key, said in group.env.items():
            if not key.startswith("VLLM_DP_") or said is None:
                continue
            where = context.where(group, "env", key)
            if context.topology.is_apart(group) and said != ("0" if "RANK" in key else "1"):
                message = (
                    f"{key} in {name}, whose ranks are independent: vLLM takes it for offline data parallelism, "
                    "which a server is not; delete it"
                )
                yield warning("T13", message, where, on_key=True)
            else:
                yield info("T13", f"{key} has no effect beside the derived flags; delete it", where, on_key=True)


@npu_rule("T17")
def super_pods(context: Context) -> Iterator[Problem]:
    """Servers are not all put into one super pod by one value for several of them (T17)."""
    topology = context.topology
    if topology.platform != "a3":
        return
    members: dict[str, dict[str, Group]] = {}
    for group in topology.groups.values():
        said = group.env.get(SUPER_POD)
        if isinstance(said, str) and "$" not in said:
            members.setdefault(said, {}).update((node, group) for node in group.nodes)
    for said, nodes in members.items():
        if len(nodes) > 1:
            message = (
                f"{SUPER_POD} {said} is one value for {', '.join(nodes)}: HCCL takes them for one super pod. "
                "If they are, delete it; if not, set it on each server and write $NAME of that variable here"
            )
            yield warning("T17", message, context.where(next(iter(nodes.values())), "env", SUPER_POD))
