"""LLDP, hccn.conf and TLS over several nodes."""

from __future__ import annotations

import pytest

from pdtui.fleet.preflight.checks.hccn_conf import CONF_INSIDE
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.fleet.preflight.roce import CONF
from pdtui.readings.answer import Answer
from pdtui.readings.commands import Query
from tests.preflight.gathered import CONF_FILE, NO_IP, Gathered, certificate, lldp, tls

FAIL, WARN, UNKNOWN, PASS, NA = Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.PASS, Outcome.NA

MISSING = Answer(CONF_FILE, stderr=b"cat: /etc/hccn.conf: No such file or directory", status=1)
HANGS = Answer(CONF_FILE, timed_out=True, error="no answer within 15 s")


def test_two_npus_on_one_switch_port_name_each_other() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.LLDP, 3, lldp("400GE1/1/8"))
    found = nodes.bad("lldp")
    assert found == {
        "node1/7": (WARN, "hears 400GE1/1/8 of leaf1, as does node2/3"),
        "node2/3": (WARN, "hears 400GE1/1/8 of leaf1, as does node1/7"),
    }


def test_ports_of_switches_that_say_no_name_are_compared_within_a_node_only() -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        for device in nodes.devices:
            nodes.say(name, Query.LLDP, device, f"\tIfname: 400GE1/1/{device}")
    assert nodes.bad("lldp") == {}
    nodes.say("node1", Query.LLDP, 4, "\tIfname: 400GE1/1/5")
    assert set(nodes.bad("lldp")) == {"node1/4", "node1/5"}


def test_a_device_that_hears_nobody_is_unknown() -> None:
    nodes = Gathered()
    nodes.say("node1", Query.LLDP, 2)
    outcome, words = nodes.bad("lldp")["node1/2"]
    assert outcome is UNKNOWN
    assert "no neighbour was heard" in words
    order = nodes.bad("lldp-order")
    assert order["node1"][0] is UNKNOWN
    assert "NPU 2" in order["node1"][1]


def test_switches_that_nobody_has_named_are_told_apart_by_their_addresses() -> None:
    nodes = Gathered()
    same = lldp("400GE1/1/8", "HUAWEI")
    nodes.say("node2", Query.LLDP, 3, same.replace(":53:01", ":53:02"))
    nodes.say("node1", Query.LLDP, 7, same)
    assert nodes.bad("lldp") == {}


def test_switches_without_lldp_are_warned_of_once_and_hide_no_npu_that_is_silent_alone() -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        nodes.every(name, Query.LLDP, "")
    (result,) = nodes.run("lldp")
    assert (result.subject, result.outcome) == ("cluster", WARN)
    assert "none of 16 NPUs hears a switch" in result.summary
    assert [result.outcome for result in nodes.run("lldp-order")] == [NA]
    nodes.say("node1", Query.LLDP, 0, lldp("400GE1/1/1"))
    assert {outcome for outcome, _ in nodes.bad("lldp").values()} == {UNKNOWN}


def test_crossed_cables_are_named_against_the_other_nodes() -> None:
    nodes = Gathered(nodes=3)
    nodes.say("node2", Query.LLDP, 4, lldp("400GE1/2/6"))
    nodes.say("node2", Query.LLDP, 5, lldp("400GE1/2/5"))
    found = nodes.bad("lldp-order")
    assert set(found) == {"node2"}
    assert found["node2"][0] is WARN
    assert "NPU 4 400GE1/2/6, NPU 5 400GE1/2/5" in found["node2"][1]
    assert "node1 (NPU 4 400GE1/1/5, NPU 5 400GE1/1/6)" in found["node2"][1]
    assert nodes.bad("lldp") == {}


def test_ports_are_ordered_by_number_and_not_by_letter() -> None:
    nodes = Gathered()
    for device in nodes.devices:
        nodes.say("node2", Query.LLDP, device, lldp(f"400GE1/2/{device + 8}"))
    assert nodes.bad("lldp-order") == {}


def test_one_node_has_no_order_to_compare_with() -> None:
    assert [result.outcome for result in Gathered(nodes=1).run("lldp-order")] == [NA]


def test_a_stale_address_is_named_with_both_values_and_its_line() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.1.2.99"))
    outcome, words = nodes.bad("hccn-conf")["node2/5"]
    assert outcome is FAIL
    assert words == "address_5=10.1.2.99 in the file (line 26), and 10.1.2.15 runs"


@pytest.mark.parametrize(
    ("before", "after", "subject", "outcome", "words"),
    [
        ("address_3=10.1.2.13\n", "", "node2/3", FAIL, "runs 10.1.2.13, and the file has no address_3"),
        ("gateway_3=10.1.0.1", "gateway_3=10.1.0.2", "node2/3", WARN, "gateway_3=10.1.0.2 in the file"),
        ("netmask_3=255.255.0.0", "netmask_3=255.255.255.0", "node2/3", WARN, "255.255.0.0 runs"),
        ("tls_enable_7=0", "tls_enable_7=0\n<<<<<<< HEAD", "node2", WARN, "line 41: no setting"),
    ],
)
def test_hccn_conf(before: str, after: str, subject: str, outcome: Outcome, words: str) -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace(before, after, 1))
    found = [r for r in nodes.run("hccn-conf") if r.outcome not in (PASS, NA) and words in r.summary]
    assert [(result.subject, result.outcome) for result in found] == [(subject, outcome)]


def test_one_mistake_is_told_once_with_the_lines_that_it_is_about() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.9.2.15"))
    (result,) = [result for result in nodes.run("hccn-conf") if result.outcome is not PASS]
    assert result.summary.startswith("address_5=10.9.2.15 in the file")
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("gateway_5=10.1.0.1", "gateway_5=10.9.0.1"))
    (result,) = [result for result in nodes.run("hccn-conf") if result.outcome is not PASS]
    assert result.summary == "line 29: gateway_5=10.9.0.1 is outside the subnet of address_5 (10.1.0.0/16)"
    assert result.evidence[0].raw.split("\n") == [
        "line 26: address_5=10.1.2.15",
        "line 27: netmask_5=255.255.0.0",
        "line 28: netdetect_5=10.1.0.1",
        "line 29: gateway_5=10.9.0.1",
        "line 30: tls_enable_5=0",
    ]


def test_an_address_twice_is_told_in_a_file_and_over_nodes() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.1.2.14"))
    words = [result.summary for result in nodes.run("hccn-conf") if result.outcome is FAIL]
    assert "line 26: address_5=10.1.2.14 is the address of NPU 4 too" in words
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.1.1.10"))
    failed = {r.subject: r.summary for r in nodes.run("hccn-conf") if r.outcome is FAIL and "too" in r.summary}
    assert failed == {
        "node1/0": "address_0=10.1.1.10 is the address of node2/5 too",
        "node2/5": "address_5=10.1.1.10 is the address of node1/0 too",
    }


def test_an_address_that_is_none() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.1.2"))
    words = [result.summary for result in nodes.run("hccn-conf") if result.outcome is FAIL]
    assert "line 26: address_5=10.1.2 is no IPv4 address" in words


def test_an_npu_that_takes_its_address_by_dhcp_is_not_compared() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "udhcpc_enable_5=1"))
    assert nodes.bad("hccn-conf") == {}


def test_an_address_of_the_file_that_does_not_run() -> None:
    nodes = Gathered()
    nodes.say("node1", Query.IP, 2, stderr=NO_IP, status=13)
    assert nodes.bad("hccn-conf") == {"node1/2": (FAIL, "address_2=10.1.1.12 in the file, and none runs")}
    nodes.hang("node1", Query.IP, 2)
    assert nodes.bad("hccn-conf")["node1/2"][0] is UNKNOWN


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (MISSING, WARN, "there is no /etc/hccn.conf"),
        (Answer(CONF_FILE), WARN, "/etc/hccn.conf is empty"),
        (Answer(CONF_FILE, b"\x7fELF\x02\x01"), FAIL, "no line of /etc/hccn.conf is a setting"),
        (HANGS, UNKNOWN, "hangs"),
        (Answer(CONF_FILE, stderr=b"cat: /etc/hccn.conf: Permission denied", status=1), UNKNOWN, "permission"),
    ],
)
def test_a_file_that_is_not_there_or_not_readable(answer: Answer, outcome: Outcome, words: str) -> None:
    nodes = Gathered()
    nodes.file("node1", answer)
    found = nodes.bad("hccn-conf")
    assert found["node1"][0] is outcome
    assert words in found["node1"][1]


def test_a_container_without_the_file_fails() -> None:
    nodes = Gathered()
    nodes.file("node1", MISSING, CONF_INSIDE)
    (result,) = [result for result in nodes.run("hccn-conf-container") if result.outcome is not PASS]
    assert (result.subject, result.outcome) == ("node1", FAIL)
    assert "in the container there is no /etc/hccn.conf" in result.summary
    assert "-v /etc/hccn.conf:/etc/hccn.conf" in result.remedy


def test_a_container_that_still_sees_a_replaced_file() -> None:
    nodes = Gathered()
    nodes.edit("node2", lambda text: text.replace("address_5=10.1.2.15", "address_5=10.1.2.99"), inside=True)
    (result,) = [result for result in nodes.run("hccn-conf-container") if result.outcome is not PASS]
    assert (result.subject, result.outcome) == ("node2", FAIL)
    assert result.summary == "address_5=10.1.2.99 in the container, 10.1.2.15 on the host"
    assert "restart the container" in result.remedy
    assert len(result.evidence) == 2


@pytest.mark.parametrize("need", [CONF, CONF_INSIDE])
def test_a_file_that_does_not_come_in_time(need: str) -> None:
    nodes = Gathered()
    nodes.file("node1", HANGS, need)
    found = nodes.bad("hccn-conf-container")
    assert found["node1"][0] is UNKNOWN
    assert "hangs" in found["node1"][1]


def test_without_a_container_there_is_nothing_to_compare() -> None:
    results = Gathered(container=None).run("hccn-conf-container")
    assert {result.outcome for result in results} == {NA}


def test_the_npus_whose_tls_differs_are_named_against_the_others() -> None:
    nodes = Gathered()
    nodes.say("node2", Query.TLS, 3, tls(3, 1))
    assert nodes.bad("tls") == {"node2/3": (FAIL, "TLS is on; 15 of 16 NPUs have it off")}
    nodes = Gathered()
    for device in nodes.devices:
        nodes.say("node2", Query.TLS, device, tls(device, 1))
    assert nodes.bad("tls") == {
        "node1": (FAIL, "all 8 NPUs: TLS is off; 8 of 16 NPUs have it on"),
        "node2": (FAIL, "all 8 NPUs: TLS is on; 8 of 16 NPUs have it off"),
    }


@pytest.mark.parametrize(
    ("switch", "status", "outcome", "words"),
    [
        (1, 2, FAIL, "a certificate has expired"),
        (1, 1, WARN, "a certificate expires soon"),
        (1, 0, PASS, "TLS is on"),
        (0, 2, PASS, "which does not matter while TLS is off"),
    ],
)
def test_certificates(switch: int, status: int, outcome: Outcome, words: str) -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        for device in nodes.devices:
            nodes.say(name, Query.TLS, device, tls(device, switch) + certificate(device, status))
    results = nodes.run("tls")
    assert {result.outcome for result in results} == {outcome}
    assert all(words in result.summary for result in results)


def test_an_unreadable_switch_does_not_count_as_equal() -> None:
    nodes = Gathered()
    nodes.say("node1", Query.TLS, 0, stderr="Command execute failed!", status=1)
    assert nodes.bad("tls")["node1/0"][0] is UNKNOWN


def test_without_certificates_hccn_conf_tells_the_switch() -> None:
    nodes = Gathered()
    none = "No certificate found, please set certs firstly!"
    nodes.every("node1", Query.TLS, stderr=none, status=14)
    assert nodes.bad("tls") == {}
    nodes.edit("node1", lambda text: text.replace("tls_enable_4=0", "tls_enable_4=1"))
    assert nodes.bad("tls")["node1/4"][0] is FAIL
    nodes.edit("node1", lambda text: text.replace("tls_enable_4=1\n", ""))
    assert nodes.bad("tls")["node1/4"][0] is UNKNOWN


def test_servers_that_all_come_without_certificates_are_warned_of_once() -> None:
    nodes = Gathered()
    for name in nodes.topology.nodes:
        nodes.every(name, Query.TLS, stderr="No certificate found, please set certs firstly!", status=14)
        nodes.edit(name, lambda text: "\n".join(line for line in text.split("\n") if "tls_enable" not in line))
    (result,) = nodes.run("tls")
    assert (result.subject, result.outcome) == ("cluster", WARN)
    assert "none of 16 NPUs has certificates" in result.summary
    nodes.say("node2", Query.TLS, 3, tls(3))
    assert nodes.bad("tls")["node1"][0] is UNKNOWN
