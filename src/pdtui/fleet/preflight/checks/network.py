"""Addresses, variables and ports of one node as its ranks see them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.place import exact_ports, groups_on, missing
from pdtui.readings.answer import Reading
from pdtui.readings.rank_place import Environment, Interface, LocalPorts
from pdtui.text import spans
from pdtui.topology.model import Flow

INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name the interface of the node's address (vLLM-Ascend's guides, rule R53)."""


def environments(view: NodeView) -> Sequence[tuple[str, Reading[Environment]]]:
    """Return (group, environment) where ranks run, each environment once; one alone has no group's name."""
    groups = groups_on(view)
    if not groups:
        return [("", view.read("place", "variables"))]
    found: list[tuple[str, Reading[Environment]]] = []
    for group in groups:
        reading: Reading[Environment] = view.read("place", f"variables {group.name}")
        if reading.value is None or all(reading.value != other.value for _, other in found):
            found.append((group.name, reading))
    return found if len(found) > 1 else [("", found[0][1])]


def owner(interfaces: Iterable[Interface], address: str) -> Interface | None:
    """Return the interface that has an address."""
    return next((one for one in interfaces if one.owns(address)), None)


@check("nic", "The network interface owns the node's address", needs=("place",))
def nic(view: NodeView) -> Iterable[Result]:
    """`address` is on the interface `nic` of the file, that is up, and the variables name no other one."""
    reading: Reading[Sequence[Interface]] = view.read("place", "addresses")
    if reading.value is None:
        yield missing(view, reading, "network interfaces")
        return
    address, name = view.node.address, view.node.nic
    mine, named = owner(reading.value, address), next((one for one in reading.value if one.name == name), None)
    if mine is None:
        others = ", ".join(
            f"{one.name} {one.addresses[0].ip}"
            for one in reading.value
            if one.addresses and not one.addresses[0].ip.is_loopback
        )
        yield view.failed(
            f"no interface has {address}; there are: {others or 'none with an address'}",
            reading,
            remedy=f"mend address of {view.name} in the file, or the network of the node (or of its container)",
        )
        return
    if named is None or not named.owns(address):
        lacks = "does not exist" if named is None else f"has {_addresses(named)}"
        yield view.failed(
            f"{address} is on {mine.name}; {name}, which the file names, {lacks}",
            reading,
            remedy=f"set nic: {mine.name} for {view.name} in the file",
        )
        return
    if not named.up:
        yield view.failed(f"{name} has {address}, but is down or without a carrier", reading, remedy=_CABLE)
        return
    wrong = list(_other_interfaces(view, reading.value, mine))
    yield from wrong
    if not wrong:
        yield view.passed(f"{name} has {address}", reading)


_CABLE = "ip link set IT up; then look at the cable and the switch port"


def _addresses(interface: Interface) -> str:
    return ", ".join(str(one.ip) for one in interface.addresses) or "no address"


def _other_interfaces(view: NodeView, interfaces: Sequence[Interface], mine: Interface) -> Iterator[Result]:
    """Yield the variables that name another interface, or an address that is not here."""
    for group, reading in environments(view):
        if reading.value is None:
            continue
        prefix, variables = f"{group}: " if group else "", reading.value.variables
        for variable in INTERFACES:
            names, fits = _named(variable, variables.get(variable, ""), mine.name)
            if fits:
                continue
            there = [one for one in interfaces if one.name in names]
            lacks = f"has {_addresses(there[0])}" if there else "does not exist"
            yield view.failed(
                f"{prefix}{variable}={variables[variable]} {lacks}; {view.node.address} is on {mine.name}",
                reading,
                remedy=f"leave {variable} out of env in the file, or set it to {mine.name}",
            )
        address = variables.get("HCCL_IF_IP", "")
        if address and owner(interfaces, address) is None:
            yield view.failed(
                f"{prefix}HCCL_IF_IP={address} is no address of this node; {mine.name} has {view.node.address}",
                reading,
                remedy="leave HCCL_IF_IP out of env in the file: it is derived",
            )


def _named(variable: str, text: str, name: str) -> tuple[list[str], bool]:
    """Return the interfaces that a variable names, and whether that is, or may be, the one called `name`.

    HCCL takes beginnings of names, whole ones behind = and behind ^ what to leave out; the other two whole names.
    """
    names = [word.partition(":")[0] for word in text.lstrip("=").split(",") if word]
    hccl = variable == "HCCL_SOCKET_IFNAME"
    if not names or (hccl and names[0].startswith("^")):
        return names, True
    if hccl and not text.startswith("="):
        return names, any(name.startswith(one) for one in names)
    return names, name in names


@check("host-ip", "vLLM tells its peers the node's address", needs=("place",))
def host_ip(view: NodeView) -> Iterable[Result]:
    """The address that a rank tells its peers: VLLM_HOST_IP, else that of the default route (vLLM's `get_ip`)."""
    if not groups_on(view):
        yield view.not_applicable("no rank runs here")
        return
    interfaces: Reading[Sequence[Interface]] = view.read("place", "addresses")
    for group, reading in environments(view):
        if reading.value is None:
            yield missing(view, reading, "the environment", group=group)
            continue
        yield _host_ip(view, reading, reading.value, interfaces.value, f"{group}: " if group else "")


def _host_ip(
    view: NodeView,
    reading: Reading[Environment],
    found: Environment,
    interfaces: Sequence[Interface] | None,
    prefix: str,
) -> Result:
    address, told = view.node.address, found.variables.get("VLLM_HOST_IP", "")
    alone = found.default_ip or "0.0.0.0"  # noqa: S104 - what vLLM takes then
    mend = f"leave VLLM_HOST_IP out of env in the file: {address} is derived"
    if told == address:
        without = "" if alone == address else f" (without it vLLM would tell {alone})"
        return view.passed(f"{prefix}VLLM_HOST_IP={told}{without}", reading)
    if not told and alone == address:
        return view.passed(f"{prefix}{address}, of the default route: VLLM_HOST_IP is not set", reading)
    if not told:
        words = f"{prefix}VLLM_HOST_IP is not set, and vLLM would tell {alone} in place of {address}"
        return view.failed(words, reading, remedy=mend)
    words = f"{prefix}VLLM_HOST_IP={told}, the node's address is {address}"
    if interfaces is not None and (mine := owner(interfaces, told)) is not None:
        return view.warned(f"{words}; {told} is on {mine.name}: see that peers reach it", reading, remedy=mend)
    if interfaces is None:
        return view.warned(words, reading, remedy=mend)
    return view.failed(f"{words}; no interface here has {told}", reading, remedy=mend)


@check("proxy-env", "No HTTP proxy stands between the nodes", needs=("place",))
def proxy_env(view: NodeView) -> Iterable[Result]:
    """Proxy variables leave out every address of the cluster.

    httpx and curl obey `http_proxy` and `all_proxy`; requests inside the cluster (decode to the metaserver, the
    proxy to ranks, a test by hand) then go to the company's proxy and come back as 502 or 503, or hang.
    """
    for group, reading in environments(view):
        if reading.value is None:
            yield missing(view, reading, "the environment", group=group)
            continue
        prefix, proxies = f"{group}: " if group else "", reading.value.proxies
        used = {name: text for name, text in proxies.items() if name.lower() in ("http_proxy", "all_proxy")}
        if not used:
            yield view.passed(f"{prefix}no http_proxy", reading)
            continue
        open_ = uncovered(cluster_addresses(view), proxies)
        name, text = next(iter(used.items()))
        if not open_:
            yield view.passed(f"{prefix}{name} is set, no_proxy leaves out the cluster", reading)
            continue
        said = proxies.get("no_proxy") or proxies.get("NO_PROXY")
        lacks = f"no_proxy lacks {_few(open_)}" if said else "no_proxy is not set"
        asks = view.topology.flow is Flow.LAYERWISE and _metaserver(view) in open_
        say = view.failed if asks else view.warned
        yield say(
            f"{prefix}{name}={text}, and {lacks}: requests inside the cluster go there",
            reading,
            remedy=f'env: {{no_proxy: "{",".join(["localhost", *cluster_addresses(view)])}"}} in the file, '
            f"or unset {name} where ranks run (~/.bashrc)",
        )


def _few(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= 3 else f"{', '.join(words[:2])} and {len(words) - 2} more"


def _metaserver(view: NodeView) -> str:
    return view.topology.proxy.advertise if view.topology.proxy is not None else ""


def cluster_addresses(view: NodeView) -> list[str]:
    """Return what a request inside the cluster may be sent to, each once."""
    proxy = view.topology.proxy
    found = [node.address for node in view.topology.nodes.values()]
    return list(dict.fromkeys([*found, proxy.advertise] if proxy is not None and proxy.advertise else found))


def uncovered(addresses: Iterable[str], proxies: Mapping[str, str]) -> list[str]:
    """Return the addresses that `no_proxy` does not leave out.

    By what all clients understand: `*`, the address itself, the end of a host's name. A network (`10.0.0.0/8`)
    counts too, though httpx and Python's urllib do not know them: curl and requests do.
    """
    words = [
        word.strip().lower() for name in ("no_proxy", "NO_PROXY") for word in proxies.get(name, "").split(",")
    ]
    return [address for address in addresses if not any(_covers(word, address.lower()) for word in words if word)]


def _covers(word: str, address: str) -> bool:
    if word in ("*", address):
        return True
    if "/" in word:
        try:
            return ipaddress.ip_address(address) in ipaddress.ip_network(word, strict=False)
        except ValueError:
            return False
    ending = word.lstrip("*").lstrip(".")
    return not address.replace(".", "").isdigit() and address.endswith(f".{ending}")


@check("ephemeral-ports", "Planned ports are kept from outgoing connections", needs=("place",), scope="cluster")
def ephemeral_ports(survey: Survey) -> Iterable[Result]:
    """Ports of the plan that any outgoing connection may be given, unless they are reserved (rules R15, R16).

    36000 and what follows lie in Linux's default range: a start fails now and then with «Address already in use».
    HCCL's documentation asks for its ports (60000 and up) to be reserved the same way. Nodes with the same
    settings are told one command.
    """
    open_: dict[LocalPorts, dict[str, Sequence[int]]] = {}
    readings: dict[LocalPorts, Reading[LocalPorts]] = {}  # By settings alone: what is taken now differs.
    fine = 0
    for view in survey.views:
        reading: Reading[LocalPorts] = view.read("place", "ports")
        if reading.value is None:
            yield missing(view, reading, "the kernel's port settings")
            continue
        planned, settings = _planned(view), replace(reading.value, taken=())
        given = [port for port in planned if _is_given(port, settings)]
        fine += len(planned) - len(given)
        readings.setdefault(settings, reading)
        if given:
            open_.setdefault(settings, {})[view.name] = given
        if reading.value.taken:
            yield view.warned(
                f"outgoing connections hold {spans(reading.value.taken)} now: a rank cannot bind them",
                reading,
                remedy="see whose they are: ss -tnp; they go when those end; reserved ports are not given away",
            )
    for found, nodes in open_.items():
        ports = sorted({port for taken in nodes.values() for port in taken})
        kept = sorted({*ports, *(port for low, high in found.reserved for port in range(low, high + 1))})
        setting = f"net.ipv4.ip_local_reserved_ports={spans(kept).replace(' ', '')}"
        where = next(iter(nodes)) if len(nodes) == 1 else f"{len(nodes)} nodes"
        yield survey.warned(
            f"{spans(ports)} lie in {found.first}-{found.last}, which outgoing connections take ports from: "
            f"a start may find one taken ({where})",
            readings[found],
            on=next(iter(nodes)) if len(nodes) == 1 else "cluster",
            remedy=f"sysctl -w {setting} on each host, and the same line in /etc/sysctl.d/90-pdtui.conf",
        )
    if readings and not open_:
        words = f"none of {fine} planned ports may be taken by outgoing connections"
        yield survey.passed(words, *readings.values())


def _planned(view: NodeView) -> list[int]:
    uses = exact_ports(view.plan, view.node.address)
    return sorted({port for use in uses for port in range(use.first, use.last + 1)})


def _is_given(port: int, found: LocalPorts) -> bool:
    """Return whether the kernel may give a port to an outgoing connection."""
    inside = found.first <= port <= found.last
    return inside and not any(low <= port <= high for low, high in found.reserved)
