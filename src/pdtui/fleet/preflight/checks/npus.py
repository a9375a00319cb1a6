"""The vendor tools of a node, and what they say of its NPUs: are all there, and are they well?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pdtui.fleet.preflight.check import NAMED, WITH_NPUS, NodeView, check, unknown
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.roce import of_assessment
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.assess import ANYWHERE, Place, finding, place_of
from pdtui.readings.assess.chip import assess_health, assess_word
from pdtui.readings.commands import Query, npu_and_chip
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.npu_smi_identity import ChipHealth
from pdtui.readings.words import failure_words, remedy_of
from pdtui.text import spans
from pdtui.topology.model import Platform

_USELESS = (Failure.ENVIRONMENT, Failure.PERMISSION, Failure.DRIVER)
"""Failures of a tool as a whole: it will not answer anything until something is mended."""

_ANSWERED = (Failure.NOT_CONFIGURED, Failure.UNSUPPORTED, Failure.NO_DEVICE)
"""Failures by which a tool shows that it works; what they mean is another check's to say."""


@check("tools", "npu-smi and hccn_tool answer", needs=(Query.TABLE, Query.TLS), platforms=WITH_NPUS)
def tools(view: NodeView) -> Iterable[Result]:
    """Both vendor tools are there, may be run, and come back."""
    table = view.read(Query.TABLE)
    told = _of_tool("npu-smi", table)
    if told.outcome is Outcome.PASS:
        version = table.value.tool_version if isinstance(table.value, Table) else ""
        yield view.passed(" ".join(filter(None, ("npu-smi", version, "answers"))), table)
    elif told.outcome is Outcome.FAIL:
        yield view.failed(told.summary, table, remedy=told.remedy)
    else:
        yield view.unknown(table, what="npu-smi")
    asked = [(device, view.read(Query.TLS, device)) for device in view.devices]
    yield from view.rolled([(device, _of_hccn_tool(view, device, reading), reading) for device, reading in asked])


def _of_hccn_tool(view: NodeView, device: int, reading: Reading[Any]) -> Finding:
    """Return what the answer about TLS says of the tool; only root gets that one, others may get the rest."""
    others = (view.read(query, device).value for query in (Query.LINK, Query.VNIC))
    if reading.failure is Failure.PERMISSION and any(value is not None for value in others):
        words = "hccn_tool answers, but tells its TLS switch to root only"
        return Finding(Outcome.WARN, words, remedy_of(reading))
    return _of_tool("hccn_tool", reading)


def _of_tool(tool: str, reading: Reading[Any]) -> Finding:
    """Return what an answer says of the tool itself."""
    if reading.value is not None or reading.failure in _ANSWERED:
        return Finding(Outcome.PASS, f"{tool} answers")
    if reading.failure in _USELESS:
        return Finding(Outcome.FAIL, f"{tool}: {failure_words(reading)}", remedy_of(reading))
    return unknown(reading, tool)


def without_npu_smi(view: NodeView) -> Result | None:
    """Return that a check was not run because npu-smi does not work on a node; `tools` says what to do."""
    reading = view.read(Query.TABLE)
    if reading.failure not in _USELESS:
        return None
    return view.not_run(f"npu-smi does not work there: {failure_words(reading)}")


_SORTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"910(?:A|B|Pro[AB])$"), "a1"),
    (re.compile(r"910B\d"), "a2"),
    (re.compile(r"Ascend910$"), "a3"),
    (re.compile(r"Ascend950"), "a5"),
    (re.compile(r"310"), "310"),
)
"""Name of a chip in npu-smi's table -> the generation that it is of."""

_OTHER_PLATFORM = "correct `platform` in the topology file, or the node's host: ids, links and ports depend on it"


@check("npu-count", "All NPUs are there", needs=(Query.TABLE,), platforms=WITH_NPUS)
def npu_count(view: NodeView) -> Iterable[Result]:
    """The table lists every NPU of a server of this platform, and those that ranks are to use.

    Servers of A5 come with one card to many: there only ranks' NPUs are looked for.
    """
    reading = view.read(Query.TABLE)
    table = reading.value
    if not isinstance(table, Table):
        yield without_npu_smi(view) or view.unknown(reading, what="npu-smi's table")
        return
    other = _other_platform(table, view.platform)
    if other:
        words = f"the NPUs are {table.chips[0].name} ({other}), the file says platform: {view.platform}"
        yield view.failed(words, reading, remedy=_OTHER_PLATFORM)
        return
    planned = {device: rank.id for rank in view.plan.on_node(view.name) for device in rank.devices}
    listed = {chip.device for chip in table.chips}
    wanted = sorted({*(listed if view.platform == "a5" else view.devices), *planned})
    missing = [device for device in wanted if device not in listed]
    found = []
    for device in wanted:
        if device in listed:
            told = Finding(Outcome.PASS, "listed by npu-smi")
        elif not table.complete:
            told = of_assessment(finding("npu-unseen", "npu-smi's table is cut, it is not in what came"))
        else:
            told = _missing(device, planned, f"{len(listed)} of {len(wanted)}", few=len(missing) <= NAMED)
        found.append((device, told, reading))
    yield from view.rolled(found)
    more = listed - set(wanted)
    if more:
        words = f"npu-smi lists NPU {spans(more)} besides the {len(view.devices)} of a server of {view.platform}"
        yield view.warned(words, reading, remedy="no rank gets them: compare the file's platform with the server")


def _missing(device: int, planned: Mapping[int, str], counts: str, *, few: bool) -> Finding:
    rank = planned.get(device, "") if few else ""
    use = f"; {rank} is to run on it" if rank else ""
    told = of_assessment(finding("npu-missing", f"not in npu-smi's table ({counts} are){use}"))
    if device in planned:
        return told
    return Finding(Outcome.WARN, f"{told.summary}; no rank is to run on it", told.remedy)


def _other_platform(table: Table, platform: Platform) -> str:
    """Return the generation of the NPUs when most names say that it is not the file's."""
    sorts = Counter(sort for chip in table.chips for pattern, sort in _SORTS if pattern.match(chip.name))
    most = sorts.most_common(1)
    return most[0][0].upper() if most and most[0][0] != platform else ""


@check("npu-health", "The NPUs are well", needs=(Query.TABLE, Query.HEALTH), platforms=WITH_NPUS)
def npu_health(view: NodeView) -> Iterable[Result]:
    """Every chip says OK, in the table and when it is asked itself; else with its error codes."""
    if useless := without_npu_smi(view):
        yield useless
        return
    table = view.read(Query.TABLE).value
    chips = {chip.device: chip for chip in table.chips} if isinstance(table, Table) else {}
    gone = set(view.devices) - set(chips) if isinstance(table, Table) and table.complete else set[int]()
    found = [
        (device, _gone(device), view.read(Query.TABLE))
        if device in gone
        else (device, *_health(view, device, chips.get(device), exact=False))
        for device in view.devices
        if view.platform != "a5" or device not in gone
    ]
    bad = [device for device, told, _ in found if told.outcome is not Outcome.PASS and device not in gone]
    if len(bad) <= NAMED:
        found = [
            (device, *_health(view, device, chips.get(device), exact=True)) if device in bad else one
            for one in found
            for device in one[:1]
        ]
    yield from view.rolled(found)


def _gone(_device: int) -> Finding:
    return Finding(Outcome.NOT_RUN, "npu-smi does not list it")


def _health(view: NodeView, device: int, chip: Chip | None, *, exact: bool) -> tuple[Finding, Reading[Any]]:
    """Return what is said of one chip and on which reading it rests. `exact`: its ids are in the remedy."""
    reading = view.read(Query.HEALTH, device)
    place = place_of(device, view.platform) if exact else ANYWHERE
    if reading.value is None:
        if chip is not None and (reading.failure is Failure.UNSUPPORTED or chip.health not in ("OK", "")):
            # The worse of the two: the table's word is an answer, the missing error codes are not.
            return _by_table(view, chip, place)
        return unknown(reading, "npu-smi info -t health"), reading
    said = reading.value.of(npu_and_chip(view.platform, device)[1])
    if not isinstance(said, ChipHealth):
        return Finding(Outcome.UNKNOWN, "npu-smi info -t health answers of another chip", _AGAIN), reading
    told = of_assessment(assess_health(said, view.platform, place))
    if told.outcome is Outcome.PASS and chip is not None and chip.health != "OK":
        return _by_table(view, chip, place)
    return told, reading


def _by_table(view: NodeView, chip: Chip, place: Place) -> tuple[Finding, Reading[Any]]:
    told = of_assessment(assess_word(chip.health, place))
    return told, replace(view.read(Query.TABLE), raw=chip.rows)


_AGAIN = "ask again by hand; npu-smi info -m lists the ids of this server"
