"""Why ranks failed: the line that came first, over all ranks of a group on one clock.

A rank that lost its group points to the rank where it began; NPUs and addresses are named as the plan names them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.fleet.handle import LogLine
from pdtui.fleet.snapshot import Condition, Diagnosis, NodeStatus, RankStatus
from pdtui.readings.signature_table import SIGNATURES, Signature, Weight
from pdtui.readings.signatures import match_line
from pdtui.readings.verdict import Reason, Verdict
from pdtui.readings.vllm_log import prefix_of, severity, stamp_of
from pdtui.readings.without_npus import REMEDIES, SUMMARIES
from pdtui.remote.messages.ranks import GoneWith
from pdtui.text import clean_line
from pdtui.topology.plan import Plan, RankPlan

WINDOW = 900.0
"""Seconds before a rank's last line in which its cause is looked for; HCCL waits for minutes."""

_LINE_LIMIT = 400
_ILL = "npu-failed"
_KILLED = "killed"
_SWEPT = "swept"

UNSURE = frozenset(one.id for one in SIGNATURES if one.weight >= Weight.HOLLOW)
"""Signatures whose reason may still come, on a mate of the rank."""

_EXCEPTION = re.compile(r"(?:[a-zA-Z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:: ?(?P<said>.*))?$")
_OPENS_LIST = re.compile(r"validation errors? for \w+\s*$")


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended."""

    status: int | None = None
    """-N when signal N ended it."""
    ended: float | None = None
    """Our wall clock."""
    alive: bool = False
    """It has not ended: unhealthy or stalled."""
    gone_with: GoneWith = ""
    """What ended with it."""
    logout: Condition | None = None
    """What its node says of ends of logins, where they end processes."""


@dataclass(frozen=True, slots=True)
class Clue:
    """One line of one rank that explains something."""

    weight: Weight
    at: float
    rank: str
    line: str
    summary: str
    signature: str = ""
    remedy: str = ""
    port: int | None = None
    """The port that the line is about."""

    @property
    def order(self) -> tuple[int, float]:
        return (self.weight, self.at)


@dataclass(frozen=True, slots=True)
class Atlas:
    """Names what lines only number: NPUs, ports and addresses."""

    plan: Plan
    npus: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Address of an NPU -> node and device id."""

    def named(self, rank_id: str, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values of a rank's line with what they mean in this cluster."""
        rank = self.plan.by_id.get(rank_id)
        named = dict(values)
        if rank is not None:
            for key in ("npu", "device"):
                number = values.get(key, "")
                if number.isdigit():
                    index = int(number)
                    device = rank.devices[index] if index < len(rank.devices) else index
                    named[key] = f"{device} of {rank.node}"
        if "port" in values and rank is not None:
            named["port"] = self._port(values.get("host", rank.host), rank, values["port"])
        if (code := values.get("code", "")).lstrip("-").isdigit():
            killed = f"killed by {_signal_name(-int(code))}"
            named["code"] = killed if int(code) < 0 else f"exit code {code}"
        if "peer" in values:
            who = self.who(values["peer"])
            named["peer"] = f"{who} ({values['peer']})" if who else values["peer"]
        return named

    def words(self, rank_id: str, signature: Signature, values: Mapping[str, str]) -> tuple[str, str]:
        """Return what a known line of a rank says, and what to do next."""
        rank = self.plan.by_id.get(rank_id)
        summary, remedy = signature.words(self.named(rank_id, values)), signature.remedy
        if rank is None or rank.devices:
            return summary, remedy
        if (other := SUMMARIES.get(signature.id)) is not None:
            summary = replace(signature, summary=other).words(values)
        return summary, REMEDIES.get(signature.id, remedy)

    def who(self, address: str) -> str:
        """Return the rank or NPU behind `host:port` or an address; empty when the plan cannot say."""
        host, _, port = address.strip("'\"[]").rpartition(":") if ":" in address else (address, "", "")
        if host in self.npus:
            return self._npu(*self.npus[host])
        on_host = [rank for rank in self.plan.ranks if rank.host == host]
        if port.isdigit():
            exact = [rank for rank in on_host if int(port) == rank.api_port or int(port) in rank.kv_ports]
            if exact:
                return exact[0].id
        if len(on_host) == 1:
            return on_host[0].id
        return on_host[0].node if on_host else ""

    def _npu(self, node: str, device: int) -> str:
        rank = next((rank for rank in self.plan.on_node(node) if device in rank.devices), None)
        return f"{rank.id}, {node} NPU {device}" if rank else f"{node} NPU {device}"

    def _port(self, host: str, rank: RankPlan, port: str) -> str:
        hosts = {host, rank.host} if host in ("", "*", "0.0.0.0", "127.0.0.1") else {host}  # noqa: S104
        uses = [
            f"{use.use} of {use.owner}"
            for use in self.plan.ports
            if use.host in hosts
            and use.first <= int(port) <= use.last
            and (use.use, use.owner) != ("api", rank.id)
        ]
        return f"{port}: {', '.join(uses)}" if uses else port


def diagnose(
    tails: Mapping[str, Sequence[LogLine]],
    exits: Mapping[str, RankExit],
    plan: Plan,
    *,
    offsets: Mapping[str, float] | None = None,
    npus: Mapping[str, tuple[str, int]] | None = None,
    sick: Mapping[str, tuple[str, Reason]] | None = None,
) -> Mapping[str, Diagnosis]:
    """Return why each rank of `exits` is as it is, judged from the ends of the logs of all ranks.

    `offsets`: by rank, the seconds that its node's clock is ahead. `npus`: addresses of NPUs. `sick`: by rank, an
    NPU of it that has failed; it explains what nothing in the logs does.
    """
    atlas = Atlas(plan, npus or {})
    clues = {rank: clues_of(rank, lines, atlas, (offsets or {}).get(rank, 0.0)) for rank, lines in tails.items()}
    return judge(clues, tails, exits, sick or {})


def judge(
    found: Mapping[str, Sequence[Clue]],
    tails: Mapping[str, Sequence[LogLine]],
    exits: Mapping[str, RankExit],
    sick: Mapping[str, tuple[str, Reason]],
) -> Mapping[str, Diagnosis]:
    """Return why each rank is as it is, from what its group's logs explain."""
    clues = dict(found)
    for rank, end in exits.items():
        if end.gone_with:
            clues[rank] = [_swept(rank, end), *clues.get(rank, ())]
        unexplained = all(clue.weight is Weight.NOTE for clue in clues.get(rank, ()))
        if unexplained and end.status is not None and end.status < 0:
            clues[rank] = [_killed(rank, end)]
    for rank, (npu, reason) in sick.items():
        first = _first(clues, _group(rank))
        if first is None or first.weight >= Weight.PEER or first.signature == _ILL:
            clues[rank] = [_ill(rank, npu, reason), *clues.get(rank, ())]
    return {
        rank: _explain(
            rank,
            min(clues.get(rank, ()), key=lambda clue: clue.order, default=None),
            _first(clues, _group(rank)),
            tails.get(rank, ()),
            end,
        )
        for rank, end in exits.items()
    }


def _group(rank: str) -> str:
    return rank.partition("/")[0]


def _first(clues: Mapping[str, Sequence[Clue]], group: str) -> Clue | None:
    """Return what explains most over a group, and of that the earliest."""
    of_group = (clue for rank, its in clues.items() if _group(rank) == group for clue in its)
    return min(of_group, key=lambda clue: clue.order, default=None)


def _explain(
    rank: str, own: Clue | None, first: Clue | None, lines: Sequence[LogLine], end: RankExit
) -> Diagnosis:
    elsewhere = first is not None and first.rank != rank and (own is None or first.order < own.order)
    if first is not None and elsewhere and first.weight < Weight.CONSEQUENCE:
        if own is None or own.weight is Weight.BROKEN or own.weight >= Weight.CONSEQUENCE:
            summary = f"lost its group: {first.rank}{' ' if first.signature == _KILLED else ': '}{first.summary}"
            return Diagnosis(summary, first.rank, first.line, first.signature, first.remedy)
        begun = "" if own.signature and own.signature == first.signature else first.rank
        return Diagnosis(own.summary, begun, own.line, own.signature, own.remedy)
    if own is not None:
        return Diagnosis(own.summary, "", own.line, own.signature, own.remedy)
    last = next((line.text for line in reversed(lines) if severity(line.text) == "error"), "")
    message = _message(last)
    if message and not message.startswith("Traceback"):
        return Diagnosis(message[:160], "", _shown(last))
    return Diagnosis("no error in its log" if end.alive else f"{_exit_words(end)}, no error in the log")


def _exit_words(end: RankExit) -> str:
    if end.status is None:
        return "ended, exit status not known"
    return f"exit status {end.status}" if end.status >= 0 else f"ended by {_signal_name(-end.status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed(rank: str, end: RankExit) -> Clue:
    """A process that a signal ended wrote nothing; what its group says came after it."""
    name = _signal_name(-(end.status or 0))
    return Clue(
        Weight.BROKEN,
        (end.ended or 0.0) - 1e12,
        rank,
        "",
        f"killed by {name}, no error in its log",
        _KILLED,
        "somebody killed it, or the kernel for want of memory: dmesg -T tells",
    )


def _swept(rank: str, end: RankExit) -> Clue:
    """A rank whose keeper, container or node ended with it; nobody was left to write down how it did."""
    what, remedy = {
        "keeper": (
            "ended with its keeper, or after it: how is not recorded",
            "look for a kill -9, want of memory (dmesg -T), or the end of a login under KillUserProcesses",
        ),
        "container": ("its container was stopped or restarted", "the engine's events say who did it, or why"),
        "machine": (
            "its node was restarted",
            "last -x reboot on the node says when; journalctl -b -1 may say why",
        ),
    }[end.gone_with or "machine"]
    if end.gone_with == "keeper" and end.logout is not None:
        what = "ended with its keeper, most likely with a login (KillUserProcesses)"
        remedy = end.logout.remedy
    weight = Weight.BROKEN if end.gone_with == "keeper" else Weight.CAUSE
    return Clue(weight, (end.ended or 0.0) - 1e12, rank, "", what, _SWEPT, remedy)


def logout_of(node: NodeStatus | None) -> Condition | None:
    return next((one for one in node.conditions if one.id == "logout"), None) if node is not None else None


def _ill(rank: str, npu: str, reason: Reason) -> Clue:
    """A failed NPU, where the logs only say that a peer did not answer."""
    return Clue(Weight.BROKEN, 0.0, rank, clean_line(reason.raw), f"{npu}: {reason.summary}", _ILL, reason.remedy)


def _message(text: str) -> str:
    prefix = prefix_of(text)
    return (prefix.message if prefix else text).strip()


def _shown(text: str, following: Iterable[str] = ()) -> str:
    parts = [_message(text), *(line.strip() for line in following)]
    return " / ".join(part for part in parts if part)[:_LINE_LIMIT]


def clues_of(rank: str, lines: Sequence[LogLine], atlas: Atlas, offset: float) -> list[Clue]:
    """Return the lines of one rank that explain something, earliest first."""
    times = _times(lines, offset)
    since = times[-1] - WINDOW if times else 0.0
    clues: list[Clue] = []
    broken: Clue | None = None
    noted = ""
    for index, line in enumerate(lines):
        if times[index] < since:
            continue
        known = match_line(line.text)
        if known is not None:
            signature, values = known
            details = (
                [after.text for after in lines[index + 1 : index + 3]] if _OPENS_LIST.search(line.text) else []
            )
            noted = _place(line.text) if signature.weight is Weight.NOTE else noted
            summary, remedy = atlas.words(
                rank, signature, _completed(signature, values, details, atlas.plan, rank)
            )
            shown = _shown(line.text, details)
            clues.append(
                Clue(
                    signature.weight,
                    times[index],
                    rank,
                    shown,
                    summary,
                    signature.id,
                    remedy,
                    int(values["port"]) if values.get("port", "").isdigit() else None,
                )
            )
        elif noted and _place(line.text) == noted:
            continue  # The rest of a note, with its traceback.
        elif broken is None and severity(line.text) == "error" and not _says_what(clues):
            match = _EXCEPTION.match(_message(line.text))
            if match is not None and not _OPENS_LIST.search(line.text):
                shown = _shown(line.text)
                broken = Clue(Weight.BROKEN, times[index], rank, shown, shown[:160])
    explained = any(clue.weight < Weight.CONSEQUENCE for clue in clues)
    return [broken, *clues] if broken is not None and not explained else clues


def _place(text: str) -> str:
    prefix = prefix_of(text)
    return prefix.place if prefix is not None else ""


def _says_what(clues: Iterable[Clue]) -> bool:
    """Return whether something is known about what failed, not only that something did."""
    return any(clue.weight < Weight.HOLLOW for clue in clues)


def _completed(
    signature: Signature, values: Mapping[str, str], details: Sequence[str], plan: Plan, rank_id: str
) -> Mapping[str, str]:
    """Return a line's values, and what it leaves to the lines below it or to who knows where it stands."""
    said = [line.partition(" [type=")[0].strip() for line in details if "For further information" not in line]
    if any(said):
        return {**values, "detail": ": ".join(part for part in said if part)}
    rank = plan.by_id.get(rank_id)
    if signature.id == "api-port-in-use" and rank is not None and "port" not in values:
        return {**values, "port": str(rank.api_port)}
    return values


def _times(lines: Sequence[LogLine], offset: float) -> list[float]:
    """Return when each line was written; one without a time belongs to the line before it."""
    times: list[float] = []
    for line in lines:
        at = stamp_of(line.text, line.at)
        times.append(at - offset if at is not None else times[-1] if times else float("nan"))
    first = next((at for at in times if at == at), 0.0)
    return [at if at == at else first for at in times]


def trouble_of(rank: RankStatus, node: NodeStatus) -> tuple[str, Reason] | None:
    """Return a failed NPU of a rank, and why it is failed."""
    for npu in node.npus:
        if npu.id in rank.devices and npu.verdict is Verdict.FAILED and npu.reasons:
            return f"{node.name} NPU {npu.id}", npu.reasons[0]
    return None


def is_explained(clues: Iterable[Clue], before: float) -> bool:
    """Return whether something was wrong with a rank itself before that time."""
    return any(clue.weight is Weight.CAUSE and clue.at < before for clue in clues)
