"""Hosts of an import -> nodes of a topology: names, addresses, interfaces, how SSH reaches them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtui.topology.build import is_ip
from pdtui.topology.findings import Severity
from pdtui.topology.importing.observed import Backend, Host, Origin, ProxyCommand
from pdtui.topology.importing.ranks import ADDRESS_VARIABLES, PLACEHOLDER, Rank
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Role

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_RESERVED = frozenset({"all", "failed", "proxy"})
UNKNOWN_ADDRESS = "192.0.2.1"
"""Stands for an address that nothing says: of a network that is for examples only."""

HELPERS = frozenset({"nic_name", "nic", "ifname", "net_if", "network_interface", "local_ip", "host_ip", "node_ip"})
"""Variables of scripts from which others are made; no server reads them."""


@dataclass
class Place:
    """One node."""

    name: str
    host: str
    address: str
    nic: str
    origin: Origin | None = None
    ssh: Host | None = None

    def entry(self) -> dict[str, Any]:
        """Return the node as the file says it."""
        said: dict[str, Any] = {"host": self.host}
        if self.address != self.host:
            said["address"] = self.address
        said["nic"] = self.nic or PLACEHOLDER
        return said


def settle(ranks: list[Rank], proxies: Sequence[ProxyCommand]) -> list[Note]:
    """Give each rank without a host the one that its group or the proxy's list says."""
    notes: list[Note] = []
    for rank in ranks:
        if rank.host:
            continue
        own = rank.command.env.get("HCCL_IF_IP")
        if own is not None and not own.unknown and is_ip(own.text):
            rank.host = own.text
        elif rank.dp_rank == 0 and is_ip(rank.dp_address):
            rank.host = rank.dp_address
        else:
            _from_proxy(rank, proxies, notes)
    return notes


def _from_proxy(rank: Rank, proxies: Sequence[ProxyCommand], notes: list[Note]) -> None:
    for proxy in proxies:
        lists = {Role.PREFILL: proxy.prefill, Role.DECODE: proxy.decode}
        found = [
            backend
            for role, backends in lists.items()
            if rank.role in (None, role)
            for backend in backends
            if backend.port == rank.api_port
        ]
        hosts = dict.fromkeys(backend.host for backend in found)
        if len(hosts) == 1:
            rank.host = found[0].host
            message = f"nothing says where this runs; the proxy lists its port {rank.api_port} on {rank.host}"
            notes.append(note(Kind.ASSUMPTION, message, rank.origin, found[0].origin))
            return


def roles_from(ranks: Sequence[Rank], proxies: Sequence[ProxyCommand]) -> list[Note]:
    """Give each rank without a role the one of the proxy's list that it is in, else that of its file's name."""
    notes: list[Note] = []
    for rank in ranks:
        if rank.role is not None:
            continue
        for proxy in proxies:
            for role, backends in ((Role.PREFILL, proxy.prefill), (Role.DECODE, proxy.decode)):
                found = next((b for b in backends if (b.host, b.port) == (rank.host, rank.api_port)), None)
                if rank.role is None and found is not None:
                    rank.role = role
                    message = f"the proxy lists it among the {role.value} servers"
                    notes.append(note(Kind.ASSUMPTION, message, rank.origin, found.origin))
        if rank.role is None and (match := re.search(r"prefill|decode", rank.origin.source.rsplit("/", 1)[-1])):
            rank.role = Role(match[0])
            notes.append(note(Kind.ASSUMPTION, f"{match[0]}, by the name of its file", rank.origin))
    return notes


def addresses(
    ranks: Sequence[Rank], hosts: Sequence[Host], proxies: Sequence[ProxyCommand]
) -> tuple[dict[str, str], list[Note]]:
    """Return the address of each host that ranks name: its own, else the proxy's only entry with its ports."""
    known = {host.name: host for host in hosts}
    names = dict.fromkeys(rank.host for rank in ranks)
    found = {
        name: _address(name, known.get(name), [rank for rank in ranks if rank.host == name]) for name in names
    }
    notes: list[Note] = []
    for name in names:
        if not name or found[name] != UNKNOWN_ADDRESS or name == UNKNOWN_ADDRESS:
            continue
        mine = [rank for rank in ranks if rank.host == name]
        options = [backend for backend in _with_ports(mine, proxies) if backend.host not in found.values()]
        if len({backend.host for backend in options}) == 1:
            found[name] = options[0].host
            message = (
                f"{name} was taken for {options[0].host}: the proxy lists its ports there, and on no other host"
            )
            notes.append(note(Kind.ASSUMPTION, message, mine[0].origin, options[0].origin))
    return found, notes


def _with_ports(ranks: Sequence[Rank], proxies: Sequence[ProxyCommand]) -> Iterator[Backend]:
    """Yield an entry of each host that the proxy lists with exactly the ports of some ranks."""
    for proxy in proxies[:1]:
        for role, backends in ((Role.PREFILL, proxy.prefill), (Role.DECODE, proxy.decode)):
            ports = sorted(rank.api_port for rank in ranks if rank.role is role)
            for host in dict.fromkeys(backend.host for backend in backends):
                listed = [backend for backend in backends if backend.host == host]
                if ports and is_ip(host) and sorted(backend.port for backend in listed) == ports:
                    yield listed[0]


def replicate(ranks: list[Rank], proxies: Sequence[ProxyCommand], known: Mapping[str, str]) -> list[Note]:
    """Run scripts that name no machine on the other hosts that the proxy lists with the same ports.

    `known`: addresses of the hosts that ranks name.
    """
    notes: list[Note] = []
    for proxy in proxies[:1]:
        for role, backends in ((Role.PREFILL, proxy.prefill), (Role.DECODE, proxy.decode)):
            listed: dict[str, list[int]] = {}
            for backend in backends:
                listed.setdefault(backend.host, []).append(backend.port)
            present = {name for rank in ranks if rank.role is role for name in (rank.host, known.get(rank.host))}
            missing = [host for host in listed if host not in present]
            donors = [rank for rank in ranks if rank.role is role and rank.is_for_anyone]
            hosts = dict.fromkeys(rank.host for rank in donors)
            if not missing or len(hosts) != 1:
                continue
            wanted = [host for host in missing if sorted(listed[host]) == sorted(rank.api_port for rank in donors)]
            if wanted:
                _copy(ranks, donors, wanted, role, notes, next(b.origin for b in backends if b.host == wanted[0]))
    return notes


def _copy(
    ranks: list[Rank], donors: Sequence[Rank], hosts: Sequence[str], role: Role, notes: list[Note], listed: Origin
) -> None:
    size, count = donors[0].dp_size, len(donors)
    whole = size <= count
    if not whole and count * (len(hosts) + 1) > size:
        return
    for number, host in enumerate(hosts, 1):
        for rank in donors:
            first = rank.dp_rank + (0 if whole else number * count)
            address = host if whole else rank.dp_address
            ranks.append(rank.moved(host, dp_rank=first, dp_address=address))
    how = (
        "each as a group of its own, meeting at its own address"
        if whole
        else f"with the next ranks of the {size}, {count} a host"
    )
    message = (
        f"the {role.value} script names no machine and the proxy lists {', '.join(hosts)} with the same ports: "
        f"taken to run there too, {how}"
    )
    notes.append(note(Kind.ASSUMPTION, message, donors[0].origin, listed, severity=Severity.WARNING))


def places(
    ranks: Sequence[Rank], hosts: Sequence[Host], extra: Sequence[str], addresses_: Mapping[str, str]
) -> tuple[dict[str, Place], list[Note]]:
    """Return nodes by the host that ranks name; `extra` are hosts that serve no rank, the proxy's."""
    known = {host.name: host for host in hosts}
    known |= {host.address: host for host in hosts if host.address}
    names = list(dict.fromkeys([*(rank.host for rank in ranks), *(name for name in extra if name)]))
    if len(names) > 1 and all(map(is_ip, names)):
        names.sort(key=lambda text: (ipaddress.ip_address(text).version, ipaddress.ip_address(text)))
    found: dict[str, Place] = {}
    notes: list[Note] = []
    for name in names:
        mine = [rank for rank in ranks if rank.host == name]
        host = known.get(name)
        address = addresses_.get(name) or _address(name, host, mine)
        nic = _nic(name, host, mine, notes)
        origin = mine[0].origin if mine else None
        found[name] = Place(
            _node_name(name, found), host.name if host else name or PLACEHOLDER, address, nic, origin, host
        )
    return found, notes


def _address(name: str, host: Host | None, ranks: Sequence[Rank]) -> str:
    if host is not None and host.address:
        return host.address
    own = {
        said.text
        for rank in ranks
        for variable in ADDRESS_VARIABLES
        if (said := rank.command.env.get(variable)) is not None and not said.unknown and is_ip(said.text)
    }
    real = {text for text in own if not ipaddress.ip_address(text).is_loopback}
    if is_ip(name):
        return name
    if len(real) == 1:
        return next(iter(real))
    first = next((rank for rank in ranks if rank.dp_rank == 0 and is_ip(rank.dp_address)), None)
    return first.dp_address if first is not None else UNKNOWN_ADDRESS


def _nic(name: str, host: Host | None, ranks: Sequence[Rank], notes: list[Note]) -> str:
    said = {rank.nic: rank for rank in reversed(ranks) if rank.nic}
    if host is not None and host.nic:
        return host.nic
    if len(said) > 1:
        one, other = list(said.values())[:2]
        message = f"{one.nic} and {other.nic} are named as the interface of {name}; {one.nic} was taken"
        notes.append(note(Kind.CONTRADICTION, message, one.place("nic"), other.place("nic"), rule="R53"))
        return one.nic
    return next(iter(said), "")


def _node_name(name: str, taken: Mapping[str, Place]) -> str:
    lower = name.lower().partition(".")[0] if not is_ip(name) else ""
    used = {place.name for place in taken.values()}
    if _NAME.match(lower) and lower not in used | _RESERVED:
        return lower
    number = len(taken) + 1
    while f"node{number}" in used:
        number += 1
    return f"node{number}"


def ssh_part(found: Mapping[str, Place]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what is said of SSH for all nodes, and what differs by node name."""
    each = {place.name: _ssh(place.ssh) for place in found.values()}
    values = list(each.values())
    common = {
        key: value
        for key, value in (values[0] if values else {}).items()
        if all(one.get(key) == value for one in values)
    }
    return common, {
        name: {key: value for key, value in own.items() if key not in common}
        for name, own in each.items()
        if any(key not in common for key in own)
    }


def _ssh(host: Host | None) -> dict[str, Any]:
    if host is None:
        return {}
    said = {"user": host.ssh_user, "port": host.ssh_port, "jump": host.ssh_jump, "sudo": host.ssh_sudo or None}
    said["config"] = host.ssh_config
    return {key: value for key, value in said.items() if value}


def drop_own_address(ranks: Sequence[Rank], found: Mapping[str, Place]) -> None:
    """Leave out variables that say the address of the rank's own node: they are derived."""
    for rank in ranks:
        place = found[rank.host]
        for name in ADDRESS_VARIABLES:
            said = rank.env.get(name)
            if said is not None and said.value == place.address:
                rank.env = {key: value for key, value in rank.env.items() if key != name}
        helpers = [
            name
            for name, said in rank.env.items()
            if said.value in (place.address, place.nic) and name.lower() in HELPERS
        ]
        rank.env = {key: value for key, value in rank.env.items() if key not in helpers}
