"""From what was seen to a topology file in which nothing is said twice, and a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdtui.topology.build import CPU_CONNECTORS, GONE_CONNECTORS
from pdtui.topology.findings import Severity
from pdtui.topology.importing import compared, draft, levels, stores, verify
from pdtui.topology.importing.groups import Formed, form, model_kind
from pdtui.topology.importing.observed import ContainerCommand, Observed, ProxyCommand, Said, Wanted
from pdtui.topology.importing.places import (
    UNKNOWN_ADDRESS,
    Place,
    drop_own_address,
    is_ip,
    places,
    replicate,
    roles_from,
    settle,
    ssh_part,
)
from pdtui.topology.importing.ranks import PLACEHOLDER, Rank, Sourced, is_placeholder, sort, sourced
from pdtui.topology.importing.report import Draft, Kind, Note, merged, note
from pdtui.topology.importing.targets import aimed_elsewhere
from pdtui.topology.load import load_bytes
from pdtui.topology.model import NPUS_PER_NODE, Role
from pdtui.topology.render.container import usual
from pdtui.topology.versions import release_of
from pdtui.topology.yaml_tree import parse

VLLM_RPC_PORT = 29550
"""vLLM's own --data-parallel-rpc-port."""

KV_PORT = 17100
"""First KV port of groups whose scripts name none, a hundred apart: between the transfer engine's two ranges."""

MOST_RANKS = 2048
"""Servers that are read: 128 hosts of 16 NPUs, each its own rank."""

_RENAMED = {
    "MooncakeConnector": "MooncakeConnectorV1",
    "LLMDataDistCMgrConnector": "MooncakeConnectorV1",
}
"""Connectors that are gone -> what does the same today."""


def assemble(seen: Observed, wanted: Wanted | None = None, notes: Sequence[Note] = ()) -> Draft:
    """Return the topology of what was seen; `notes` of the readers come first in its report. Never raises."""
    if not seen.commands:
        nothing = note(Kind.UNREAD, "no vllm serve command was found")
        return Draft("", merged((*notes, nothing)), ())
    return _Assembly(seen, wanted or Wanted(), list(notes)).draft()


class _Assembly:
    """One import on its way to a file."""

    def __init__(self, seen: Observed, wanted: Wanted, notes: list[Note]) -> None:
        self.seen = seen
        self.wanted = wanted
        self.notes = notes
        self.asked: list[tuple[tuple[str | int, ...], str]] = []
        """What the user must write: path in the file, and why; the same words are told once."""
        self.proxies = list(seen.proxies)
        self.ranks: list[Rank] = []
        self.places: dict[str, Place] = {}
        self.groups: list[Formed] = []
        self.kind = "moe"
        self._cpu = False
        self._on = ""

    def draft(self) -> Draft:
        self._sort()
        self._place()
        self._group()
        text = self._text()
        loaded = load_bytes(text.encode(), Path(self._file_name()))
        document, _ = parse(text.encode(), "")
        if loaded.topology is not None:
            self.notes += verify.differences(loaded.topology, self.groups, self.notes)
        for message in dict.fromkeys(message for _, message in self.asked):
            paths = [path for path, words in self.asked if words == message]
            lines = sorted({document.mark(path).line for path in paths})
            where = f"line{'s' * (len(lines) > 1)} {_spans(lines)} of the draft"
            found = note(Kind.ASKED, f"{message}: write it yourself, {where}", path=".".join(map(str, paths[0])))
            self.notes.append(found)
        return Draft(text, merged(self.notes), loaded.findings)

    def _file_name(self) -> str:
        return f"{self._name()}.yaml"

    def _sort(self) -> None:
        if len(self.seen.commands) > MOST_RANKS:
            message = f"{len(self.seen.commands)} servers are more than a cluster has; {MOST_RANKS} were read"
            self.notes.append(note(Kind.UNREAD, message, self.seen.commands[MOST_RANKS].origin))
        for command in self.seen.commands[:MOST_RANKS]:
            rank, notes = sort(command)
            self.ranks.append(rank)
            self.notes += notes
        self.notes += settle(self.ranks, self.proxies)
        self.notes += roles_from(self.ranks, self.proxies)
        self.notes += replicate(self.ranks, self.proxies)

    def _place(self) -> None:
        extra = [name for proxy in self.proxies[:1] if (name := self._proxy_host(proxy))]
        self.places, notes = places(self.ranks, self.seen.hosts, extra)
        self.notes += notes
        drop_own_address(self.ranks, self.places)
        for name, place in self.places.items():
            path = ("nodes", place.name)
            if not name:
                self.asked.append(((*path, "host"), "nothing says on which host this runs"))
            elif place.address == UNKNOWN_ADDRESS and name != UNKNOWN_ADDRESS:
                self.asked.append(((*path, "address"), "nothing says which address of the host the cluster uses"))
            if not place.nic or is_placeholder(place.nic):
                self.asked.append(((*path, "nic"), "nothing says which interface owns the node's address (nic)"))

    def _group(self) -> None:
        self.kind = model_kind(self.ranks)
        self.groups = form(self.ranks, dense=self.kind == "dense")
        for group in self.groups:
            self.notes += group.notes
        prefill = (group.first for group in self.groups if group.role is Role.PREFILL)
        pipeline = next((rank for rank in prefill if rank.pp_size > 1), None)
        if pipeline is not None:
            for rank in self.ranks:
                values = stores.without_pipeline(sourced(rank.stores), pipeline.pp_size, pipeline.layers)
                rank.stores = {name: replace(said, value=values[name]) for name, said in rank.stores.items()}

    # --- the parts of the file

    def _text(self) -> str:
        own: dict[str, Mapping[str, Mapping[str, Sourced]]] = {}
        connectors = self._connectors()
        for group in self.groups:
            mine, notes = levels.of_group(group)
            self.notes += notes
            self._sizes(group, mine)
            self._served(group, mine)
            own[group.name] = mine
        sorted_out = levels.sort_out(self.groups, own)
        platform = self._platform()
        self._on = platform
        self._cpu = platform == "cpu"
        head = {"pdtui": 1, "name": self._name(), "platform": platform}
        head["vllm" if self._cpu else "vllm_ascend"] = self._version()
        ssh, ssh_own = ssh_part(self.places)
        nodes = {place.name: place.entry() for place in self.places.values()}
        for name, differs in ssh_own.items():
            nodes[name]["ssh"] = differs
        roles = {
            role.value: part
            for role in Role
            if (part := _part(sorted_out.roles[role])) and any(group.role is role for group in self.groups)
        }
        kv: dict[str, Any] = {"connector": connectors[0]}
        kv |= _kv(sorted_out.defaults)
        groups = {
            group.name: self._group_part(group, sorted_out.groups[group.name], connectors[number])
            for number, group in enumerate(self.groups)
        }
        for number, group in enumerate(self.groups):
            if connectors[number] != connectors[0]:
                groups[group.name].setdefault("kv", {})["connector"] = connectors[number]
        defaults = _part(sorted_out.defaults, kv=False)
        sections: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
            (head, self._head_comments()),
            ({"ssh": ssh} if ssh else {}, {}),
            ({"runtime": runtime} if (runtime := self._runtime()) else {}, {}),
            ({"model": self._model()}, {}),
            ({"kv": kv}, {}),
            ({"nodes": nodes}, {}),
            ({"defaults": defaults} if defaults else {}, {}),
            ({"roles": roles} if roles else {}, {}),
            ({"groups": groups}, {}),
            ({"proxy": proxy} if (proxy := self._proxy()) else {}, {}),
        ]
        return draft.document(sections)

    def _head_comments(self) -> dict[str, str]:
        return {"pdtui": "format of this file"}

    def _name(self) -> str:
        if self.wanted.name:
            return self.wanted.name
        said = next((rank.served or rank.model for rank in self.ranks if rank.served or rank.model), None)
        base = said.text.rstrip("/").rsplit("/", 1)[-1] if said is not None else ""
        name = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:63].strip("-")
        return name if name and not is_placeholder(name) and name not in {"all", "failed"} else "imported"

    def _platform(self) -> str:
        if self.wanted.platform:
            return self.wanted.platform
        for container in self.seen.containers:
            if match := re.search(r"-(a2|a3|a5|950\w*)\b", container.image.rsplit(":", 1)[-1]):
                return "a5" if match[1].startswith("950") else match[1]
        counts = [host.npus for host in self.seen.hosts if host.npus]
        used = [1 + max(rank.devices) if rank.devices else rank.tp_size * rank.pp_size for rank in self.ranks]
        each = [
            sum(rank.tp_size * rank.pp_size for rank in self.ranks if rank.host == name) for name in self.places
        ]
        davinci = [
            1 + max(numbers)
            for container in self.seen.containers
            if (numbers := [int(m[1]) for d in container.devices if (m := re.search(r"davinci(\d{1,3})$", d))])
        ]
        most = max([*counts, *used, *each, *davinci, 0])
        if self._is_cpu():
            message = "platform cpu: NixlConnector and no NPUs; --platform says otherwise"
            self.notes.append(note(Kind.ASSUMPTION, message, self.ranks[0].origin, path="platform"))
            return "cpu"
        platform = "a3" if most > NPUS_PER_NODE["a2"] else "a2"
        count = f"{most} NPUs are used on a host" if most > 1 else "nothing says how many NPUs a host has"
        message = f"platform {platform}: {count}; --platform says otherwise"
        self.notes.append(note(Kind.ASSUMPTION, message, path="platform"))
        return platform

    def _is_cpu(self) -> bool:
        """Whether this is vLLM without NPUs: its own connector, and no NPU is named."""
        names = {str(rank.connector.value) for rank in self.ranks if rank.connector is not None}
        named = any(rank.devices is not None or "HCCL_IF_IP" in rank.command.env for rank in self.ranks)
        return bool(names) and names <= CPU_CONNECTORS and not named and not self.wanted.vllm_ascend

    def _version(self) -> str:
        if self.wanted.vllm_ascend:
            return self.wanted.vllm_ascend
        if self.seen.version is not None:
            return self.seen.version.text
        for container in self.seen.containers:
            tag = container.image.rsplit(":", 1)[-1] if ":" in container.image.rsplit("/", 1)[-1] else ""
            match = re.match(r"v?(\d+\.\d+\.\d+(?:rc\d+)?|main)(?:-|$)", tag)
            if match and release_of(match[1]) is not None:
                message = f"vllm_ascend {match[1]}: the tag of the image"
                self.notes.append(note(Kind.ORIGIN, message, container.origin, path="vllm_ascend"))
                return match[1]
        key = "vllm" if self._cpu else "vllm_ascend"
        self.asked.append(((key,), "nothing says which version runs (--vllm-ascend)"))
        return "main"

    def _runtime(self) -> dict[str, Any]:
        containers = list(self.seen.containers)
        said: dict[str, Any] = {}
        if containers:
            first = containers[0]
            self._compare(containers)
            said["container"] = first.name or "vllm-ascend"
            if not first.name:
                self.asked.append((("runtime", "container"), "the container has no name"))
        elif name := next((rank.command.container for rank in self.ranks if rank.command.container), ""):
            said["container"] = name
        if said and self.seen.exec:
            said["exec"] = list(self.seen.exec)
        if self.seen.setup:
            said["setup"] = [one.text for one in self.seen.setup]
        if self.seen.state_dir is not None:
            said["state_dir"] = self.seen.state_dir.text
        if containers:
            first = containers[0]
            said["image"] = first.image
            said |= {"shm_size": first.shm_size} if first.shm_size else {}
            devices, mounts = self._beyond_usual(first)
            said |= {"devices": devices} if devices else {}
            said |= {"mounts": mounts} if mounts else {}
            own = [word for word in first.options if (self._on, word) != ("a5", "--pid=host")]
            said |= {"options": own} if own else {}
        return {key: value for key, value in said.items() if value}

    def _beyond_usual(self, container: ContainerCommand) -> tuple[list[str], list[str]]:
        """Return device files and mounts that are not every container's: NPUs and their driver."""
        usual_devices, usual_mounts = usual(self._on)
        devices = [
            name
            for name in container.devices
            if not re.search(r"/davinci\d+$", name) and name not in usual_devices
        ]
        mounts = [mount for mount in container.mounts if mount.removesuffix(":ro") not in usual_mounts]
        return devices, mounts

    def _compare(self, containers: Sequence[ContainerCommand]) -> None:
        first = containers[0]
        for other in containers[1:]:
            for name in ("name", "image", "shm_size", "mounts", "options"):
                one, two = getattr(first, name), getattr(other, name)
                if one != two:
                    message = (
                        f"{name} of the container differs; a topology has one for all nodes, the first was taken"
                    )
                    self.notes.append(note(Kind.CONTRADICTION, message, first.origin, other.origin))

    def _model(self) -> dict[str, Any]:
        path, notes = compared.one_value(self.ranks, lambda rank: rank.model, "model", "R45")
        self.notes += notes
        served, notes = compared.one_value(self.ranks, _first_served, "served name", "R44")
        self.notes += notes
        said: dict[str, Any] = {"path": path.text if path else PLACEHOLDER}
        if path is None:
            self.asked.append((("model", "path"), "nothing says which model is served"))
        elif path.unknown:
            self._unknown(path, ("model", "path"), "the model's path")
            said["path"] = PLACEHOLDER
        said["served_name"] = served.text if served else said["path"]
        if served is None and path is not None:
            message = "no --served-model-name: clients name the model by its path"
            self.notes.append(note(Kind.TRANSLATION, message, path.origin, path="model.served_name"))
        if self.kind != "moe":
            said["kind"] = self.kind
            message = "a dense model, by its name: its ranks are independent instances"
            self.notes.append(note(Kind.ASSUMPTION, message, *((path.origin,) if path else ()), path="model.kind"))
        return said

    def _unknown(self, said: Said, path: tuple[str | int, ...], what: str) -> None:
        self.asked.append((path, f"{what} is only known where it runs (`{said.unknown}` in {said.origin})"))

    def _connectors(self) -> list[str]:
        """Return the connector of each group; one that nothing says is asked for."""
        found: list[str | None] = []
        for group in self.groups:
            said = next((rank.connector for rank in group.ranks if rank.connector is not None), None)
            found.append(self._today(said) if said is not None else None)
        known = next((name for name in found if name), None)
        if known is None:
            layerwise = self.wanted.flow == "layerwise" or any(proxy.layerwise for proxy in self.proxies[:1])
            known = "MooncakeLayerwiseConnector" if layerwise else "MooncakeConnectorV1"
            self.asked.append((("kv", "connector"), "no --kv-transfer-config says how the KV cache crosses"))
        return [name or known for name in found]

    def _today(self, said: Sourced) -> str:
        """Return a connector by its name of today."""
        name = str(said.value)
        if name not in _RENAMED:
            return name
        message = f"{name} exists no longer: {GONE_CONNECTORS[name]}; the draft has {_RENAMED[name]}"
        self.notes.append(note(Kind.FINDING, message, said.origin, rule="K10", severity=Severity.ERROR, path="kv"))
        return _RENAMED[name]

    def _sizes(self, group: Formed, mine: dict[str, dict[str, Sourced]]) -> None:
        """Keep the sizes in kv_connector_extra_config only where they contradict the groups' own."""
        for role in Role:
            derived = self._derived_sizes(group, role)
            for rank in group.ranks:
                said = rank.sizes.get(role.value)
                if said is None or derived is None or _as_numbers(said) == derived:
                    continue
                origin = rank.place("kv-transfer-config")
                other = group if role is group.role else next((g for g in self.groups if g.role is role), group)
                if self.kind == "dense":
                    message = (
                        f"kv_connector_extra_config says {role.value} {_sizes_text(said)}, but ranks of a dense "
                        "model are independent: dp_size is 1 there"
                    )
                    found = note(Kind.CONTRADICTION, message, origin, rule="R27", severity=Severity.ERROR)
                    self.notes.append(found)
                    mine["extra"][role.value] = Sourced(said, origin)
                    break
                message = (
                    f"kv_connector_extra_config says {role.value} {_sizes_text(said)}, but {other.name} is "
                    f"started with {_sizes_text(derived)}; it was kept for `check` to show"
                )
                places_ = (origin, other.first.place("data-parallel-size"))
                found = note(Kind.CONTRADICTION, message, *places_, rule="R26", severity=Severity.ERROR)
                self.notes.append(found)
                mine["extra"][role.value] = Sourced(said, origin)
                break

    def _derived_sizes(self, own: Formed, role: Role) -> dict[str, Any] | None:
        """Return the sizes that a plan has for a role, as this group sees them; None without that role."""
        group = own if own.role is role else next((g for g in self.groups if g.role is role), None)
        if group is None:
            return None
        first = group.first
        sizes: dict[str, Any] = {"dp_size": 1 if self.kind == "dense" else group.dp_size, "tp_size": first.tp_size}
        if first.pp_size > 1:
            sizes |= {"pp_size": first.pp_size} | ({"pp_layer_partition": first.layers} if first.layers else {})
        return sizes

    def _served(self, group: Formed, mine: dict[str, dict[str, Sourced]]) -> None:
        """Keep a served name that is not the cluster's, so that `check` shows it."""
        first = next((rank.served for rank in self.ranks if rank.served is not None), None)
        own = group.first.served
        if first is None or own is None or own.text == first.text:
            if own is not None and isinstance(own.value, tuple):
                mine["args"]["served-model-name"] = Sourced(list(own.value), own.origin)
            return
        mine["args"]["served-model-name"] = Sourced(own.text, own.origin)

    def _group_part(self, group: Formed, level: levels.Level, connector: str) -> dict[str, Any]:
        first = group.first
        names = [self.places[host].name for host in group.hosts]
        path = ("groups", group.name)
        part: dict[str, Any] = {"role": group.role.value, "nodes": names, "dp_size": group.dp_size}
        part["tp_size"] = first.tp_size
        if first.pp_size > 1:
            part["pp_size"] = first.pp_size
            part |= {"pp_layer_partition": first.layers} if first.layers else {}
        part["api_port"] = self._api_port(group)
        if first.external:
            part["rpc_port"] = first.rpc_port or VLLM_RPC_PORT
        part["kv_port"] = self._kv_port(group, connector)
        counts = {self.places[host].name: len(group.on(host)) for host in group.hosts}
        if len(set(counts.values())) > 1 or sum(counts.values()) != group.dp_size:
            part["ranks"] = counts
        if devices := self._devices(group):
            part["devices"] = devices
        derived = self.places[group.hosts[0]].address
        if first.external and first.dp_address and first.dp_address != derived:
            part["dp_address"] = first.dp_address
        if all(rank.role is None for rank in group.ranks):
            self.asked.append(((*path, "role"), "nothing says whether this is prefill or decode"))
        self._missing(group)
        return part | _part(level)

    def _missing(self, group: Formed) -> None:
        there = {rank.dp_rank for rank in group.ranks}
        missing = [number for number in range(group.dp_size) if number not in there]
        if missing and group.first.external:
            some = f"{missing[0]}..{missing[-1]}" if len(missing) > 1 else str(missing[0])
            message = (
                f"{group.name} has {group.dp_size} ranks, but nothing starts rank {some}: give the scripts of its "
                "other nodes too, or add them to `nodes`"
            )
            places_ = (group.first.place("data-parallel-size"), group.ranks[-1].origin)
            self.notes.append(note(Kind.CONTRADICTION, message, *places_, rule="R02", severity=Severity.ERROR))

    def _api_port(self, group: Formed) -> int:
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
            self.notes.append(note(Kind.CONTRADICTION, message, one.place("port"), two.place("port")))
        return min(max(port, 1), 65535)

    def _kv_port(self, group: Formed, connector: str) -> int:
        found: dict[int, Rank] = {}
        for rank in group.ranks:
            if rank.kv_port is not None:
                found.setdefault(rank.kv_port, rank)
        if not found:
            if connector.startswith(("Mooncake", "Sfa")):
                self.asked.append((("groups", group.name, "kv_port"), "nothing says the kv_port"))
            return KV_PORT + 100 * self.groups.index(group)
        port, *others = found
        for other in others:
            message = f"kv_port differs within {group.name}: {port} and {other}; {port} was taken"
            places_ = (found[port].place("kv-transfer-config"), found[other].place("kv-transfer-config"))
            self.notes.append(note(Kind.CONTRADICTION, message, *places_, rule="R13", severity=Severity.ERROR))
        return port

    def _devices(self, group: Formed) -> Any:
        """Return the devices of a group where they are not simply the first of each node."""
        size = group.first.tp_size * group.first.pp_size
        by_node: dict[str, tuple[int, ...]] = {}
        needed = False
        for host in group.hosts:
            ranks = group.on(host)
            shared = any(other is not group and host in other.hosts for other in self.groups)
            given = [rank.devices for rank in ranks]
            if any(devices is None for devices in given):
                if shared and not all(devices is None for devices in given):
                    self.notes.append(
                        note(Kind.ASSUMPTION, f"not all ranks of {group.name} say their NPUs", ranks[0].origin)
                    )
                continue
            ids = tuple(number for devices in given if devices is not None for number in devices)
            by_node[self.places[host].name] = ids
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
                    self.notes.append(found)
                    needed = True
                    break
        if not needed or not by_node:
            return None
        texts = {name: _spans(ids) for name, ids in by_node.items()}
        if len(set(texts.values())) == 1 and len(texts) == len(group.hosts):
            return next(iter(texts.values()))
        return texts

    # --- the proxy

    def _proxy_host(self, proxy: ProxyCommand) -> str:
        """Return the host of a proxy: where it listens, else where the prefill ranks are."""
        if proxy.host:
            return proxy.host
        listen = proxy.listen.text if proxy.listen is not None else ""
        known = {rank.host for rank in self.ranks}
        if listen in known or (is_ip(listen) and listen not in {"0.0.0.0", "127.0.0.1", "::"}):  # noqa: S104 - read
            return listen
        first = next((rank.host for rank in self.ranks if rank.role is Role.PREFILL), "")
        return first or next((rank.host for rank in self.ranks if rank.host), "")

    def _proxy(self) -> dict[str, Any]:
        if not self.proxies:
            return {}
        proxy, *others = self.proxies
        for other in others:
            message = "there is a second proxy; a topology has one, and the first was taken"
            self.notes.append(note(Kind.CONTRADICTION, message, proxy.origin, other.origin))
        self.notes += compared.proxy_lists(
            proxy, [rank for group in self.groups for rank in group.ranks], self.places
        )
        host = self._proxy_host(proxy)
        listen = proxy.listen.text if proxy.listen is not None else "localhost"
        if not proxy.host and listen not in self.places:
            message = (
                f"the proxy was put on {host or 'the first node'}: it listens on {listen}, which names no node"
            )
            self.notes.append(note(Kind.ASSUMPTION, message, proxy.origin, path="proxy.node"))
        served = [rank.served for rank in self.ranks if rank.served is not None]
        ports = frozenset(rank.api_port for rank in self.ranks)
        self.notes += aimed_elsewhere(self.seen.targets, proxy.port, ports, served)
        message = f"{proxy.script} -> the proxy of pdtui, with the same lists: they follow from the groups"
        self.notes.append(note(Kind.TRANSLATION, message, proxy.origin, path="proxy"))
        port = proxy.port.number if proxy.port is not None else 8000
        node = self.places.get(host) or next(iter(self.places.values()))
        said: dict[str, Any] = {"node": node.name, "listen": listen}
        said["port"] = port if port is not None and 0 < port < 65536 else 8000
        return said


def _part(level: levels.Level, *, kv: bool = True) -> dict[str, Any]:
    part: dict[str, Any] = {}
    if kv and (said := _kv(level)):
        part["kv"] = said
    if level.env:
        part["env"] = sourced(level.env)
    if level.args:
        part["args"] = sourced(level.args)
    return part


def _kv(level: levels.Level) -> dict[str, Any]:
    said = {
        "config": sourced(level.config),
        "extra": sourced(level.extra),
        "stores": levels.nested(sourced(level.stores)),
    }
    return {key: value for key, value in said.items() if value}


def _first_served(rank: Rank) -> Said | None:
    """Return the first of the names under which a rank serves."""
    if rank.served is None or not isinstance(rank.served.value, tuple):
        return rank.served
    return replace(rank.served, value=rank.served.value[0])


def _as_numbers(said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    return {key: value for key, value in said.items() if not (key == "pp_size" and value == 1)}


def _sizes_text(said: Any) -> str:
    if not isinstance(said, dict):
        return str(said)[:40]
    return " ".join(f"{str(key).removesuffix('_size')}{value}" for key, value in said.items())[:80]


def _spans(ids: Sequence[int]) -> str:
    """Return NPU ids as a file writes them, in their order: `0-7`, `0-3,8-11`."""
    spans: list[list[int]] = []
    for number in ids:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
