"""Do the NPUs reach each other over the plane that they use?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pdtui.fleet.preflight.check import SHOWN, Survey, check, evidence_of, unknown
from pdtui.fleet.preflight.matrix import Pair, blame
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.pinging import LeftOut, Pinged, judge_ping, took
from pdtui.readings.answer import Reading
from pdtui.text import spans

_ROCE = (
    "look at link, net_health and address of both ends (preflight --only link,net-health,hccn-conf), then at VLAN \
and routing of their switch ports"
)
_HCCS = "look at vnic and spod of both ends (preflight --only vnic,spod); npu-smi info -t hccs shows the lanes"


@check("ping", "NPUs reach each other", needs=("ping",), scope="cluster", platforms=("a2", "a3"))
def ping(survey: Survey) -> Iterable[Result]:
    """Every NPU reaches another one and is reached; what failed pings have in common is named."""
    made, left_out = gathered(survey)
    if not made and not left_out:
        for view in survey.views:
            yield view.unknown(view.read("ping"))
        return
    of = {outcome: [one for one in made if judge_ping(one).outcome is outcome] for outcome in Outcome}
    good = [one.pair for one in of[Outcome.PASS]]
    for outcome in (Outcome.FAIL, Outcome.WARN):
        yield from _blamed(of[outcome], good, outcome)
    yield from _unanswered(of[Outcome.UNKNOWN])
    yield from _left_out(left_out)
    if of[Outcome.PASS]:
        yield survey.passed(_words(of[Outcome.PASS], len(made)))


def gathered(survey: Survey) -> tuple[list[Pinged], list[LeftOut]]:
    """Return what was pinged and who was left out."""
    values = [reading.value for facts in survey.nodes.values() for reading in facts.items("ping").values()]
    return [one for one in values if isinstance(one, Pinged)], [one for one in values if isinstance(one, LeftOut)]


def _words(good: Sequence[Pinged], total: int) -> str:
    planes = " and ".join(sorted({"RoCE" if one.plane == "roce" else "HCCS" for one in good}))
    npus = {npu for one in good for npu in (one.pair.source, one.pair.target)}
    times = sorted((took(one.reading.value) for one in good if one.reading.value is not None), key=_number)
    count = f"{len(good)} pings" if len(good) == total else f"{len(good)} of {total} pings"
    return f"{len(npus)} NPUs over {planes}: {count} answered, in {times[0]} to {times[-1]}"


def _number(words: str) -> float:
    first = words.partition(" ")[0]
    return float(first) if first.replace(".", "", 1).isdigit() else 0.0


def _blamed(bad: Sequence[Pinged], good: Sequence[Pair], outcome: Outcome) -> Iterator[Result]:
    by_pair = {one.pair: one for one in bad}
    if len(bad) > 2 and not good:
        words = judge_ping(bad[0]).summary
        yield _result(outcome, "cluster", f"none of {len(bad)} pings is as it should be: {words}", bad)
        return
    for found in blame(list(by_pair), good):
        pings = [by_pair[pair] for pair in found.pairs]
        words = judge_ping(pings[0]).summary
        if len(pings) > 1:
            words = f"all {len(pings)} pings from and to it: {words}"
        yield _result(outcome, found.subject, words, pings)


def _result(outcome: Outcome, subject: str, words: str, pings: Sequence[Pinged]) -> Result:
    remedy = _ROCE if pings[0].plane == "roce" else _HCCS
    return Result("ping", subject, outcome, words, remedy, evidence_of([one.reading for one in pings]))


def _unanswered(pings: Sequence[Pinged]) -> Iterator[Result]:
    """Yield pings that said nothing, by the node that they came from and the reason."""
    groups: dict[tuple[str, str, str], list[Pinged]] = {}
    for one in pings:
        finding = unknown(one.reading)
        groups.setdefault((one.pair.source.node, finding.summary, finding.remedy), []).append(one)
    for (node, words, remedy), members in groups.items():
        devices = spans({one.pair.source.device for one in members})
        shown: list[Reading[object]] = [one.reading for one in members[:SHOWN]]
        yield Result(
            "ping", node, Outcome.UNKNOWN, f"pings from NPU {devices}: {words}", remedy, evidence_of(shown)
        )


def _left_out(npus: Sequence[LeftOut]) -> Iterator[Result]:
    groups: dict[tuple[str, str, bool], list[LeftOut]] = {}
    for one in npus:
        groups.setdefault((one.npu.node, one.why, one.by_choice), []).append(one)
    for (node, why, by_choice), members in groups.items():
        words = f"NPU {spans({one.npu.device for one in members})}: {why}"
        readings = [one.reading for one in members if one.reading is not None]
        if by_choice:
            yield Result("ping", node, Outcome.NOT_RUN, "", because=words, by_choice=True)
        else:
            yield Result("ping", node, Outcome.UNKNOWN, words, evidence=evidence_of(readings))
