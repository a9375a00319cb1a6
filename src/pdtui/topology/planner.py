"""From a topology to its plan: ranks, devices, ports, commands. Pure arithmetic that never raises."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pdtui.topology.build import ASCEND_STORE, MULTI, SFA_REMOTE
from pdtui.topology.model import Group, Node, Role, Store, Topology
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.ports import NIXL_SIDE_CHANNEL, kv_ports, port_map, side_channel_base
from pdtui.topology.reference import reference
from pdtui.topology.script import SERVE
from pdtui.topology.versions import known_release

_NUMBER = re.compile(r"-(?:\d+|\d*\.\d+)")
"""What argparse takes for a negative number and not for a flag."""

KV_ROLES: Mapping[Role, str] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


def make_plan(topology: Topology) -> Plan:
    """Return every rank as it should run, and one port map over all hosts."""
    ranks = tuple(rank for group in topology.groups.values() for rank in _group_ranks(topology, group))
    return Plan(ranks, port_map(topology, ranks))


def placement(group: Group) -> Iterator[tuple[str, int, int]]:
    """Yield (node, DP rank, local rank) of each rank: contiguous blocks in the order of the nodes."""
    dp_rank = 0
    for node in group.nodes:
        for local_rank in range(group.ranks_per_node.get(node, 0)):
            yield node, dp_rank, local_rank
            dp_rank += 1


def rank_devices(group: Group, node: str, local_rank: int) -> tuple[int, ...]:
    """Return the NPUs of one rank: its slice of what the group may use there; short if there are too few."""
    size = group.npus_per_rank
    return group.devices[node][local_rank * size : (local_rank + 1) * size]


def _group_ranks(topology: Topology, group: Group) -> Iterator[RankPlan]:
    flags = flag_words({name: value for name, value in group.args.items() if name not in _PER_RANK})
    for node_name, dp_rank, local_rank in placement(group):
        node = topology.nodes[node_name]
        kv_port, ports = _kv_of(topology, group, dp_rank, local_rank)
        devices = rank_devices(group, node_name, local_rank)
        derived = derived_args(topology, group, node_name, dp_rank, group.api_port + local_rank, kv_port)
        own = {name: group.args.get(name, value) for name, value in derived.items()}
        last = {"kv-transfer-config": own.pop("kv-transfer-config")}
        argv = (*SERVE, topology.model.path, *flag_words(own), *flags, *flag_words(last))
        env = rank_env(topology, group, node, devices, dp_rank)
        yield RankPlan(
            id=f"{group.name}/{dp_rank}",
            group=group.name,
            role=group.role,
            node=node_name,
            host=node.address,
            dp_rank=dp_rank,
            local_rank=local_rank,
            devices=devices,
            api_port=group.api_port + local_rank,
            kv_ports=ports,
            argv=argv,
            env=env,
            digest=_digest(argv, env),
        )


def _kv_of(topology: Topology, group: Group, dp_rank: int, local_rank: int) -> tuple[int, tuple[int, ...]]:
    """Return the KV port that a rank is told and the ports that it binds."""
    independent = topology.is_apart(group)
    if not topology.has_npus:
        return side_channel_base(group.kv_port, dp_rank, independent=independent), (group.kv_port + dp_rank,)
    kv_port = group.kv_port + (dp_rank * group.npus_per_rank if independent else 0)
    ports = kv_ports(
        group.connector,
        known_release(topology.vllm_ascend),
        kv_port,
        dp_rank=0 if independent else dp_rank,
        local_rank=0 if independent else local_rank,
        tp=group.tp_size,
        pp=group.pp_size,
        pcp=group.pcp_size,
    )
    return kv_port, ports


_PER_RANK = frozenset(
    {
        "host",
        "port",
        "data-parallel-size",
        "data-parallel-rank",
        "data-parallel-address",
        "data-parallel-rpc-port",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "served-model-name",
        "kv-transfer-config",
    }
)
"""Flags that are derived; what the file says about them stands in their place."""


def derived_args(
    topology: Topology, group: Group, node: str, dp_rank: int, api_port: int, kv_port: int
) -> dict[str, Any]:
    """Return the flags that follow from the file; all of `_PER_RANK`, None where there is none."""
    independent = topology.is_apart(group)
    parallel: dict[str, Any] = {
        "data-parallel-size": group.dp_size,
        "data-parallel-rank": dp_rank,
        "data-parallel-address": group.dp_address,
        "data-parallel-rpc-port": group.rpc_port,
    }
    return {
        "host": listening_address(topology, topology.nodes[node]),
        "port": api_port,
        **(dict.fromkeys(parallel) if independent else parallel),
        "tensor-parallel-size": group.tp_size,
        "pipeline-parallel-size": group.pp_size if group.pp_size > 1 else None,
        "served-model-name": topology.model.served_name,
        "kv-transfer-config": kv_transfer_config(topology, group, kv_port),
    }


def listening_address(topology: Topology, node: Node) -> str:
    """Return where a rank's API server listens: everywhere, as in the guides, since the proxy must reach it.

    Without NPUs a node with a loopback address is one for trying things out: nothing is opened to the network.
    """
    alone = not topology.has_npus and ipaddress.ip_address(node.address).is_loopback
    return node.address if alone else "0.0.0.0"  # noqa: S104 - see above


def kv_transfer_config(topology: Topology, group: Group, kv_port: int) -> dict[str, Any]:
    """Return `--kv-transfer-config`: the derived keys, then the file's own.

    `kv_port` is text as in vLLM-Ascend's guides. Both roles' sizes are one group's, not the sum over groups; the
    own role's are the group's own, since that is what it is checked against when it starts. Without NPUs there is
    neither: the side channel's port is a variable, and NixlConnector learns sizes when it shakes hands.
    """
    if not topology.has_npus:
        config = {"kv_connector": group.connector, "kv_role": KV_ROLES[group.role], "kv_buffer_device": "cpu"}
        extra_keys = {"kv_connector_extra_config": dict(group.kv_extra)} if group.kv_extra else {}
        return {**config, **extra_keys, **group.kv_config}
    role = group.kv_config.get("kv_role", KV_ROLES[group.role])
    transfer = {
        "kv_connector": group.connector,
        "kv_role": role,
        "kv_port": str(kv_port),
        "kv_connector_extra_config": {**_transfer_extra(topology, group), **group.kv_extra},
    }
    if not group.stores:
        return {**transfer, **group.kv_config}
    # Each child has a role and, if it binds one, a port of its own; everything else is read at the top only.
    top = {key: value for key, value in group.kv_config.items() if key not in transfer}
    children = [transfer, *(_child(topology, store, role, kv_port) for store in group.stores)]
    return {
        "kv_connector": MULTI,
        "kv_role": role,
        **top,
        "kv_connector_extra_config": {"connectors": children},
    }


def _transfer_extra(topology: Topology, group: Group) -> dict[str, Any]:
    sizes = {role.value: sizes for role in Role if (sizes := _sizes(topology, group, role)) is not None}
    return {**sizes, "transfer_backend": "memfabric"} if group.connector == SFA_REMOTE else sizes


def _sizes(topology: Topology, own: Group, role: Role) -> dict[str, Any] | None:
    others = (group for group in topology.groups.values() if group.role is role)
    group = own if own.role is role else next(others, None)
    if group is None:
        return None
    sizes: dict[str, Any] = {
        "dp_size": 1 if topology.model.kind == "dense" else group.dp_size,
        "tp_size": group.tp_size,
    }
    if group.pp_size > 1:
        sizes["pp_size"] = group.pp_size
        if group.pp_layer_partition:
            sizes["pp_layer_partition"] = group.pp_layer_partition
    return sizes


def _child(topology: Topology, store: Store, role: str, kv_port: int) -> dict[str, Any]:
    """Return a store's entry in MultiConnector's list."""
    extra = {**_store_extra(topology, store, kv_port), **store.extra}
    config = {"kv_connector": store.connector, "kv_role": role}
    return {**config, **({"kv_connector_extra_config": extra} if extra else {}), **store.config}


def _store_extra(topology: Topology, store: Store, kv_port: int) -> dict[str, Any]:
    """Return what AscendStoreConnector must be told.

    `lookup_rpc_port` binds no port: it names a socket file of the host, to which the data parallel rank is added.
    A rank's KV port is its group's own there, and an independent instance's own.
    """
    if store.connector != ASCEND_STORE:
        return {}
    extra: dict[str, Any] = {} if "mooncake_rpc_port" in store.extra else {"lookup_rpc_port": str(kv_port)}
    if (pipeline := topology.pipeline()) is not None:
        extra["prefill_pp_size"] = pipeline.pp_size
        if pipeline.pp_layer_partition:
            extra["prefill_pp_layer_partition"] = pipeline.pp_layer_partition
    return extra


def flag_words(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return flags as words for a command line."""
    return tuple(word for name, value in args.items() for word in _words(f"--{name}", value))


def _words(flag: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if "." in flag:  # One key of a JSON value: vLLM takes the next word for it, whatever it is.
        return flag, value if isinstance(value, str) else _json(value)
    if isinstance(value, bool):
        return (flag,) if value else (f"--no-{flag[2:]}",)
    if isinstance(value, dict):
        return flag, _json(value["json"] if set(value) == {"json"} else value)
    if isinstance(value, (list, tuple)):
        return flag, *(item_text(item) for item in value)
    text = str(value)
    if text.startswith("-") and not _NUMBER.fullmatch(text):
        return (f"{flag}={text}",)  # argparse takes a word that begins with a dash for the next flag.
    return flag, text


def item_text(value: Any) -> str:
    """Return one item of a list as a word: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def rank_env(
    topology: Topology, group: Group, node: Node, devices: tuple[int, ...], dp_rank: int
) -> dict[str, str]:
    """Return the variables to export: the derived ones, then the file's; `null` removes one."""
    values: dict[str, Any] = {**derived_env(topology, group, node, devices, dp_rank), **group.env}
    return {name: _env_text(name, value) for name, value in values.items() if value is not None}


def derived_env(
    topology: Topology, group: Group, node: Node, devices: tuple[int, ...], dp_rank: int
) -> dict[str, str]:
    """Return the variables that follow from the node and the rank's NPUs, or without NPUs the side channel."""
    if not topology.has_npus:
        independent = topology.is_apart(group)
        return {
            "VLLM_HOST_IP": node.address,
            "GLOO_SOCKET_IFNAME": node.nic,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": node.address,
            NIXL_SIDE_CHANNEL: str(side_channel_base(group.kv_port, dp_rank, independent=independent)),
        }
    return {
        "HCCL_IF_IP": node.address,
        "GLOO_SOCKET_IFNAME": node.nic,
        "TP_SOCKET_IFNAME": node.nic,
        "HCCL_SOCKET_IFNAME": node.nic,
        "VLLM_HOST_IP": node.address,
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, devices)),
        **({"VLLM_PP_LAYER_PARTITION": group.pp_layer_partition} if group.pp_layer_partition else {}),
        **({"PYTHONHASHSEED": "0"} if group.stores else {}),
    }


def _env_text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        if "prepend" in value:
            # No colon when the node has no value: an empty entry would mean the working directory.
            return f"{value['prepend']}${{{name}:+:${{{name}}}}}"
        return reference(value)
    return str(value)


def _digest(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([argv, env]).encode()).hexdigest()
