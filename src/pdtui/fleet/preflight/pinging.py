"""Pings between NPUs: the plane that each pair uses, the rounds, and a second look at what failed.

Only NPUs that the file gives to ranks take part. Pings inject traffic, so unless they are forced none goes from or
to a device that a process uses.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtui.errors import AgentError, AgentLost, RemoteError
from pdtui.fleet.answers import NO_ANSWER, answer_of
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.check import unknown
from pdtui.fleet.preflight.facts import Item
from pdtui.fleet.preflight.gathering import lost_words
from pdtui.fleet.preflight.matrix import Npu, Pair, every_round, follow_up, reach, rounds_of
from pdtui.fleet.preflight.outcome import Finding, Outcome
from pdtui.fleet.preflight.probes import Asking, Everywhere, cluster_probe
from pdtui.fleet.strangers import ALIVE
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import Plane, Query, ping_argv
from pdtui.readings.hccn import HccsPing, Ping, read_hccs_ping, read_ping
from pdtui.readings.npu_smi import Table
from pdtui.remote.messages.commands import Command
from pdtui.text import clean_line
from pdtui.topology.model import Role

SERVERS = 48
"""Server indexes of a super pod that the tool takes; a vnic address with another is of a machine in none."""

LIMIT = 3600.0
"""Seconds for all pings: a full matrix of many NPUs takes its time, and can be interrupted."""

PACKETS = 3

RANKS_LIMIT = 5.0
"""Seconds that a node has to say which of its ranks run."""

Said = tuple[str, Item, Reading[Any]]


@dataclass(frozen=True, slots=True)
class Pinged:
    """One ping that was made, or tried."""

    pair: Pair
    plane: Plane
    reading: Reading[Ping] | Reading[HccsPing]
    again: bool = False
    """It was made because another one had failed."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An NPU that was neither source nor target."""

    npu: Npu
    why: str
    by_choice: bool
    reading: Reading[Any] | None = None


def judge_ping(pinged: Pinged) -> Finding:
    """Return what one ping says."""
    value = pinged.reading.value
    if value is None:
        return unknown(pinged.reading)
    why = f" ({', '.join(value.problems)})" if value.problems else ""
    if not value.received:
        return Finding(Outcome.FAIL, f"none of {value.sent} packets came back{why}")
    if value.received < value.sent:
        return Finding(Outcome.WARN, f"{value.sent - value.received} of {value.sent} packets lost{why}")
    if isinstance(value, HccsPing) and any(value.planes):
        return Finding(
            Outcome.WARN, f"the check of the L1 plane says {', '.join(f'0x{n:x}' for n in value.planes)}{why}"
        )
    if value.problems:
        return Finding(Outcome.WARN, f"all {value.sent} packets came back, but: {', '.join(value.problems)}")
    return Finding(Outcome.PASS, took(value))


def took(value: Ping | HccsPing) -> str:
    """Return how long the last packet took; the first waits for ARP."""
    if isinstance(value, HccsPing):
        return f"{value.times_us[-1]:.1f} us" if value.times_us else "answered"
    return f"{value.times_ms[-1] * 1000:.0f} us" if value.times_ms else "answered"


class Fabric:
    """Which plane lies between two NPUs, and what the other end is called there."""

    def __init__(self, everywhere: Everywhere) -> None:
        self._platform = everywhere.topology.platform
        self._facts = everywhere.facts
        self._pods = {name: self._pod(name) for name in everywhere.facts}

    def _pod(self, node: str) -> int | None:
        """Return the super pod of a node, None when it is not known; -1 - n stands for a node that is in none."""
        if self._platform != "a3":
            return None
        addresses = [self._address(Npu(node, device), "hccs") for device in self._devices(node)]
        if any(address and int(address.split(".")[1]) >= SERVERS for address in addresses):
            return -1 - list(self._facts).index(node)
        pods = [reading.value.pod for reading in self._facts[node].items(Query.SPOD).values() if reading.value]
        return pods[0] if pods else None

    def _devices(self, node: str) -> Iterator[int]:
        return (item for item in self._facts[node].items(Query.VNIC) if isinstance(item, int))

    def plane(self, one: Npu, other: Npu) -> Plane:
        """Return the plane: HCCS within a super pod, RoCE elsewhere."""
        if self._platform != "a3":
            return "roce"
        pods = {self._pods[one.node], self._pods[other.node]} - {None}
        return "hccs" if one.node == other.node or len(pods) < 2 else "roce"

    def allowed(self, one: Npu, other: Npu) -> bool:
        """Return whether a ping makes sense: there is an address, and the two are not the dies of one NPU.

        An NPU on which the tool hangs already pings nobody: it would hang for a minute more.
        """
        if self.reading(one).failure is Failure.TIMEOUT:
            return False
        if self._platform == "a3" and one.node == other.node:
            siblings = one.device // 2 == other.device // 2
            alone = (self._pods[one.node] or 0) < 0
            if siblings or alone:
                return False
        return self.address(one, other) != ""

    def address(self, one: Npu, other: Npu) -> str:
        """Return what `one` must ping to reach `other`; empty: not known."""
        return self._address(other, self.plane(one, other))

    def reading(self, npu: Npu) -> Reading[Any]:
        """Return the reading that an NPU's address comes from."""
        hccs = self._platform == "a3" and (self._pods[npu.node] or 0) >= 0
        return self._facts[npu.node].get(Query.VNIC if hccs else Query.IP, npu.device)

    def _address(self, npu: Npu, plane: Plane) -> str:
        reading = self._facts[npu.node].get(Query.VNIC if plane == "hccs" else Query.IP, npu.device)
        text = reading.value.address if reading.value is not None else None
        try:
            return str(ipaddress.IPv4Address(text)) if text else ""
        except ValueError:
            return ""


@cluster_probe("ping", limit=LIMIT, needs=(Query.TABLE, Query.VNIC, Query.IP, Query.SPOD))
async def pings(everywhere: Everywhere) -> AsyncIterator[Said]:
    """Ping in rounds, then those that failed once more from elsewhere."""
    fabric = Fabric(everywhere)
    prefill, decode, left_out = taking_part(everywhere, await _of_ranks(everywhere))
    if everywhere.pings == "full":
        rounds = tuple(every_round((*prefill, *decode), fabric.allowed))
    else:
        rounds = rounds_of(reach(prefill, decode, fabric.allowed))
    targets = {npu for round_ in rounds for pair in round_ for npu in (pair.source, pair.target)}
    for npu in (*prefill, *decode):
        if npu not in targets:
            left_out.append(_no_partner(npu, fabric.reading(npu), alone=len(prefill) + len(decode) < 2))
    for one in left_out:
        yield one.npu.node, f"without {one.npu.device}", Reading("", everywhere.clock.wall(), one.why, value=one)
    series = _Series(everywhere, fabric)
    async for said in series.run(rounds):
        yield said
    if everywhere.pings != "full":
        failed = [one.pair for one in series.done if judge_ping(one).outcome is Outcome.FAIL]
        good = [one.pair for one in series.done if judge_ping(one).outcome is Outcome.PASS]
        known = {one.pair for one in series.done}
        more = [pair for pair in follow_up(failed, good, fabric.allowed) if pair not in known]
        async for said in series.run(rounds_of(more)):
            yield said


async def _of_ranks(everywhere: Everywhere) -> Collection[Npu]:
    """Return the NPUs of ranks that run now: npu-smi was asked earlier, and lists none that still loads Python."""
    if everywhere.pings in ("force", "full"):
        return ()
    found = await asyncio.gather(*(_of_ranks_on(name, asking) for name, asking in everywhere.ranks.items()))
    return frozenset(npu for npus in found for npu in npus)


async def _of_ranks_on(node: str, asking: Asking) -> Sequence[Npu]:
    try:
        async with asking.clock.timeout(RANKS_LIMIT):
            records = await asking.agent.ranks(asking.topology.name)
    except (RemoteError, TimeoutError):
        return ()  # The table has to do; why the node does not answer is said elsewhere.
    return [Npu(node, device) for record in records if record.state in ALIVE for device in record.devices]


def taking_part(everywhere: Everywhere, of_ranks: Collection[Npu]) -> tuple[list[Npu], list[Npu], list[LeftOut]]:
    """Return the prefill and the decode NPUs that may be pinged, and who may not."""
    roles: dict[Role, list[Npu]] = {role: [] for role in Role}
    left_out: dict[Npu, LeftOut] = {}
    for rank in everywhere.plan.ranks:
        if rank.node not in everywhere.host:
            continue
        for device in rank.devices:
            npu = Npu(rank.node, device)
            why = _in_use(everywhere.facts[rank.node].get(Query.TABLE), device)
            if why is None and npu in of_ranks:
                why = _USED
            if why is None or everywhere.pings in ("force", "full"):
                roles[rank.role].append(npu)
            else:
                left_out[npu] = LeftOut(npu, *why)
    return roles[Role.PREFILL], roles[Role.DECODE], list(left_out.values())


def _in_use(table: Reading[Table], device: int) -> tuple[str, bool, Reading[Any] | None] | None:
    """Return why a device is not pinged: a process uses it, or nobody knows whether one does."""
    if table.value is None:
        return f"whether a process uses it is not known: {unknown(table, 'npu-smi').summary}", False, table
    if not table.value.complete:
        return "whether a process uses it is not known: npu-smi's table is not whole", False, table
    if any(process.device == device for process in table.value.processes):
        return _USED
    return None


_USED = ("a process uses it (--pings force pings all the same)", True, None)


def _no_partner(npu: Npu, reading: Reading[Any], *, alone: bool) -> LeftOut:
    if alone:
        return LeftOut(npu, "there is no other NPU to ping", by_choice=True)
    if reading.value is None:
        return LeftOut(npu, unknown(reading, "its address is not known").summary, by_choice=False, reading=reading)
    return LeftOut(npu, "no other NPU can be pinged over the plane between them", by_choice=False, reading=reading)


class _Series:
    """Rounds of pings, and what they said."""

    def __init__(self, everywhere: Everywhere, fabric: Fabric) -> None:
        self._everywhere = everywhere
        self._fabric = fabric
        self._slots: Mapping[str, asyncio.Semaphore] = {
            node: asyncio.Semaphore(everywhere.limits.sources) for node in everywhere.host
        }
        self._hung: set[Npu] = set()
        self._lost: dict[str, str] = {}
        self._total = 0
        self.done: list[Pinged] = []

    async def run(self, rounds: Sequence[Sequence[Pair]]) -> AsyncIterator[Said]:
        """Make these pings and yield them as they end."""
        again = bool(self.done)
        self._total += sum(map(len, rounds))
        for round_ in rounds:
            tasks = [asyncio.ensure_future(self._ping(pair, again=again)) for pair in round_]
            try:
                for ended in asyncio.as_completed(tasks):
                    pinged = await ended
                    self.done.append(pinged)
                    self._everywhere.told(len(self.done), self._total)
                    reading = pinged.reading
                    key = f"{pinged.pair.source.device} -> {pinged.pair.target}"
                    yield (
                        pinged.pair.source.node,
                        key,
                        Reading(reading.command, reading.at, reading.raw, value=pinged),
                    )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ping(self, pair: Pair, *, again: bool) -> Pinged:
        """Make one ping; a source whose tool hangs, or whose node is lost, makes no other."""
        plane = self._fabric.plane(pair.source, pair.target)
        count = PACKETS if plane == "hccs" else None
        argv = ping_argv(pair.source.device, self._fabric.address(pair.source, pair.target), plane, packets=count)
        asking = self._everywhere.host[pair.source.node]
        limit = self._everywhere.limits.ping[plane]
        command = Command(argv, timeout=limit, key=str(pair), device=pair.source.device)
        async with self._slots[pair.source.node]:
            now = self._everywhere.clock.wall
            if pair.source in self._hung:
                words = f"not asked: the ping before it hangs\n{NO_ANSWER} from {argv[0]} within {limit:g} s"
                return Pinged(pair, plane, Reading(" ".join(argv), now(), words, failure=Failure.TIMEOUT), again)
            if lost := self._lost.get(pair.source.node):
                return Pinged(pair, plane, Reading(" ".join(argv), now(), lost, failure=Failure.EMPTY), again)
            reading = await self._ask(asking, command, plane)
        if reading.failure is Failure.TIMEOUT:
            self._hung.add(pair.source)
        return Pinged(pair, plane, reading, again)

    async def _ask(self, asking: Asking, command: Command, plane: Plane) -> Reading[Any]:
        """Ask once, and again while the tool is busy."""
        limits, clock = self._everywhere.limits, asking.clock
        reading: Reading[Any] = Reading(" ".join(command.argv), clock.wall(), "no answer", failure=Failure.EMPTY)
        for tries in range(limits.busy_tries + 1):
            try:
                async with closing(asking.agent.batch([command], parallel=1)) as answers:
                    async for _, completed in answers:
                        answer = answer_of(completed, clock.wall(), command.timeout)
                        reading = read_hccs_ping(answer) if plane == "hccs" else read_ping(answer)
            except AgentLost as error:
                self._lost[asking.node.name] = lost_words(error)
                return Reading(reading.command, clock.wall(), self._lost[asking.node.name], failure=Failure.EMPTY)
            except AgentError as error:
                return Reading(reading.command, clock.wall(), clean_line(error.message), failure=Failure.ERROR)
            if reading.failure is not Failure.BUSY:
                break
            await clock.sleep(limits.busy_pause * 2.0**tries)
        return reading
