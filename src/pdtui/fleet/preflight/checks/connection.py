"""Is a node reached, as whom, and does its clock agree with the others'?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from statistics import median, median_low

from pdtui.fleet.answers import NO_ANSWER
from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.readings.answer import Reading

SLOW = 5.0
"""Seconds for a connection that are worth a word."""

CLOSE = 1.0
"""Seconds that two clocks may differ: within, lines of several logs still stand in their order."""

APART = 30.0
"""Seconds beyond which certificates, tokens and time-outs by the wall clock go wrong."""


@check("ssh", "SSH reaches the node")
def ssh(view: NodeView) -> Iterable[Result]:
    """Every node is reached, and its agent answers."""
    made = view.facts.connection
    shown = (Evidence(f"ssh {view.node.host}", made.error, made.at),) if made.error else ()
    if not made.host:
        words = made.error or "no answer"
        yield Result("ssh", view.name, Outcome.FAIL, words, made.remedy, shown)
        return
    host = f" on {made.hostname}" if made.hostname != view.name else ""
    who = f"{made.user}{host}, Python {made.python}"
    if view.facts.lost:
        remedy = _FROZEN if NO_ANSWER in view.facts.lost else _DROPPED
        yield Result("ssh", view.name, Outcome.UNKNOWN, f"{who}; then: {view.facts.lost}", remedy)
    elif made.seconds is not None and made.seconds > SLOW:
        yield Result("ssh", view.name, Outcome.WARN, f"{who}; it took {made.seconds:.1f} s", _SLOWLY)
    else:
        yield Result("ssh", view.name, Outcome.PASS, who)


_FROZEN = "look whether the machine is overloaded, or a disk of it hangs (dmesg)"
_DROPPED = "look whether the machine or its sshd was restarted (uptime, journalctl -u sshd), then run this again"
_SLOWLY = "look for name lookups that time out (UseDNS, GSSAPIAuthentication of sshd) or an overloaded machine"


@probe("clock", limit=15.0)
async def clock_offset(asking: Asking) -> AsyncIterator[Gathered]:
    """How far the node's clock is ahead of ours."""
    offset = await asking.agent.clock_offset()
    at = asking.clock.wall()
    yield None, Reading("date +%s.%N", at, f"{offset:+.3f} s against this machine", value=offset)


@check("clock", "Clocks agree", needs=("clock",), scope="cluster")
def clock(survey: Survey) -> Iterable[Result]:
    """The nodes' clocks agree with each other; against this machine's a difference is only told."""
    offsets: dict[str, float] = {}
    for view in survey.views:
        reading = view.read("clock")
        if reading.value is None:
            yield view.unknown(reading, what="the clock")
        else:
            offsets[view.name] = reading.value
    if not offsets:
        return
    middle = median_low(offsets.values())  # A real clock: of two, half the way between them is neither.
    odd = {name: offset - middle for name, offset in offsets.items() if abs(offset - middle) > CLOSE}
    for name, by in odd.items():
        view = survey.view(name)
        words = f"{abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} the other nodes"
        say = view.failed if abs(by) > APART else view.warned
        yield say(words, view.read("clock"), remedy="set it by NTP: systemctl restart chronyd; chronyc sources")
    fine = {name: offset for name, offset in offsets.items() if name not in odd}
    if fine:
        yield survey.passed(_spread(fine))


def _spread(offsets: Mapping[str, float]) -> str:
    """Return how close the clocks are to each other, and where this machine's stands."""
    widest = max(offsets.values()) - min(offsets.values())
    ours = median(offsets.values())
    words = f"{len(offsets)} nodes within {widest:.2f} s" if len(offsets) > 1 else "1 node"
    return (
        f"{words}, {abs(ours):.1f} s {'ahead of' if ours > 0 else 'behind'} this machine"
        if abs(ours) > CLOSE
        else words
    )
