"""The memory of the NPUs before a start: what is used, by whom, and what is held by nobody."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pdtui.errors import RemoteError
from pdtui.fleet.answers import NO_ANSWER
from pdtui.fleet.preflight.check import NAMED, WITH_NPUS, NodeView, check
from pdtui.fleet.preflight.checks.npus import without_npu_smi
from pdtui.fleet.preflight.facts import Item
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.probes import Everywhere, cluster_probe
from pdtui.fleet.servers import short_command
from pdtui.fleet.stopping import HBM_SLACK_MB
from pdtui.fleet.strangers import ALIVE, IDLE_HBM
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.npu_smi import Chip, Process, Table
from pdtui.readings.words import remedy_of
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.remote.messages.ranks import RankRecord
from pdtui.text import clean_line

HOLDERS = "npu-holders"
"""Need: who the processes in npu-smi's table are, and what ranks have left in writing."""

_ASK_LIMIT = 10.0
"""Seconds for one node."""


@dataclass(frozen=True, slots=True)
class Holders:
    """What is known of one node's processes on NPUs besides the table's words."""

    processes: Mapping[int, ProcessInfo]
    """By the host's pid."""
    records: tuple[RankRecord, ...]


@cluster_probe(HOLDERS, limit=30.0, needs=(Query.TABLE,))
async def holders(everywhere: Everywhere) -> AsyncIterator[tuple[str, Item, Reading[Any]]]:
    """Ask each node for the processes that its table lists, and for its ranks' records."""
    tasks = [asyncio.create_task(_ask(everywhere, name)) for name in everywhere.host]
    try:
        for task in asyncio.as_completed(tasks):
            name, reading = await task
            yield name, None, reading
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(everywhere: Everywhere, name: str) -> tuple[str, Reading[Holders]]:
    """Return what one node says; the time is its own, so that none waits for another."""
    table = everywhere.facts[name].get(Query.TABLE).value
    pids = sorted({process.pid for process in table.processes}) if isinstance(table, Table) else []
    command, clock = shlex.join(("ps", "-fp", ",".join(map(str, pids)))), everywhere.clock
    try:
        async with clock.timeout(_ASK_LIMIT):
            found = await everywhere.host[name].agent.processes(match=(), pids=pids) if pids else ()
            records = await _records(everywhere, name)
    except TimeoutError:
        words = f"{NO_ANSWER} within {_ASK_LIMIT:g} s"
        return name, Reading(command, clock.wall(), words, failure=Failure.TIMEOUT)
    except RemoteError as error:
        return name, Reading(command, clock.wall(), clean_line(error.message), failure=Failure.ERROR)
    lines = [f"{info.user} {info.pid} {clean_line(short_command(info.argv))}" for info in found]
    value = Holders({info.pid: info for info in found}, records)
    return name, Reading(command, clock.wall(), "\n".join(lines), value=value)


async def _records(everywhere: Everywhere, name: str) -> tuple[RankRecord, ...]:
    """Return what ranks have left in writing; nothing where they cannot be asked, as without a container."""
    ranks = everywhere.ranks.get(name)
    try:
        return tuple(await ranks.agent.ranks(everywhere.topology.name)) if ranks is not None else ()
    except RemoteError:
        return ()


@check("hbm", "Memory of the NPUs is free", needs=(Query.TABLE, HOLDERS), platforms=WITH_NPUS)
def hbm(view: NodeView) -> Iterable[Result]:
    """Nothing but this cluster's running ranks uses an NPU, and no memory is held that nobody owns."""
    reading = view.read(Query.TABLE)
    table = reading.value
    if not isinstance(table, Table):
        yield without_npu_smi(view) or view.unknown(reading, what="npu-smi's table")
        return
    node = _Node(view, table)
    chips = {chip.device: chip for chip in table.chips}
    devices = view.devices if view.platform != "a5" else sorted(chips)
    told = {device: node.judge(chips[device]) if device in chips else _NOT_LISTED for device in devices}
    planned = {device for rank in view.plan.on_node(view.name) for device in rank.devices}
    grouped = _grouped([one for device, one in told.items() if device in planned])
    yield from view.rolled(
        [
            (device, grouped(one) if device in planned else _spare(one), _rows(reading, table, chips.get(device)))
            for device, one in told.items()
        ]
    )


def _rows(reading: Reading[Any], table: Table, chip: Chip | None) -> Reading[Any]:
    """Return the part of the table that is about one NPU."""
    if chip is None:
        return reading
    pids = {str(process.pid) for process in table.processes if process.device == chip.device}
    lines = [line for line in reading.raw.split("\n") if pids & set(line.split()) and line.startswith("|")]
    return replace(reading, raw="\n".join((chip.rows, *lines)))


@dataclass(frozen=True, slots=True)
class _Told:
    """What is said of one NPU."""

    finding: Finding
    kind: str = ""
    """Of a trouble that many NPUs can have together."""
    used_mb: int = 0
    who: str = ""


_NOT_LISTED = _Told(Finding(Outcome.NOT_RUN, "npu-smi does not list it"))


def _spare(told: _Told) -> Finding:
    """Return what a trouble is on an NPU that no rank is to use."""
    if told.finding.outcome is not Outcome.FAIL:
        return told.finding
    return Finding(Outcome.WARN, f"{told.finding.summary}; no rank is to run on it", told.finding.remedy)


def _grouped(every: Sequence[_Told]) -> Callable[[_Told], Finding]:
    """Return what makes one finding of a trouble that many NPUs have, with the span of their numbers."""
    kinds: dict[str, list[_Told]] = {}
    for one in every:
        kinds.setdefault(one.kind, []).append(one)

    def finding(told: _Told) -> Finding:
        same = kinds[told.kind]
        if not told.kind or len(same) <= NAMED:
            return told.finding
        low, high = (limit(one.used_mb for one in same) for limit in (min, max))
        used = _gb(low) if _gb(low) == _gb(high) else f"{_gb(low)} to {_gb(high)}"
        worst = max(same, key=lambda one: one.used_mb)
        return Finding(
            told.finding.outcome, f"{used} {_SHORT[told.kind].format(who=worst.who)}", worst.finding.remedy
        )

    return finding


_SHORT = {
    "unowned": "held by no process",
    "stranger": "used by {who} and others, not started here",
    "unknown": "used by {who} and others; whose they are is not known",
}


_LEFT = (
    "memory comes back up to a minute after a process has ended: look again. What stays is held by a process of a "
    "container that npu-smi does not show (docker ps; fuser -v /dev/davinci*), or by a wedged driver: reboot"
)


class _Node:
    """What one node's NPUs are compared with."""

    def __init__(self, view: NodeView, table: Table) -> None:
        self.view = view
        self.table = table
        said = view.read(HOLDERS)
        self.holders = said.value if isinstance(said.value, Holders) else None
        busy = {process.device for process in table.processes}
        idle = [chip.hbm_mb[0] for chip in table.chips if chip.hbm_mb and chip.device not in busy]
        self.usual = median(idle) if len(idle) > 1 else None
        """MB that an idle NPU of this node holds."""

    def judge(self, chip: Chip) -> _Told:
        """Return what is said of one NPU."""
        if chip.hbm_mb is None:
            return _Told(Finding(Outcome.NA, "npu-smi shows no HBM"))
        on_it = [process for process in self.table.processes if process.device == chip.device]
        strangers = [process for process in on_it if not self._is_ours(process)]
        if strangers:
            return self._strangers(strangers, chip.hbm_mb[0])
        if on_it or self._running(chip.device):
            return _Told(Finding(Outcome.PASS, "used by ranks of this cluster that run"))
        return self._unowned(chip.device, *chip.hbm_mb)

    def _running(self, device: int) -> bool:
        records = self.holders.records if self.holders is not None else ()
        return any(device in record.devices and record.state in ALIVE for record in records)

    def _is_ours(self, process: Process) -> bool:
        if self.holders is None:
            return False
        info = self.holders.processes.get(process.pid)
        if info is not None and info.rank:
            return info.rank.startswith(f"{self.view.topology.name}:")
        pids = {process.pid, process.pid_in_container, info.inner if info is not None else None}
        return any(
            process.device in record.devices and pids & set(record.processes) for record in self.holders.records
        )

    def _strangers(self, strangers: Sequence[Process], used: int) -> _Told:
        worst = max(strangers, key=lambda process: process.memory_mb)
        where = f"on {self.view.name}: ps -fp {worst.pid}"
        if self.holders is None:
            who = f"{worst.name or 'a process'} (pid {worst.pid})"
            words = f"{_gb(used)} used by {who}; whose it is, is not known"
            return _Told(Finding(Outcome.UNKNOWN, words, where), "unknown", used, who)
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        info = self.holders.processes.get(worst.pid)
        who = _named(worst, info)
        other = info.rank.partition(":")[0] if info is not None else ""
        stop = f"stop it with the file of {other}" if other else f"{where}; stop it where it was started"
        remedy = f"{stop}, or leave this NPU out of this file"
        words = f"{_gb(used)} used by {who}{more}, not started here"
        return _Told(Finding(Outcome.FAIL, words, remedy), "stranger", used, who)

    def _unowned(self, device: int, used: int, there: int) -> _Told:
        """Judge an NPU without processes by its reading before the last start, its idle sisters, and at all."""
        before = self._before(device)
        usual = f", {_gb(before)} before the last start" if before is not None else ""
        if not usual and self.usual is not None and used > self.usual + HBM_SLACK_MB:
            usual = f", {_gb(self.usual)} on the other idle NPUs"
        words = f"{_gb(used)} held by no process{usual}"
        if used > IDLE_HBM * there:
            if not self.table.complete:
                unseen = f"{_gb(used)} in use, by whom is not known: npu-smi's table is cut"
                return _Told(Finding(Outcome.UNKNOWN, unseen))
            if self.holders is None:
                unsaid = f"{words}; whether a rank runs on it is not known"
                return _Told(Finding(Outcome.UNKNOWN, unsaid, remedy_of(self.view.read(HOLDERS))))
            return _Told(Finding(Outcome.FAIL, words, _LEFT), "unowned", used)
        limit = before if before is not None else self.usual
        if limit is not None and used > limit + HBM_SLACK_MB:
            return _Told(Finding(Outcome.WARN, words, _LEFT))
        return _Told(Finding(Outcome.PASS, "memory is free"))

    def _before(self, device: int) -> int | None:
        records = self.holders.records if self.holders is not None else ()
        known = [
            record.hbm_before[str(device)]
            for record in sorted(records, key=lambda record: record.started)
            if str(device) in record.hbm_before and record.run
        ]
        return known[-1] if known else None


def _gb(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f} GB"


def _named(process: Process, info: ProcessInfo | None) -> str:
    """Return a process in an operator's words: whose rank it is, its command, its pid and user."""
    if info is None:
        return f"{process.name or 'a process'} (pid {process.pid})"
    cluster, _, rank = info.rank.partition(":")
    whose = f"rank {rank} of cluster {cluster}, " if rank else ""
    user = f" of {info.user}" if info.user else ""
    return f"{whose}{short_command(info.argv, 60) if info.argv else process.name} (pid {process.pid}{user})"
