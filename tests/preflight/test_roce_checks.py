"""Link, net health, gateway, detect address: what is said of which NPU, and when nothing is known."""

from __future__ import annotations

import pytest

from pdtui.fleet.preflight.outcome import Outcome
from pdtui.readings.commands import Query
from tests.preflight.gathered import NO_GATEWAY, NO_IP, Gathered

FAIL, WARN, UNKNOWN, PASS, NA = Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.PASS, Outcome.NA

ASKED = {
    "link": Query.LINK,
    "net-health": Query.NET_HEALTH,
    "gateway": Query.GATEWAY,
    "netdetect": Query.NETDETECT,
    "lldp": Query.LLDP,
    "tls": Query.TLS,
}
"""Checks that ask each NPU something of their own."""


@pytest.mark.parametrize("check", [*ASKED, "lldp-order", "hccn-conf", "hccn-conf-container"])
@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_healthy_nodes_pass(check: str, platform: str) -> None:
    results = Gathered("a3" if platform == "a3" else "a2").run(check)
    assert {result.outcome for result in results} == {PASS}
    assert len(results) <= 2, "one line a node"


@pytest.mark.parametrize("check", ASKED)
def test_a_tool_that_hangs_on_one_npu_is_said_of_that_npu(check: str) -> None:
    nodes = Gathered()
    nodes.hang("node2", ASKED[check], 3)
    (found,) = [result for result in nodes.run(check) if result.outcome is not PASS]
    assert (found.subject, found.outcome) == ("node2/3", UNKNOWN)
    assert "hangs: no answer from hccn_tool within 10 s" in found.summary
    assert "state D" in found.remedy
    assert found.evidence[0].command.startswith("hccn_tool -i 3 -")


@pytest.mark.parametrize("check", ASKED)
def test_an_answer_that_nobody_can_read_is_neither_good_nor_bad(check: str) -> None:
    nodes = Gathered()
    nodes.say("node1", ASKED[check], 5, "Segmentation fault (core dumped)")
    nodes.say("node1", ASKED[check], 6, "hccn_tool is busy, please try again.", status=11)
    found = nodes.bad(check)
    assert found["node1/5"][0] is found["node1/6"][0] is UNKNOWN
    assert "Segmentation fault" in found["node1/5"][1]
    assert "busy" in found["node1/6"][1]
    assert set(found) == {"node1/5", "node1/6"}


@pytest.mark.parametrize("check", ASKED)
def test_what_the_product_does_not_have_is_not_applicable(check: str) -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        nodes.every(name, ASKED[check], "The command is not supported on this product.", status=13)
    outcomes = {result.outcome for result in nodes.run(check)}
    assert outcomes == ({UNKNOWN} if check == "tls" else {NA}), "unreadable must not count as equal"


@pytest.mark.parametrize("check", [*ASKED, "lldp-order", "hccn-conf", "hccn-conf-container"])
def test_a_plane_that_is_not_deployed_on_a3_pulls_nothing_down(check: str) -> None:
    nodes = Gathered("a3")
    nodes.without_roce()
    outcomes = {result.outcome for result in nodes.run(check)}
    assert outcomes == ({PASS} if check == "tls" else {NA})


def test_between_a2_nodes_there_is_no_way_without_roce() -> None:
    nodes = Gathered()
    nodes.without_roce()
    found = nodes.bad("link")
    assert found["node1"] == (FAIL, "no NPU has a RoCE address or a link")
    alone = Gathered(nodes=1)
    alone.without_roce()
    assert [result.outcome for result in alone.run("link")] == [NA]


def test_a_link_that_is_down_fails_on_its_npu() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.LINK, 3, "link status: DOWN")
    assert nodes.bad("link") == {"node2/3": (FAIL, "link DOWN")}
    (result,) = [result for result in nodes.run("link") if result.outcome is FAIL]
    assert "-optical" in result.remedy
    assert result.evidence[0].raw == "link status: DOWN"
    passed = [result.summary for result in nodes.run("link") if result.outcome is PASS]
    assert passed == ["all 8 NPUs: link UP", "NPU 0-2, 4-7: link UP"]


def test_a_port_of_an_a3_that_was_never_cabled_is_not_in_use() -> None:
    nodes = Gathered("a3")
    nodes.say("node1", Query.LINK, 3, "link status: DOWN")
    nodes.say("node1", Query.NET_HEALTH, 3, "net health status: Init")
    nodes.say("node1", Query.IP, 3, NO_IP, status=13)
    assert nodes.bad("link") == {"node1/3": (FAIL, "link DOWN")}, "hccn.conf has an address for it"
    nodes.conf("node1", "mtu_3=8192\n")
    assert nodes.bad("link") == nodes.bad("net-health") == {}


def test_what_a_dark_link_makes_meaningless_is_not_run() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.LINK, 3, "link status: DOWN")
    nodes.say("node2", Query.NET_HEALTH, 3, "net health status: Fault")
    nodes.say("node2", Query.LLDP, 3)
    for check in ("net-health", "lldp"):
        (result,) = [result for result in nodes.run(check) if result.outcome is not PASS]
        assert result.outcome is Outcome.NOT_RUN
        assert result.subject == "node2/3"
        assert "the link is DOWN" in result.because


def test_all_links_down_though_addresses_are_set_is_a_warning_on_a3() -> None:
    nodes = Gathered("a3")
    nodes.every("node1", Query.LINK, "link status: DOWN")
    found = nodes.bad("link")
    assert found["node1"][0] is WARN
    assert found["node1"][1].startswith("all 16 NPUs: link DOWN")
    nodes.say("node1", Query.LINK, 0, "link status: UP")
    assert nodes.bad("link")["node1"][0] is FAIL, "one link that is up shows that RoCE is meant to be used"


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("Fault", FAIL),
        ("Socket fail", FAIL),
        ("Unreachable", FAIL),
        ("Receive timeout", FAIL),
        ("Init", WARN),
        ("Detect ip set", WARN),
        ("Thread error", UNKNOWN),
        ("Something new", UNKNOWN),
    ],
)
def test_net_health(word: str, outcome: Outcome) -> None:
    nodes = Gathered()
    nodes.say("node1", Query.NET_HEALTH, 0, f"net health status: {word}")
    found = nodes.bad("net-health")["node1/0"]
    assert found[0] is outcome
    assert found[1].startswith(f"net health {word}")


def test_a_receive_timeout_with_a_detect_address_of_the_vnics_says_nothing() -> None:
    nodes = Gathered("a3")
    nodes.say("node1", Query.NET_HEALTH, 0, "net health status: Receive timeout")
    nodes.say("node1", Query.NETDETECT, 0, "netdetect addr: 192.168.2.1")
    outcome, words = nodes.bad("net-health")["node1/0"]
    assert outcome is WARN
    assert "192.168.2.1" in words
    assert "192.168.2.1" in nodes.bad("netdetect")["node1/0"][1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("netdetect addr: 0.0.0.0", "no detect address is set"),
        ("netdetect address:", "no detect address is set"),
        ("netdetect addr: 10.1.7.7", "probes 10.1.7.7, not its gateway 10.1.0.1"),
        ("netdetect addr: 10.1.2.13", "probes its own address"),
    ],
)
def test_netdetect(text: str, words: str) -> None:
    nodes = Gathered()
    nodes.say("node2", Query.NETDETECT, 3, text)
    outcome, said = nodes.bad("netdetect")["node2/3"]
    assert outcome is WARN
    assert words in said


def test_a_detect_address_without_a_gateway_is_one() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.GATEWAY, 3, stderr=NO_GATEWAY, status=2)
    assert nodes.bad("netdetect") == {}
    nodes.hang("node2", Query.GATEWAY, 3)
    assert nodes.bad("netdetect")["node2/3"][0] is UNKNOWN


def test_no_gateway_is_fine_while_all_peers_are_in_the_subnet() -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        nodes.every(name, Query.GATEWAY, stderr=NO_GATEWAY, status=2)
    results = nodes.run("gateway")
    assert {result.outcome for result in results} == {PASS}
    assert "none is needed: all peers are in 10.1.0.0/16" in results[0].summary
    nodes.say("node2", Query.IP, 3, "ipaddr:10.9.0.3\nnetmask:255.255.0.0")
    found = nodes.bad("gateway")
    assert found["node1"][0] is FAIL
    assert "node2/3 is 10.9.0.3" in found["node1"][1]


def test_no_gateway_while_a_peer_is_not_known_is_not_known_either() -> None:
    nodes = Gathered()
    nodes.every("node1", Query.GATEWAY, stderr=NO_GATEWAY, status=2)
    nodes.hang("node2", Query.IP, 0)
    outcome, words = nodes.bad("gateway")["node1"]
    assert outcome is UNKNOWN
    assert "node2" in words


def test_the_two_dies_of_an_a3_card_may_be_in_networks_of_their_own() -> None:
    nodes = Gathered("a3")
    for number, name in enumerate(nodes.topology.nodes):
        for device in nodes.devices:
            net = 50 + device % 2
            nodes.say(name, Query.IP, device, f"ipaddr:10.{net}.{number}.{device + 1}\nnetmask:255.255.0.0")
            nodes.say(name, Query.GATEWAY, device, stderr=NO_GATEWAY, status=2)
    assert nodes.bad("gateway") == {}


@pytest.mark.parametrize(
    ("gateway", "words"), [("10.9.0.1", "outside its subnet 10.1.0.0/16"), ("10.1.2.13", "own address")]
)
def test_a_gateway_that_cannot_be_one(gateway: str, words: str) -> None:
    nodes = Gathered()
    nodes.say("node2", Query.GATEWAY, 3, f"default gateway:{gateway}, Iface:eth3")
    outcome, said = nodes.bad("gateway")["node2/3"]
    assert outcome is FAIL
    assert words in said


def test_an_npu_without_an_address_among_others_needs_no_gateway_yet() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.IP, 3, stderr=NO_IP, status=13)
    nodes.say("node2", Query.GATEWAY, 3, stderr=NO_GATEWAY, status=2)
    assert nodes.bad("gateway") == {}
    assert nodes.bad("hccn-conf")["node2/3"][0] is FAIL, "the missing address itself is told elsewhere"
