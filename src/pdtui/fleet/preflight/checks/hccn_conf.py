"""/etc/hccn.conf: what the NPUs get at boot, where Mooncake and HCCL look for their addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.fleet.preflight.roce import CONF, NOT_DEPLOYED, plane_of, without_answer
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Address, Gateway, NetDetect
from pdtui.readings.hccn_conf import PATH, HccnConf, read_hccn_conf
from pdtui.text import spans

CONF_INSIDE = "hccn-conf-ranks"
"""Need: the file where ranks run."""


@probe(CONF, limit=15.0)
async def conf_on_host(asking: Asking) -> AsyncIterator[Gathered]:
    """Read the file on the host."""
    yield None, read_hccn_conf(await asking.file(PATH))


@probe(CONF_INSIDE, place="ranks", limit=15.0)
async def conf_where_ranks_run(asking: Asking) -> AsyncIterator[Gathered]:
    """Read the file in the container, if there is one."""
    yield None, read_hccn_conf(await asking.file(PATH))


_WRITE = (
    "write address_N, netmask_N (and gateway_N, netdetect_N) of every NPU into it, as on a node that works: "
    "without it the addresses are gone after a reboot, and Mooncake finds none"
)
_CORRECT = "correct the line on the host: it counts for Mooncake at once, and for the NPU from the next boot"
_STALE = (
    "one of the two is old. Mooncake takes the file's: correct the line, or bring the NPU to the file's address "
    "in a quiet hour (hccn_tool -i N -ip -s address ... netmask ... writes both)"
)
_MOUNT = (
    "mount it: -v /etc/hccn.conf:/etc/hccn.conf in the container's start command; without it KV transfers go "
    "wrong though every rank looks healthy"
)
_REMOUNT = (
    "restart the container: a file that was replaced on the host (sed -i, most editors) stays the old one in a "
    "container that mounts it"
)


def _absent(reading: Reading[Any]) -> str:
    """Return in words that the file is not there or holds nothing; empty when that is not known."""
    words = {
        Failure.MISSING: f"there is no {PATH}",
        Failure.EMPTY: f"{PATH} is empty",
        Failure.UNREADABLE: f"no line of {PATH} is a setting of the form key_N=value",
    }
    not_asked = reading.failure is Failure.EMPTY and reading.raw
    return "" if not_asked or reading.failure is None else words.get(reading.failure, "")


@check(
    "hccn-conf",
    "hccn.conf holds the addresses that run",
    needs=(CONF, Query.IP, Query.LINK, Query.GATEWAY, Query.NETDETECT),
    scope="cluster",
    platforms=("a2", "a3"),
)
def hccn_conf(survey: Survey) -> Iterable[Result]:
    """The file is there and sound, its addresses are unique over all nodes and are those that run."""
    owners = _owners(survey.views)
    for view in survey.views:
        reading = view.read(CONF)
        if isinstance(reading.value, HccnConf):
            yield from _judge_conf(view, reading, reading.value, owners)
        elif (words := _absent(reading)) and plane_of(view).deployed is False:
            yield view.not_applicable(f"{words}, and {NOT_DEPLOYED}")
        elif words:
            say = view.failed if reading.failure is Failure.UNREADABLE else view.warned
            yield say(words, reading, remedy=_WRITE)
        else:
            yield view.unknown(reading, what=PATH)


def _owners(views: Iterable[NodeView]) -> Mapping[str, list[str]]:
    """Return whose an address is by the files of all nodes."""
    owners: dict[str, list[str]] = {}
    for view in views:
        conf = view.read(CONF).value
        if not isinstance(conf, HccnConf):
            continue
        for device in conf.devices:
            if address := conf.value(device, "address"):
                owners.setdefault(address, []).append(view.subject(device))
    return owners


def _judge_conf(
    view: NodeView, reading: Reading[Any], conf: HccnConf, owners: Mapping[str, list[str]]
) -> Iterator[Result]:
    stale = {device for device in view.devices if _judge_device(view, conf, device).outcome is Outcome.FAIL}
    for problem in conf.problems:
        if problem.device in stale and problem.line != conf.line(problem.device, "address"):
            continue  # It is measured against an address that is wrong itself.
        say = view.failed if problem.serious else view.warned
        on = problem.device if problem.device in view.devices else None
        shown = _excerpt(reading, conf, problem.device, problem.line)
        yield say(f"line {problem.line}: {problem.summary}", shown, on=on, remedy=_CORRECT)
    told = {problem.line for problem in conf.problems}
    found: list[tuple[int, Finding, Reading[Any]]] = []
    for device in view.devices:
        address = conf.value(device, "address")
        elsewhere = [other for other in owners.get(address, []) if not other.startswith(f"{view.name}/")]
        if address and elsewhere:
            words = f"address_{device}={address} is the address of {', '.join(elsewhere)} too"
            found.append((device, Finding(Outcome.FAIL, words, _CORRECT), _excerpt(reading, conf, device)))
        found.append((device, _judge_device(view, conf, device), view.read(Query.IP, device)))
        found += [(device, other, at) for other, at in _others(view, conf, device, told)]
    yield from view.rolled(found)


def _excerpt(reading: Reading[Any], conf: HccnConf, device: int | None, line: int = 0) -> Reading[Any]:
    """Return the reading with the lines of one NPU, or one line, in place of the whole file."""
    lines = reading.raw.split("\n")
    wanted = {line} if device is None else {at for name, at in conf.lines.items() if name.endswith(f"_{device}")}
    shown = [f"line {at}: {lines[at - 1]}" for at in sorted({*wanted, line}) if 0 < at <= len(lines)]
    return replace(reading, raw="\n".join(shown) or reading.raw)


def _judge_device(view: NodeView, conf: HccnConf, device: int) -> Finding:
    """Compare the address in the file with the one that runs."""
    running, address = view.read(Query.IP, device), conf.value(device, "address")
    if conf.value(device, "udhcpc_enable") == "1":
        return Finding(Outcome.PASS, "takes its address by DHCP")
    if isinstance(running.value, Address):
        if address in (running.value.address, *(more for more, _ in running.value.more)):
            return Finding(Outcome.PASS, "the file's address is the one that runs")
        if not address:
            words = f"runs {running.value.address}, and the file has no address_{device}"
            return Finding(Outcome.FAIL, words, _WRITE)
        line = conf.line(device, "address")
        words = f"address_{device}={address} in the file (line {line}), and {running.value.address} runs"
        return Finding(Outcome.FAIL, words, _STALE)
    if running.failure is Failure.NOT_CONFIGURED:
        if not address:
            return Finding(Outcome.NA, "no address in the file, and none runs")
        return Finding(Outcome.FAIL, f"address_{device}={address} in the file, and none runs", _STALE)
    return without_answer(running, "the address that runs")


def _others(
    view: NodeView, conf: HccnConf, device: int, told: Collection[int]
) -> Iterator[tuple[Finding, Reading[Any]]]:
    """Compare netmask, gateway and detect address where both the file and the NPU have one.

    `told`: lines of which something is said already.
    """
    address, gateway = view.read(Query.IP, device), view.read(Query.GATEWAY, device)
    detect = view.read(Query.NETDETECT, device)
    running = {
        "netmask": (address, address.value.netmask if isinstance(address.value, Address) else ""),
        "gateway": (gateway, gateway.value.address if isinstance(gateway.value, Gateway) else ""),
        "netdetect": (detect, detect.value.address if isinstance(detect.value, NetDetect) else ""),
    }
    for key, (reading, value) in running.items():
        said = conf.value(device, key)
        line = conf.line(device, key)
        if said and value and said != value and line not in told:
            words = f"{key}_{device}={said} in the file (line {line}), and {value} runs"
            yield Finding(Outcome.WARN, words, _STALE), reading


@check(
    "hccn-conf-container",
    "The container sees the host's hccn.conf",
    needs=(CONF_INSIDE, CONF, Query.IP, Query.LINK),
    platforms=("a2", "a3"),
)
def hccn_conf_container(view: NodeView) -> Iterable[Result]:
    """Where ranks run the file is there and says what it says on the host."""
    if view.topology.runtime.container is None:
        yield view.not_applicable("ranks run on the host itself")
        return
    inside, host = view.read(CONF_INSIDE), view.read(CONF)
    if isinstance(inside.value, HccnConf) and isinstance(host.value, HccnConf):
        yield _compare(view, inside, host)
    elif (words := _absent(inside)) and (isinstance(host.value, HccnConf) or plane_of(view).deployed is not False):
        yield view.failed(f"in the container {words}", inside, remedy=_MOUNT)
    elif words:
        yield view.not_applicable(f"in the container {words}, and {NOT_DEPLOYED}")
    elif inside.value is None:
        yield view.unknown(inside, what=f"{PATH} in the container")
    elif _absent(host):
        yield view.failed(f"{PATH} is in the container, but on the host {_absent(host)}", host, remedy=_REMOUNT)
    else:
        yield view.unknown(host, what=f"{PATH} on the host")


def _compare(view: NodeView, inside: Reading[HccnConf], host: Reading[HccnConf]) -> Result:
    ours, theirs = host.value, inside.value
    if ours is None or theirs is None or ours.devices == theirs.devices:
        return view.passed("the container sees what the host has", inside)
    devices = sorted(ours.devices.keys() | theirs.devices.keys())
    odd = [device for device in devices if ours.devices.get(device) != theirs.devices.get(device)]
    first = odd[0]
    keys = sorted({*ours.devices.get(first, {}), *theirs.devices.get(first, {})})
    key = next(key for key in keys if ours.value(first, key) != theirs.value(first, key))
    inner, outer = (conf.value(first, key) or "(none)" for conf in (theirs, ours))
    values = f"{key}_{first}={inner} in the container, {outer} on the host"
    others = f"; NPU {spans(odd)} differ" if len(odd) > 1 else ""
    return view.failed(f"{values}{others}", inside, host, remedy=_REMOUNT)
