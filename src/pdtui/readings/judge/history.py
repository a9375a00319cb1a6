"""What is known of one device over time: for each question the last answer, the last value, and what grew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pdtui.readings.answer import ABSENT, Answer, Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.hccn import counters, lldp, network, optical, tls
from pdtui.readings.judge.counters import Step, growth
from pdtui.readings.npu_smi_blocks import Card
from pdtui.readings.npu_smi_identity import Hccs, Spod, read_hccs, read_spod
from pdtui.readings.npu_smi_values import Ecc, read_ecc

T = TypeVar("T")

_STEPS = 160
"""Steps of growth that are kept of one question: a day of bit errors, which are asked every ten minutes."""


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A question over time: what came last, the last real value, the one before it, and what grew."""

    latest: Reading[T] | None = None
    good: Reading[T] | None = None
    before: Reading[T] | None = None
    steps: tuple[Step, ...] = ()
    """Oldest first; of one life of the device: a counter that shrinks drops them."""

    def then(self, reading: Reading[T]) -> Observed[T]:
        """Return the history with one more reading."""
        if reading.failure is not None:
            return replace(self, latest=reading)
        grown = growth(self.good.value, reading.value) if self.good is not None else {}
        steps = () if grown is None else self.steps
        if grown:
            steps = (*steps, Step(reading.at, self.good.at if self.good else reading.at, grown))[-_STEPS:]
        return Observed(reading, reading, self.good, steps)

    @property
    def value(self) -> T | None:
        """The last real value, however old."""
        return self.good.value if self.good is not None else None


def absent(observed: Observed[T]) -> bool:
    """Return whether the tool says that this is not there."""
    return observed.latest is not None and observed.latest.failure in ABSENT


@dataclass(frozen=True, slots=True)
class Ages:
    """How old a value may be and still count, in seconds."""

    table: float = 55.0
    network: float = 105.0
    """Of the ports: RoCE link and vnic."""
    probe: float = 210.0
    """Of the device's own probe of the network."""
    slow: float = 5400.0
    """Of what is asked every few minutes or more rarely, and is not needed for a good verdict."""


@dataclass(frozen=True, slots=True)
class NpuReadings:
    """Everything that was asked about one device."""

    link: Observed[network.Link] = Observed()
    net_health: Observed[network.NetHealth] = Observed()
    vnic: Observed[network.Vnic] = Observed()
    ip: Observed[network.Address] = Observed()
    netdetect: Observed[network.NetDetect] = Observed()
    link_stat: Observed[counters.LinkStat] = Observed()
    stat: Observed[counters.Statistics] = Observed()
    optical: Observed[optical.Optical] = Observed()
    tls: Observed[tls.Tls] = Observed()
    lldp: Observed[lldp.Lldp] = Observed()
    ecc: Observed[Card[Ecc]] = Observed()
    hccs: Observed[Hccs] = Observed()
    spod: Observed[Spod] = Observed()
    hanging: str = field(default="", kw_only=True)
    """Why this device is not asked for now: the tool hangs on it."""

    def then(self, query: Query, reading: Reading[Any]) -> NpuReadings:
        """Return the readings with one more. Raises KeyError for a query that is not judged."""
        name, _ = _READERS[query]
        changes: dict[str, Any] = {name: self.of(query).then(reading)}
        return replace(self, **changes)

    def of(self, query: Query) -> Observed[Any]:
        """Return what is known of one query. Raises KeyError for a query that is not judged."""
        observed: Observed[Any] = getattr(self, _READERS[query][0])
        return observed

    @property
    def late(self) -> Reading[Any] | None:
        """The newest answer that did not come in time."""
        found = [getattr(self, name).latest for name, _ in _READERS.values()]
        late = [latest for latest in found if latest is not None and latest.failure is Failure.TIMEOUT]
        return max(late, key=lambda latest: latest.at, default=None)


_READERS: Mapping[Query, tuple[str, Callable[[Answer], Reading[Any]]]] = {
    Query.LINK: ("link", network.read_link),
    Query.NET_HEALTH: ("net_health", network.read_net_health),
    Query.VNIC: ("vnic", network.read_vnic),
    Query.IP: ("ip", network.read_ip),
    Query.NETDETECT: ("netdetect", network.read_netdetect),
    Query.LINK_STAT: ("link_stat", counters.read_link_stat),
    Query.STAT: ("stat", counters.read_stat),
    Query.OPTICAL: ("optical", optical.read_optical),
    Query.TLS: ("tls", tls.read_tls),
    Query.LLDP: ("lldp", lldp.read_lldp),
    Query.ECC: ("ecc", read_ecc),
    Query.HCCS: ("hccs", read_hccs),
    Query.SPOD: ("spod", read_spod),
}


def read_answer(query: Query, answer: Answer) -> Reading[Any]:
    """Read the answer to a query about one device. Raises KeyError for a query that is not judged."""
    return _READERS[query][1](answer)
