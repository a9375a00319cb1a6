"""One group as the file says it: sizes, ports, NPUs, and what of them contradicts itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtui.topology.build import GONE_CONNECTORS
from pdtui.topology.findings import Severity
from pdtui.topology.importing import levels
from pdtui.topology.importing.groups import Formed
from pdtui.topology.importing.ranks import Rank, Sourced
from pdtui.topology.importing.report import Kind, note
from pdtui.topology.importing.work import Work
from pdtui.topology.model import Role

VLLM_RPC_PORT = 29550
"""vLLM's own --data-parallel-rpc-port."""

KV_PORT = 17100
"""First KV port of groups whose scripts name none, a hundred apart: between the transfer engine's two ranges."""

_RENAMED = {
    "MooncakeConnector": "MooncakeConnectorV1",
    "LLMDataDistCMgrConnector": "MooncakeConnectorV1",
}
"""Connectors that are gone -> what does the same today."""


def connectors(work: Work) -> list[str]:
    """Return the connector of each group; one that nothing says is asked for."""
    found: list[str | None] = []
    for group in work.groups:
        said = next((rank.connector for rank in group.ranks if rank.connector is not None), None)
        found.append(_today(work, said) if said is not None else None)
    known = next((name for name in found if name), None)
    if known is None:
        layerwise = work.wanted.flow == "layerwise" or any(proxy.layerwise for proxy in work.proxies[:1])
        known = "MooncakeLayerwiseConnector" if layerwise else "MooncakeConnectorV1"
        work.asked.append((("kv", "connector"), "no --kv-transfer-config says how the KV cache crosses"))
    return [name or known for name in found]


def _today(work: Work, said: Sourced) -> str:
    """Return a connector by its name of today."""
    name = str(said.value)
    if name not in _RENAMED:
        return name
    message = f"{name} exists no longer: {GONE_CONNECTORS[name]}; the draft has {_RENAMED[name]}"
    work.notes.append(note(Kind.FINDING, message, said.origin, rule="K10", severity=Severity.ERROR, path="kv"))
    return _RENAMED[name]


def keep_sizes(work: Work, group: Formed, mine: dict[str, dict[str, Sourced]]) -> None:
    """Keep the sizes in kv_connector_extra_config only where they contradict the groups' own."""
    for role in Role:
        derived = _derived_sizes(work, group, role)
        for rank in group.ranks:
            said = rank.sizes.get(role.value)
            if said is None or derived is None or _as_numbers(said) == derived:
                continue
            origin = rank.place("kv-transfer-config")
            other = group if role is group.role else next((g for g in work.groups if g.role is role), group)
            if work.kind == "dense":
                message = (
                    f"kv_connector_extra_config says {role.value} {_sizes_text(said)}, but ranks of a dense "
                    "model are independent: dp_size is 1 there"
                )
                found = note(Kind.CONTRADICTION, message, origin, rule="R27", severity=Severity.ERROR)
                work.notes.append(found)
                mine["extra"][role.value] = Sourced(said, origin)
                break
            message = (
                f"kv_connector_extra_config says {role.value} {_sizes_text(said)}, but {other.name} is "
                f"started with {_sizes_text(derived)}; it was kept for `check` to show"
            )
            places_ = (origin, other.first.place("data-parallel-size"))
            found = note(Kind.CONTRADICTION, message, *places_, rule="R26", severity=Severity.ERROR)
            work.notes.append(found)
            mine["extra"][role.value] = Sourced(said, origin)
            break


def _derived_sizes(work: Work, own: Formed, role: Role) -> dict[str, Any] | None:
    """Return the sizes that a plan has for a role, as this group sees them; None without that role."""
    group = own if own.role is role else next((g for g in work.groups if g.role is role), None)
    if group is None:
        return None
    first = group.first
    sizes: dict[str, Any] = {"dp_size": 1 if work.kind == "dense" else group.dp_size, "tp_size": first.tp_size}
    if first.pp_size > 1:
        sizes |= {"pp_size": first.pp_size} | ({"pp_layer_partition": first.layers} if first.layers else {})
    return sizes


def keep_served(work: Work, group: Formed, mine: dict[str, dict[str, Sourced]]) -> None:
    """Keep a served name that is not the cluster's, so that `check` shows it."""
    first = next((rank.served for rank in work.ranks if rank.served is not None), None)
    own = group.first.served
    if first is None or own is None or own.text == first.text:
        if own is not None and isinstance(own.value, tuple):
            mine["args"]["served-model-name"] = Sourced(list(own.value), own.origin)
        return
    mine["args"]["served-model-name"] = Sourced(own.text, own.origin)


def group_part(work: Work, group: Formed, level: levels.Level, connector: str) -> dict[str, Any]:
    """Return a group as the file says it; `level` is what it has besides its role and all others."""
    first = group.first
    names = [work.places[host].name for host in group.hosts]
    path = ("groups", group.name)
    part: dict[str, Any] = {"role": group.role.value, "nodes": names, "dp_size": group.dp_size}
    part["tp_size"] = first.tp_size
    if first.pp_size > 1:
        part["pp_size"] = first.pp_size
        part |= {"pp_layer_partition": first.layers} if first.layers else {}
    part["api_port"] = _api_port(work, group)
    if first.external:
        part["rpc_port"] = first.rpc_port or VLLM_RPC_PORT
    part["kv_port"] = _kv_port(work, group, connector)
    counts = {work.places[host].name: len(group.on(host)) for host in group.hosts}
    if len(set(counts.values())) > 1 or sum(counts.values()) != group.dp_size:
        part["ranks"] = counts
    if devices := _devices(work, group):
        part["devices"] = devices
    derived = work.places[group.hosts[0]].address
    if first.external and first.dp_address and first.dp_address != derived:
        part["dp_address"] = first.dp_address
    if all(rank.role is None for rank in group.ranks):
        work.asked.append(((*path, "role"), "nothing says whether this is prefill or decode"))
    _missing(work, group)
    return part | levels.parts_of(level)


def _missing(work: Work, group: Formed) -> None:
    there = {rank.dp_rank for rank in group.ranks}
    missing = [number for number in range(group.dp_size) if number not in there]
    if missing and group.first.external:
        some = f"{missing[0]}..{missing[-1]}" if len(missing) > 1 else str(missing[0])
        message = (
            f"{group.name} has {group.dp_size} ranks, but nothing starts rank {some}: give the scripts of its "
            "other nodes too, or add them to `nodes`"
        )
        places_ = (group.first.place("data-parallel-size"), group.ranks[-1].origin)
        work.notes.append(note(Kind.CONTRADICTION, message, *places_, rule="R02", severity=Severity.ERROR))


def _api_port(work: Work, group: Formed) -> int:
    """Return the first API port; ports that do not count up from it cannot be said and are told."""
    firsts: dict[int, Rank] = {}
    for host in group.hosts:
        for index, rank in enumerate(group.on(host)):
            firsts.setdefault(rank.api_port - index, rank)
    port, *others = firsts
    for other in others:
        one, two = firsts[port], firsts[other]
        message = (
            f"API ports of {group.name} do not count up from one number on each node: {one.host} has "
            f"{one.api_port}, {two.host} has {two.api_port} for rank {two.dp_rank}; {port} was taken"
        )
        work.notes.append(note(Kind.CONTRADICTION, message, one.place("port"), two.place("port")))
    return min(max(port, 1), 65535)


def _kv_port(work: Work, group: Formed, connector: str) -> int:
    found: dict[int, Rank] = {}
    for rank in group.ranks:
        if rank.kv_port is not None:
            found.setdefault(rank.kv_port, rank)
    if not found:
        if connector.startswith(("Mooncake", "Sfa")):
            work.asked.append((("groups", group.name, "kv_port"), "nothing says the kv_port"))
        return KV_PORT + 100 * work.groups.index(group)
    port, *others = found
    for other in others:
        message = f"kv_port differs within {group.name}: {port} and {other}; {port} was taken"
        places_ = (found[port].place("kv-transfer-config"), found[other].place("kv-transfer-config"))
        work.notes.append(note(Kind.CONTRADICTION, message, *places_, rule="R13", severity=Severity.ERROR))
    return port


def _devices(work: Work, group: Formed) -> Any:
    """Return the devices of a group where they are not simply the first of each node."""
    size = group.first.tp_size * group.first.pp_size
    by_node: dict[str, tuple[int, ...]] = {}
    needed = False
    for host in group.hosts:
        ranks = group.on(host)
        shared = any(other is not group and host in other.hosts for other in work.groups)
        given = [rank.devices for rank in ranks]
        if any(devices is None for devices in given):
            if shared and not all(devices is None for devices in given):
                work.notes.append(
                    note(Kind.ASSUMPTION, f"not all ranks of {group.name} say their NPUs", ranks[0].origin)
                )
            continue
        ids = tuple(number for devices in given if devices is not None for number in devices)
        by_node[work.places[host].name] = ids
        needed = needed or shared or ids != tuple(range(len(ids)))
        for rank in ranks:
            if rank.devices is not None and len(rank.devices) != size:
                message = f"{len(rank.devices)} NPUs are visible to a rank that takes {size} (tp x pp)"
                origin = rank.command.env["ASCEND_RT_VISIBLE_DEVICES"].origin
                found = note(
                    Kind.CONTRADICTION,
                    message,
                    origin,
                    rank.place("tensor-parallel-size"),
                    rule="R05",
                    severity=Severity.ERROR,
                )
                work.notes.append(found)
                needed = True
                break
    if not needed or not by_node:
        return None
    texts = {name: spans(ids) for name, ids in by_node.items()}
    if len(set(texts.values())) == 1 and len(texts) == len(group.hosts):
        return next(iter(texts.values()))
    return texts


def _as_numbers(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    return {key: value for key, value in said.items() if not (key == "pp_size" and value == 1)}


def _sizes_text(said: Any) -> str:
    if not isinstance(said, dict):
        return str(said)[:40]
    return " ".join(f"{str(key).removesuffix('_size')}{value}" for key, value in said.items())[:80]


def spans(ids: Sequence[int]) -> str:
    """Return NPU ids as a file writes them, in their order: `0-7`, `0-3,8-11`."""
    spans: list[list[int]] = []
    for number in ids:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
