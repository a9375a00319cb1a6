"""Container, network, capacity: what is said of which node, what against what, and when nothing is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdtui.fleet.preflight.facts import Connection
from pdtui.fleet.preflight.outcome import Outcome
from pdtui.readings.answer import Answer
from tests.preflight.placed import GB, INSPECTED, NOW, Placed

FAIL, WARN, UNKNOWN, PASS, NA, NOT_RUN = (
    Outcome.FAIL,
    Outcome.WARN,
    Outcome.UNKNOWN,
    Outcome.PASS,
    Outcome.NA,
    Outcome.NOT_RUN,
)

OF_PART = {
    "shm": "shm",
    "devices": "devices",
    "nic": "addresses",
    "host-ip": "variables",
    "model": "model",
    "cann": "cann",
    "vllm": "packages",
    "vllm-ascend": "packages",
    "mooncake": "packages",
    "mooncake-import": "import",
    "proxy-env": "variables",
    "disk": "disk",
    "ulimit": "limits",
    "ephemeral-ports": "ports",
}
"""Check -> the part of the script's answer that it looks at."""
ALL = [*OF_PART, "container", "host-network", "ports", "reach"]


@pytest.mark.parametrize("check", ALL)
def test_where_all_is_well_each_check_passes(check: str) -> None:
    results = Placed().run(check)
    assert {result.outcome for result in results} == {PASS}
    assert all(result.summary for result in results)


def test_a_node_without_ranks_is_asked_what_concerns_it_and_no_more() -> None:
    node4 = "  node4: {host: 192.0.0.4, nic: eth0}\n"
    nodes = Placed(text={node4: f"{node4}  node5: {{host: 192.0.0.5, nic: eth0}}\n", "node: node1": "node: node5"})
    found = {check: [one for one in nodes.run(check) if one.subject == "node5"] for check in ALL}
    assert {check for check, ones in found.items() if ones and ones[0].outcome is NA} == {
        "devices",
        "host-ip",
        "mooncake-import",
    }
    assert not [one for ones in found.values() for one in ones if one.outcome not in (PASS, NA)]
    assert nodes.run("model")[0].summary.startswith("equal on 4 nodes")


@pytest.mark.parametrize(("check", "part"), OF_PART.items())
def test_what_hangs_is_said_to_hang_on_that_node_only(check: str, part: str) -> None:
    nodes = Placed()
    nodes.hang(part, "node3")
    found = nodes.bad(check)
    assert found
    assert {(result.subject, result.outcome) for result in found} == {("node3", UNKNOWN)}
    assert all("hangs: no answer within 8 s" in result.summary and result.remedy for result in found)


@pytest.mark.parametrize("check", OF_PART)
def test_an_answer_that_nobody_can_read_is_neither_good_nor_bad(check: str) -> None:
    nodes = Placed()
    nodes.said["node2"][OF_PART[check]] = {"total": "much"}
    assert {(one.subject, one.outcome) for one in nodes.bad(check)} == {("node2", UNKNOWN)}


@pytest.mark.parametrize("check", OF_PART)
def test_a_shell_that_waits_is_unknown_and_one_that_fails_is_a_failure_of_vllm(check: str) -> None:
    nodes = Placed()
    nodes.answers["node2"] = Answer(
        "bash -ic", timed_out=True, error="no answer within 40 s: ~/.bashrc waits", at=NOW
    )
    for found in nodes.bad(check):
        assert (found.subject, found.outcome) == ("node2", UNKNOWN)
        assert "bash -ic" in found.remedy
    words = b"pdtui: cannot read /opt/set_env.sh (runtime.setup of the topology file)"
    nodes.answers["node2"] = Answer("bash -ic", stderr=words, status=1, at=NOW)
    for found in nodes.bad(check):
        assert found.subject == "node2"
        if check == "vllm":
            assert found.outcome is FAIL
            assert "cannot read /opt/set_env.sh" in found.summary
        else:
            assert (found.outcome, found.because) == (
                NOT_RUN,
                "the environment that ranks start from cannot be made (see vllm)",
            )


@pytest.mark.parametrize("check", ["shm", "nic", "disk", "ports", "vllm"])
def test_behind_a_container_that_is_not_reached_nothing_is_judged(check: str) -> None:
    nodes = Placed()
    nodes.connections["node2"] = replace(nodes.connections["node2"], ranks=False)
    assert "node2" not in {result.subject for result in nodes.run(check)}


# ---- the container


def inspected(node: Placed, name: str = "node1", **changes: Any) -> None:
    node.inspected[name] = Answer("docker inspect", json.dumps([{**INSPECTED, **changes}]).encode(), at=NOW)


def test_a_container_that_is_not_reached_fails_with_the_engines_words_and_its_state() -> None:
    nodes = Placed()
    nodes.connections["node1"] = Connection(
        host=True,
        error="container vllm-ascend is not running",
        kind="no_container",
        remedy="start it: docker start",
    )
    inspected(nodes, State={"Status": "exited", "Running": False})
    found = nodes.one("container")
    assert found.outcome is FAIL
    assert found.summary == "container vllm-ascend is not running (its state: exited)"
    assert found.remedy == "start it: docker start"


def test_a_container_whose_engine_does_not_answer_runs_all_the_same() -> None:
    nodes = Placed()
    nodes.inspected["node1"] = Answer("docker inspect", timed_out=True, error="no answer from docker within 10 s")
    assert not nodes.bad("container")
    found = nodes.one("host-network")
    assert found.outcome is UNKNOWN
    assert "hangs: no answer from docker" in found.summary


def test_a_state_folder_that_is_no_mount_goes_with_the_container() -> None:
    nodes = Placed()
    inspected(nodes, Mounts=[{"Source": "/mnt", "Destination": "/mnt"}])
    found = nodes.one("container")
    assert found.outcome is WARN
    assert "/var/lib/pdtui is no mount of the host" in found.summary
    assert "-v /var/lib/pdtui:/var/lib/pdtui" in found.remedy


def test_a_container_behind_a_bridge_fails() -> None:
    nodes = Placed()
    inspected(nodes, "node4", HostConfig={"NetworkMode": "bridge"})
    found = nodes.one("host-network")
    assert (found.subject, found.outcome) == ("node4", FAIL)
    assert "network bridge: ranks cannot bind 192.0.0.4" in found.summary
    assert "--net=host" in found.remedy
    inspected(nodes, "node4", HostConfig={})
    assert nodes.one("host-network").outcome is UNKNOWN


def test_the_environment_of_a_container_is_not_shown() -> None:
    for result in Placed().run("container"):
        assert "very-secret" not in str(result)
        assert "/var/lib/pdtui" in result.evidence[0].raw


@pytest.mark.parametrize("check", ["container", "host-network"])
def test_without_a_container_its_checks_make_no_sense(check: str) -> None:
    nodes = Placed("cpu-1p1d.yaml")
    assert {result.outcome for result in nodes.run(check)} == {NA}


def test_shared_memory_of_docker_fails_and_a_full_one_is_told() -> None:
    nodes = Placed()
    nodes.part("shm").update(total=64 << 20, free=64 << 20)
    nodes.part("shm", "node2").update(free=9 << 20)
    nodes.fail("shm", "/dev/shm: No such file or directory", "missing", "node3")
    small, full, none = nodes.bad("shm")
    assert (small.outcome, small.remedy[:40]) == (FAIL, "create vllm-ascend anew with --shm-size=")
    assert small.summary.startswith("shared memory 64 MB, 64 MB free")
    assert (full.outcome, full.summary) == (WARN, "shared memory 2.0 GB, 9.0 MB free: nearly full")
    assert none.outcome is FAIL


def test_device_files_that_are_missing_or_closed_are_named() -> None:
    nodes = Placed()
    nodes.part("devices")["npus"] = [n for n in range(16) if n not in (3, 9)]
    nodes.part("devices", "node2").update(management=["davinci_manager"], closed=[7])
    nodes.part("devices", "node3").update(driver="")
    nodes.part("devices", "node4").update(npus=list(range(4, 20)))
    missing, files, closed, driver, renumbered = nodes.bad("devices")
    assert missing.summary == "/dev/davinci3, 9 are missing; there are 0-2, 4-8, 10-15"
    assert files.summary == "missing in /dev: devmm_svm, hisi_hdc"
    assert "--device /dev/devmm_svm --device /dev/hisi_hdc" in files.remedy
    assert "/dev/davinci7 may not be opened" in closed.summary
    assert driver.outcome is WARN
    assert "libascend_hal.so" in driver.summary
    assert renumbered.outcome is WARN
    assert "ids are counted anew" in renumbered.summary


# ---- addresses and variables


def set_addresses(*interfaces: list[Any]) -> Callable[[Placed], None]:
    def change(nodes: Placed) -> None:
        nodes.said["node3"]["addresses"] = list(interfaces)

    return change


def set_variables(**values: str | None) -> Callable[[Placed], None]:
    def change(nodes: Placed) -> None:
        variables = nodes.part("variables", "node3")["variables"]
        for name, value in values.items():
            if value is None:
                del variables[name]
            else:
                variables[name] = value

    return change


NIC = [
    (
        set_addresses(["eth0", True, ["10.1.1.3/24"]], ["bond0", True, ["192.0.0.3/24"]]),
        FAIL,
        "192.0.0.3 is on bond0; eth0, which the file names, has 10.1.1.3",
        "set nic: bond0 for node3",
    ),
    (
        set_addresses(["bond0", True, ["192.0.0.3/24"]]),
        FAIL,
        "192.0.0.3 is on bond0; eth0, which the file names, does not exist",
        "set nic: bond0",
    ),
    (
        set_addresses(["lo", True, ["127.0.0.1/8"]], ["eth0", True, ["192.0.0.33/24"]]),
        FAIL,
        "no interface has 192.0.0.3; there are: eth0 192.0.0.33",
        "mend address of node3",
    ),
    (set_addresses(["eth0", False, ["192.0.0.3/24"]]), FAIL, "eth0 has 192.0.0.3, but is down", "cable"),
    (
        set_variables(GLOO_SOCKET_IFNAME="eth9"),
        FAIL,
        "GLOO_SOCKET_IFNAME=eth9 does not exist; 192.0.0.3 is on eth0",
        "leave GLOO_SOCKET_IFNAME out",
    ),
    (
        set_variables(GLOO_SOCKET_IFNAME="eth"),  # The beginning of a name is one for HCCL alone.
        FAIL,
        "GLOO_SOCKET_IFNAME=eth does not exist; 192.0.0.3 is on eth0",
        "set it to eth0",
    ),
    (set_variables(HCCL_SOCKET_IFNAME="=eth"), FAIL, "HCCL_SOCKET_IFNAME==eth does not exist", "set it to eth0"),
    (set_variables(TP_SOCKET_IFNAME="lo"), FAIL, "TP_SOCKET_IFNAME=lo has 127.0.0.1, ::1", "set it to eth0"),
    (set_variables(HCCL_IF_IP="192.0.0.4"), FAIL, "HCCL_IF_IP=192.0.0.4 is no address of this node", "is derived"),
]


@pytest.mark.parametrize(("change", "outcome", "summary", "remedy"), NIC, ids=[row[2] for row in NIC])
def test_an_interface_that_is_not_the_one_of_the_file(
    change: Callable[[Placed], None], outcome: Outcome, summary: str, remedy: str
) -> None:
    nodes = Placed()
    change(nodes)
    found = nodes.one("nic")
    assert (found.subject, found.outcome) == ("node3", outcome)
    assert summary in found.summary
    assert remedy in found.remedy


@pytest.mark.parametrize("value", ["=eth0", "eth", "^docker0", "eth0:0", "ib0,eth0"])
def test_what_hccl_understands_as_the_interface_is_no_trouble(value: str) -> None:
    nodes = Placed()
    set_variables(HCCL_SOCKET_IFNAME=value)(nodes)
    assert not nodes.bad("nic")


HOST_IP = [
    ({"VLLM_HOST_IP": "192.0.0.4"}, FAIL, "VLLM_HOST_IP=192.0.0.4, the node's address is 192.0.0.3; no interface"),
    ({"VLLM_HOST_IP": "10.1.1.3"}, WARN, "10.1.1.3 is on ib0: see that peers reach it"),
    ({"VLLM_HOST_IP": None}, FAIL, "is not set, and vLLM would tell 10.9.9.9 in place of 192.0.0.3"),
]


@pytest.mark.parametrize(("variables", "outcome", "summary"), HOST_IP, ids=[row[2] for row in HOST_IP])
def test_the_address_that_vllm_tells(variables: dict[str, str | None], outcome: Outcome, summary: str) -> None:
    nodes = Placed()
    nodes.said["node3"]["addresses"].append(["ib0", True, ["10.1.1.3/24"]])
    set_variables(**variables)(nodes)
    found = nodes.one("host-ip")
    assert (found.subject, found.outcome) == ("node3", outcome)
    assert summary in found.summary
    assert "VLLM_HOST_IP out of env" in found.remedy


def test_the_default_routes_address_will_do_and_none_at_all_will_not() -> None:
    nodes = Placed()
    set_variables(VLLM_HOST_IP=None)(nodes)
    nodes.part("variables", "node3")["default_ip"] = "192.0.0.3"
    assert not nodes.bad("host-ip")
    nodes.part("variables", "node3")["default_ip"] = ""
    assert "vLLM would tell 0.0.0.0" in nodes.one("host-ip").summary


PROXIES = [
    ({}, None),
    ({"https_proxy": "http://corp:3128"}, None),
    ({"http_proxy": "http://corp:3128"}, "http_proxy=http://corp:3128, and no_proxy is not set"),
    ({"ALL_PROXY": "socks5://corp", "no_proxy": "localhost"}, "no_proxy lacks 192.0.0.1, 192.0.0.2 and 2 more"),
    ({"http_proxy": "x", "no_proxy": "*"}, None),
    ({"http_proxy": "x", "no_proxy": "localhost, 192.0.0.1,192.0.0.2,192.0.0.3,192.0.0.4"}, None),
    ({"http_proxy": "x", "NO_PROXY": "192.0.0.0/24"}, None),
    ({"http_proxy": "x", "no_proxy": "192.0.0.1,192.0.0.2,192.0.0.3"}, "no_proxy lacks 192.0.0.4"),
    ({"http_proxy": "x", "no_proxy": "192.0.0"}, "no_proxy lacks"),
]


@pytest.mark.parametrize(("proxies", "summary"), PROXIES)
def test_a_proxy_between_the_nodes(proxies: dict[str, str], summary: str | None) -> None:
    nodes = Placed()
    nodes.part("variables", "node2")["proxies"] = proxies
    if summary is None:
        assert not nodes.bad("proxy-env")
        return
    found = nodes.one("proxy-env")
    assert (found.subject, found.outcome) == ("node2", WARN)
    assert summary in found.summary
    assert 'no_proxy: "localhost,192.0.0.1,192.0.0.2,192.0.0.3,192.0.0.4"' in found.remedy


def test_in_the_layerwise_flow_a_proxy_before_the_metaserver_is_a_failure() -> None:
    nodes = Placed("deepseek-r1-2p1d-layerwise.yaml")
    nodes.part("variables", "node3")["proxies"] = {"http_proxy": "x", "no_proxy": "192.0.0.2,192.0.0.3,192.0.0.4"}
    found = nodes.one("proxy-env")
    assert (found.subject, found.outcome) == ("node3", FAIL)


def test_planned_ports_that_any_connection_may_take_are_to_be_reserved_with_those_that_are() -> None:
    nodes = Placed()
    nodes.part("ports").update(range=[32768, 60999], reserved="36000-36007,50000")
    found = nodes.one("ephemeral-ports")
    assert (found.subject, found.outcome) == ("node1", WARN)
    assert found.summary.startswith("36008-36015, 60000-60016 lie in 32768-60999")
    assert "net.ipv4.ip_local_reserved_ports=36000-36015,50000,60000-60016 " in found.remedy
    nodes.part("ports").update(reserved="36000-36015,60000-60016")
    assert not nodes.bad("ephemeral-ports")
    nodes.everywhere("ports", range=[32768, 60999], reserved="")
    found = nodes.one("ephemeral-ports")
    assert found.subject == "cluster"
    assert found.summary.startswith("36000-36015, 36100-36115, 36200-36231, 60000-60016 lie in")


def test_a_planned_port_that_a_connection_holds_now_is_named() -> None:
    nodes = Placed()
    nodes.part("ports", "node3").update(taken=[36201, 36202])
    found = nodes.one("ephemeral-ports")
    assert (found.subject, found.outcome) == ("node3", WARN)
    assert found.summary.startswith("outgoing connections hold 36201-36202 now")


# ---- room and limits

DISK = [
    ({"free": GB // 2}, FAIL, "512 MB of 900 GB free on / (state_dir, /var/lib/pdtui): logs of 16 ranks fill it"),
    ({"free": 3 * GB}, WARN, "5.0 GB may be needed"),
    ({"files_free": 400}, FAIL, "400 of 1000000 files (inodes) left on / (state_dir)"),
    ({"files_free": 40_000}, WARN, "40000 of 1000000 files (inodes) left"),
    ({"writable": False}, FAIL, "/var/lib/pdtui may not be written by this user"),
    ({"type": "nfs4"}, WARN, "/var/lib/pdtui is on nfs4"),
]


@pytest.mark.parametrize(("change", "outcome", "summary"), DISK, ids=[row[2] for row in DISK])
def test_a_disk_that_will_not_do(change: dict[str, Any], outcome: Outcome, summary: str) -> None:
    nodes = Placed()
    nodes.part("disk", "node3").update(change)
    found = nodes.one("disk")
    assert (found.subject, found.outcome) == ("node3", outcome)
    assert summary in found.summary


def test_each_file_system_is_told_once_and_a_dead_one_hides_no_other() -> None:
    nodes = Placed()
    nodes.said["node3"]["disk temporary"] = {**nodes.part("disk"), "device": 2, "free": 9 << 20, "mount": "/tmp"}
    nodes.hang("disk home", "node3")
    full, dead = nodes.bad("disk")
    assert (full.outcome, full.subject) == (WARN, "node3")
    assert full.summary.startswith("9.0 MB of 900 GB free on /tmp (temporary")
    assert dead.outcome is UNKNOWN
    assert "disk of home: hangs" in dead.summary


def test_limits_that_are_too_low() -> None:
    nodes = Placed()
    nodes.part("limits").update(nofile=[1024, 4096])
    nodes.part("limits", "node2").update(pids=2048)
    nodes.part("limits", "node3").update(nproc=[4096, 4096], uid=1000)
    nodes.part("limits", "node4").update(nproc=[4096, 4096], nofile=[1024, 1048576])  # root; raised by vLLM
    files, group, processes = nodes.bad("ulimit")
    assert {files.outcome, group.outcome, processes.outcome} == {WARN}
    assert files.summary.startswith("open files 1024, at most 4096: vLLM wants 65535")
    assert "--ulimit nofile=65536:65536" in files.remedy
    assert "allows 2048 processes and threads; 16 NPUs need about 8192" in group.summary
    assert "--pids-limit 16384" in group.remedy
    assert processes.subject == "node3"
    (passed,) = [one for one in nodes.run("ulimit") if one.subject == "node4" and one.outcome is PASS]
    assert passed.summary == "open files 1048576, processes 4096, locked memory 64 KB"


# ---- a script that gives no answer


def test_a_container_that_is_paused_is_a_failure_though_its_agent_was_reached() -> None:
    nodes = Placed()
    inspected(nodes, State={"Status": "paused", "Running": True, "Paused": True})
    found = nodes.one("container")
    assert (found.subject, found.outcome) == ("node1", FAIL)
    assert "paused" in found.summary
    assert found.remedy == "docker unpause vllm-ascend"
