"""Can nodes reach each other's ports where the plan needs it?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.errors import AgentError, AgentLost
from pdtui.fleet.blockers import Look
from pdtui.fleet.preflight.check import Survey, check
from pdtui.fleet.preflight.facts import Item
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.place import program, uses_mooncake
from pdtui.fleet.preflight.probes import Asking, Everywhere, cluster_probe
from pdtui.fleet.strangers import ANY_ADDRESS
from pdtui.readings.answer import Answer, Failure, Reading, failure_of
from pdtui.text import clean_line, spans
from pdtui.topology.model import Flow, Role, Topology
from pdtui.topology.plan import Plan, PortUse

MARK = b"PDTUI-REACH "

SECONDS = 3.5
"""For one connection: a SYN that was lost is sent again after one and after three seconds."""

LIMIT = 30.0
"""Seconds on a node for all of its connections; four hundred are tried at once."""

OPEN, REFUSED, TIMEOUT = "open", "refused", "timeout"

Use = str
"""What a port is for, in words: `KV of p1`."""


@dataclass(frozen=True, slots=True)
class Way:
    """Everything that one node must reach at one address."""

    node: str
    address: str
    ports: Mapping[int, Use]


@dataclass(frozen=True, slots=True)
class Reached:
    """What came of one way."""

    address: str
    source: str
    """Our address on that way."""
    ports: Mapping[int, str]
    """`open`, `refused` (it is reached, nobody listens), `timeout`, or why not in words."""
    uses: Mapping[int, Use] = field(default_factory=dict)


def ways(topology: Topology, plan: Plan) -> tuple[Way, ...]:
    """Return where TCP must go between nodes, by connector and flow.

    KV: the side that moves it connects to the other's handshake ports and transfer engine (pull: decode to
    prefill; layerwise: prefill to decode). Layerwise: each decode node posts to the metaserver. The proxy's node
    connects to all API servers, members of a group to rank 0's RPC port and, for HCCL, to the first of its base
    ports. Of a range from which a port is picked at random its ends stand for the rest.
    """
    found: dict[tuple[str, str], dict[int, Use]] = {}

    def add(source: str, address: str, port: int, use: Use) -> None:
        if address != topology.nodes[source].address:
            found.setdefault((source, address), {}).setdefault(port, use)

    nodes = {role: list(dict.fromkeys(r.node for r in plan.ranks if r.role is role)) for role in Role}
    mover, holder = (Role.DECODE, Role.PREFILL) if topology.flow is Flow.PULL else (Role.PREFILL, Role.DECODE)
    ranges: dict[str, list[PortUse]] = {}
    for use in plan.ports:
        if use.use in ("transfer-engine", "transfer-engine-rpc", "hccl"):
            ranges.setdefault(use.host, []).append(use)
    for rank in plan.ranks:
        if rank.role is holder:
            for source in nodes[mover]:
                for port in rank.kv_ports:
                    add(source, rank.host, port, f"KV of {rank.group}")
                if uses_mooncake(topology.groups[rank.group]):
                    for use in ranges.get(rank.host, ()):
                        if use.use != "hccl":
                            add(source, rank.host, use.first, "transfer engine")
                            add(source, rank.host, use.last, "transfer engine")
        proxy = topology.proxy
        if proxy is not None and proxy.kind != "external":
            add(proxy.node, rank.host, rank.api_port, f"API of {rank.group}")
        group = topology.groups[rank.group]
        if group.rpc_port and group.dp_address:
            add(rank.node, group.dp_address, group.rpc_port, f"RPC of {group.name}")
            for use in ranges.get(group.dp_address, ()):
                if use.use == "hccl":
                    add(rank.node, group.dp_address, use.first, "HCCL")
    if topology.flow is Flow.LAYERWISE and topology.proxy is not None:
        for source in nodes[Role.DECODE]:
            add(source, topology.proxy.advertise, topology.proxy.port, "metaserver")
    return tuple(Way(node, address, dict(sorted(ports.items()))) for (node, address), ports in found.items())


@cluster_probe("reach", place="ranks", limit=60.0, needs=("ports",))
async def reach_all(everywhere: Everywhere) -> AsyncIterator[tuple[str, Item, Reading[Reached]]]:
    """Try all ways of all nodes at once: an item for each address that a node must reach."""
    from_node: dict[str, list[Way]] = {}
    for way in ways(everywhere.topology, everywhere.plan):
        if way.node in everywhere.ranks:
            from_node.setdefault(way.node, []).append(way)
    asked = {
        asyncio.ensure_future(_try(everywhere.ranks[node], there)): (node, there)
        for node, there in from_node.items()
    }
    try:
        waiting = set(asked)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                node, there = asked[task]
                for way, reading in zip(there, read_reach(task.result(), there), strict=True):
                    yield node, way.address, reading
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _try(asking: Asking, there: Sequence[Way]) -> Answer:
    hosts = {way.address: list(way.ports) for way in there}
    argv = ("python3", "-c", program("reach_script"), json.dumps({"hosts": hosts, "seconds": SECONDS}))
    try:
        return await asking.run(argv, timeout=LIMIT)
    except (AgentError, AgentLost) as error:
        return Answer("", status=None, error=clean_line(error.message), at=asking.clock.wall())


def read_reach(answer: Answer, there: Sequence[Way]) -> list[Reading[Reached]]:
    """Return a reading for each way that was tried."""
    return [_read(answer, _said(answer).get(way.address), way) for way in there]


def _said(answer: Answer) -> Mapping[str, object]:
    for line in reversed(answer.stdout.split(b"\n")):
        if line.startswith(MARK):
            try:
                found = json.loads(line[len(MARK) :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _read(answer: Answer, said: object, way: Way) -> Reading[Reached]:
    command = f"nc -zv -w 3 {way.address} {' '.join(spans(way.ports).replace(',', '').split())}"
    ports = said.get("ports") if isinstance(said, dict) else None
    if not isinstance(said, dict) or not isinstance(ports, dict):
        failure = failure_of(answer) or Failure.UNREADABLE
        return Reading(command, answer.at, answer.text[-2000:], failure=failure)
    words = {port: clean_line(str(ports.get(str(port), "nothing was said of it"))) for port in way.ports}
    value = Reached(way.address, clean_line(str(said.get("from", ""))), words, way.ports)
    lines = [f"{spans(numbers)}: {word}" for word, numbers in _by(words).items()]
    source = f"from {value.source} " if value.source else ""
    return Reading(command, answer.at, "\n".join([f"{source}to {way.address}", *lines]), value=value)


def _by(words: Mapping[int, str]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for port, word in words.items():
        found.setdefault(word, []).append(port)
    return found


@check("reach", "Nodes reach each other's ports", needs=("reach", "ports"), scope="cluster")
def reach(survey: Survey) -> Iterable[Result]:
    """TCP gets through wherever the plan needs it.

    A refusal is an answer: the port is reached and nobody listens yet. It is none where somebody does listen: then
    a firewall refuses (`REJECT`, which Linux makes the same error of). No answer, and no route, are failures.
    """
    asked = {(way.node, way.address): way for way in ways(survey.topology, survey.plan)}
    reached = {view.name for view in survey.views}
    tried = {key: way for key, way in asked.items() if way.node in reached}
    if not asked:
        yield survey.not_applicable("nothing goes between nodes" if len(survey.topology.nodes) > 1 else "one node")
        return
    bad: dict[str, list[_Bad]] = {}
    fine = ports = 0
    silent: dict[str, Reading[Reached]] = {}
    for (node, address), way in tried.items():
        reading: Reading[Reached] = survey.view(node).read("reach", address)
        if reading.value is None:
            silent.setdefault(node, reading)
            continue
        trouble = _trouble(survey, reading.value)
        if trouble:
            bad.setdefault(address, []).append(_Bad(node, trouble, reading, way))
        else:
            fine += 1
            ports += len(way.ports)
    for node, reading in silent.items():
        said = survey.view(node).unknown(reading, what="connections from here")
        own = reading.failure in (Failure.ENVIRONMENT, Failure.ERROR)
        yield replace(said, remedy=_SCRIPT_FAILS) if own else said
    to = {address: sum(1 for _, one in tried if one == address) for address in bad}
    for address, ones in bad.items():
        yield from _failures(survey, address, ones, to[address])
    if fine:
        which = "all " if fine == len(asked) else "the other " if bad else ""
        yield survey.passed(f"{which}{fine} ways between nodes are open, {ports} ports tried")


_SCRIPT_FAILS = "they are tried by python3 where ranks run: see whether it starts (python3 -c 1)"


@dataclass(frozen=True, slots=True)
class _Bad:
    """One way that is not open."""

    node: str
    trouble: Mapping[str, list[int]]
    reading: Reading[Reached]
    way: Way

    @property
    def is_dead(self) -> bool:
        """Whether none of its ports is reached."""
        return sum(map(len, self.trouble.values())) == len(self.way.ports)


def _trouble(survey: Survey, found: Reached) -> Mapping[str, list[int]]:
    """Return the ports that are not reached, by what came of them."""
    there = next((name for name, node in survey.topology.nodes.items() if node.address == found.address), "")
    listens = _listening(survey, there, found.address)
    words = {
        port: "refused, though it is listened on: a firewall there" if word == REFUSED else word
        for port, word in found.ports.items()
        if word != OPEN and (word != REFUSED or port in listens)
    }
    return _by({port: "no answer" if word == TIMEOUT else word for port, word in words.items()})


def _listening(survey: Survey, node: str, address: str) -> frozenset[int]:
    facts = survey.nodes.get(node)
    look: Look | None = facts.get("ports").value if facts is not None else None
    loopback = ("127.0.0.1", "::1")
    return frozenset(
        one.port
        for one in (look.listeners if look is not None else ())
        if one.address == address or (one.address in ANY_ADDRESS and one.address not in loopback)
    )


def _failures(survey: Survey, address: str, ones: Sequence[_Bad], tried: int) -> Iterator[Result]:
    """Yield the ways to one address that are not open: one line where all nodes find the same."""
    there = next((name for name, node in survey.topology.nodes.items() if node.address == address), "")
    label = there or address
    evidence = tuple(Evidence(one.reading.command, one.reading.raw, one.reading.at) for one in ones[:3])
    words = {tuple(one.trouble) for one in ones}
    if len(ones) > 1 and len(ones) == tried and len(words) == 1 and all(one.is_dead for one in ones):
        summary = f"none of {tried} nodes that need it reaches {address}: {', '.join(ones[0].trouble)}"
        facts = survey.nodes.get(there)
        # The node that nobody reaches may be the one that we do not reach either.
        down = facts is not None and not facts.connection.host
        remedy = f"see why {there} is not reached: ssh" if down else _remedy(ones[0], label, address)
        yield Result("reach", label, Outcome.FAIL, summary, remedy, evidence)
        return
    for one in ones:
        source = one.reading.value.source if one.reading.value is not None else ""
        summary = f"{source or one.node} to {address}: {_words(one)}"
        shown = (Evidence(one.reading.command, one.reading.raw, one.reading.at),)
        remedy = _remedy(one, label, address)
        yield Result("reach", f"{one.node} -> {label}", Outcome.FAIL, summary, remedy, shown)


def _words(one: _Bad) -> str:
    parts = []
    for word, numbers in one.trouble.items():
        uses = ", ".join(dict.fromkeys(one.way.ports[port] for port in numbers))
        parts.append(f"{word} at {spans(numbers)} ({uses})")
    rest = len(one.way.ports) - sum(map(len, one.trouble.values()))
    reached = "the other port is" if rest == 1 else f"the other {rest} ports are" if rest else "no port is"
    return f"{'; '.join(parts)}; {reached} reached"


def _remedy(one: _Bad, label: str, address: str) -> str:
    if any("resolved" in word for word in one.trouble):
        return f"write an address in place of the name {address}, or put it into /etc/hosts of {one.node}"
    if any("not permitted" in word for word in one.trouble):
        return f"a firewall on {one.node} forbids it: iptables -S OUTPUT"
    if any("route" in word for word in one.trouble):
        return f"ip route get {address} on {one.node}; a firewall on {label} may answer so too"
    return f"open them on {label}: firewall-cmd --list-all, iptables -S INPUT; then what lies between"
