"""Facts of nodes without nodes: every query answered well until a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pdtui.fleet.preflight import checks
from pdtui.fleet.preflight.check import NodeView, Survey, barrier, chosen
from pdtui.fleet.preflight.checks.hccn_conf import CONF_INSIDE
from pdtui.fleet.preflight.facts import Connection, Key, NodeFacts
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.readers import READERS
from pdtui.fleet.preflight.roce import CONF
from pdtui.readings.answer import Answer, Reading
from pdtui.readings.commands import Query, argv_of
from pdtui.readings.hccn_conf import read_hccn_conf
from pdtui.topology.model import NPUS_PER_NODE, Platform, Runtime
from tests.support.fake_fleet import NOW, make_plan, make_topology

CONF_FILE = "cat /etc/hccn.conf"

NO_IP = "Get ipconf failed, because no ip was preset there!"
NO_GATEWAY = "Get gateway failed, because no gateway was preset there!"


class Gathered:
    """Two A2 servers with RoCE, or as many as asked for; `say` replaces one answer, `every` one query's."""

    def __init__(self, platform: Platform = "a2", *, nodes: int = 2, container: str | None = "vllm") -> None:
        topology = make_topology(prefill_nodes=0, decode_nodes=nodes)
        groups = topology.groups if platform == "a3" else {}
        self.topology = replace(topology, platform=platform, runtime=Runtime(container=container), groups=groups)
        self.plan = make_plan(self.topology)
        self.devices = range(self.topology.npus_per_node)
        self.reached = {name: Connection(host=True, ranks=True, at=NOW) for name in self.topology.nodes}
        self.readings = {
            name: dict(_healthy(platform, number)) for number, name in enumerate(self.topology.nodes, 1)
        }

    def say(self, node: str, query: Query, device: int, text: str = "", stderr: str = "", status: int = 0) -> None:
        """Let one NPU answer this."""
        self.readings[node][query, device] = _read(self.topology.platform, query, device, text, stderr, status)

    def every(self, node: str, query: Query, text: str = "", stderr: str = "", status: int = 0) -> None:
        """Let every NPU of a node answer this."""
        for device in self.devices:
            self.say(node, query, device, text, stderr, status)

    def hang(self, node: str, query: Query, device: int) -> None:
        """Let the tool not come back on one NPU."""
        command = " ".join(argv_of(query, self.topology.platform, device))
        late = Answer(command, timed_out=True, error="no answer from hccn_tool within 10 s", at=NOW)
        self.readings[node][query, device] = READERS[query](late)

    def conf(self, node: str, text: str, *, inside: str | None = None) -> None:
        """Give a node this hccn.conf, and its container the same or another."""
        self.file(node, Answer(CONF_FILE, text.encode(), at=NOW))
        self.file(node, Answer(CONF_FILE, (text if inside is None else inside).encode(), at=NOW), CONF_INSIDE)

    def file(self, node: str, answer: Answer, need: str = CONF) -> None:
        """Give a node this answer when its hccn.conf is read."""
        self.readings[node][need, None] = read_hccn_conf(answer)

    def edit(self, node: str, change: Callable[[str], str], *, inside: bool = False) -> None:
        """Change the text of a node's hccn.conf, or that of its container."""
        need = CONF_INSIDE if inside else CONF
        self.file(node, Answer(CONF_FILE, change(self.readings[node][need, None].raw).encode(), at=NOW), need)

    def without_roce(self) -> None:
        """Take RoCE away from every NPU."""
        for name in self.topology.nodes:
            self.every(name, Query.IP, stderr=NO_IP, status=13)
            self.every(name, Query.GATEWAY, stderr=NO_GATEWAY, status=2)
            self.every(name, Query.NETDETECT, "netdetect addr: 0.0.0.0")
            self.every(name, Query.LINK, "link status: DOWN")
            self.every(name, Query.NET_HEALTH, "net health status: Init")
            self.every(name, Query.LLDP)
            for need in (CONF, CONF_INSIDE):
                missing = Answer(CONF_FILE, stderr=b"cat: /etc/hccn.conf: No such file or directory", status=1)
                self.file(name, missing, need)

    def run(self, check: str) -> list[Result]:
        """Return what a check says of all nodes."""
        checks.load()
        (one,) = chosen([check])
        facts = {name: NodeFacts(name, self.reached[name], found) for name, found in self.readings.items()}
        if one.scope == "cluster":
            return list(one.body(Survey(one, self.topology, self.plan, facts, NOW)))
        results: list[Result] = []
        for name, found in facts.items():
            node = self.topology.nodes[name]
            if not barrier(one, found):
                results += one.body(NodeView(one, self.topology, self.plan, node, found, NOW))
        return results

    def bad(self, check: str) -> dict[str, tuple[Outcome, str]]:
        """Return by subject what is not as it should be; a subject has one such result."""
        found = [result for result in self.run(check) if result.outcome not in (Outcome.PASS, Outcome.NA)]
        subjects = [result.subject for result in found]
        assert len(set(subjects)) == len(subjects), found
        for result in found:
            assert result.remedy or result.outcome in (Outcome.UNKNOWN, Outcome.NOT_RUN), result
        return {result.subject: (result.outcome, result.summary or result.because) for result in found}


def _read(
    platform: Platform, query: Query, device: int, text: str, stderr: str = "", status: int = 0
) -> Reading[Any]:
    command = " ".join(argv_of(query, platform, device))
    return READERS[query](Answer(command, text.encode(), stderr.encode(), status, at=NOW))


@cache
def _healthy(platform: Platform, number: int) -> Mapping[Key, Reading[Any]]:
    """Return what the n-th node says when all is well."""
    devices = range(NPUS_PER_NODE[platform])
    found: dict[Key, Reading[Any]] = {
        (query, device): _read(platform, query, device, text)
        for device in devices
        for query, text in answers(number, device).items()
    }
    file = read_hccn_conf(Answer(CONF_FILE, conf_text(number, devices).encode(), at=NOW))
    return {**found, (CONF, None): file, (CONF_INSIDE, None): file}


def answers(node: int, device: int) -> Mapping[Query, str]:
    """Return what a healthy NPU of the n-th node answers."""
    return {
        Query.LINK: "link status: UP",
        Query.NET_HEALTH: "net health status: Success",
        Query.IP: f"ipaddr:10.1.{node}.{10 + device}\nnetmask:255.255.0.0",
        Query.GATEWAY: f"default gateway:10.1.0.1, Iface:eth{device}",
        Query.NETDETECT: "netdetect address: 10.1.0.1",
        Query.LLDP: lldp(f"400GE1/{node}/{device + 1}"),
        Query.TLS: tls(device),
    }


def lldp(port: str, switch: str = "leaf1") -> str:
    """Return what a device hears of a switch port."""
    return (
        f"Chassis ID TLV\n\tMAC: 00:00:5e:00:53:01\nPort ID TLV\n\tIfname: {port}\n"
        f"System Name TLV\n\t{switch}\nEnd of LLDPDU TLV\n"
    )


def tls(device: int, switch: int = 0) -> str:
    """Return the line of the TLS switch."""
    return f"dev_id:{device}, tls switch[{switch}](0:disable, 1:enable), tls alarm time threshold[60]days"


def certificate(device: int, status: int) -> str:
    """Return a certificate below the line of the switch."""
    return (
        f"\ndev_id:{device}, [pub cert] info:\n\t subject[/CN=a]\n\t issuer[/CN=b]\n"
        "\t start_time[Sat Jan 31 03:10:27 2026 GMT]\n\t end_time[Wed Jun 18 03:10:27 2053 GMT]\n"
        f"\t tls expiration status[{status}](0:normal, 1:near expiration, 2:has expired)"
    )


def conf_text(node: int, devices: range) -> str:
    """Return the hccn.conf that belongs to `answers`."""
    return "".join(
        f"address_{d}=10.1.{node}.{10 + d}\nnetmask_{d}=255.255.0.0\n"
        f"netdetect_{d}=10.1.0.1\ngateway_{d}=10.1.0.1\ntls_enable_{d}=0\n"
        for d in devices
    )
