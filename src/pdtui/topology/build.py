"""A valid file -> the model that everything else reads: levels merged, names resolved, gaps filled."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from pdtui.topology import model
from pdtui.topology.findings import Path, Problem, Severity
from pdtui.topology.reference import API_KEY_FLAG, API_KEY_VARIABLE, is_reference
from pdtui.topology.schema import GroupPart, KvPart, NodePart, RolePart, SshPart, TopologyFile

FLOWS: Mapping[str, model.Flow] = {
    "MooncakeConnectorV1": model.Flow.PULL,
    "MooncakeHybridConnector": model.Flow.PULL,
    "MooncakeLayerwiseConnector": model.Flow.LAYERWISE,
    "SfaRemoteD2HConnector": model.Flow.LAYERWISE,
    "NixlConnector": model.Flow.PULL,
}
"""KV connector -> how a request crosses the roles (vllm-ascend, examples/disaggregated_prefill_v1; vLLM)."""

CPU_CONNECTORS = frozenset({"NixlConnector"})
"""The connectors of vLLM itself: those of a platform without NPUs, and of no other."""

MULTI = "MultiConnector"
"""What a rank runs that has stores; it is derived."""

ASCEND_STORE = "AscendStoreConnector"
SFA_REMOTE = "SfaRemoteD2HConnector"

STORES = frozenset(
    {
        ASCEND_STORE,
        "UCMConnector",
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
        "RecomputeCPUOffloadConnector",
        "LMCacheAscendConnector",
    }
)
"""Connectors that keep KV and do not carry it across the roles (vllm_ascend/distributed/kv_transfer)."""

_SUPPORTED = ", ".join(sorted(FLOWS))
_STORES = ", ".join(sorted(STORES))

GONE_CONNECTORS: Mapping[str, str] = {
    "MooncakeConnector": "it is registered as MooncakeConnectorV1",
    "MooncakeConnectorStoreV1": "its name is AscendStoreConnector now",
    "LLMDataDistCMgrConnector": "it was removed after vllm-ascend 0.11; use MooncakeConnectorV1",
}


def is_ip(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_nobodys(address: str) -> bool:
    """Whether an IP address stands for all or several servers."""
    ip = ipaddress.ip_address(address)
    return ip.is_unspecified or ip.is_multicast


def build(file: TopologyFile, path: FilePath, data: bytes) -> tuple[model.Topology | None, list[Problem]]:
    """Return the model, and what stands in its way: unresolved names, missing addresses, what is not supported."""
    builder = _Builder(file, path)
    problems = list(builder.check())
    if any(problem.severity is Severity.ERROR for problem in problems):
        return None, problems
    return builder.topology(hashlib.sha256(data).hexdigest()), problems


def merge(levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Override key by key; what is said last also stands where it was said first."""
    merged: dict[str, Any] = {}
    for level in levels:
        merged.update(level)
    return merged


def flag(name: str, value: Any) -> tuple[str, Any]:
    """Return a flag in its one form: `no-x: true` is `x: false`, underscores are dashes, as vLLM reads them.

    What follows a dot is a key of a JSON value and stays as it is.
    """
    name, dot, keys = name.partition(".")
    name = f"{name.replace('_', '-')}{dot}{keys}"
    if name.startswith("no-") and isinstance(value, bool):
        return name[3:], not value
    return name, value


class _Builder:
    """One file on its way to the model."""

    def __init__(self, file: TopologyFile, path: FilePath) -> None:
        self.file = file
        self.folder = path.parent
        self.path = path

    def check(self) -> Iterator[Problem]:
        """Yield what makes a model impossible, and what pdtui does not do yet."""
        file = self.file
        for name, node in file.nodes.items():
            yield from self._check_node(name, node)
        for name, group in file.groups.items():
            yield from self._check_group(name, group)
        if file.proxy is not None and file.proxy.node not in file.nodes:
            yield self._unknown_node(("proxy", "node"), file.proxy.node)
        for kv_path, kv in self._kv_parts():
            yield from _check_connector((*kv_path, "connector"), kv.connector)
            yield from self._check_stores((*kv_path, "stores"), kv)
        if file.kv.connector is None:
            known = "NixlConnector" if file.platform == "cpu" else "MooncakeConnectorV1 (pull) or another"
            yield _error("F05", f"`connector` is missing in `kv`: {known}", ("kv",))
        if file.proxy is not None and file.proxy.api_key is not None:
            yield _error("F09", "an api_key of the proxy is not yet supported", ("proxy", "api_key"))

    def _kv_parts(self) -> Iterator[tuple[Path, KvPart]]:
        yield ("kv",), self.file.kv
        for role in ("prefill", "decode"):
            if kv := getattr(self.file.roles, role).kv:
                yield ("roles", role, "kv"), kv
        for name, group in self.file.groups.items():
            if group.kv:
                yield ("groups", name, "kv"), group.kv

    def _check_stores(self, path: Path, kv: KvPart) -> Iterator[Problem]:
        above: set[str] = set()
        if path[0] != "kv":
            above.update(self.file.kv.stores)
        if path[0] == "groups" and (role := getattr(self.file.roles, self.file.groups[str(path[1])].role).kv):
            above.update(role.stores)
        for name, part in kv.stores.items():
            yield from _check_store((*path, name), name)
            if part is None and name not in above:
                message = f"null leaves out an inherited store, and there is no {name} to leave out; write {{}}"
                yield _error("F06", f"{message} for one with its defaults", (*path, name), on_key=True)

    def _check_node(self, name: str, node: NodePart) -> Iterator[Problem]:
        path = ("nodes", name)
        if node.address is None and not is_ip(node.host):
            message = f"`address` is missing: {node.host} is no IP address, so say which one the cluster uses"
            yield _error("F05", message, path, on_key=True)
        elif node.address is not None and not is_ip(node.address):
            message = f"`address` must be an IP address, not {node.address}; KV links take no names"
            yield _error("F06", message, (*path, "address"))
        elif is_nobodys(node.address or node.host):
            message = f"{node.address or node.host} is no address of one server; write that of the interface `nic`"
            yield _error("F06", message, (*path, "address" if node.address else "host"))
        if node.nic is None:
            message = "`nic` is missing: the interface that owns the node's address (`ip -br addr` shows it)"
            yield _error("F05", message, path, on_key=True)

    def _check_group(self, name: str, group: GroupPart) -> Iterator[Problem]:
        path = ("groups", name)
        for index, node in enumerate(group.nodes):
            if node not in self.file.nodes:
                yield self._unknown_node((*path, "nodes", index), node)
            elif node in group.nodes[:index]:
                yield _error("R01", f"{node} is listed twice in the group {name}", (*path, "nodes", index))
        by_node = group.devices if isinstance(group.devices, dict) else {}
        for key, table in (("ranks", group.ranks or {}), ("devices", by_node)):
            for node in table:
                if node not in group.nodes:
                    message = f"{node} is no node of the group {name}; its nodes are {', '.join(group.nodes)}"
                    yield _error("F08", message, (*path, key, node), on_key=True)
        if group.rpc_port is None and self.file.model.kind == "moe" and group.dp_size > 1:
            message = f"`rpc_port` is missing: the ranks of {name} meet there, on {group.nodes[0]}"
            yield _error("F05", message, path, on_key=True)

    def _unknown_node(self, path: Path, name: str) -> Problem:
        return _error("F08", f"there is no node {name}; `nodes` has {', '.join(self.file.nodes)}", path)

    def topology(self, digest: str) -> model.Topology:
        """Return the model of a file that `check` has passed."""
        file = self.file
        nodes = {name: self._node(name, node) for name, node in file.nodes.items()}
        groups = {name: self._group(name, group, nodes) for name, group in file.groups.items()}
        connector = next((group.connector for group in groups.values()), file.kv.connector or "")
        return model.Topology(
            path=self.path,
            digest=digest,
            name=file.name,
            platform=file.platform,
            vllm_ascend="" if file.platform == "cpu" else file.vllm_ascend or "",
            vllm=file.vllm or "" if file.platform == "cpu" else "",
            flow=FLOWS[connector],
            connector=connector,
            model=model.Model(file.model.path, file.model.served_name, file.model.kind),
            runtime=self._runtime(),
            safety=model.Safety(file.safety.protected, file.safety.read_only),
            workload=model.Workload(**file.workload.model_dump()) if file.workload else model.Workload(),
            start=model.Start(file.start.stagger, file.start.deadline, file.start.warm_up),
            nodes=nodes,
            groups=groups,
            proxy=self._proxy(nodes),
            accept=dict(file.accept),
        )

    def _runtime(self) -> model.Runtime:
        part = self.file.runtime
        return model.Runtime(
            container=part.container,
            exec=tuple(part.exec),
            setup=tuple(part.setup),
            state_dir=part.state_dir,
            image=part.image,
            shm_size=part.shm_size,
            devices=tuple(part.devices),
            mounts=tuple(part.mounts),
            options=tuple(part.options),
        )

    def _node(self, name: str, node: NodePart) -> model.Node:
        return model.Node(name, node.host, node.address or node.host, node.nic or "", self._ssh(node.ssh))

    def _ssh(self, own: SshPart | None) -> model.SshOptions:
        said = self.file.ssh.model_dump(exclude_none=True)
        said |= own.model_dump(exclude_none=True) if own else {}
        for key in ("key", "known_hosts", "config"):
            if key in said:
                said[key] = self.folder / FilePath(said[key]).expanduser()
        return model.SshOptions(**said)

    def _proxy(self, nodes: Mapping[str, model.Node]) -> model.ProxySettings | None:
        part = self.file.proxy
        if part is None:
            return None
        advertise = part.advertise or nodes[part.node].address
        return model.ProxySettings(part.node, part.listen, advertise, part.port, part.kind)

    def _group(self, name: str, part: GroupPart, nodes: Mapping[str, model.Node]) -> model.Group:
        file = self.file
        role: RolePart = getattr(file.roles, part.role)
        kvs = [kv for kv in (file.kv, role.kv, part.kv) if kv is not None]
        levels = [file.defaults, role, part]
        ranks = _ranks(part)
        first = next((node for node, count in ranks.items() if count), part.nodes[0])
        apart = file.model.kind == "dense" or part.dp_size == 1
        args = merge([dict(flag(key, value) for key, value in level.args.items()) for level in levels])
        env = merge([level.env for level in levels])
        if is_reference(args.get(API_KEY_FLAG)):  # Not on the command line, which everybody can see.
            env.setdefault(API_KEY_VARIABLE, args.pop(API_KEY_FLAG))
        return model.Group(
            name=name,
            role=model.Role(part.role),
            nodes=tuple(part.nodes),
            dp_size=part.dp_size,
            tp_size=part.tp_size,
            pp_size=part.pp_size,
            api_port=part.api_port,
            rpc_port=0 if apart else part.rpc_port or 0,
            kv_port=part.kv_port,
            ranks_per_node=ranks,
            devices=_devices(part, model.NPUS_PER_NODE[file.platform]),
            args=args,
            env=env,
            kv_config=merge([kv.config for kv in kvs]),
            kv_extra=merge([kv.extra for kv in kvs]),
            connector=next((kv.connector for kv in reversed(kvs) if kv.connector), ""),
            stores=_stores(kvs),
            pp_layer_partition=part.pp_layer_partition or "",
            dp_address="" if apart else part.dp_address or nodes[first].address,
        )


def _ranks(part: GroupPart) -> dict[str, int]:
    """Return ranks by node: as the file says, else equal blocks, the first nodes taking what is left over."""
    if part.ranks is not None:
        return {node: int(part.ranks.get(node, 0)) for node in part.nodes}
    each, left = divmod(part.dp_size, len(part.nodes))
    return {node: each + (index < left) for index, node in enumerate(part.nodes)}


def _devices(part: GroupPart, npus: int) -> dict[str, tuple[int, ...]]:
    every = tuple(range(npus))
    if not every:
        return dict.fromkeys(part.nodes, every)
    if isinstance(part.devices, dict):
        return {node: part.devices.get(node, every) for node in part.nodes}
    devices: tuple[int, ...] = every if part.devices is None else part.devices
    return dict.fromkeys(part.nodes, devices)


def _error(rule: str, message: str, path: Path, *, on_key: bool = False) -> Problem:
    return Problem(rule, Severity.ERROR, message, path, on_key)


def _stores(levels: Sequence[KvPart]) -> tuple[model.Store, ...]:
    """Return the stores of a group: each merged key by key, as everything else; null leaves one out."""
    merged: dict[str, model.Store] = {}
    for level in levels:
        for name, part in level.stores.items():
            if part is None:
                merged.pop(name, None)
                continue
            below = merged.get(name, model.Store(name))
            extra, config = merge([below.extra, part.extra]), merge([below.config, part.config])
            merged[name] = model.Store(name, extra, config)
    return tuple(merged.values())


def _check_connector(path: Path, name: str | None) -> Iterator[Problem]:
    if name is None or name in FLOWS:
        return
    if name == MULTI:
        message = (
            f"{name} follows from `stores`: write the connector that carries KV from prefill to decode here, and "
            f"the others under `stores`, such as `stores: {{{ASCEND_STORE}: {{}}}}`"
        )
    elif name in STORES:
        message = (
            f"{name} keeps KV and does not carry it from prefill to decode: write it under `stores`, and the one "
            "that carries it here, such as MooncakeConnectorV1"
        )
    else:
        message = f"no connector {name}: {GONE_CONNECTORS.get(name, f'known are {_SUPPORTED}')}"
    yield _error("K10", message, path)


def _check_store(path: Path, name: str) -> Iterator[Problem]:
    if name in STORES:
        return
    if name in FLOWS:
        message = f"{name} carries KV from prefill to decode: write it as `connector`, not under `stores`"
    else:
        message = f"no store {name}: {GONE_CONNECTORS.get(name, f'known are {_STORES}')}"
    yield _error("K10", message, path, on_key=True)
