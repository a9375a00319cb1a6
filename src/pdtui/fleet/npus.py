"""What is known of the NPUs of one node: the readings of each, and the picture that they make."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdtui.fleet.snapshot import NpuStatus
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.hccn_conf import HccnConf, read_hccn_conf
from pdtui.readings.judge import Ages, NodeSight, NpuReadings, Observed, judge, node_sight, read_answer
from pdtui.readings.npu_smi import Table, read_table
from pdtui.readings.verdict import Verdict
from pdtui.readings.words import REMEDIES, failure_words
from pdtui.topology.model import Platform

_KEEP = 20.0
"""Seconds for which an NPU whose values did not change keeps its object, though it was read again."""

_CLOSE = 1.5
"""Seconds: a next try that moves by less is the same one, seen from two clocks."""

_MOST = 64
"""Devices of a node; a table that lists more is not believed."""

_TOGETHER = frozenset((Query.LINK, Query.IP, Query.TLS, Query.LLDP, Query.SPOD))
"""Queries whose answer on one NPU can change the verdict on others."""


@dataclass(slots=True)
class _Device:
    """What is known of one NPU."""

    readings: NpuReadings
    status: NpuStatus
    until: float
    """Wall clock from which the verdict may be another one without a new answer."""
    next_try: float | None = None
    """While a tool hangs on it: wall clock at which it is asked again."""


class NpuBook:
    """Owns the readings of a node's NPUs; only what an answer or age can have changed is judged again."""

    def __init__(self, platform: Platform, ranks: Mapping[int, str], ages: Ages) -> None:
        self._platform: Platform = platform
        self._ranks = ranks
        self._ages = ages
        self._table: Observed[Table] = Observed()
        self._conf: Observed[HccnConf] = Observed()
        self._devices: dict[int, _Device] = {}
        self._sight = NodeSight()
        self._unjudged: set[int] = set()
        self._unseen = True
        """The sight of the node is to be made again."""

    @property
    def sight(self) -> NodeSight:
        """What the NPUs say together, as of the last picture."""
        return self._sight

    @property
    def addresses(self) -> Mapping[str, int]:
        """RoCE and vnic addresses of the NPUs, as far as they are known."""
        found: dict[str, int] = {}
        for device, known in self._devices.items():
            for value in (known.readings.ip.value, known.readings.vnic.value):
                if value is not None and value.address:
                    found[value.address] = device
        return found

    def add(self, device: int) -> None:
        """Add an NPU of which nothing is known."""
        told = judge(device, self._platform, Observed(), NpuReadings(), NodeSight(), now=0.0)
        status = NpuStatus(device, told.verdict, told.reasons, rank=self._ranks.get(device, ""))
        self._devices[device] = _Device(NpuReadings(), status, 0.0)
        self._unjudged.add(device)

    def read(self, query: Query, answer: Answer) -> Reading[Any]:
        """Return what an answer says, without keeping it."""
        return read_table(answer) if query is Query.TABLE else read_answer(query, answer)

    def answered(self, device: int | None, query: Query) -> bool:
        """Return whether the last answer to a query was a value."""
        if device is None:
            observed: Observed[Any] = self._table
        else:
            observed = self._devices[device].readings.of(query)
        return observed.good is not None and observed.latest is observed.good

    def take(self, device: int | None, query: Query, reading: Reading[Any]) -> tuple[int, ...]:
        """Keep what was read of one NPU, or of the node (device None); return NPUs that were not known before."""
        if device is None:
            return self._take_table(reading)
        known = self._devices[device]
        known.readings = known.readings.then(query, reading)
        self._unjudged.add(device)
        self._unseen = self._unseen or query in _TOGETHER
        return ()

    def _take_table(self, table: Reading[Table]) -> tuple[int, ...]:
        self._table = self._table.then(table)
        self._unjudged.update(self._devices)
        listed = [chip.device for chip in table.value.chips] if table.value is not None else []
        new = [device for device in listed if device not in self._devices]
        return tuple(new[: _MOST - len(self._devices)])

    def take_conf(self, answer: Answer) -> None:
        """Take hccn.conf."""
        self._conf = self._conf.then(read_hccn_conf(answer))
        self._unseen = True

    def hang(self, device: int, words: str, next_try: float | None) -> None:
        """Note why an NPU is not asked for now, and when it will be (wall clock); empty: it is asked."""
        known = self._devices[device]
        apart = abs((next_try or 0.0) - (known.next_try or 0.0))
        moved = (known.next_try is None) != (next_try is None) or apart > _CLOSE
        if words != known.readings.hanging or moved:
            known.readings = replace(known.readings, hanging=words)
            known.next_try = next_try
            self._unjudged.add(device)

    def picture(self, now: float) -> tuple[NpuStatus, ...]:
        """Judge what may have changed by wall time `now`, and return all NPUs by id."""
        if self._unseen:
            self._unseen = False
            sight = node_sight({device: known.readings for device, known in self._devices.items()}, self._conf)
            if sight != self._sight:
                self._sight = sight
                self._unjudged.update(self._devices)
        for device, known in self._devices.items():
            if device in self._unjudged or known.until <= now:
                self._judge(device, known, now)
        self._unjudged.clear()
        return tuple(self._devices[device].status for device in sorted(self._devices))

    def _judge(self, device: int, known: _Device, now: float) -> None:
        readings = known.readings
        result = judge(device, self._platform, self._table, readings, self._sight, now=now, ages=self._ages)
        known.until = float("inf") if result.until is None else result.until
        table = self._table.value
        chip = table.of(device) if table else None
        link, health, vnic = readings.link.value, readings.net_health.value, readings.vnic.value
        status = NpuStatus(
            id=device,
            verdict=result.verdict,
            reasons=result.reasons,
            link=link.status if link else None,
            net_health=health.word if health else None,
            vnic=vnic.status if vnic else None,
            health=chip.health if chip else None,
            hbm_used_mb=chip.hbm_mb[0] if chip and chip.hbm_mb else None,
            hbm_total_mb=chip.hbm_mb[1] if chip and chip.hbm_mb else None,
            temperature_c=chip.temperature_c if chip else None,
            utilization=chip.utilization if chip else None,
            power_w=chip.power_w if chip else None,
            observed_at=result.oldest,
            rank=self._ranks.get(device, ""),
            processes=tuple((p.pid, p.name, p.memory_mb) for p in table.processes if p.device == device)
            if table
            else (),
            address=readings.ip.value.address if readings.ip.value else None,
            vnic_address=vnic.address or None if vnic else None,
            next_try=known.next_try,
        )
        if not _as_before(known.status, status):
            known.status = status

    def tool_error(self) -> str:
        """Return why readings are missing on the whole node, with what to do, or nothing."""
        table = self._table.latest
        if table is not None and table.failure is not None and table.failure is not Failure.BUSY:
            return _sentence("npu-smi", failure_words(table), table.failure)
        failed = list(self._missing())
        if failed and len(failed) * 2 >= len(self._devices) and failed[0].failure is not None:
            return _sentence("hccn_tool", failure_words(failed[0]), failed[0].failure)
        return ""

    def _missing(self) -> Iterable[Reading[object]]:
        """Yield the answers that say that hccn_tool cannot be used."""
        for known in self._devices.values():
            if known.status.verdict is not Verdict.UNKNOWN:
                continue
            for latest in (known.readings.link.latest, known.readings.vnic.latest):
                if latest is not None and latest.failure in (
                    Failure.ENVIRONMENT,
                    Failure.PERMISSION,
                    Failure.DRIVER,
                ):
                    yield latest


def clock_time(wall: float) -> str:
    """Return a wall time as people read it here."""
    return time.strftime("%H:%M:%S", time.localtime(wall))


def _sentence(tool: str, words: str, failure: Failure) -> str:
    remedy = REMEDIES.get(failure, "")
    return f"{tool}: {words}; {remedy}" if remedy else f"{tool}: {words}"


def _as_before(old: NpuStatus, new: NpuStatus) -> bool:
    """Return whether an NPU may keep its object: equal but for times, and those not much apart."""
    if abs((new.observed_at or 0.0) - (old.observed_at or 0.0)) > _KEEP or len(old.reasons) != len(new.reasons):
        return False
    reasons = tuple(
        replace(mine, observed_at=theirs.observed_at)
        for mine, theirs in zip(new.reasons, old.reasons, strict=True)
    )
    return old == replace(new, observed_at=old.observed_at, reasons=reasons)
