"""Planned ports and the ways between nodes: who holds what, and who does not reach whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.fleet.blockers import Look
from pdtui.fleet.preflight.checks.reach import ways
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.readings.answer import Failure
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.preflight.placed import Placed

FAIL, WARN, UNKNOWN, PASS, NA = Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.PASS, Outcome.NA


def record(nodes: Placed, rank: str, state: ProcessState = ProcessState.RUNNING) -> RankRecord:
    planned = nodes.plan.by_id[rank]
    return RankRecord(
        cluster=nodes.topology.name,
        rank=rank,
        state=state,
        run=1,
        pid=100,
        keeper=99,
        processes=(100, 101),
        address=planned.host,
        api_port=planned.api_port,
        ports=planned.kv_ports,
        devices=planned.devices,
        digest=planned.digest,
    )


def test_a_port_that_somebody_else_holds_is_said_with_its_owner() -> None:
    nodes = Placed()
    nodes.listens(7101, command="python3 /opt/tools/http.server", pid=4711)
    nodes.listens(36008, address="192.0.0.1", command="nc", pid=12)
    nodes.listens(36001, address="10.1.1.1")  # Another address: it stands in nobody's way.
    found = nodes.one("ports")
    assert (found.subject, found.outcome) == ("p1/1", FAIL)
    assert found.summary == (
        "API port 7101 of p1/1 on node1 is held by pid 4711 (python3 http.server), not started here "
        "(1 more of its ports are taken)"
    )
    assert "4711" in found.evidence[0].raw


def test_a_rank_that_runs_holds_its_own_ports() -> None:
    nodes = Placed()
    nodes.looks["node1"] = Look(records={"p1/0": record(nodes, "p1/0")})
    nodes.listens(7100, pid=100, rank=f"{nodes.topology.name}:p1/0")
    results = [result for result in nodes.run("ports") if result.subject == "node1"]
    assert [(result.outcome, result.summary) for result in results] == [
        (PASS, "20 planned ports: nobody else holds one (p1/0 runs here)")
    ]


def test_a_port_of_hccl_and_the_proxys_are_looked_at_too() -> None:
    nodes = Placed()
    nodes.listens(60003, node="node2", command="java", pid=77)
    nodes.listens(1999, node="node1", command="nginx", pid=78)
    proxy, hccl = nodes.bad("ports")
    assert (proxy.outcome, proxy.subject) == (WARN, "node1")
    assert proxy.summary.startswith("the proxy's port 1999 is held by pid 78 (nginx)")
    assert (hccl.outcome, hccl.subject) == (FAIL, "node2")
    assert hccl.summary.endswith("HCCL takes 60000-60016 here")
    assert "HCCL_IF_BASE_PORT" in hccl.remedy


def test_ports_that_were_not_told_are_unknown() -> None:
    nodes = Placed()
    nodes.looks["node2"] = None
    found = nodes.one("ports")
    assert (found.subject, found.outcome) == ("node2", UNKNOWN)
    assert "hangs: no answer within 25 s" in found.summary


# ---- ways


def pairs(nodes: Placed, word: str) -> set[tuple[str, str]]:
    return {
        (way.node, way.address)
        for way in ways(nodes.topology, nodes.plan)
        if any(use.startswith(word) for use in way.ports.values())
    }


def test_pull_goes_from_decode_to_prefill() -> None:
    nodes = Placed()
    to_prefill = {(f"node{d}", f"192.0.0.{p}") for d in (3, 4) for p in (1, 2)}
    assert pairs(nodes, "KV") == pairs(nodes, "transfer") == to_prefill
    assert pairs(nodes, "API") == {("node1", f"192.0.0.{n}") for n in (2, 3, 4)}
    assert pairs(nodes, "RPC") == pairs(nodes, "HCCL") == {("node4", "192.0.0.3")}
    (way,) = [way for way in ways(nodes.topology, nodes.plan) if (way.node, way.address) == ("node3", "192.0.0.2")]
    assert [port for port, use in way.ports.items() if use == "KV of p2"] == list(range(36100, 36116))
    assert [port for port, use in way.ports.items() if use == "transfer engine"] == [15000, 17000, 20000, 21599]


def test_layerwise_goes_from_prefill_to_decode_and_from_decode_to_the_metaserver() -> None:
    nodes = Placed("deepseek-r1-2p1d-layerwise.yaml")
    assert pairs(nodes, "KV") == {(f"node{p}", f"192.0.0.{d}") for d in (3, 4) for p in (1, 2)}
    assert pairs(nodes, "metaserver") == {("node3", "192.0.0.1"), ("node4", "192.0.0.1")}


def test_eight_nodes_have_few_ways_and_one_machine_has_none() -> None:
    large = Placed("deepseek-r1-large-ep.yaml")
    count = sum(len(way.ports) for way in ways(large.topology, large.plan))
    assert count < 1000
    assert ways(Placed("cpu-1p1d.yaml").topology, Placed("cpu-1p1d.yaml").plan) == ()
    assert {result.outcome for result in Placed("cpu-1p1d.yaml").run("reach")} == {NA}


def test_a_refusal_is_an_answer_unless_somebody_listens_there() -> None:
    nodes = Placed()
    assert not nodes.bad("reach")
    nodes.listens(36003, node="node1", address="192.0.0.1")
    nodes.listens(36004, node="node1", address="127.0.0.1")
    first, second = nodes.bad("reach")
    assert (first.subject, second.subject) == ("node3 -> node1", "node4 -> node1")
    assert "refused, though it is listened on: a firewall there at 36003 (KV of p1)" in first.summary
    nodes.reached["node3", "192.0.0.1"] = nodes.reached["node4", "192.0.0.1"] = {36003: "open"}
    assert not nodes.bad("reach")


def test_a_firewall_before_some_ports_names_them_with_both_addresses() -> None:
    nodes = Placed()
    nodes.reached["node3", "192.0.0.2"] = dict.fromkeys(range(36100, 36116), "timeout")
    found = nodes.one("reach")
    assert (found.subject, found.outcome) == ("node3 -> node2", FAIL)
    assert found.summary == (
        "192.0.0.3 to 192.0.0.2: no answer at 36100-36115 (KV of p2); the other 4 ports are reached"
    )
    assert "firewall-cmd" in found.remedy
    (rest,) = [result for result in nodes.run("reach") if result.outcome is PASS]
    assert rest.summary.startswith("the other 7 ways between nodes are open")


def test_a_node_that_nobody_reaches_is_one_line() -> None:
    nodes = Placed("deepseek-r1-large-ep.yaml")
    target = nodes.topology.nodes["node1"].address
    for way in ways(nodes.topology, nodes.plan):
        if way.address == target:
            nodes.reached[way.node, target] = dict.fromkeys(
                way.ports, "no route to the host, or a firewall says so"
            )
    found = nodes.one("reach")
    assert (found.subject, found.outcome) == ("node1", FAIL)
    assert found.summary.startswith("none of ")
    assert f"reaches {target}: no route to the host" in found.summary
    nodes.connections["node1"] = replace(nodes.connections["node1"], host=False, ranks=False)
    assert nodes.one("reach").remedy == "see why node1 is not reached: ssh"


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("no route to its network", "ip route get"),
        ("its name is not resolved here", "/etc/hosts"),
        ("not permitted: a firewall here", "iptables -S OUTPUT"),
    ],
)
def test_what_helps_depends_on_what_was_said(word: str, remedy: str) -> None:
    nodes = Placed()
    (way,) = [way for way in ways(nodes.topology, nodes.plan) if (way.node, way.address) == ("node4", "192.0.0.3")]
    nodes.reached["node4", "192.0.0.3"] = dict.fromkeys(way.ports, word)
    found = nodes.one("reach")
    assert "no port is reached" in found.summary
    assert remedy in found.remedy


def test_a_node_that_cannot_try_is_unknown_and_one_without_connection_is_left_out() -> None:
    nodes = Placed()
    for address in ("192.0.0.1", "192.0.0.2"):
        nodes.reached["node3", address] = Failure.TIMEOUT
    nodes.connections["node4"] = replace(nodes.connections["node4"], ranks=False)
    found = nodes.one("reach")
    assert (found.subject, found.outcome) == ("node3", UNKNOWN)
    assert "connections from here: hangs" in found.summary
