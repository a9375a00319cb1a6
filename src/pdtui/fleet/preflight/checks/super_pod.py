"""The HCCS plane of A3: the vnic of each NPU, and its place in the super pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pdtui.fleet.preflight.check import NAMED, NodeView, Survey, check
from pdtui.fleet.preflight.checks.npus import without_npu_smi
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.roce import CONF, of_assessment, plane_of, without_answer
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import ANYWHERE, place_of
from pdtui.readings.assess.chip import assess_spod
from pdtui.readings.assess.network import assess_vnic
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Vnic
from pdtui.readings.npu_smi_identity import Spod

_SUPER_POD = (
    "SDID, server index and vnic address are set together when a server joins its super pod; they go apart when a "
    "board was changed. Have the super pod's configuration of this server done again (its BMC's manual)"
)
_ALONE = (
    "addresses of 192.168.x belong to a server outside a super pod: HCCS to other servers does not work with "
    "them. Compare with a node that works; they are set with the super pod, not by hccn_tool"
)


@check("vnic", "HCCS ports of the NPUs are up", needs=(Query.VNIC, Query.SPOD), platforms=("a3",))
def vnic(view: NodeView) -> Iterable[Result]:
    """Every vnic is up and has the address that follows from its place in the super pod."""
    values = (view.read(Query.VNIC, device).value for device in view.devices)
    few = sum(isinstance(value, Vnic) and value.status == "DOWN" for value in values) <= NAMED
    yield from view.per_device(
        Query.VNIC,
        lambda device, value: _judge_vnic(view, device, value, few=few),
        without=lambda _, reading: _not_listed(reading) or without_answer(reading),
    )


def _not_listed(reading: Reading[Any]) -> Finding | None:
    """Return that an NPU which is not there cannot be asked; `npu-count` says what that means."""
    return Finding(Outcome.NOT_RUN, "there is no such NPU") if reading.failure is Failure.NO_DEVICE else None


def _judge_vnic(view: NodeView, device: int, value: Vnic, *, few: bool) -> Finding:
    place = place_of(device, view.platform) if few else ANYWHERE
    told = of_assessment(assess_vnic(value, view.platform, place))
    spod = view.read(Query.SPOD, device).value
    if told.outcome is not Outcome.PASS:
        return told
    if not isinstance(spod, Spod) or spod.server is None or value.address == spod.vnic_address:
        return Finding(Outcome.PASS, "vnic UP")
    server = value.address.split(".")[1:2]
    if server == ["168"]:
        if len(view.topology.nodes) == 1:
            return Finding(Outcome.PASS, "vnic UP")
        words = f"vnic addresses are of a server outside a super pod (192.168), SDIDs of server {spod.sdid_server}"
        return Finding(Outcome.WARN, words, _ALONE)
    if value.address.startswith("192.") and server != [str(spod.sdid_server)]:
        words = f"vnic address is of server {server[0]} (192.{server[0]}), the SDID of server {spod.sdid_server}"
        return Finding(Outcome.FAIL, words, _SUPER_POD)
    words = f"vnic address {value.address}, by its SDID it is {spod.vnic_address}"
    return Finding(Outcome.FAIL, words, _SUPER_POD)


@check(
    "spod",
    "The super pod is consistent",
    needs=(Query.SPOD, Query.TABLE, Query.IP, Query.LINK, CONF),
    scope="cluster",
    platforms=("a3",),
)
def spod(survey: Survey) -> Iterable[Result]:
    """SDIDs decode, a node's NPUs agree, no two nodes have one index, and nodes that need it share a pod."""
    places: dict[str, tuple[Spod, Reading[Any]]] = {}
    for view in survey.views:
        if useless := without_npu_smi(view):
            yield useless
            continue
        known = {
            device: reading.value
            for device in view.devices
            if isinstance((reading := view.read(Query.SPOD, device)).value, Spod)
        }
        usual = _usual(known)
        yield from view.per_device(
            Query.SPOD,
            lambda device, value, usual=usual: _judge_spod(device, value, usual),  # type: ignore[misc]
            without=lambda _, reading: _without(reading),
        )
        if usual is not None:
            device = next(d for d, value in known.items() if _group(value) == _group(usual))
            places[view.name] = usual, view.read(Query.SPOD, device)
    if len(places) > 1:
        yield from _over_nodes(survey, places)


def _without(reading: Reading[Any]) -> Finding | None:
    if reading.failure is Failure.UNSUPPORTED:
        return Finding(Outcome.NA, "this server is in no super pod")
    return _not_listed(reading)


def _group(value: Spod) -> tuple[int, int, int | None]:
    """Return what all NPUs of a node have in common."""
    return value.pod, value.size, value.server


def _usual(known: Mapping[int, Spod]) -> Spod | None:
    """Return one of the NPUs that say what most say."""
    counts = Counter(map(_group, known.values()))
    most = counts.most_common(1)
    return next((value for value in known.values() if most and _group(value) == most[0][0]), None)


def _words(value: Spod) -> str:
    return f"super pod {value.pod} of {value.size}, server index {value.server}"


def _judge_spod(device: int, value: Spod, usual: Spod | None) -> Finding:
    alone = of_assessment(assess_spod(value, "a3", place_of(device, "a3")))
    if alone.outcome is not Outcome.PASS:
        return replace(alone, remedy=_SUPER_POD)
    if usual is not None and _group(value) != _group(usual):
        words = f"{_words(value)}; most NPUs of this node say {_words(usual)}"
        return Finding(Outcome.FAIL, words, _SUPER_POD)
    return Finding(Outcome.PASS, _words(value))


_SAME_INDEX = (
    "two servers of one super pod must not have one index: their NPUs have the same addresses. Find which is "
    "right by their vnic addresses (192.INDEX...), and have the other's super pod configuration done again"
)
_OTHER_POD = (
    "between super pods there is no HCCS, and RoCE is not set up: take nodes of one super pod, or configure RoCE "
    "(hccn.conf) on all of them"
)
_OVER_ROCE = "between super pods the way is RoCE: slower than HCCS, and the checks of RoCE count"


def _over_nodes(survey: Survey, places: Mapping[str, tuple[Spod, Reading[Any]]]) -> Iterator[Result]:
    """Yield what nodes say of each other."""
    found = list(_same_index(survey, places))
    used = [name for name in places if survey.plan.on_node(name)]
    pods: dict[int, list[str]] = {}
    for name in used:
        pods.setdefault(places[name][0].pod, []).append(name)
    if len(pods) > 1:
        found.append(_several_pods(survey, pods, places))
    sizes = {value.size for value, _ in places.values()}
    if len(pods) == 1 and len(sizes) > 1:
        words = "; ".join(f"{name} says {value.size}" for name, (value, _) in places.items())
        readings = [reading for _, reading in places.values()]
        found.append(survey.warned(f"size of the super pod: {words}", *readings, remedy=_SUPER_POD))
    if found:
        yield from found
    else:
        (pod,) = {value.pod for value, _ in places.values()} or {0}
        yield survey.passed(f"{len(places)} nodes in super pod {pod}, each with a server index of its own")


def _same_index(survey: Survey, places: Mapping[str, tuple[Spod, Reading[Any]]]) -> Iterator[Result]:
    owners: dict[tuple[int, int | None], list[str]] = {}
    for name, (value, _) in places.items():
        owners.setdefault((value.pod, value.server), []).append(name)
    for (pod, server), names in owners.items():
        if len(names) > 1:
            words = f"{_and(names)} have server index {server} in super pod {pod}"
            yield survey.failed(words, *(places[name][1] for name in names), remedy=_SAME_INDEX)


def _several_pods(
    survey: Survey, pods: Mapping[int, Sequence[str]], places: Mapping[str, tuple[Spod, Reading[Any]]]
) -> Result:
    words = "; ".join(f"{_and(names)} in super pod {pod}" for pod, names in pods.items())
    readings = [places[names[0]][1] for names in pods.values()]
    planes = [plane_of(survey.view(name)).deployed for names in pods.values() for name in names]
    if all(planes):
        return survey.warned(f"ranks in several super pods: {words}", *readings, remedy=_OVER_ROCE)
    groups = [
        group.name
        for group in survey.topology.groups.values()
        if len({places[name][0].pod for name in group.nodes if name in places}) > 1
    ]
    which = f" ({', '.join(groups)} would be split)" if groups else " (KV goes between them)"
    if False in planes:
        return survey.failed(f"ranks in several super pods{which}: {words}", *readings, remedy=_OTHER_POD)
    return survey.warned(
        f"ranks in several super pods{which}: {words}; whether RoCE is deployed is not known",
        *readings,
        remedy=_OTHER_POD,
    )


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
