"""What checks say of many devices and nodes in few words, and that no answer makes one of them stumble."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdtui.fleet.preflight.check import NodeView, Survey, chosen, registered, unknown
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.facts import Connection, Key, NodeFacts
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.probes import probe_of
from pdtui.fleet.preflight.readers import READERS
from pdtui.fleet.preflight.roce import CONF
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.commands import NODE_QUERIES, QUERIES, Query, argv_of
from pdtui.topology.model import Platform
from tests.fleet.cluster import Cluster

load()


def view(cluster: Cluster, readings: dict[Key, Reading[object]]) -> NodeView:
    (check,) = chosen(("link",))
    facts = NodeFacts("node1", Connection(host=True, ranks=True), readings)
    return NodeView(check, cluster.topology, cluster.plan, cluster.topology.nodes["node1"], facts, 1.0)


def judged(cluster: Cluster, bad: set[int], *, count: int = 16) -> list[Result]:
    readings: dict[Key, Reading[object]] = {
        (Query.LINK, n): Reading(f"hccn_tool -i {n}", 1.0, "raw", n) for n in range(count)
    }

    def judge(device: int, _value: object) -> Finding:
        return Finding(Outcome.FAIL, "link DOWN", "cable") if device in bad else Finding(Outcome.PASS, "link UP")

    return list(view(cluster, readings).per_device(Query.LINK, judge, devices=range(count)))


def test_devices_roll_up(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    (fine,) = judged(cluster, set())
    assert (fine.subject, fine.outcome, fine.summary) == ("node1", Outcome.PASS, "all 16 NPUs: link UP")
    three = {result.subject: result for result in judged(cluster, {3, 4, 9})}
    assert {name for name, one in three.items() if one.outcome is Outcome.FAIL} == {
        "node1/3",
        "node1/4",
        "node1/9",
    }
    assert three["node1"].summary == "NPU 0-2, 5-8, 10-15: link UP"
    assert three["node1/9"].evidence[0].command == "hccn_tool -i 9"
    many = [result for result in judged(cluster, {1, 2, 3, 7, 8}) if result.outcome is Outcome.FAIL]
    assert [(one.subject, one.summary) for one in many] == [("node1", "NPU 1-3, 7-8: link DOWN")]
    assert len(many[0].evidence) == 3
    (all_bad,) = judged(cluster, set(range(16)))
    assert all_bad.summary == "all 16 NPUs: link DOWN"
    (lone,) = judged(cluster, {0}, count=1)
    assert lone.subject == "node1/0"


def test_what_was_not_gathered_is_unknown_and_says_why(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    why: Reading[object] = Reading("link", 1.0, "no answer to all of it within 120 s", failure=Failure.TIMEOUT)
    facts = NodeFacts("node1", Connection(host=True, ranks=True), {}, {Query.LINK: why}, why.raw)
    node = dataclasses.replace(view(cluster, {}), facts=facts)
    (result,) = node.per_device(Query.LINK, lambda *_: Finding(Outcome.PASS, "never"))
    assert result.outcome is Outcome.UNKNOWN
    assert result.summary == "all 16 NPUs: hangs: no answer to all of it within 120 s"


@pytest.mark.parametrize(
    ("failure", "raw", "words"),
    [
        (Failure.TIMEOUT, "", "hangs: no answer in time"),
        (Failure.TIMEOUT, "half\nno answer from npu-smi within 10 s", "hangs: no answer from npu-smi within 10 s"),
        (Failure.BUSY, "hccn_tool is busy", "the tool is busy with another caller"),
        (Failure.EMPTY, "", "an empty answer"),
        (Failure.EMPTY, "the connection was lost: reset", "the connection was lost: reset"),
    ],
)
def test_words_of_what_is_not_known(failure: Failure, raw: str, words: str) -> None:
    assert unknown(Reading("x", 1.0, raw, failure=failure)).summary == words


def test_a_value_that_differs_is_named_with_what_the_others_have(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    (check,) = chosen(("clock",))
    survey = Survey(check, cluster.topology, cluster.plan, {}, 1.0)
    reading = Reading("cat version.info", 1.0, "x", 1)
    (same,) = survey.same("driver", {"node1": ("25.2", reading), "node2": ("25.2", reading)})
    assert (same.outcome, same.subject, same.summary) == (Outcome.PASS, "cluster", "driver 25.2 on all 2")
    values = {"node1": ("25.2", reading), "node2": ("25.2", reading), "node3": ("24.1", reading)}
    (odd,) = survey.same("driver", values)
    assert (odd.outcome, odd.subject, odd.summary) == (Outcome.FAIL, "node3", "driver 24.1; 2 of 3 have 25.2")
    both = list(survey.same("driver", {"node1": ("25.2", reading), "node3": ("24.1", reading)}))
    assert [one.subject for one in both] == ["node1", "node3"]
    assert not list(survey.same("driver", {}))
    versions = {"node1": "25.2", "node2": "24.1", "node3": "24.1", "node4": "25.2"}
    tie = list(survey.same("driver", {name: (version, reading) for name, version in versions.items()}))
    assert [result.subject for result in tie] == list(versions), "nobody is the odd one"
    assert tie[0].summary == "driver 25.2; 2 of 4 have 24.1"


def answers(tmp_path: Path, platform: Platform, text: bytes, status: int) -> dict[str, NodeFacts]:
    """Return facts in which everything answers the same bytes, and nothing of the probes came."""
    cluster = Cluster(tmp_path, platform=platform)
    readings: dict[Key, Reading[object]] = {}
    for query in QUERIES[platform]:
        devices = (None,) if query in NODE_QUERIES else range(cluster.topology.npus_per_node)
        command = " ".join(argv_of(query, platform, devices[0]))
        reading = READERS[query](Answer(command, text, status=status, at=1.0))
        readings.update({(query, device): reading for device in devices})
    return {name: NodeFacts(name, Connection(host=True, ranks=True), readings) for name in cluster.topology.nodes}


LINES = st.sampled_from(
    [
        b"link status: UP",
        b"net health status: Success",
        b"ipaddr:10.0.0.1",
        b"netmask:255.255.255.0",
        b"vnic link status: UP",
        b"vnic ipaddr: 192.168.2.199",
        b"dev_id:0, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days",
        b"SDID : 4194304",
        b"Super Pod ID : 0",
        b"Super Pod Size : 384",
        b"Server Index : 1",
        b"Health Status : OK",
        b"hccn_tool is busy",
        b"\xff\x00\x1b[31m",
    ]
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    platform=st.sampled_from(["a2", "a3"]),
    text=st.one_of(st.binary(max_size=60), st.lists(LINES, max_size=6).map(b"\n".join)),
    status=st.sampled_from([0, 1, 124]),
)
def test_no_answer_makes_a_check_stumble(tmp_path: Path, platform: Platform, text: bytes, status: int) -> None:
    facts = answers(tmp_path, platform, text, status)
    cluster = Cluster(tmp_path, platform=platform)
    for one in registered():
        if platform not in one.platforms:
            continue
        if one.scope == "cluster":
            found = list(one.body(Survey(one, cluster.topology, cluster.plan, facts, 1.0)))
        else:
            nodes = cluster.topology.nodes
            found = [
                result
                for name, known in facts.items()
                for result in one.body(NodeView(one, cluster.topology, cluster.plan, nodes[name], known, 1.0))
            ]
        assert all(result.check == one.id for result in found)
        assert found or one.id == "ping"
        if status == 124 and one.needs and all(need == CONF or probe_of(need) is None for need in one.needs):
            assert not any(result.outcome in (Outcome.PASS, Outcome.FAIL) for result in found), one.id
