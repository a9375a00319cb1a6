"""The RoCE ports of a node's NPUs as several checks see them: are they in use, and with which addresses?"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from pdtui.fleet.preflight.check import NodeView, unknown
from pdtui.fleet.preflight.outcome import OF_VERDICT, Finding, Outcome
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import Assessment
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Link
from pdtui.readings.judge import NpuReadings, Observed, RocePlane, roce_plane
from pdtui.readings.judge.roce import unused

Interface = ipaddress.IPv4Interface

NOT_DEPLOYED = "RoCE is not deployed here: no NPU has an address or a link"

CONF = "hccn-conf-host"
"""Need: hccn.conf on the host."""


def plane_of(view: NodeView) -> RocePlane:
    """Return what the NPUs of a node together say of its RoCE plane; needs `LINK`, `IP` and `CONF`."""
    return roce_plane({device: _readings(view, device) for device in view.devices}, view.read(CONF).value)


def _readings(view: NodeView, device: int) -> NpuReadings:
    link: Observed[Any] = Observed()
    address: Observed[Any] = Observed()
    return NpuReadings(link=link.then(view.read(Query.LINK, device)), ip=address.then(view.read(Query.IP, device)))


def is_unused(view: NodeView, device: int) -> bool:
    """Return whether the RoCE port of an NPU is not in use though others of its node are; only on A3."""
    return view.platform == "a3" and unused(device, _readings(view, device), view.read(CONF).value)


UNUSED = Finding(Outcome.NA, "the port is not in use: no link, no address, none in hccn.conf")


def interface_of(view: NodeView, device: int) -> Interface | None:
    """Return the running IPv4 address of an NPU with its subnet, None when it is not known."""
    value = view.read(Query.IP, device).value
    if value is None:
        return None
    try:
        return ipaddress.IPv4Interface(f"{value.address}/{value.netmask}")
    except ValueError:
        return None


def interfaces_of(view: NodeView) -> Mapping[int, Interface]:
    """Return the running IPv4 addresses of a node's NPUs, as far as they are known."""
    found = {device: interface_of(view, device) for device in view.devices}
    return {device: interface for device, interface in found.items() if interface is not None}


def is_down(view: NodeView, device: int) -> bool:
    """Return whether the link of an NPU is known to be down."""
    return bool(view.read(Query.LINK, device).value == Link("DOWN"))


def of_assessment(told: Assessment) -> Finding:
    """Return an assessment of one reading as the finding of a check."""
    outcome = OF_VERDICT[told.verdict]
    if outcome is Outcome.PASS:
        return Finding(outcome, told.summary)
    return Finding(outcome, told.summary, told.remedy)


LINK_DOWN = Finding(Outcome.NOT_RUN, "the link is DOWN")


def without_answer(reading: Reading[Any], what: str = "") -> Finding:
    """Return the finding of a reading without a value; n/a where the product does not have it."""
    if reading.failure is Failure.UNSUPPORTED:
        return Finding(Outcome.NA, "this product does not have it")
    return unknown(reading, what)
