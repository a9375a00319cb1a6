"""Which switch ports the NPUs hear: two on one port, or an order unlike other nodes', are mixed-up cables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.roce import CONF, LINK_DOWN, NOT_DEPLOYED, is_down, plane_of, without_answer
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Lldp

_NEEDS = (Query.LLDP, Query.LINK, Query.IP, CONF)

_QUIET = (
    "a neighbour is heard within the switch's LLDP interval (30 s), so ask again; when it stays silent LLDP is "
    "off on that switch port: then trace the cable"
)
_TWICE = (
    "one of the two answers is old, or a cable was moved: compare both with the cabling plan, and ask again after "
    "the switch's LLDP hold time (2 min)"
)
_ORDER = (
    "compare the cables with the cabling plan; ranks still work, but rails are crossed, so traffic of one NPU "
    "number meets that of another on a switch"
)

_OFF = (
    "switch LLDP on at the switches (lldp enable) and look again after its interval (30 s); until then "
    "only a cabling plan can tell whether cables are crossed"
)

_Port = tuple[str, str]
"""Switch and its port."""


@check("lldp", "Each NPU has a switch port of its own", needs=_NEEDS, scope="cluster", platforms=("a2", "a3"))
def lldp(survey: Survey) -> Iterable[Result]:
    """Every linked NPU hears one switch port, which no other NPU of any node hears."""
    if silent := _silent(survey):
        words = f"none of {len(silent)} NPUs hears a switch: LLDP is off there, and cables cannot be told apart"
        yield survey.warned(words, *silent, remedy=_OFF)
        return
    owners = _owners(survey.views)
    for view in survey.views:
        if plane_of(view).deployed is False:
            yield view.not_applicable(NOT_DEPLOYED)
            continue
        found = []
        for device in view.devices:
            reading = view.read(Query.LLDP, device)
            if is_down(view, device):
                told = LINK_DOWN
            elif isinstance(reading.value, Lldp):
                told = _judge(view.subject(device), view.name, reading.value, owners)
            elif _hears_nobody(reading):
                told = Finding(Outcome.UNKNOWN, "no neighbour was heard", _QUIET)
            else:
                told = without_answer(reading)
            found.append((device, told, reading))
        yield from view.rolled(found)


def _hears_nobody(reading: Reading[Any]) -> bool:
    return reading.failure is Failure.EMPTY and not reading.raw


def _silent(survey: Survey) -> Sequence[Reading[Any]]:
    """Return the readings of all linked NPUs when each was asked and none hears anybody; else nothing."""
    readings = [
        view.read(Query.LLDP, device)
        for view in survey.views
        if plane_of(view).deployed is not False
        for device in view.devices
        if not is_down(view, device)
    ]
    return readings if len(readings) > 1 and all(map(_hears_nobody, readings)) else ()


def _port(node: str, value: Lldp) -> _Port:
    """Return the port; a switch that does not say who it is is told apart only within one node.

    Switches that nobody has named all have the name that they came with, so their addresses count too.
    """
    switch = " ".join(filter(None, (value.system, value.management, value.chassis)))
    return switch or f"the switch of {node}", value.interface


def _owners(views: Iterable[NodeView]) -> Mapping[_Port, list[str]]:
    owners: dict[_Port, list[str]] = {}
    for view in views:
        for device in view.devices:
            value = view.read(Query.LLDP, device).value
            if isinstance(value, Lldp) and not is_down(view, device):
                owners.setdefault(_port(view.name, value), []).append(view.subject(device))
    return owners


def _judge(subject: str, node: str, value: Lldp, owners: Mapping[_Port, list[str]]) -> Finding:
    others = [other for other in owners[_port(node, value)] if other != subject]
    if others:
        switch = value.system or value.management or value.chassis or f"the switch of {node}"
        words = f"hears {value.interface} of {switch}, as does {', '.join(others)}"
        return Finding(Outcome.WARN, words, _TWICE)
    return Finding(Outcome.PASS, "a switch port of its own")


@check(
    "lldp-order",
    "NPUs are cabled in the order of the other nodes",
    needs=_NEEDS,
    scope="cluster",
    platforms=("a2", "a3"),
)
def lldp_order(survey: Survey) -> Iterable[Result]:
    """On every node the NPUs follow the switch ports in the same order."""
    orders: dict[str, tuple[int, ...]] = {}
    views = {view.name: view for view in survey.views if plane_of(view).deployed is not False}
    if not views:
        yield survey.not_applicable(NOT_DEPLOYED)
        return
    if _silent(survey):
        yield survey.not_applicable("no NPU hears a switch (see lldp)")
        return
    for view in views.values():
        silent = next((d for d in view.devices if not isinstance(view.read(Query.LLDP, d).value, Lldp)), None)
        if silent is None:
            orders[view.name] = _order(view)
        else:
            reading = view.read(Query.LLDP, silent)
            told = without_answer(reading, f"NPU {silent} hears no port, so the order")
            if told.outcome is Outcome.NA:
                yield view.not_applicable(told.summary)
            else:
                yield view.unknown(reading, what=f"the order (NPU {silent} hears no port)")
    yield from _compare(survey, views, orders)


def _compare(
    survey: Survey, views: Mapping[str, NodeView], orders: Mapping[str, tuple[int, ...]]
) -> Iterator[Result]:
    if len(orders) < 2:
        words = "only one node's order is known" if orders else "no node's order is known"
        yield survey.not_applicable(f"{words}, so there is nothing to compare with")
        return
    usual, count = Counter(orders.values()).most_common(1)[0]
    model = next(name for name, order in orders.items() if order == usual)
    for name, order in orders.items():
        if order == usual:
            continue
        odd = [device for device, (one, other) in enumerate(zip(order, usual, strict=True)) if one != other]
        heard = ", ".join(f"NPU {d} {_interface(views[name], d)}" for d in odd[:4])
        there = ", ".join(f"NPU {d} {_interface(views[model], d)}" for d in odd[:4])
        more = f" and {len(odd) - 4} more" if len(odd) > 4 else ""
        like = f"{model} ({there})" if count > 1 or len(orders) == 2 else f"{model}, and no two nodes are alike"
        readings = [views[name].read(Query.LLDP, device) for device in odd]
        yield views[name].warned(f"{heard}{more}: not in the order of {like}", *readings, remedy=_ORDER)
    if count > 1:
        yield survey.passed(f"{count} nodes have their NPUs in the same order of switch ports")


def _interface(view: NodeView, device: int) -> str:
    value = view.read(Query.LLDP, device).value
    return value.interface if isinstance(value, Lldp) else "?"


_DIGITS = re.compile(r"(\d{1,18})")


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which 1/2 comes before 1/10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(text))


def _order(view: NodeView) -> tuple[int, ...]:
    """Return each NPU's place among the node's ports: switch by switch, then by number."""
    values = [view.read(Query.LLDP, device).value for device in view.devices]
    ports = [_port(view.name, value) for value in values if isinstance(value, Lldp)]
    keys = sorted((_natural(switch), _natural(interface)) for switch, interface in ports)
    return tuple(keys.index((_natural(switch), _natural(interface))) for switch, interface in ports)
