"""What preflights say, for the console's tests: events in the order in which an engine sends them."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.fleet.preflight.check import ORDER
from pdtui.fleet.preflight.events import AcrossProgress, Began, Ended, NodeEnded, NodeProgress, PreflightEvent
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from tests.support.fake_fleet import NOW

CABLE = "check the cable, the optical module and the switch port"

LINK = Result(
    "link",
    "node2/9",
    Outcome.FAIL,
    "link DOWN",
    CABLE,
    (Evidence("hccn_tool -i 9 -link -g", "link status: DOWN", NOW - 2),),
)
HANG = Result("tools", "node2", Outcome.UNKNOWN, "npu-smi info hangs: no answer in 10 s", "reset the driver")
LEFT = Result("hbm", "node2", Outcome.WARN, "NPU 0-7: 3.1 GB in use", "npu-smi info -t proc-mem names who")


def all_well(nodes: Sequence[str], checks: Sequence[str] = ORDER) -> list[Result]:
    """Return a result of each check on each node."""
    return [
        Result(check, node, Outcome.NA if check == "spod" else Outcome.PASS, "as it should be")
        for node in nodes
        for check in checks
        if check != "reach"
    ]


def preflight(
    nodes: Sequence[str], wrong: Sequence[Result] = (), *, checks: Sequence[str] = ORDER, unreached: str = ""
) -> list[PreflightEvent]:
    """Return the events of a whole run in which all is well but what is given."""
    replaced = {(one.check, one.subject.partition("/")[0]) for one in wrong}
    results = [one for one in all_well(nodes, checks) if (one.check, one.subject) not in replaced]
    if unreached:
        refused = Evidence("ssh root@192.0.0.4", "connect: Connection refused", NOW - 2)
        results = [one for one in results if one.subject != unreached]
        results.append(Result("ssh", unreached, Outcome.FAIL, "connection refused", "start sshd", (refused,)))
        because = f"{unreached} is not reached"
        results += [Result(c, unreached, Outcome.NOT_RUN, "", because=because) for c in checks if c != "ssh"]
    results += wrong
    events: list[PreflightEvent] = [Began(tuple(nodes), tuple(checks), NOW)]
    for node in nodes:
        events.append(NodeProgress(node, 3, 9, "hccn_tool -i 0 -link -g", NOW - 7))
        own = tuple(one for one in results if one.subject.partition("/")[0] == node)
        events.append(NodeEnded(node, own))
    if "reach" in checks:
        events.append(AcrossProgress("reach", 0, 1))
        results.append(Result("reach", "cluster", Outcome.PASS, "all can reach whom they need"))
    report = PreflightReport("c", "d", "ops@x", NOW, NOW, tuple(nodes), tuple(checks), tuple(results))
    return [*events, Ended(report)]
