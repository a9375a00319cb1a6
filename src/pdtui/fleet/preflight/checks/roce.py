"""The RoCE ports of the NPUs: link, the device's own probe and what it probes, and the way out of the subnet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.roce import (
    CONF,
    LINK_DOWN,
    NOT_DEPLOYED,
    UNUSED,
    Interface,
    interface_of,
    interfaces_of,
    is_down,
    is_unused,
    of_assessment,
    plane_of,
    without_answer,
)
from pdtui.readings.answer import ABSENT, Failure
from pdtui.readings.assess import Place, finding
from pdtui.readings.assess.network import assess_net_health
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Gateway, NetDetect, NetHealth
from pdtui.readings.judge.roce import in_vnic_range, link_in_plane

_ANY = Place()

_NO_ROCE = (
    "on A2 the KV cache goes between nodes over RoCE only: set address_N and netmask_N for all NPUs in "
    "/etc/hccn.conf and apply it, and look at the cables"
)


def _not_deployed(view: NodeView) -> Iterator[Result]:
    yield view.not_applicable(NOT_DEPLOYED)


@check("link", "RoCE links of the NPUs are up", needs=(Query.LINK, Query.IP, CONF), platforms=("a2", "a3"))
def link(view: NodeView) -> Iterable[Result]:
    """Every RoCE port has a carrier, where RoCE is in use at all; between A2 nodes it has to be."""
    plane = plane_of(view)
    if plane.deployed is False and view.platform == "a2" and len(view.topology.nodes) > 1:
        first = view.read(Query.IP, view.devices[0])
        yield view.failed("no NPU has a RoCE address or a link", first, remedy=_NO_ROCE)
        return
    if plane.deployed is False:
        yield from _not_deployed(view)
        return
    yield from view.per_device(
        Query.LINK,
        lambda device, value: (
            UNUSED if is_unused(view, device) else of_assessment(link_in_plane(value, view.platform, plane, _ANY))
        ),
        without=lambda _, reading: without_answer(reading),
    )


@check(
    "net-health",
    "The NPUs reach their detect address",
    needs=(Query.NET_HEALTH, Query.LINK, Query.NETDETECT, Query.IP, CONF),
    platforms=("a2", "a3"),
)
def net_health(view: NodeView) -> Iterable[Result]:
    """The device's own probe succeeds; with the link down it says nothing that `link` does not."""
    if plane_of(view).deployed is False:
        yield from _not_deployed(view)
        return

    def judge(device: int, value: NetHealth) -> Finding:
        if is_unused(view, device):
            return UNUSED
        if is_down(view, device):
            return LINK_DOWN
        probed = view.read(Query.NETDETECT, device).value
        late = value.word.lower() == "receive timeout" and view.platform == "a3"
        if late and isinstance(probed, NetDetect) and in_vnic_range(probed):
            words = f"net health {value.word}: the detect address {probed.address} is one of the vNICs' range"
            return of_assessment(finding("net-health-vnic", words))
        return of_assessment(assess_net_health(value, view.platform))

    yield from view.per_device(
        Query.NET_HEALTH,
        judge,
        without=lambda device, reading: LINK_DOWN if is_down(view, device) else without_answer(reading),
    )


@check(
    "netdetect",
    "The detect address is the gateway",
    needs=(Query.NETDETECT, Query.GATEWAY, Query.LINK, Query.IP, CONF),
    platforms=("a2", "a3"),
)
def netdetect(view: NodeView) -> Iterable[Result]:
    """Every NPU probes an address, normally its gateway: without one `net-health` cannot tell anything."""
    if plane_of(view).deployed is False:
        yield from _not_deployed(view)
        return
    yield from view.per_device(
        Query.NETDETECT,
        lambda device, value: _judge_detect(view, device, value),
        without=lambda _, reading: (
            of_assessment(finding("netdetect-unset", "no detect address is set"))
            if reading.failure is Failure.NOT_CONFIGURED
            else without_answer(reading)
        ),
    )


_PROBE_GATEWAY = (
    "set netdetect_N in /etc/hccn.conf to the gateway, as vendors advise, and apply it in a quiet hour; "
    "then net health tests the way that ranks use"
)


def _judge_detect(view: NodeView, device: int, value: NetDetect) -> Finding:
    if not value.address:
        return of_assessment(finding("netdetect-unset", "no detect address is set"))
    gateway, own = view.read(Query.GATEWAY, device), interface_of(view, device)
    if view.platform == "a3" and in_vnic_range(value):
        words = f"probes {value.address}, which is of the vNICs' range, where nobody answers"
        return Finding(Outcome.WARN, words, _PROBE_GATEWAY)
    if own is not None and str(own.ip) == value.address:
        return Finding(Outcome.WARN, "probes its own address, which always answers", _PROBE_GATEWAY)
    if isinstance(gateway.value, Gateway):
        if gateway.value.address == value.address:
            return Finding(Outcome.PASS, f"probes its gateway {value.address}")
        words = f"probes {value.address}, not its gateway {gateway.value.address}"
        return Finding(Outcome.WARN, words, _PROBE_GATEWAY)
    if gateway.failure is Failure.NOT_CONFIGURED:
        return Finding(Outcome.PASS, f"probes {value.address}; there is no gateway")
    return without_answer(gateway, f"probes {value.address}; the gateway")


@check(
    "gateway",
    "A gateway where peers are in other subnets",
    needs=(Query.GATEWAY, Query.IP, Query.LINK, CONF),
    scope="cluster",
    platforms=("a2", "a3"),
)
def gateway(survey: Survey) -> Iterable[Result]:
    """An NPU whose peers are in another subnet has a gateway; in one flat network none is needed."""
    peers = _Peers(survey)
    for view in survey.views:
        if plane_of(view).deployed is False:
            yield from _not_deployed(view)
            continue
        found = []
        for device in view.devices:
            reading = view.read(Query.GATEWAY, device)
            if isinstance(reading.value, Gateway):
                told = _judge_gateway(view, device, reading.value)
            elif reading.failure is Failure.NOT_CONFIGURED:
                told = _judge_no_gateway(view, device, peers)
            else:
                told = without_answer(reading)
            found.append((device, told, reading))
        yield from view.rolled(found)


class _Peers:
    """The RoCE addresses of all NPUs; a node without RoCE has none, and is no peer by RoCE."""

    def __init__(self, survey: Survey) -> None:
        self._addresses: dict[tuple[str, int], Interface] = {}
        self._outside: dict[tuple[ipaddress.IPv4Network, int | None], str] = {}
        unknown: list[str] = []
        reached = {view.name: view for view in survey.views}
        for name in survey.nodes:
            view = reached.get(name)
            if view is None:
                unknown.append(name)
            elif plane_of(view).deployed is not False:
                known = interfaces_of(view)
                self._addresses.update({(name, device): interface for device, interface in known.items()})
                missing = (view.read(Query.IP, device) for device in view.devices if device not in known)
                if any(reading.failure not in ABSENT for reading in missing):
                    unknown.append(name)
        self.unknown = tuple(unknown)
        """Nodes of which not all addresses are known."""

    def outside(self, network: ipaddress.IPv4Network, die: int | None) -> str:
        """Return who of the peers is outside a subnet, in words; empty when nobody is.

        `die`: only these dies count, since on A3 the two dies of each card are cabled to networks of their own.
        """
        key = network, die
        if key not in self._outside:
            self._outside[key] = next(
                (
                    f"{node}/{device} is {interface.ip}"
                    for (node, device), interface in self._addresses.items()
                    if interface.ip not in network and (die is None or device % 2 == die)
                ),
                "",
            )
        return self._outside[key]


_SET_GATEWAY = (
    "set gateway_N in /etc/hccn.conf (hccn_tool -i N -gateway -s gateway ADDRESS writes both) as on NPUs that "
    "reach their peers; or correct the address when it is the wrong one"
)


def _judge_gateway(view: NodeView, device: int, value: Gateway) -> Finding:
    own = interface_of(view, device)
    if own is None:
        return without_answer(view.read(Query.IP, device), f"gateway {value.address}; its own address")
    try:
        address = ipaddress.IPv4Address(value.address)
    except ValueError:
        return Finding(Outcome.PASS, f"gateway {value.address}")
    if address == own.ip:
        return Finding(Outcome.FAIL, f"the gateway {address} is the NPU's own address", _SET_GATEWAY)
    if address not in own.network:
        words = f"the gateway {address} is outside its subnet {own.network}, so it cannot be reached"
        return Finding(Outcome.FAIL, words, _SET_GATEWAY)
    return Finding(Outcome.PASS, f"gateway {address}")


def _judge_no_gateway(view: NodeView, device: int, peers: _Peers) -> Finding:
    own = interface_of(view, device)
    if own is None:
        reading = view.read(Query.IP, device)
        if reading.failure in ABSENT:
            return Finding(Outcome.NA, "no RoCE address is set, so no gateway is needed")
        return without_answer(reading, "no gateway; whether one is needed: its own address")
    if outside := peers.outside(own.network, device % 2 if view.platform == "a3" else None):
        words = f"no gateway, and a peer is outside its subnet {own.network}: {outside}"
        return Finding(Outcome.FAIL, words, _SET_GATEWAY)
    if peers.unknown:
        words = (
            f"no gateway, and whether one is needed is not known: addresses of {', '.join(peers.unknown)} are not"
        )
        return Finding(Outcome.UNKNOWN, words)
    return Finding(Outcome.PASS, f"no gateway, and none is needed: all peers are in {own.network}")
